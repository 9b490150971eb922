//! Eigenvalues and eigenvectors of Hermitian matrices, and their functions.

use super::linalg_jacobi::{RUNS, lengths, orthogonal, scale, sorted, unitary};
use super::linalg_parts::{cols, eye_like, flat, h, masked, mm, repeat, rows, t};
use super::linalg_solve::cholesky;
use crate::def::{OpDef, many, one};
use tpu_base::ErrorKind;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_linalg_eigh(Tensor A, str UPLO=\"L\", bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)",
        |cx| {
            let (values, vectors) = (cx.out(0), cx.out(1));
            let a = flat(cx.t("A"));
            if a.numel() == 0 {
                return vec![cx.b.zeros(values.dtype, &values.dims), cx.b.zeros(vectors.dtype, &vectors.dims)];
            }
            let upper = cx.str("UPLO").is_some_and(|s| s.eq_ignore_ascii_case("u"));
            let a = hermitian(if upper { h(a) } else { a });
            cx.check(
            scale(a).is_finite().all(&[0, 1, 2]),
            ErrorKind::LinAlg,
            "linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned or has too many \
             repeated eigenvalues",
        );
            let (w, v) = eigh(a);
            let v =
                if vectors.numel() == 0 { cx.b.zeros(vectors.dtype, &vectors.dims) } else { v.reshape(&vectors.dims) };
            vec![w.reshape(&values.dims), v]
        },
    )
    .eg(&["f32[3,3]", "f64[2,5,5] 'U'", "c64[4,4]", "c128[3,3] 'U' False", "f32[1,1]", "f32[0,0]"]),
    one("linalg_matrix_sqrth(Tensor self) -> Tensor", |cx| {
        let a = cx.t("self");
        if a.numel() == 0 {
            return a;
        }
        let (w, v) = eigh(hermitian(flat(a)));
        let root = w.max(0.0).sqrt().unsqueeze(1).convert(v.dtype());
        mm(v * root, h(v)).reshape(&a.dims())
    })
    .eg(&["f32[3,3]^", "f64[2,4,4]^", "c64[3,3]^", "f64[3,3]", "f32[0,0]"]),
];

/// The Hermitian matrix with this lower triangle. The diagonal counts as real.
fn hermitian(a: V<'_>) -> V<'_> {
    let (r, c) = (rows(a), cols(a));
    let diagonal = masked(r.eq(c), a.real()).convert(a.dtype());
    let low = masked(r.gt(c), a);
    low + h(low) + diagonal
}

/// Eigenvalues (batch, n), ascending, and eigenvectors as columns. Shifted to be positive, A is L·Lʰ, and rotations that make
/// L's columns orthogonal turn them into eigenvectors (Veselić & Hari, "A note on a one-sided Jacobi algorithm", 1989).
fn eigh<'b>(a: V<'b>) -> (V<'b>, V<'b>) {
    let (d, n) = (a.dtype(), a.dim(2));
    let by = scale(a);
    let a = a / by.convert(d);
    let shifted = |a: V<'b>| a + eye_like(a) * 1.25;
    // vectors are rows here
    let v = repeat(a.builder(), RUNS, &[eye_like(a)], |_, s| {
        let v = unitary(s[0]);
        let turned = mm(mm(v.conj(), a), t(v));
        let (l, _) = cholesky(shifted(turned));
        let x = orthogonal(t(l), n);
        vec![mm(x / lengths(x, n).unsqueeze(2).convert(d), v)]
    })[0];
    // Rayleigh quotients: exact to second order, and free of the shift's rounding
    let w = (v.conj() * mm(v, a.conj())).real().sum(&[2]);
    let (w, v) = sorted(w, v);
    (w * by.squeeze(&[2]), t(v))
}
