//! Comparisons, logic, predicates, and choosing by a condition.

use crate::cx::Cx;
use crate::def::{OpDef, compare, one, unary_same};
use tpu_base::DType;
use tpu_hlo::V;

const PAIRS: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[40]! f32[40]!",
    "bf16[3] f32[1]",
    "i64[5] i64[5]",
    "i32[6]%4 i32[1,6]%4",
    "u8[5]! u8[5]!",
    "bool[6] bool[6]",
    "i64[4] f32[4]",
    "f32[2,3] 0.5",
    "i32[4] 2",
    "f64[0,3] f64[3]",
    "f32[] f32[2]",
    "i32[3] f32[]h",
];
const SCALARS: &[&str] =
    &["f32[2,3] 0", "f32[19]! 0.5", "bf16[4] 0.1", "i32[9]%5 2", "i64[9]%5 2.5", "bool[4] True", "u8[4] 3"];
const LOGIC: &[&str] =
    &["f32[19]! f32[19]!", "bool[6] bool[6]", "i32[4]%2 f32[1]", "f32[2,3] bool[3]", "c64[3] i8[3]%2", "f32[0] f32[]"];
const ONE: &[&str] = &["f32[19]!", "f64[19]!", "bf16[19]!", "f16[19]!", "i32[3]", "bool[2]", "f32[]", "f32[0]"];

pub(crate) static DEFS: &[OpDef] = &[
    compare("eq.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.eq(b)).eg(PAIRS),
    compare("eq.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.eq(b)).eg(SCALARS),
    compare("ne.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.ne(b)).eg(PAIRS),
    compare("ne.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.ne(b)).eg(SCALARS),
    compare("lt.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.lt(b)).eg(PAIRS),
    compare("lt.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.lt(b)).eg(SCALARS),
    compare("le.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.le(b)).eg(PAIRS),
    compare("le.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.le(b)).eg(SCALARS),
    compare("gt.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.gt(b)).eg(PAIRS),
    compare("gt.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.gt(b)).eg(SCALARS),
    compare("ge.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.ge(b)).eg(PAIRS),
    compare("ge.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.ge(b)).eg(SCALARS),
    one("logical_and(Tensor self, Tensor other) -> Tensor", |cx| logic(cx, |a, b| a & b)).eg(LOGIC),
    one("logical_or(Tensor self, Tensor other) -> Tensor", |cx| logic(cx, |a, b| a | b)).eg(LOGIC),
    one("logical_xor(Tensor self, Tensor other) -> Tensor", |cx| logic(cx, |a, b| a ^ b)).eg(LOGIC),
    unary_same("logical_not(Tensor self) -> Tensor", |x| x.convert(DType::Bool).not()).eg(ONE),
    unary_same("isnan(Tensor self) -> Tensor", |x| x.is_nan()).eg(&[
        "f32[19]!",
        "bf16[19]!",
        "f64[3]",
        "i32[3]",
        "bool[2]",
        "c64[19]!",
        "f32[0]",
    ]),
    unary_same("isinf(Tensor self) -> Tensor", is_inf).eg(&[
        "f32[19]!",
        "bf16[19]!",
        "f64[3]",
        "i32[3]",
        "bool[2]",
        "c64[19]!",
        "f32[0]",
    ]),
    unary_same("isposinf(Tensor self) -> Tensor", |x| is(x, f64::INFINITY)).eg(ONE),
    unary_same("isneginf(Tensor self) -> Tensor", |x| is(x, f64::NEG_INFINITY)).eg(ONE),
    unary_same("signbit(Tensor self) -> Tensor", sign_bit).eg(&[
        "f32[19]!",
        "f64[19]!",
        "bf16[19]!",
        "f16[19]!",
        "i32[4]!",
        "u8[4]",
        "bool[2]",
        "f32[]",
    ]),
    one("where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", choose).eg(&[
        "bool[2,3] f32[2,3] f32[3]",
        "bool[3,1] f32[] f32[2,1,3]",
        "bool[3] bf16[3] f32[1]",
        "bool[4] i64[4] f32[]",
        "bool[4] f32[4] 0.0",
        "bool[4] c64[4] f32[4]",
        "bool[4] bool[4] bool[1]",
        "bool[0] f32[0] f32[1]",
        "bool[] f32[2] f32[2]",
        "bool[3] f32[3]! f32[3]!",
    ]),
];

fn logic<'b>(cx: &Cx<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    f(cx.t_as("self", DType::Bool), cx.t_as("other", DType::Bool))
}

fn is(x: V<'_>, value: f64) -> V<'_> {
    if x.dtype().is_float() { x.eq(value) } else { never(x) }
}

fn is_inf(x: V<'_>) -> V<'_> {
    match x.dtype() {
        d if d.is_complex() => is_inf(x.real()) | is_inf(x.imag()),
        d if d.is_float() => x.abs().eq(f64::INFINITY),
        _ => never(x),
    }
}

fn never(x: V<'_>) -> V<'_> {
    x.builder().full(DType::Bool, &x.dims(), false)
}

/// The sign bit of a float (of −0 and NaN too), or whether an integer is negative.
pub(super) fn sign_bit(x: V<'_>) -> V<'_> {
    match x.dtype() {
        d if d.is_unsigned() => never(x),
        d if d.is_int() => x.lt(0.0),
        d => x.bitcast(bits_of(d)).lt(0i64),
    }
}

/// The signed integer as wide as a float.
pub(super) fn bits_of(d: DType) -> DType {
    match d.size() {
        1 => DType::I8,
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

fn choose<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    cx.t_as("condition", DType::Bool).select(cx.t_as("self", d), cx.t_as("other", d))
}
