//! Softmax and its logarithm, forward and backward, computed in opmath precision.

use super::reduce::kept;
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", |cx| over(cx, operand(cx, "self"), softmax))
        .eg(&[
            "f32[2,3] -1 False",
            "f32[2,3,4] 1 False",
            "bf16[2,30] 1 False",
            "f64[3] 0 False",
            "f32[] 0 False",
            "f32[0,3] 1 False",
            "f32[4,30]! 1 False",
        ]),
    one("_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", |cx| {
        over(cx, operand(cx, "self"), |x, d| {
            let x = x - kept(x, &[d], V::max_over);
            x - kept(x.exp(), &[d], V::sum).log()
        })
    })
    .eg(&[
        "f32[2,3] -1 False",
        "f32[2,3,4] 0 False",
        "bf16[2,30] 1 False",
        "f32[] 0 False",
        "f32[0,3] 1 False",
        "f32[4,30]! 1 False",
    ]),
    one("_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor", |cx| {
        let (g, y) = (operand(cx, "grad_output"), operand(cx, "output"));
        over(cx, g, |g, d| {
            let y = y.reshape(&g.dims());
            (g - kept(g * y, &[d], V::sum)) * y
        })
    })
    .eg(&[
        "f32[2,3] f32[2,3]~ -1 f32",
        "bf16[2,3] bf16[2,3]~ 0 bf16",
        "f32[] f32[] 0 f32",
        "f64[2,3,4] f64[2,3,4]~ 1 f64",
    ]),
    one(
        "_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
        |cx| {
            let (g, y) = (operand(cx, "grad_output"), operand(cx, "output"));
            over(cx, g, |g, d| g - y.reshape(&g.dims()).exp() * kept(g, &[d], V::sum))
        },
    )
    .eg(&["f32[2,3] f32[2,3] -1 f32", "bf16[2,3] bf16[2,3] 0 bf16", "f32[] f32[] 0 f32"]),
    one("_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", |cx| {
        over(cx, operand(cx, "self"), |x, d| {
            let nothing = kept(x.eq(f64::NEG_INFINITY), &[d], V::all);
            nothing.select(x.zeros_like(), softmax(x, d))
        })
    })
    .eg(&["f32[2,3] -1", "bf16[2,3] 0", "f32[2,3] 1 dtype=f64", "f32[]  0"]),
    one("_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> Tensor", |cx| {
        let x = operand(cx, "self");
        let d = if cx.opt_int("dim").is_some() { cx.dim("dim", x.rank()) } else { x.rank().saturating_sub(1) };
        let out = mask(cx, x);
        softmax(out.select(x.full_like(f64::NEG_INFINITY), x), d)
    })
    .eg(&[
        "f32[2,3,4,4] bool[2,3,4,4] 3 2",
        "f32[2,3,4,4] bool[4,4] - 0",
        "f32[2,3,4,4] bool[2,4] - 1",
        "f32[2,3] bool[2,3] - 2",
    ]),
    one("_masked_softmax_backward(Tensor grad_output, Tensor output, Tensor mask, int? dim=None) -> Tensor", |cx| {
        let (g, y) = (operand(cx, "grad_output"), operand(cx, "output"));
        let d = if cx.opt_int("dim").is_some() { cx.dim("dim", g.rank()) } else { g.rank().saturating_sub(1) };
        let y = cx.t_as("mask", DType::Bool).reshape(&g.dims()).select(y.zeros_like(), y);
        (g - kept(g * y, &[d], V::sum)) * y
    })
    .eg(&["f32[2,3] f32[2,3]~ bool[2,3]", "f32[2,3] f32[2,3]~ bool[2,3] 0"]),
];

fn operand<'b>(cx: &Cx<'b>, name: &str) -> V<'b> {
    cx.t_as(name, cx.out_dtype().opmath())
}

/// `f` along `dim`; a 0-d tensor counts as one element of one dimension.
fn over<'b>(cx: &Cx<'b>, x: V<'b>, f: impl FnOnce(V<'b>, usize) -> V<'b>) -> V<'b> {
    if x.rank() == 0 { f(x.reshape(&[1]), 0).reshape(&[]) } else { f(x, cx.dim("dim", x.rank())) }
}

/// eˣ / Σ eˣ along `d`, shifted by the maximum.
pub(super) fn softmax<'b>(x: V<'b>, d: usize) -> V<'b> {
    let e = (x - kept(x, &[d], V::max_over)).exp();
    // one division a row, not one an element
    let sum = kept(e, &[d], V::sum);
    e * (sum.full_like(1.0) / sum)
}

/// What is masked out, in `x`'s shape: a mask of type 0 is L × L, of type 1 batch × L, otherwise as `x`.
fn mask<'b>(cx: &Cx<'b>, x: V<'b>) -> V<'b> {
    let m = cx.t_as("mask", DType::Bool);
    if m.dims() == x.dims() || x.rank() != 4 {
        return m.broadcast_to(&x.dims());
    }
    let map = if cx.opt_int("mask_type") == Some(0) { [2, 3] } else { [0, 3] };
    m.broadcast_in_dim(&x.dims(), &map)
}
