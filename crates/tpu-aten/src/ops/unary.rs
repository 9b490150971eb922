//! Elementary functions of one argument. Special functions stand in `unary_special`, predicates in `compare`.

use crate::cx::Cx;
use crate::def::{OpDef, one, unary, unary_same};
use std::f64::consts::{LN_2, LN_10, PI};
use tpu_base::DType;
use tpu_hlo::V;

/// Calls for functions that take integers to floats.
const FLOAT: &[&str] = &[
    "f32[2,3]",
    "f32[19]!",
    "f64[19]!",
    "bf16[2,3]",
    "f16[5]",
    "f64[4]+",
    "i32[4]",
    "u8[4]",
    "bool[3]",
    "f32[]",
    "f32[0,2]",
];
/// The same with complex numbers.
const COMPLEX: &[&str] = &[
    "f32[2,3]",
    "f32[19]!",
    "f64[19]!",
    "bf16[2,3]",
    "f16[5]",
    "f64[4]+",
    "i32[4]",
    "bool[3]",
    "f32[]",
    "f32[0,2]",
    "c64[6]",
    "c128[4]",
];
/// Calls for functions that keep the dtype.
const SAME: &[&str] = &[
    "f32[2,3]",
    "f32[19]!",
    "f64[19]!",
    "bf16[2,3]",
    "bf16[19]!",
    "f16[5]",
    "i32[4]!",
    "i8[9]!",
    "u8[4]!",
    "i64[4]",
    "f32[]",
    "f32[0,2]",
];

pub(crate) static DEFS: &[OpDef] = &[
    unary_same("abs(Tensor self) -> Tensor", |x| x.abs())
        .eg(&["f32[19]!", "bf16[4]", "f64[3]", "i32[6]!", "u8[4]", "c64[4]", "c128[4]", "f32[]", "f32[0]", "c64[9]!"]),
    unary_same("neg(Tensor self) -> Tensor", |x| x.neg()).eg(SAME),
    unary_same("sign(Tensor self) -> Tensor", sign).eg(SAME),
    unary_same("sgn(Tensor self) -> Tensor", sgn)
        .eg(&["f32[19]!", "bf16[4]", "i32[4]!", "u8[4]", "bool[3]", "c64[6]", "c128[4]"]),
    unary_same("_conj_physical(Tensor self) -> Tensor", |x| x.conj()).eg(&["c64[3]", "c128[2,2]"]),
    unary_same("_conj_copy(Tensor self) -> Tensor", |x| x.conj()).eg(&["c64[3]"]),
    unary_same("_neg_view_copy(Tensor self) -> Tensor", |x| x.neg()).eg(&["c64[3]", "f32[3]"]),
    unary("exp(Tensor self) -> Tensor", |x| x.exp()).eg(COMPLEX),
    unary("exp2(Tensor self) -> Tensor", exp2).eg(COMPLEX),
    unary("expm1(Tensor self) -> Tensor", |x| x.expm1()).eg(COMPLEX),
    unary("log(Tensor self) -> Tensor", |x| x.log()).eg(COMPLEX),
    unary("log2(Tensor self) -> Tensor", |x| x.log() * (1.0 / LN_2)).eg(COMPLEX),
    unary("log10(Tensor self) -> Tensor", |x| x.log() * (1.0 / LN_10)).eg(COMPLEX),
    unary("log1p(Tensor self) -> Tensor", |x| x.log1p()).eg(COMPLEX),
    unary("sqrt(Tensor self) -> Tensor", |x| x.sqrt()).eg(COMPLEX),
    unary("rsqrt(Tensor self) -> Tensor", rsqrt).eg(COMPLEX),
    unary("reciprocal(Tensor self) -> Tensor", reciprocal).eg(COMPLEX),
    unary("sin(Tensor self) -> Tensor", |x| x.sin()).eg(COMPLEX),
    unary("cos(Tensor self) -> Tensor", |x| x.cos()).eg(COMPLEX),
    unary("tan(Tensor self) -> Tensor", |x| x.tan()).eg(COMPLEX),
    unary("sinh(Tensor self) -> Tensor", sinh).eg(COMPLEX),
    unary("cosh(Tensor self) -> Tensor", cosh).eg(COMPLEX),
    unary("tanh(Tensor self) -> Tensor", |x| x.tanh()).eg(COMPLEX),
    unary("asin(Tensor self) -> Tensor", |x| x.asin()).eg(COMPLEX),
    unary("acos(Tensor self) -> Tensor", |x| x.acos()).eg(COMPLEX),
    unary("atan(Tensor self) -> Tensor", |x| x.atan()).eg(COMPLEX),
    unary("asinh(Tensor self) -> Tensor", |x| x.asinh()).eg(COMPLEX),
    unary("acosh(Tensor self) -> Tensor", |x| x.acosh()).eg(COMPLEX),
    unary("atanh(Tensor self) -> Tensor", |x| x.atanh()).eg(COMPLEX),
    unary("sigmoid(Tensor self) -> Tensor", sigmoid).eg(COMPLEX),
    unary("sinc(Tensor self) -> Tensor", sinc).eg(COMPLEX),
    unary("rad2deg(Tensor self) -> Tensor", |x| x * (180.0 / PI)).eg(FLOAT),
    unary("deg2rad(Tensor self) -> Tensor", |x| x * (PI / 180.0)).eg(FLOAT),
    unary_same("ceil(Tensor self) -> Tensor", |x| rounded(x, V::ceil)).eg(SAME),
    unary_same("floor(Tensor self) -> Tensor", |x| rounded(x, V::floor)).eg(SAME),
    unary_same("round(Tensor self) -> Tensor", |x| rounded(x, V::round_even)).eg(SAME),
    unary_same("trunc(Tensor self) -> Tensor", |x| rounded(x, V::trunc)).eg(SAME),
    unary_same("frac(Tensor self) -> Tensor", |x| x - x.trunc()).eg(&["f32[19]!", "bf16[19]!", "f16[5]", "f64[4]"]),
    one("round.decimals(Tensor self, *, int decimals) -> Tensor", round_decimals).eg(&[
        "f32[2,3] decimals=2",
        "f64[4] decimals=3",
        "f32[19]! decimals=-1",
        "f32[4] decimals=0",
        "bf16[9] decimals=1",
    ]),
    one("angle(Tensor self) -> Tensor", angle).eg(&["f32[19]!", "bf16[4]", "i32[4]", "bool[3]", "c64[5]", "c128[4]"]),
    one("nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor", nan_to_num).eg(
        &[
            "f32[19]!",
            "f64[19]!",
            "bf16[19]!",
            "f16[19]!",
            "i32[4]",
            "bool[3]",
            "c64[19]!",
            "f32[19]! nan=1.5 posinf=7. neginf=-3.",
        ],
    ),
];

/// By comparisons: NaN has sign 0 in PyTorch, NaN in StableHLO.
fn sign(x: V<'_>) -> V<'_> {
    if x.dtype() == DType::Bool {
        return x;
    }
    let positive = x.gt(0.0).convert(x.dtype());
    if x.dtype().is_unsigned() { positive } else { positive - x.lt(0.0).convert(x.dtype()) }
}

fn sgn(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() { x.sign() } else { sign(x) }
}

/// `power` rather than `exp(x ln 2)`, whose argument loses bits for large |x|.
pub(super) fn exp2(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() { (x * LN_2).exp() } else { x.lit(2.0).broadcast_to(&x.dims()).pow(x) }
}

/// e^|x| in two factors e^(|x|/2), whose argument is exact (CHLO's e^(x − ln 2) rounds its argument) and which overflow
/// only where the result does.
fn cosh(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() {
        return x.cosh();
    }
    let t = (x.abs() * 0.5).exp();
    t * 0.5 * t + t.full_like(0.5) / t / t
}

fn sinh(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() {
        return x.sinh();
    }
    let a = x.abs();
    let small = a.expm1();
    let small = (small + small / (small + 1.0)) * 0.5;
    let t = (a * 0.5).exp();
    let large = t * 0.5 * t - t.full_like(0.5) / t / t;
    super::binary_math::copysign(a.lt(1.0).select(small, large), x)
}

fn rsqrt(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() { reciprocal(x.sqrt()) } else { x.rsqrt() }
}

pub(super) fn reciprocal(x: V<'_>) -> V<'_> {
    x.full_like(1.0) / x
}

pub(super) fn sigmoid(x: V<'_>) -> V<'_> {
    if x.dtype().is_complex() { reciprocal(x.neg().exp() + 1.0) } else { x.logistic() }
}

fn sinc(x: V<'_>) -> V<'_> {
    let t = x * PI;
    x.eq(0.0).select(x.full_like(1.0), t.sin() / t)
}

/// Integers are whole already.
fn rounded<'b>(x: V<'b>, f: fn(V<'b>) -> V<'b>) -> V<'b> {
    if x.dtype().is_float() { f(x) } else { x }
}

fn round_decimals<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let decimals = cx.int("decimals");
    if !x.dtype().is_float() {
        return x;
    }
    let scale = x.lit(10f64.powi(decimals.unsigned_abs() as i32));
    match decimals {
        0 => x.round_even(),
        d if d > 0 => (x * scale).round_even() / scale,
        _ => (x / scale).round_even() * scale,
    }
}

fn angle<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    if x.dtype().is_complex() {
        return x.imag().atan2(x.real());
    }
    let x = x.convert(cx.out_dtype());
    x.is_nan().select(x, x.lt(0.0).select(x.full_like(PI), x.zeros_like()))
}

fn nan_to_num<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let d = x.dtype();
    if d.is_complex() {
        return finite(cx, x.real()).complex(finite(cx, x.imag()));
    }
    if d.is_float() { finite(cx, x) } else { x }
}

fn finite<'b>(cx: &Cx<'b>, x: V<'b>) -> V<'b> {
    let max = x.dtype().max_value();
    let number = |name, default| x.lit(cx.opt_float(name).unwrap_or(default));
    let inf = f64::INFINITY;
    let y = x.is_nan().select(number("nan", 0.0), x);
    let y = x.eq(inf).select(number("posinf", max), y);
    x.eq(-inf).select(number("neginf", -max), y)
}
