//! Variances, in two passes.

use super::reduce::{count, kept, mean_over, over};
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
        |cx| moments(cx).0,
    )
    .consts(&["correction"])
    .eg(&[
        "f32[2,3]",
        "f32[2,3,4] (0,-1) correction=0 keepdim=True",
        "bf16[2,30] (1)",
        "f64[4] correction=1.5",
        "c64[2,3] (1)",
        "f32[] correction=0",
        "f32[2,1] (1)",
        "f32[0]",
    ]),
    one(
        "std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
        |cx| moments(cx).0.sqrt(),
    )
    .consts(&["correction"])
    .eg(&["f32[2,3]", "f32[2,3,4] (0,-1) correction=0 keepdim=True", "f16[2,30] (-1)", "f32[2,3] () correction=2"]),
    many(
        "var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        |cx| {
            let (var, mean) = moments(cx);
            vec![var, mean]
        },
    )
    .consts(&["correction"])
    .eg(&["f32[2,3]", "f32[2,3,4] (0,-1) correction=0 keepdim=True", "c64[2,3] (0)"]),
    many(
        "std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        |cx| {
            let (var, mean) = moments(cx);
            vec![var.sqrt(), mean]
        },
    )
    .consts(&["correction"])
    .eg(&["f32[2,3]", "bf16[2,30] (-1) keepdim=True"]),
];

/// Σ|x − mean|² over `dims`, and the mean with `dims` kept as 1.
pub(super) fn deviations<'b>(x: V<'b>, dims: &[usize]) -> (V<'b>, V<'b>) {
    let mean = kept(x, dims, mean_over);
    let d = x - mean;
    let sq = if x.dtype().is_complex() { d.real().square() + d.imag().square() } else { d.square() };
    (sq.sum(dims), mean)
}

/// (variance, mean); dividing by no degrees of freedom gives NaN or ∞.
fn moments<'b>(cx: &Cx<'b>) -> (V<'b>, V<'b>) {
    let x = cx.t("self");
    let x = x.convert(x.dtype().opmath());
    let dims = over(cx, x);
    let correction = cx.opt_number("correction").map_or(1.0, |c| c.as_f64());
    let (sq, mean) = deviations(x, &dims);
    let var = sq / (count(x, &dims) as f64 - correction).max(0.0);
    let shape = cx.out(0).dims;
    (var.reshape(&shape), mean.reshape(&shape))
}
