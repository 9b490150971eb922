//! Activation functions; their derivatives stand in `activation_backward`.

use super::unary::sigmoid;
use crate::cx::Cx;
use crate::def::{OpDef, many, one, unary, unary_same};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
use tpu_base::DType;
use tpu_hlo::V;

const FLOATS: &[&str] = &["f32[2,3]", "f32[19]!", "f64[19]!", "bf16[19]!", "f16[5]", "f64[4]", "f32[]", "f32[0,2]"];

pub(crate) static DEFS: &[OpDef] = &[
    unary_same("relu(Tensor self) -> Tensor", |x| x.max(0.0)).eg(&[
        "f32[2,3]",
        "f32[19]!",
        "bf16[19]!",
        "f64[4]",
        "i32[4]",
        "f32[]",
        "f32[0,2]",
    ]),
    unary("silu(Tensor self) -> Tensor", |x| x * sigmoid(x)).eg(&[
        "f32[2,3]",
        "f32[19]!",
        "f64[19]!",
        "bf16[19]!",
        "f16[5]",
        "c64[4]",
        "f32[]",
        "f32[0]",
    ]),
    unary("mish(Tensor self) -> Tensor", |x| x * softplus(x).tanh()).eg(FLOATS),
    unary("hardswish(Tensor self) -> Tensor", |x| x * six(x + 3.0) / 6.0).eg(FLOATS),
    unary("hardsigmoid(Tensor self) -> Tensor", |x| six(x + 3.0) / 6.0).eg(FLOATS),
    one("hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", |cx| {
        let d = cx.out_dtype();
        cx.t_as("self", d).clamp(cx.scalar("min_val", d), cx.scalar("max_val", d))
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! -2 2.5", "bf16[19]!", "f64[4] 0 6", "i32[4] 0 6", "f32[]", "f32[0]"]),
    one("elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let (alpha, scale, rate) = (cx.scalar("alpha", d), cx.scalar("scale", d), cx.scalar("input_scale", d));
        x.le(0.0).select((x * rate).expm1() * (alpha * scale), x * scale)
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! 1.5 1.25 0.5", "bf16[19]!", "f64[4]", "f32[]", "f32[0]"]),
    one("celu(Tensor self, Scalar alpha=1.) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let alpha = cx.scalar("alpha", d);
        x.le(0.0).select((x / alpha).expm1() * alpha, x)
    })
    .eg(&["f32[2,3]", "f32[19]! 1.5", "bf16[6]", "f64[4]"]),
    one("leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor", |cx| {
        let (x, d) = math(cx);
        x.gt(0.0).select(x, x * cx.scalar("negative_slope", d))
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! 0.2", "bf16[19]!", "f64[4]", "f32[]", "f32[0]"]),
    one("softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let beta = cx.scalar("beta", d);
        let z = x * beta;
        z.gt(cx.scalar("threshold", d)).select(x, z.exp().log1p() / beta)
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! 2 10", "bf16[19]!", "f64[19]!", "f32[]", "f32[0]"]),
    one("softshrink(Tensor self, Scalar lambd=0.5) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let l = cx.scalar("lambd", d);
        // NaN fails both comparisons and survives the product
        x.gt(l).select(x - l, x.lt(l.neg()).select(x + l, x * 0.0))
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! 1.5", "bf16[6]", "f64[19]!", "f32[0]"]),
    one("hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let l = cx.scalar("lambd", d);
        (x.ge(l.neg()) & x.le(l)).select(x.zeros_like(), x)
    })
    .eg(&["f32[2,3]", "f32[19]!", "f32[19]! 1.5", "bf16[6]", "f64[19]!", "f32[0]"]),
    one("gelu(Tensor self, *, str approximate=\"none\") -> Tensor", gelu).eg(&[
        "f32[2,3]",
        "f32[40]!",
        "f64[19]!",
        "bf16[19]!",
        "f16[5]",
        "f32[19]! approximate='tanh'",
        "f32[2,3] approximate='tanh'",
        "bf16[19]! approximate='tanh'",
        "f64[5] approximate='tanh'",
        "f32[]",
        "f32[0]",
    ]),
    many("log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)", |cx| {
        let (x, _) = math(cx);
        let z = x.abs().neg().exp();
        // accelerators keep no buffer: Meta gives it no elements
        let buffer = if cx.out(1).numel() == 0 { cx.b.zeros(cx.out(1).dtype, &cx.out(1).dims) } else { z };
        vec![x.min(0.0) - z.log1p(), buffer]
    })
    .eg(FLOATS),
    one("threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor", |cx| {
        let d = cx.out_dtype();
        let x = cx.t_as("self", d);
        x.le(cx.scalar("threshold", d)).select(cx.scalar("value", d), x)
    })
    .eg(&["f32[2,3] 0 0", "f32[19]! 0.5 -7", "bf16[19]! 0.1 20", "i32[9] 2 5", "f64[4] 0 1", "f32[0] 0 0"]),
    one("_prelu_kernel(Tensor self, Tensor weight) -> Tensor", |cx| {
        let (x, d) = math(cx);
        let (x, w) = x.broadcast_with(cx.t_as("weight", d));
        x.gt(0.0).select(x, x * w)
    })
    .eg(&["f32[2,3] f32[1,3]", "f32[19]! f32[1]", "bf16[4] bf16[4]", "f64[0,2] f64[1,2]"]),
    one("glu(Tensor self, int dim=-1) -> Tensor", |cx| {
        let (x, _) = math(cx);
        let (a, b) = halves(x, cx.dim("dim", x.rank()));
        a * b.logistic()
    })
    .eg(&["f32[2,6]", "f32[4,3] 0", "bf16[2,4]", "f64[2,4,3] 1", "f32[0,2]"]),
    one("glu_jvp(Tensor glu, Tensor x, Tensor dx, int dim) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        let (glu, x, dx) = (cx.t_as("glu", d), cx.t_as("x", d), cx.t_as("dx", d));
        let dim = cx.dim("dim", x.rank());
        let (s, (da, db)) = (halves(x, dim).1.logistic(), halves(dx, dim));
        da * s + glu * (db - s * db)
    })
    .eg(&["f32[2,3] f32[2,6] f32[2,6] -1", "f64[2,3] f64[4,3] f64[4,3] 0"]),
    one(
        "glu_backward_jvp(Tensor grad_x, Tensor grad_glu, Tensor x, Tensor dgrad_glu, Tensor dx, int dim) -> Tensor",
        |cx| {
            // grad_x is (h, h·a·(1-s)) with s = σ(b) and h = s·grad_glu
            let d = cx.out_dtype().opmath();
            let (x, dx, dg) = (cx.t_as("x", d), cx.t_as("dx", d), cx.t_as("dgrad_glu", d));
            let dim = cx.dim("dim", x.rank());
            let ((a, b), (da, db), h) = (halves(x, dim), halves(dx, dim), halves(cx.t_as("grad_x", d), dim).0);
            let s = b.logistic();
            let rest = s.full_like(1.0) - s;
            let dh = dg * s + h * rest * db;
            cx.b.concat(&[dh, dh * a * rest + h * (da * rest - a * s * rest * db)], dim)
        },
    )
    .eg(&["f32[2,6] f32[2,3] f32[2,6] f32[2,3] f32[2,6] -1", "f64[4,3] f64[2,3] f64[4,3] f64[2,3] f64[4,3] 0"]),
];

/// `self` in the dtype PyTorch computes in.
pub(super) fn math<'b>(cx: &Cx<'b>) -> (V<'b>, DType) {
    let d = cx.out_dtype().opmath();
    (cx.t_as("self", d), d)
}

fn six(x: V<'_>) -> V<'_> {
    x.max(0.0).min(6.0)
}

/// ln(1 + eˣ) without overflow.
pub(super) fn softplus(x: V<'_>) -> V<'_> {
    x.max(0.0) + x.abs().neg().exp().log1p()
}

pub(super) fn halves(x: V<'_>, dim: usize) -> (V<'_>, V<'_>) {
    let n = x.dim(dim) / 2;
    (x.slice_dim(dim, 0, n), x.slice_dim(dim, n, 2 * n))
}

/// √(2/π) of the tanh form.
pub(super) const TANH_RATE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The cubic's coefficient of the tanh form.
pub(super) const CUBIC: f64 = 0.044715;

/// Φ(x), the normal distribution function, as PyTorch writes it.
pub(super) fn normal_cdf(x: V<'_>) -> V<'_> {
    ((x * (1.0 / SQRT_2)).erf() + 1.0) * 0.5
}

fn gelu<'b>(cx: &Cx<'b>) -> V<'b> {
    let (x, _) = math(cx);
    if cx.str("approximate") == Some("tanh") {
        let inner = (x + x * x * x * CUBIC) * TANH_RATE;
        return x * 0.5 * (inner.tanh() + 1.0);
    }
    x * normal_cdf(x)
}
