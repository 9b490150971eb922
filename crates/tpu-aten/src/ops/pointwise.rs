//! Elementwise operations of other shapes: bounds, interpolation, fused multiply-adds, fills, copies, complex parts, loss
//! scaling.

use crate::cx::Cx;
use crate::def::{OpDef, many, one, unary_same};
use tpu_base::{DType, Scalar};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", clamp).eg(&[
        "f32[2,3] -0.5 0.5",
        "f32[19]! -1 2",
        "f32[19]! - 2",
        "bf16[19]! 0.25",
        "i32[9] -2 3",
        "i32[9] 0.5",
        "f64[4] 1 -1",
        "u8[4] 2 5",
        "f32[3] nan 1",
        "f32[] 0",
        "f32[0] 0",
    ]),
    one("clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", clamp).eg(&[
        "f32[2,3] f32[3] f32[2,1]",
        "f32[19]! f32[19]! f32[19]!",
        "f32[4] - f32[4]",
        "i32[4] i32[4]",
        "i32[4] f32[4]",
        "bf16[4] f32[] bf16[1]",
    ]),
    one("clamp_min(Tensor self, Scalar min) -> Tensor", clamp_min).eg(&["f32[19]! 0.5", "i32[4] 1", "bf16[4] 0", "i64[4] 0.5"]),
    one("clamp_min.Tensor(Tensor self, Tensor min) -> Tensor", clamp_min).eg(&["f32[2,3] f32[3]", "i32[4] i32[4]", "f32[19]! f32[19]!"]),
    one("clamp_max(Tensor self, Scalar max) -> Tensor", clamp_max).eg(&["f32[19]! 0.5", "i32[4] 1", "bf16[4] 0", "i64[4] 0.5"]),
    one("clamp_max.Tensor(Tensor self, Tensor max) -> Tensor", clamp_max).eg(&["f32[2,3] f32[3]", "i32[4] i32[4]", "f32[19]! f32[19]!"]),
    one("lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", lerp).eg(&[
        "f32[2,3] f32[3] 0.3",
        "f32[2,3] f32[3] 0.7",
        "bf16[4] bf16[4] 0.1",
        "f64[4] f64[] 2",
        "c64[3] c64[3] 0.4",
        "f32[0] f32[1] 0.5",
    ]),
    one("lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", lerp)
        .eg(&["f32[2,3] f32[3] f32[2,1]~", "bf16[4] bf16[4] bf16[4]~", "f64[4] f64[4] f64[]", "f32[4] f32[4] f32[]h"]),
    one("addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", |cx| fused(cx, |p, q| p * q)).eg(&[
        "f32[2,3] f32[3] f32[2,1]",
        "f32[4] f32[4] f32[4] value=0.3",
        "bf16[4] bf16[4] bf16[4] value=2",
        "i32[4] i32[4] i32[4] value=3",
        "f64[0] f64[1] f64[1]",
        "c64[3] c64[3] c64[3] value=2",
        "f32[3] f32[3] f32[]h",
    ]),
    one("addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", |cx| fused(cx, |p, q| p / q)).eg(&[
        "f32[2,3] f32[3] f32[2,1]+",
        "f32[4] f32[4] f32[4]+ value=-0.3",
        "bf16[4] bf16[4] bf16[4]+ value=2",
        "f64[0] f64[1] f64[1]",
        "c64[3] c64[3] c64[3] value=2",
    ]),
    one("masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", masked_fill).eg(&[
        "f32[2,3] bool[3] -inf",
        "bf16[4] bool[4] 0.5",
        "i64[2,3] bool[2,1] 7",
        "bool[4] bool[4] True",
        "c64[3] bool[3] 1.5",
        "f32[0] bool[1] 0",
        "f32[3] bool[2,3] 1",
    ]),
    one("masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor", masked_fill)
        .eg(&["f32[2,3] bool[3] f32[]", "i64[4] bool[4] i64[]", "f32[4] bool[4] f32[]h"]),
    one("copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor", copy).eg(&[
        "f32[2,3] f32[2,3]",
        "f32[2,3] i64[3]",
        "bf16[2,3] f32[2,1]",
        "i32[6] f32[6]",
        "u8[6] f32[6]+",
        "i8[4] i64[4]!",
        "bool[19] f32[19]!",
        "f64[4] bool[4]",
        "c64[3] f32[3]",
        "c128[3] c64[1]",
        "f16[4] f64[4]",
        "f32[2] c64[2]",
        "f32[0] f32[0]",
        "i64[3] bf16[]",
        "f8e4m3fn[4] f32[4]",
        "f32[4] f8e5m2[4]",
    ]),
    one("fill.Scalar(Tensor self, Scalar value) -> Tensor", fill).invalid(overflows).eg(&["f32[2,3] 0.5", "i64[3] 7", "bool[2] True", "bf16[] 2", "c64[2] 1.5", "u8[0] 1"]),
    one("fill.Tensor(Tensor self, Tensor value) -> Tensor", fill).eg(&["f32[2,3] f32[]", "i64[3] f32[]", "f32[3] i64[]h"]),
    one("zero(Tensor self) -> Tensor", |cx| cx.b.zeros(cx.out_dtype(), &cx.out(0).dims)).eg(&["f32[2,3]", "i64[3]", "bool[2]", "c64[2]"]),
    one("complex(Tensor real, Tensor imag) -> Tensor", |cx| cx.t("real").complex(cx.t("imag"))).eg(&["f32[2,3] f32[3]", "f64[4] f64[4]", "f32[0] f32[0]"]),
    one("polar(Tensor abs, Tensor angle) -> Tensor", |cx| {
        let (r, a) = cx.t("abs").broadcast_with(cx.t("angle"));
        (r * a.cos()).complex(r * a.sin())
    })
    .eg(&["f32[2,3]+ f32[3]", "f64[4]+ f64[4]"]),
    unary_same("view_as_real_copy(Tensor self) -> Tensor", |x| {
        let n = x.rank();
        x.builder().concat(&[x.real().unsqueeze(n), x.imag().unsqueeze(n)], n)
    })
    .eg(&["c64[2,3]", "c128[]", "c64[0]"]),
    unary_same("view_as_complex_copy(Tensor self) -> Tensor", |x| {
        let n = x.rank() - 1;
        x.slice_dim(n, 0, 1).squeeze(&[n]).complex(x.slice_dim(n, 1, 2).squeeze(&[n]))
    })
    .eg(&["f32[2,3,2]", "f64[2]", "f32[0,2]"]),
    many(
        "_amp_foreach_non_finite_check_and_unscale(Tensor[] self, Tensor found_inf, Tensor inv_scale) -> (Tensor[] self_out, \
         Tensor found_inf_out)",
        unscale,
    )
    .eg(&["[f32[2,3] f32[4]] f32[]~ f32[]+", "[f32[19]! bf16[3]] f32[]~ f32[]+"]),
    many(
        "_amp_update_scale(Tensor self, Tensor growth_tracker, Tensor found_inf, float scale_growth_factor, float \
         scale_backoff_factor, int growth_interval) -> (Tensor, Tensor growth_tracker_out)",
        update_scale,
    )
    .eg(&["f32[1]+ i32[1]%2 f32[1]+ 2.0 0.5 2000", "f32[1]+ i32[1]%1 f32[1]%1 2.0 0.5 1", "f32[1]+ i32[1]%3 f32[1]%1 2.0 0.5 9"]),
    one(
        "rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training, \
         bool self_is_result) -> Tensor",
        rrelu_backward,
    )
    .consts(&["lower", "upper"])
    .eg(&[
        "f32[4] f32[4] f32[4] 0.1 0.3 True False",
        "f32[4] f32[4] f32[4] 0.1 0.3 False False",
        "f32[4] f32[4] f32[4] 0.2 0.2 True False",
    ]),
];

fn clamp<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    let x = cx.t_as("self", d);
    let x = cx.opt_as("min", d).map_or(x, |lo| x.max(lo));
    cx.opt_as("max", d).map_or(x, |hi| x.min(hi))
}

fn clamp_min<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    cx.t_as("self", d).max(cx.t_as("min", d))
}

fn clamp_max<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    cx.t_as("self", d).min(cx.t_as("max", d))
}

/// From the nearer end, so that weight 1 gives `end` exactly (ATen/native/Lerp.h).
fn lerp<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (a, b, w) = (cx.t_as("self", d), cx.t_as("end", d), cx.t_as("weight", d));
    let step = b - a;
    w.abs().lt(0.5).select(a + w * step, b - step * (w.full_like(1.0) - w))
}

/// `self + value · (tensor1 ∘ tensor2)`, multiplying by value first as PyTorch does.
fn fused<'b>(cx: &Cx<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (p, q) = (cx.t_as("tensor1", d), cx.t_as("tensor2", d));
    let p = match cx.arg("value") {
        crate::Arg::Scalar(s) if *s == tpu_base::Scalar::Int(1) => p,
        _ => p * cx.scalar("value", d),
    };
    cx.t_as("self", d) + f(p, q)
}

fn masked_fill<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    cx.t_as("mask", DType::Bool).select(cx.t_as("value", d), cx.t_as("self", d))
}

fn copy<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    cx.t_as("src", out.dtype).broadcast_to(&out.dims)
}

fn fill<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    cx.t_as("value", out.dtype).broadcast_to(&out.dims)
}

/// Every gradient times `inv_scale`; `found_inf` becomes 1 when one of them is not finite.
fn unscale<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let found = cx.t("found_inf");
    let inv = cx.t_as("inv_scale", DType::F32);
    let mut bad = cx.b.scalar(DType::Bool, false);
    let mut out = vec![];
    for g in cx.ts("self") {
        let x = g.convert(g.dtype().opmath());
        let all: Vec<usize> = (0..g.rank()).collect();
        bad = bad | x.is_finite().not().any(&all);
        out.push((x * inv.convert(x.dtype()).reshape(&[])).convert(g.dtype()));
    }
    out.push(bad.select(found.full_like(1.0), found));
    out
}

/// The scale shrinks after an overflow, and grows after `growth_interval` steps without one (if it stays finite).
fn update_scale<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let (scale, steps, found) = (cx.t("self"), cx.t("growth_tracker"), cx.t("found_inf"));
    let overflow = found.ne(0.0).reshape(&scale.dims());
    let next = steps + 1i64;
    let due = next.eq(cx.int("growth_interval"));
    let grown = scale * cx.float("scale_growth_factor");
    let grown = (due.reshape(&scale.dims()) & grown.is_finite()).select(grown, scale);
    let scale = overflow.select(scale * cx.float("scale_backoff_factor"), grown);
    let restart = overflow.reshape(&steps.dims()) | due;
    vec![scale, restart.select(steps.zeros_like(), next)]
}

/// Noise holds the slope of each element in training, the mean slope serves otherwise.
fn rrelu_backward<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (g, x) = (cx.t_as("grad_output", d), cx.t_as("self", d));
    let (lower, upper) = (cx.float("lower"), cx.float("upper"));
    if cx.flag("training") {
        return g * cx.t_as("noise", d);
    }
    x.gt(0.0).select(g, g * ((lower + upper) / 2.0))
}

/// Whether the number is outside the dtype's range (c10's `overflows`): NaN and infinity where there is none, a fraction or an
/// imaginary part is no matter of range but the latter; negative numbers wrap in unsigned integers.
fn overflows(n: &[Option<Scalar>], d: DType) -> bool {
    let Some(s) = n.get(1).copied().flatten() else { return false };
    let (v, top) = (s.as_f64(), d.max_value());
    let part = |v: f64| match d {
        DType::Bool => false,
        d if d.is_int() && d.is_unsigned() => !(v >= if matches!(s, Scalar::Int(_)) { -top } else { 0.0 } && v <= top),
        d if d.is_int() => !(v >= -top - 1.0 && v <= top),
        _ => v.is_finite() && v.abs() > top,
    };
    part(v) || (s.imag() != 0.0 && (!d.is_complex() && d != DType::Bool || part(s.imag())))
}
