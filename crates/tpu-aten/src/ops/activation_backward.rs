//! Derivatives of activation functions.

use super::activation::{CUBIC, TANH_RATE, halves, normal_cdf, softplus};
use crate::cx::Cx;
use crate::def::{OpDef, binary, many, one};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use tpu_base::DType;
use tpu_hlo::V;

const PAIRS: &[&str] =
    &["f32[2,3] f32[2,3]", "f32[19] f32[19]!", "f64[4] f64[4]", "bf16[19] bf16[19]!", "f32[] f32[]", "f32[0] f32[0]"];
const SHRINK: &[&str] =
    &["f32[2,3] f32[2,3] 0.5", "f32[19] f32[19]! 1.5", "f64[4] f64[4] 0.5", "bf16[9] bf16[9] 0.3", "f32[0] f32[0] 0.5"];

pub(crate) static DEFS: &[OpDef] = &[
    binary("sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor", |g, y| {
        let one = y.full_like(1.0);
        g * (one - y).conj() * y.conj()
    })
    .eg(&["f32[2,3] f32[2,3]~", "f64[4] f64[4]~", "bf16[9] bf16[9]~", "c64[4] c64[4]", "f32[0] f32[0]"]),
    binary("tanh_backward(Tensor grad_output, Tensor output) -> Tensor", |g, y| g * (y.full_like(1.0) - y * y).conj())
        .eg(&["f32[2,3] f32[2,3]~", "f64[4] f64[4]~", "bf16[9] bf16[9]~", "c64[4] c64[4]", "f32[0] f32[0]"]),
    one("gelu_backward(Tensor grad_output, Tensor self, *, str approximate=\"none\") -> Tensor", gelu).eg(&[
        "f32[2,3] f32[2,3]",
        "f64[4] f64[4]",
        "bf16[9] bf16[9]",
        "f32[2,3] f32[2,3] approximate='tanh'",
        "bf16[9] bf16[9] approximate='tanh'",
        "f64[4] f64[4] approximate='tanh'",
        "f32[0] f32[0]",
    ]),
    // composite upstream by four operations; one fused formula here
    binary("silu_backward(Tensor grad_output, Tensor self) -> Tensor", |g, x| {
        let s = x.logistic();
        g * s * (x * (s.full_like(1.0) - s) + 1.0)
    })
    .eg(&["f32[2,3] f32[2,3]", "f64[4] f64[4]", "bf16[9] bf16[9]", "f32[0] f32[0]"]),
    binary("mish_backward(Tensor grad_output, Tensor self) -> Tensor", |g, x| {
        let t = softplus(x).tanh();
        g * (t + x * x.logistic() * (t.full_like(1.0) - t * t))
    })
    .eg(&["f32[2,3] f32[2,3]", "f64[4] f64[4]", "bf16[9] bf16[9]", "f32[0] f32[0]"]),
    one("threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor", |cx| {
        let (g, x, d) = pair(cx);
        x.le(cx.scalar("threshold", d)).select(g.zeros_like(), g)
    })
    .eg(&[
        "f32[2,3] f32[2,3] 0",
        "f32[19] f32[19]! 0.5",
        "bf16[9] bf16[9] 0",
        "i32[4] i32[4] 2",
        "f32[0] f32[0] 0",
    ]),
    one("hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor", |cx| {
        let (g, x, d) = pair(cx);
        (x.gt(cx.scalar("min_val", d)) & x.lt(cx.scalar("max_val", d))).select(g, g.zeros_like())
    })
    .eg(&["f32[2,3] f32[2,3] -1 1", "f32[19] f32[19]! -0.5 2.5", "bf16[9] bf16[9] 0 6", "f32[0] f32[0] 0 1"]),
    one(
        "leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor",
        |cx| {
            let (g, x, d) = pair(cx);
            x.gt(0.0).select(g, g * cx.scalar("negative_slope", d))
        },
    )
    .eg(&[
        "f32[2,3] f32[2,3] 0.01 False",
        "f32[19] f32[19]! 0.2 True",
        "bf16[9] bf16[9] 0.1 False",
        "f32[0] f32[0] 0.1 False",
    ]),
    one(
        "elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor \
         self_or_result) -> Tensor",
        elu,
    )
    .eg(&[
        "f32[2,3] 1 1 1 False f32[2,3]",
        "f32[19] 1.5 1.25 0.5 False f32[19]?",
        "f32[19] 1.5 1.25 0.5 True f32[19]?",
        "bf16[9] 1 1 1 False bf16[9]",
        "f64[4] 1 1 1 True f64[4]",
    ]),
    one("softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor", |cx| {
        let (g, x, d) = pair(cx);
        let z = x * cx.scalar("beta", d);
        z.gt(cx.scalar("threshold", d)).select(g, g * z.logistic())
    })
    .eg(&["f32[2,3] f32[2,3] 1 20", "f32[19] f32[19]! 2 10", "bf16[9] bf16[9] 1 20", "f64[4] f64[4] 1 20"]),
    binary("hardswish_backward(Tensor grad_output, Tensor self) -> Tensor", |g, x| {
        let inner = x.lt(3.0).select(g * (x / 3.0 + 0.5), g);
        x.le(-3.0).select(g.zeros_like(), inner)
    })
    .eg(PAIRS),
    binary("hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor", |g, x| {
        (x.gt(-3.0) & x.lt(3.0)).select(g * (1.0 / 6.0), g.zeros_like())
    })
    .eg(PAIRS),
    one("softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor", |cx| {
        let (g, x, d) = pair(cx);
        shrink(g, x, cx.scalar("lambd", d))
    })
    .eg(SHRINK),
    one("hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        shrink(cx.t_as("grad_out", d), cx.t_as("self", d), cx.scalar("lambd", d))
    })
    .eg(SHRINK),
    one("log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor", |cx| {
        let (g, x, d) = pair(cx);
        let z = cx.t_as("buffer", d);
        let s = z / (z + 1.0);
        g * x.lt(0.0).select(s.full_like(1.0) - s, s)
    })
    .eg(&["f32[2,3] f32[2,3] f32[2,3]~", "bf16[9] bf16[9] bf16[9]~", "f64[4] f64[4] f64[4]~"]),
    one("logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor", |cx| {
        let (g, x, _) = pair(cx);
        let inside = g / (x * (x.full_like(1.0) - x));
        match cx.opt_float("eps") {
            None => (x.lt(0.0) | x.gt(1.0)).select(g.full_like(f64::NAN), inside),
            Some(e) => (x.lt(e) | x.gt(1.0 - e)).select(g.zeros_like(), inside),
        }
    })
    .eg(&[
        "f32[2,3] f32[2,3]~",
        "f32[19] f32[19]?",
        "f32[19] f32[19]? 0.1",
        "bf16[9] bf16[9]~ 0.2",
        "f64[4] f64[4]~",
    ]),
    many("_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)", |cx| {
        let (g, x, d) = pair(cx);
        let (x, w) = x.broadcast_with(cx.t_as("weight", d));
        let positive = x.gt(0.0);
        vec![positive.select(g, g * w), positive.select(g.zeros_like(), g * x)]
    })
    .eg(&["f32[2,3] f32[2,3] f32[1,3]", "f32[19] f32[19]! f32[1]", "bf16[4] bf16[4] bf16[4]"]),
    one("glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor", |cx| {
        let (g, x, _) = pair(cx);
        let dim = cx.dim("dim", x.rank());
        let (a, b) = halves(x, dim);
        let s = b.logistic();
        cx.b.concat(&[g * s, g * a * s * (s.full_like(1.0) - s)], dim)
    })
    .eg(&["f32[2,3] f32[2,6] -1", "f32[2,3] f32[4,3] 0", "bf16[2,2] bf16[2,4] 1", "f64[2,2,3] f64[2,4,3] 1"]),
    one("native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        cx.t_as("grad_output", d) * cx.t_as("mask", d) * cx.scalar("scale", d)
    })
    .operands(&["scale"])
    .eg(&["f32[2,3] bool[2,3] 2.0", "bf16[4] bool[4] 1.25", "f32[0] bool[0] 2.0"]),
];

/// Gradient and `self` in the dtype PyTorch computes in.
fn pair<'b>(cx: &Cx<'b>) -> (V<'b>, V<'b>, DType) {
    let d = cx.out_dtype().opmath();
    (cx.t_as("grad_output", d), cx.t_as("self", d), d)
}

fn shrink<'b>(g: V<'b>, x: V<'b>, l: V<'b>) -> V<'b> {
    (x.gt(l) | x.lt(l.neg())).select(g, g.zeros_like())
}

fn elu<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (g, x) = (cx.t_as("grad_output", d), cx.t_as("self_or_result", d));
    let (scale, rate) = (cx.scalar("scale", d), cx.scalar("input_scale", d));
    let low = cx.scalar("alpha", d) * scale;
    let below = if cx.flag("is_result") { g * rate * (x + low) } else { g * rate * low * (x * rate).exp() };
    x.le(0.0).select(below, g * scale)
}

fn gelu<'b>(cx: &Cx<'b>) -> V<'b> {
    let (g, x, _) = pair(cx);
    if cx.str("approximate") != Some("tanh") {
        let density = (x * x * -0.5).exp() * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
        return g * (normal_cdf(x) + x * density);
    }
    let square = x * x;
    let t = ((x + square * x * CUBIC) * TANH_RATE).tanh();
    let slope = (square * (3.0 * CUBIC) + 1.0) * TANH_RATE;
    g * ((t + 1.0) * 0.5 + x * 0.5 * (t.full_like(1.0) - t * t) * slope)
}
