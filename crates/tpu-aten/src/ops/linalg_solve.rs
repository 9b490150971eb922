//! Triangular systems and the Cholesky factorization.

use super::linalg_parts::{
    Triangle, batched, block, checks_errors, cols, eye_like, flat, grown, h, masked, mm, panel_width, repeat, rows, t,
    with_block,
};
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
        |cx| {
            let (a, b) = batched(cx.t("self"), cx.t("B"));
            let a = Triangle { a, lower: !cx.flag("upper"), unit: cx.flag("unitriangular") };
            if cx.flag("left") { a.solve(b) } else { t(a.t().solve(t(b))) }
        },
    )
    .eg(&[
        "f32[3,3]+ f32[3,2] upper=True",
        "f32[3,3]+ f32[3,2] upper=False",
        "f64[2,3,3]+ f64[4,3] upper=True left=False",
        "f32[3,3] f32[5,3,2] upper=False unitriangular=True",
        "c64[2,2] c64[2,2] upper=True",
        "f32[0,0] f32[0,2] upper=True",
    ]),
    many(
        "triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> \
         (Tensor solution, Tensor cloned_coefficient)",
        |cx| {
            let (a, b) = batched(cx.t("A"), cx.t("self"));
            let used = Triangle { a, lower: !cx.flag("upper"), unit: cx.flag("unitriangular") };
            let x = if cx.flag("transpose") { used.t().solve(b) } else { used.solve(b) };
            vec![x, a]
        },
    )
    .eg(&["f32[3,2] f32[3,3]+", "f32[3,2] f32[3,3]+ True True", "f64[2,3,2] f64[3,3]+ False"]),
    many("linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)", |cx| {
        let x = cx.t("self");
        let info = cx.out(1);
        if x.numel() == 0 {
            return vec![x, cx.b.zeros(info.dtype, &info.dims)];
        }
        let upper = cx.flag("upper");
        let (l, bad) = cholesky(flat(if upper { h(x) } else { x }));
        let l = l.reshape(&x.dims());
        vec![if upper { h(l) } else { l }, bad.reshape(&info.dims)]
    })
    .refuse(checks_errors)
    .eg(&["f32[3,3]^", "f64[2,3,3]^ upper=True", "c64[3,3]^", "f32[70,70]^", "f32[0,0]", "f32[0,2,2]"]),
    one("_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor", |cx| {
        let (b, a) = (cx.t("self"), cx.t("A"));
        cholesky_solve(a, b, cx.flag("upper"))
    })
    .eg(&["f32[3,2] f32[3,3]+ False", "f64[2,3,2] f64[2,3,3]+ True", "c64[3,2] c64[3,3]+ True", "f32[0,2] f32[0,0] False"]),
    one("cholesky_inverse(Tensor self, bool upper=False) -> Tensor", |cx| {
        let a = cx.t("self");
        cholesky_solve(a, eye_like(a), cx.flag("upper"))
    })
    .eg(&["f32[3,3]+", "f64[2,3,3]+ True", "c64[3,3]+", "f32[0,0]"]),
];

/// Solves with the matrix whose Cholesky factor `a` is.
fn cholesky_solve<'b>(a: V<'b>, b: V<'b>, upper: bool) -> V<'b> {
    let a = Triangle { a, lower: !upper, unit: false };
    if upper { a.solve(a.h().solve(b)) } else { a.h().solve(a.solve(b)) }
}

/// The lower factor, and the order of the first leading minor that is not positive (0: none). Reads the lower triangle.
/// Left-looking by panels (Golub & Van Loan, "Matrix Computations", 4.2).
pub(super) fn cholesky(x: V<'_>) -> (V<'_>, V<'_>) {
    let b = x.builder();
    let (batch, n) = (x.dim(0), x.dim(2));
    let width = panel_width(n);
    let panels = (n + width - 1) / width;
    let whole = panels * width;
    // ones below the end of the diagonal keep the added rows apart
    let a = grown(x, whole, whole);
    let a = (rows(a).eq(cols(a)) & rows(a).ge(n)).select(a.full_like(1.0), a);
    let state = [a.zeros_like(), b.zeros(DType::I32, &[batch, 1, 1])];
    let end = repeat(b, panels, &state, |p, s| {
        let at = p * width;
        let zero = at.lit(0);
        let above = block(s[0], at, zero, width, whole);
        let panel = block(a, zero, at, whole, width);
        let panel = if panels == 1 { panel } else { panel - mm(s[0], h(above)) };
        let end = repeat(b, width, &[panel, s[1]], |k, s| {
            let j = at + k;
            let column = block(s[0], zero, k, whole, 1);
            let pivot = block(column, j, zero, 1, 1).real();
            let fails = !pivot.gt(0.0);
            let info = (s[1].eq(0i64) & fails).select(j + 1i64, s[1]);
            // a failed pivot spreads NaN, as its root does
            let root = fails.select(pivot.full_like(f64::NAN), pivot.sqrt()).convert(x.dtype());
            let l = masked(rows(column).ge(j), column / root);
            let across = h(block(l, at, zero, width, 1));
            let c = cols(s[0]);
            let rest = c.gt(k).select(s[0] - l * across, s[0]);
            vec![c.eq(k).select(l, rest), info]
        });
        vec![with_block(s[0], end[0], zero, at), end[1]]
    });
    let l = end[0].slice_dim(1, 0, n).slice_dim(2, 0, n);
    (masked(rows(l).ge(cols(l)), l), end[1])
}
