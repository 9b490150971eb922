//! Singular values and vectors, and the polar decomposition.

use super::linalg_jacobi::{RUNS, lengths, orthogonal, scale, sorted, unitary};
use super::linalg_parts::{cols, eye_like, flat, grown, h, masked, mm, repeat, rows, t};
use super::linalg_qr::Reflections;
use crate::def::{OpDef, many};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> \
         (Tensor U, Tensor S, Tensor Vh)",
        |cx| {
            let (u, s, vh) = (cx.out(0), cx.out(1), cx.out(2));
            let a = flat(cx.t("A"));
            let empty = |ty: &tpu_hlo::Type| cx.b.zeros(ty.dtype, &ty.dims);
            if a.numel() == 0 {
                return vec![
                    if u.numel() == 0 { empty(&u) } else { eye_like(empty(&u)) },
                    empty(&s),
                    if vh.numel() == 0 { empty(&vh) } else { eye_like(empty(&vh)) },
                ];
            }
            cx.check(
                scale(a).is_finite().all(&[0, 1, 2]),
                ErrorKind::LinAlg,
                "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.",
            );
            let (x, y, z) = svd(a, cx.flag("full_matrices"));
            let y = y.reshape(&s.dims);
            if cx.flag("compute_uv") {
                vec![x.reshape(&u.dims), y, z.reshape(&vh.dims)]
            } else {
                vec![empty(&u), y, empty(&vh)]
            }
        },
    )
    .eg(&[
        "f32[3,3]",
        "f32[5,3]",
        "f64[2,3,5] True",
        "f64[2,5,3] True",
        "c64[4,3]",
        "c128[3,5] True",
        "f32[4,7] False False",
        "f32[1,1]",
        "f32[0,3]",
        "f32[3,0] True",
    ]),
    many("linalg_polar(Tensor A) -> (Tensor U, Tensor H)", |cx| {
        let a = flat(cx.t("A"));
        if a.numel() == 0 {
            return (0..2).map(|k| cx.b.zeros(a.dtype(), &cx.out(k).dims)).collect();
        }
        let (u, s, vh) = svd(a, false);
        let hermitian = mm(h(vh), s.unsqueeze(2).convert(a.dtype()) * vh);
        vec![mm(u, vh).reshape(&cx.out(0).dims), hermitian.reshape(&cx.out(1).dims)]
    })
    .eg(&["f32[3,3]", "f64[2,5,3]", "c64[4,3]"]),
];

/// No more columns than rows, and what R of its QR factorization is, or the matrix itself where it is square.
fn reduced<'b>(a: V<'b>) -> (Option<Reflections<'b>>, V<'b>) {
    if a.dim(1) == a.dim(2) {
        return (None, a);
    }
    let qr = Reflections::of(a);
    let r = qr.r();
    (Some(qr), r)
}

/// U, S, Vʰ of (batch, rows, columns). The conjugate rows of R are made orthogonal: Rʰ·W = V·S, so R = W·S·Vʰ.
fn svd<'b>(a: V<'b>, full: bool) -> (V<'b>, V<'b>, V<'b>) {
    let (m, n) = (a.dim(1), a.dim(2));
    if m < n {
        let (u, s, vh) = svd(h(a), full);
        return (h(vh), s, h(u));
    }
    let by = scale(a);
    let (qr, r) = reduced(a / by.convert(a.dtype()));
    let b = a.builder();
    let start = eye_like(r);
    // vectors are rows here: x over w, w the rotations so far
    let x = repeat(b, RUNS, &[r.zeros_like(), start], |_, s| {
        let w = unitary(s[1]);
        let x = orthogonal(b.concat(&[mm(w, r.conj()), w], 2), n);
        vec![x.slice_dim(2, 0, n), x.slice_dim(2, n, 2 * n)]
    });
    let x = b.concat(&x, 2);
    let (s, x) = sorted(lengths(x, n).neg(), x);
    let s = s.neg();
    let (x, w) = (t(x.slice_dim(2, 0, n)), t(x.slice_dim(2, n, 2 * n)));
    let v = directions(x, s);
    let u = match qr {
        None => w,
        Some(qr) => {
            let k = if full { m } else { n };
            let w = grown(w, m, k);
            let rest = rows(w).eq(cols(w)) & rows(w).ge(n);
            qr.apply(rest.select(w.full_like(1.0), w), false)
        }
    };
    (u, s * by.squeeze(&[2]), h(v))
}

/// The columns of `x`, orthogonal and of lengths `s` in descending order, at length one. Those of no length are replaced, so
/// that all are orthonormal: by the axis that the others cover least, less what they cover of it.
fn directions<'b>(x: V<'b>, s: V<'b>) -> V<'b> {
    let (b, n, d) = (x.builder(), x.dim(2), x.dtype());
    let least = if d.real() == DType::F64 { 1e-140 } else { 1e-15 };
    let long = s.gt(least);
    let s = long.select(s, s.full_like(1.0)).unsqueeze(1);
    let long = long.unsqueeze(1);
    let v = masked(long.broadcast_to(&x.dims()), x / s.convert(d));
    let rank = long.convert(DType::I32).sum(&[1, 2]).min_over(&[0]);
    let square = |v: V<'b>| v.real().square() + v.imag().square();
    let end = b.while_loop(
        &[rank, v],
        |s| s[0].lt(n),
        |s| {
            let v = s[1];
            let covered = square(v).sum(&[2]).unsqueeze(2);
            let r = rows(covered);
            let axis = covered.eq(covered.min_over(&[1]).unsqueeze(1)).select(r, r.full_like(n));
            let axis = r.eq(axis.min_over(&[1]).unsqueeze(1)).convert(d);
            let less = |w: V<'b>| w - mm(v, mm(h(v), w));
            let w = less(less(axis));
            let w = w / square(w).sum(&[1]).sqrt().unsqueeze(1).convert(d);
            let here = cols(v).eq(s[0]) & !long.broadcast_to(&v.dims());
            vec![s[0] + 1i64, here.select(w, v)]
        },
    );
    end[1]
}
