//! p-norms and what is made of them: distances and renormalization.

use super::reduce::{every, kept, over};
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("norm.Scalar(Tensor self, Scalar p=2) -> Tensor", |cx| norm(cx, "p"))
        .consts(&["p"])
        .eg(&["f32[2,3]", "f32[2,3] 1", "bf16[2,3] 3", "c64[3]"]),
    one("norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor", |cx| norm(cx, "p"))
        .consts(&["p"])
        .eg(&["f32[2,3] 2 (1)", "f32[2,3,4] 1 (0,-1) True", "f32[2,3] - (0)", "f16[2,3] 2.5 (1)"]),
    one("norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor", |cx| norm(cx, "p"))
        .consts(&["p"])
        .eg(&["f32[2,3] 2 dtype=f64", "bf16[2,3] 2 dtype=f32"]),
    one(
        "norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor",
        |cx| norm(cx, "p"),
    )
    .consts(&["p"])
    .eg(&["f32[2,3] 2 (1) False dtype=f64", "bf16[2,3] 1 (-1) True dtype=f32"]),
    one(
        "linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |cx| norm(cx, "ord"),
    )
    .consts(&["ord"])
    .eg(&[
        "f32[2,3]",
        "f32[2,3] 1 (1)",
        "f32[2,3] 0 (-1)",
        "f32[2,3,4] 3.5 (0,2) True",
        "f32[2,3] inf (1)",
        "f32[2,3] -inf",
        "c64[2,3] 2 (0)",
        "bf16[2,30] 2 (1)",
        "f32[2,3] 2 (1) dtype=f64",
        "f32[] 2",
        "f32[0,3] 2 (0)",
        "f32[2,3]! inf (1)",
    ]),
    one("dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", |cx| {
        let d = cx.common_dtype(&["self", "other"]).opmath();
        let x = cx.t_as("self", d) - cx.t_as("other", d);
        p_norm(x, cx.number("p").as_f64(), &every(x))
    })
    .consts(&["p"])
    .eg(&["f32[2,3] f32[2,3]", "f32[2,3] f32[3] 1", "bf16[4] bf16[4] 3"]),
    one("renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor", |cx| {
        let x = cx.t_as("self", cx.out_dtype().opmath());
        let keep = cx.dim("dim", x.rank());
        let dims: Vec<usize> = (0..x.rank()).filter(|&d| d != keep).collect();
        let p = cx.number("p").as_f64();
        let n = kept(x, &dims, |x, d| p_norm(x, p, d));
        let most = cx.scalar("maxnorm", n.dtype());
        let scale = n.gt(most).select(most / (n + 1e-7), n.full_like(1.0));
        x * scale.convert(x.dtype())
    })
    .consts(&["p"])
    .eg(&["f32[2,3] 2 0 1.0", "f32[2,3,4] 1 -1 0.5", "bf16[2,3] 2 1 1"]),
    one("_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor", |cx| {
        let (a, b) = pairs(cx);
        let d = a - b;
        p_norm(d, cx.float("p"), &[d.rank() - 1]).reshape(&cx.out(0).dims)
    })
    .eg(&[
        "f32[4,3] f32[5,3] 2.0 -",
        "f32[2,4,3] f32[2,5,3] 1.0 -",
        "f64[4,3] f64[5,3] 3.0 -",
        "f32[4,3] f32[5,3] inf -",
        "f32[4,3] f32[5,3] 0.0 -",
    ]),
    one("_cdist_backward(Tensor grad_output, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor", cdist_backward)
        .eg(&[
            "f32[4,5] f32[4,3] f32[5,3] 2.0 f32[4,5]+",
            "f32[4,5] f32[4,3] f32[5,3] 1.0 f32[4,5]+",
            "f32[2,4,5] f32[2,4,3] f32[2,5,3] 3.0 f32[2,4,5]+",
            "f32[4,5] f32[4,3] f32[5,3] 1.5 f32[4,5]+",
        ]),
    many("_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)", |cx| {
        let v = cx.t_as("v", cx.out_dtype().opmath());
        let keep = cx.dim("dim", v.rank());
        let dims: Vec<usize> = (0..v.rank()).filter(|&d| d != keep).collect();
        let n = kept(v, &dims, |x, d| p_norm(x, 2.0, d));
        vec![v * (cx.t_as("g", v.dtype()) / n), n.reshape(&cx.out(1).dims)]
    })
    .eg(&["f32[4,3] f32[4,1]", "f32[4,3,2] f32[1,1,2] 2"]),
    many(
        "_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)",
        |cx| {
            let f = cx.out_dtype().opmath();
            let (dw, v, g) = (cx.t_as("grad_w", f), cx.t_as("saved_v", f), cx.t_as("saved_g", f));
            let n = cx.t_as("saved_norms", f).reshape(&g.dims());
            let keep = cx.dim("dim", v.rank());
            let dims: Vec<usize> = (0..v.rank()).filter(|&d| d != keep).collect();
            let along = kept(dw * v, &dims, V::sum);
            vec![(g / n) * (dw - v * (along / n.square())), along / n]
        },
    )
    .eg(&["f32[4,3] f32[4,3] f32[4,1] f32[4,1]+ 0", "f32[4,3,2] f32[4,3,2] f32[1,1,2] f32[1,1,2]+ 2"]),
];

/// (Σ|x|ᵖ)^(1/p) over `dims`, with the limits for 0 (how many are not zero) and ±∞ (the extremes of |x|). Real result.
pub(super) fn p_norm<'b>(x: V<'b>, p: f64, dims: &[usize]) -> V<'b> {
    let a = x.abs();
    match p {
        0.0 => a.ne(0.0).convert(a.dtype()).sum(dims),
        1.0 => a.sum(dims),
        2.0 if x.dtype().is_complex() => (x.real().square() + x.imag().square()).sum(dims).sqrt(),
        2.0 if dims.is_empty() => a,
        2.0 => x.square().sum(dims).sqrt(),
        p if p == f64::INFINITY => a.reduce(a.lit(0.0), dims, |a, b| a.max(b)),
        p if p == f64::NEG_INFINITY => a.min_over(dims),
        p => a.pow(p).sum(dims).pow(1.0 / p),
    }
}

/// The norm of `self` in the result's precision; a complex `self` stays complex until its absolute value is taken.
fn norm<'b>(cx: &Cx<'b>, p: &str) -> V<'b> {
    let x = cx.t("self");
    let d = cx.out_dtype();
    let x = if x.dtype().is_complex() { x.convert(d.complex()) } else { x.convert(d).convert(d.opmath()) };
    let p = cx.opt_number(p).map_or(2.0, |p| p.as_f64());
    p_norm(x, p, &over(cx, x)).reshape(&cx.out(0).dims)
}

/// Rows of `x1` (…, P, 1, M) against rows of `x2` (…, 1, R, M).
fn pairs<'b>(cx: &Cx<'b>) -> (V<'b>, V<'b>) {
    let d: DType = cx.out_dtype().opmath();
    let (a, b) = (cx.t_as("x1", d), cx.t_as("x2", d));
    (a.unsqueeze(a.rank() - 1), b.unsqueeze(b.rank() - 2))
}

fn cdist_backward<'b>(cx: &Cx<'b>) -> V<'b> {
    let (a, b) = pairs(cx);
    let d = a - b;
    let (g, n) = (cx.t_as("grad_output", d.dtype()), cx.t_as("cdist", d.dtype()));
    distance_backward(d, g.unsqueeze(g.rank()), n.unsqueeze(n.rank()), cx.float("p"))
}

/// What the first of each pair gets, summed over the second: of differences (…, P, R, M), gradients and distances (…, P, R, 1).
pub(super) fn distance_backward<'b>(d: V<'b>, g: V<'b>, n: V<'b>, p: f64) -> V<'b> {
    let each = match p {
        0.0 => d.zeros_like(),
        1.0 => d.sign() * g,
        2.0 => d * (g / n),
        p if p == f64::INFINITY => d.abs().eq(n).select(d.sign() * g, d.zeros_like()),
        // |0|^(p − 1) is ∞ below 1
        p if p < 1.0 => d.eq(0.0).select(d.zeros_like(), d.sign() * d.abs().pow(p - 1.0) * (g / n.pow(p - 1.0))),
        p => d.sign() * d.abs().pow(p - 1.0) * (g / n.pow(p - 1.0)),
    };
    let each = n.eq(0.0).select(d.zeros_like(), each);
    each.sum(&[d.rank() - 2])
}
