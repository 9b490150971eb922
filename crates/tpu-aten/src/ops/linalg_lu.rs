//! LU factorization with partial pivoting, and what is made of it.

use super::linalg_parts::{
    Triangle, batched, block, checks_errors, cols, corner, diagonal, eye_like, flat, grown, h, masked, mm, panel_width,
    repeat, rows, t, take_rows, with_block,
};
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)",
        |cx| Lu::of(cx.t("A"), cx.flag("pivot")).results(cx, 0, 3),
    )
    .refuse(checks_errors)
    .eg(&["f32[3,3]", "f64[2,5,3]", "c64[3,5]", "f64[70,66]", "f32[0,3]", "f32[2,0,0]"]),
    many("linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)", |cx| {
        Lu::of(cx.t("A"), cx.flag("pivot")).unpacked(cx)
    })
    .eg(&["f32[3,3]", "f64[2,5,3]", "c64[3,5]", "f32[0,3]"]),
    many(
        "lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> \
         (Tensor P, Tensor L, Tensor U)",
        |cx| {
            let lu = Lu::packed(cx.t("LU_data"), cx.t("LU_pivots"));
            lu.check(
                cx,
                "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive.Did you properly pass the result of \
                 lu_factor?",
            );
            lu.unpacked(cx)
        },
    )
    .eg(&[
        "f32[9,9] i32[9]+",
        "f64[2,9,11] i32[2,9]+",
        "c64[11,9] i32[9]+ False",
        "f32[9,9] i32[9]+ True False",
        "f32[3,0] i32[0]",
    ]),
    one(
        "linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor",
        |cx| {
            let lu = Lu::packed(cx.t("LU"), cx.t("pivots"));
            lu.check(
                cx,
                "Pivots given to lu_solve must all be smaller or equal to LU.size(-2). Did you properly pass the result of \
                 lu_factor?",
            );
            lu.solve(cx.t("B"), cx.flag("left"), cx.flag("adjoint"))
        },
    )
    .eg(&[
        "f64[9,9] i32[9]+ f64[9,2]",
        "f64[2,9,9] i32[2,9]+ f64[9,2] adjoint=True",
        "f64[9,9] i32[9]+ f64[2,4,9] left=False",
        "c128[9,9] i32[9]+ c128[4,9] left=False adjoint=True",
        "f32[0,0] i32[0] f32[0,2]",
    ]),
    many(
        "_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> \
         (Tensor result, Tensor LU, Tensor pivots, Tensor info)",
        |cx| {
            let (a, b) = (cx.t("A"), cx.t("B"));
            let (da, db) = (a.dims(), b.dims());
            let n = da.len();
            let b = if db.len() == 1 || db == da[..n - 1] { b.unsqueeze(db.len()) } else { b };
            let lu = Lu::of(a, true);
            let x = lu.solve(b, cx.flag("left"), false);
            [vec![shaped(cx, 0, x)], lu.results(cx, 1, 3)].concat()
        },
    )
    .refuse(checks_errors)
    .eg(&[
        "f32[3,3] f32[3,2]",
        "f64[2,3,3] f64[2,3]",
        "c64[3,3] c64[2,3,2]",
        "f32[2,3,3] f32[4,3] left=False",
        "f32[0,0] f32[0,2]",
    ]),
    many("linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)", |cx| {
        let a = cx.t("A");
        let lu = Lu::of(a, true);
        let x = lu.solve(eye_like(a), true, false);
        vec![shaped(cx, 0, x), shaped(cx, 1, lu.info)]
    })
    .refuse(checks_errors)
    .eg(&["f32[3,3]", "f64[2,3,3]", "c64[3,3]", "f32[0,0]"]),
    many("_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)", |cx| {
        let lu = Lu::of_either(cx);
        let det = diagonal(flat(lu.lu)).prod(&[1]) * lu.sign().convert(lu.lu.dtype());
        [vec![shaped(cx, 0, det)], lu.results(cx, 1, 2)].concat()
    })
    .eg(&["f32[3,3]", "f64[2,3,3]", "c64[3,3]", "f32[0,0]", "f32[1,1]"]),
    many("_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)", |cx| {
        let lu = Lu::of_either(cx);
        let d = diagonal(flat(lu.lu));
        let sign = d.sign().prod(&[1]) * lu.sign().convert(d.dtype());
        [vec![shaped(cx, 0, sign), shaped(cx, 1, d.abs().log().sum(&[1]))], lu.results(cx, 2, 2)].concat()
    })
    .eg(&["f32[3,3]", "f64[2,3,3]", "c64[3,3]", "f32[0,0]"]),
];

/// `v` in the shape of result `k`; a result that wasn't asked for is empty.
fn shaped<'b>(cx: &Cx<'b>, k: usize, v: V<'b>) -> V<'b> {
    let out = cx.out(k);
    if out.numel() == v.numel() { v.reshape(&out.dims) } else { cx.b.zeros(out.dtype, &out.dims) }
}

/// A matrix's factors in LAPACK's packing: a unit lower triangle below the diagonal, the upper one on and above it, row k
/// exchanged with row `pivots[k]` (from 1) in step k.
struct Lu<'b> {
    /// (…, rows, columns), the matrix's own shape.
    lu: V<'b>,
    /// (batch, steps).
    pivots: V<'b>,
    /// (batch, 1, 1): the first zero pivot, from 1.
    info: V<'b>,
    /// (batch, rows): which row of the matrix each row of the factors is.
    order: V<'b>,
}

impl<'b> Lu<'b> {
    /// Right-looking by panels (Golub & Van Loan, "Matrix Computations", 3.4).
    fn of(a: V<'b>, pivot: bool) -> Lu<'b> {
        let (b, dims, a) = (a.builder(), a.dims(), flat(a));
        let (batch, m, n) = (a.dim(0), a.dim(1), a.dim(2));
        let steps = m.min(n);
        let width = panel_width(steps).max(1);
        let panels = if a.numel() == 0 { 0 } else { (steps + width - 1) / width };
        let more = (panels * width - steps).max(0);
        let order = b.iota(DType::I32, &[batch, m + more, 1], 1);
        let pivots = b.zeros(DType::I32, &[batch, 1, steps + more]);
        let state = [grown(a, m + more, n + more), order, pivots, b.zeros(DType::I32, &[batch, 1, 1])];
        let end = repeat(b, panels, &state, |p, s| panel_step(s, p * width, width, steps, pivot));
        Lu {
            lu: corner(end[0], m, n).reshape(&dims),
            pivots: end[2].slice_dim(2, 0, steps).reshape(&[batch, steps]),
            info: end[3],
            order: end[1].slice_dim(1, 0, m).reshape(&[batch, m]),
        }
    }

    /// Of `A`, or of its transpose where PyTorch's derivatives take the factors to be that one's.
    fn of_either(cx: &Cx<'b>) -> Lu<'b> {
        let a = cx.t("A");
        Lu::of(if cx.is_contiguous("A") && !a.dtype().is_complex() { t(a) } else { a }, true)
    }

    /// Factors made earlier.
    fn packed(lu: V<'b>, pivots: V<'b>) -> Lu<'b> {
        let (b, d, r) = (lu.builder(), lu.dims(), lu.rank());
        let (batch, m, steps) = (d[..r - 2].iter().product(), d[r - 2], d[r - 2].min(d[r - 1]));
        let pivots = pivots.convert(DType::I32).reshape(&[batch, steps]);
        let start = b.iota(DType::I32, &[batch, m, 1], 1);
        let order = repeat(b, if batch == 0 { 0 } else { steps }, &[start], |k, s| {
            let p = pivots.dynamic_slice(&[k.lit(0), k], &[batch, 1]).unsqueeze(2) - 1i64;
            vec![exchanged(s[0], k, p).1]
        });
        Lu { lu, pivots, info: b.zeros(DType::I32, &[batch, 1, 1]), order: order[0].reshape(&[batch, m]) }
    }

    /// Raises `message` if a pivot is no row.
    fn check(&self, cx: &Cx<'b>, message: &str) {
        let p = self.pivots;
        let m = self.order.dim(1);
        cx.check((p.ge(1i64) & p.le(m)).all(&[0, 1]), ErrorKind::User, message);
    }

    /// The first `n` of LU, pivots and info, as results `k` and on.
    fn results(&self, cx: &Cx<'b>, k: usize, n: usize) -> Vec<V<'b>> {
        [self.lu, self.pivots, self.info][..n].iter().enumerate().map(|(i, &v)| shaped(cx, k + i, v)).collect()
    }

    /// P, L and U with A = P·L·U, as the call's results.
    fn unpacked(&self, cx: &Cx<'b>) -> Vec<V<'b>> {
        let lu = flat(self.lu);
        let (m, n) = (lu.dim(1), lu.dim(2));
        let (l, u) = (corner(lu, m, m.min(n)), corner(lu, m.min(n), n));
        let p =
            rows(lu.builder().zeros(DType::I32, &[lu.dim(0), m, m])).eq(self.order.unsqueeze(1)).convert(lu.dtype());
        let l = rows(l).gt(cols(l)).select(l, eye_like(l));
        let u = masked(rows(u).le(cols(u)), u);
        [p, l, u].into_iter().enumerate().map(|(k, v)| shaped(cx, k, v)).collect()
    }

    /// (batch): the permutation's sign.
    fn sign(&self) -> V<'b> {
        let at = self.pivots.builder().iota(DType::I32, &self.pivots.dims(), 1);
        self.pivots.ne(at + 1i64).select(at.full_like(-1), at.full_like(1)).prod(&[1])
    }

    /// Solves A·x = b, x·A = b (not `left`), or either with Aᴴ (`adjoint`); batches broadcast.
    fn solve(&self, b: V<'b>, left: bool, adjoint: bool) -> V<'b> {
        if !left {
            return h(self.solve(h(b), true, !adjoint));
        }
        let (lu, b) = batched(self.lu, b);
        if b.numel() == 0 {
            return b;
        }
        let (dims, own, r) = (b.dims(), self.lu.dims(), self.lu.rank());
        let order = self.order.reshape(&own[..r - 1]).broadcast_to(&lu.dims()[..lu.rank() - 1]);
        let (lu, b) = (flat(lu), flat(b));
        let (batch, n) = (lu.dim(0), lu.dim(1));
        let order = order.reshape(&[batch, n]);
        let lower = Triangle { a: lu, lower: true, unit: true };
        let upper = Triangle { a: lu, lower: false, unit: false };
        if !adjoint {
            return upper.solve(lower.solve(take_rows(b, order))).reshape(&dims);
        }
        // back through the permutation: which row of the factors row j is
        let hit = cols(lu.builder().zeros(DType::I32, &[batch, n, n])).eq(order.unsqueeze(2));
        let at = lu.builder().iota(DType::I32, &[batch, n, n], 1);
        take_rows(lower.h().solve(upper.h().solve(b)), masked(hit, at).sum(&[1])).reshape(&dims)
    }
}

/// One panel: `state` is the matrix, the row order (batch, rows, 1), the pivots (batch, 1, steps) and info; the panel starts at
/// `at`; what lies beyond column `steps` is padding.
fn panel_step<'b>(state: &[V<'b>], at: V<'b>, width: i64, steps: i64, pivot: bool) -> Vec<V<'b>> {
    let (a, b, zero) = (state[0], state[0].builder(), at.lit(0));
    let (batch, m, n) = (a.dim(0), a.dim(1), a.dim(2));
    let start = [
        block(a, zero, at, m, width),
        b.iota(DType::I32, &[batch, m, 1], 1),
        b.zeros(DType::I32, &[batch, 1, width]),
        state[3],
    ];
    let end = repeat(b, width, &start, |k, s| {
        let j = at + k;
        let column = block(s[0], zero, k, m, 1);
        let r = rows(column);
        // LAPACK measures complex numbers by the sum of their parts
        let size = if a.dtype().is_complex() { column.real().abs() + column.imag().abs() } else { column.abs() };
        let size = r.ge(j).select(size, size.full_like(-1.0));
        let most = size.max_over(&[1]).unsqueeze(1);
        let first = size.eq(most).select(r, r.full_like(m)).min_over(&[1]).unsqueeze(1);
        let p = if pivot {
            first.lt(m).select(first, j.broadcast_to(&first.dims()))
        } else {
            j.broadcast_to(&first.dims())
        };
        let (row, panel) = exchanged(s[0], j, p);
        let (_, order) = exchanged(s[1], j, p);
        let head = block(row, zero, k, 1, 1);
        let none = head.eq(0.0);
        let column = block(panel, zero, k, m, 1);
        let l = r.gt(j).select(column / none.select(head.full_like(1.0), head), column);
        let c = cols(panel);
        let rest = panel - masked(r.gt(j), l) * masked(cols(row).gt(k), row);
        let pivots = cols(s[2]).eq(k).select(p + 1i64, s[2]);
        let info = (s[3].eq(0i64) & none & j.lt(steps)).select(j + 1i64, s[3]);
        vec![c.eq(k).select(l, rest), order, pivots, info]
    });
    let (panel, order) = (end[0], end[1].reshape(&[batch, m]));
    let pivots = with_block(state[2], end[2], zero, at);
    let all = take_rows(state[1], order);
    if n == width {
        return vec![panel, all, pivots, end[3]];
    }
    let a = with_block(take_rows(a, order), panel, zero, at);
    let after = at + width;
    let right = block(a, at, zero, width, n);
    let u = Triangle { a: block(panel, at, zero, width, width), lower: true, unit: true }.solve(right);
    let beyond = cols(right).ge(after);
    let a = with_block(a, beyond.select(u, right), at, zero);
    let a = if m == width { a } else { a - mm(masked(rows(panel).ge(after), panel), masked(beyond, u)) };
    vec![a, all, pivots, end[3]]
}

/// Row p (batch, 1, 1) by itself, and `x` with rows j (0-d) and p exchanged.
fn exchanged<'b>(x: V<'b>, j: V<'b>, p: V<'b>) -> (V<'b>, V<'b>) {
    let r = rows(x);
    let here = block(x, j, j.lit(0), 1, x.dim(2));
    let there = masked(r.eq(p), x).sum(&[1]).unsqueeze(1);
    (there, r.eq(j).select(there, r.eq(p).select(here, x)))
}
