//! Arithmetic of two arguments: sums, products, quotients and remainders.

use crate::cx::{Arg, Cx};
use crate::def::{OpDef, binary, one};
use tpu_base::{DType, Scalar};
use tpu_hlo::V;

const ADD: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[2,3] f32[3] alpha=2",
    "f32[2,3] f32[3] alpha=2.5",
    "i64[2] i64[2]",
    "i32[4]! i32[4]! alpha=3",
    "bf16[3] f32[1]",
    "bf16[4] bf16[4] alpha=0.5",
    "f16[4] 2",
    "u8[4]! i8[4]!",
    "f32[] i64[3]",
    "f64[0,2] f64[2]",
    "c64[3] f32[3] alpha=2",
    "i64[3] 0.5",
    "f32[3] f64[]h",
    "f32[19]! f32[19]!",
];
const SCALED: &[&str] = &["f32[2,3] 2", "f32[3] 0.5 2", "i64[3] 2 3", "i32[3] 1.5", "bf16[4] 0.1", "c64[3] 2"];
const MUL: &[&str] = &[
    "f32[2,3] f32[3]",
    "i32[4]! i32[4]!",
    "u8[4]! u8[4]!",
    "bool[4] bool[4]",
    "bf16[3] f32[1]",
    "f16[4] f16[4]",
    "c64[4] c64[4]",
    "c128[2] f64[2]",
    "f32[3] 2",
    "i64[3] 0.5",
    "bool[3] 2",
    "f32[0] f32[1]",
    "f32[19]! f32[19]!",
    "f32[] i64[3]",
];
const DIV: &[&str] = &[
    "f32[2,3] f32[3]+",
    "i32[4] i32[4]+",
    "bool[3] f32[3]+",
    "u8[4] i16[4]+",
    "bf16[3] f32[1]",
    "f16[4] f16[4]",
    "c64[4] c64[4]",
    "c128[2] f64[2]",
    "f32[3] 2",
    "i64[3] 0.5",
    "f32[0] f32[1]",
    "f32[19]! f32[19]!",
    "f64[19]! f64[19]!",
];
const MODES: &[&str] = &[
    "f32[2,3] f32[3]+ rounding_mode='floor'",
    "f32[2,3] f32[3]+ rounding_mode='trunc'",
    "f32[2,3] f32[3]+ rounding_mode=-",
    "i32[9]! i32[9]+ rounding_mode='floor'",
    "i32[9] i32[9]+ rounding_mode='trunc'",
    "i64[3] i64[3]+ rounding_mode=-",
    "f32[19]! f32[19]! rounding_mode='floor'",
    "f64[19]! f64[19]! rounding_mode='floor'",
    "f32[19]! f32[19]! rounding_mode='trunc'",
    "bf16[6] bf16[6]+ rounding_mode='floor'",
    "u8[4] u8[4]+ rounding_mode='floor'",
    "i32[4] -3 rounding_mode='floor'",
];
const FLOORED: &[&str] = &[
    "f32[2,3] f32[3]+",
    "f32[19]! f32[19]!",
    "f64[19]! f64[19]!",
    "i32[9]! i32[9]+",
    "i64[9] -4",
    "u8[4] u8[4]+",
    "bf16[6] bf16[6]+",
    "f16[6] f16[6]+",
    "f32[4] 0.3",
    "i32[4] -2.5",
    "f32[0] f32[1]",
    "i8[5]! i8[1]+",
];
const BY_NUMBER: &[&str] =
    &["f32[2,3] 2", "f32[5] -0.7", "i32[9] 4", "i64[9] -4", "i32[5] 2.5", "bf16[4] 0.3", "u8[4] 3"];

pub(crate) static DEFS: &[OpDef] = &[
    one("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a + b)).eg(ADD),
    one("add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a + b)).eg(SCALED),
    one("_add_relu.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |cx| {
        let sum = scaled(cx, |a, b| a + b);
        sum.max(sum.zeros_like())
    })
    .eg(&["f32[2,3] f32[3] alpha=2"]),
    one("_add_relu.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |cx| {
        let sum = scaled(cx, |a, b| a + b);
        sum.max(sum.zeros_like())
    })
    .eg(&["f32[2,3] 0.5"]),
    one("sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a - b)).eg(ADD),
    one("sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a - b)).eg(SCALED),
    one("rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", reversed).eg(ADD),
    one("rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", reversed).eg(SCALED),
    binary("mul.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a * b).eg(MUL),
    binary("mul.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a * b).eg(BY_NUMBER),
    binary("div.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a / b).eg(DIV),
    binary("div.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a / b).eg(BY_NUMBER),
    one("div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor", div_mode)
        .invalid(by_zero)
        .eg(MODES),
    one("div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor", div_mode).eg(&[
        "f32[4] 0.3 rounding_mode='floor'",
        "i32[9] -4 rounding_mode='trunc'",
        "i32[4] 3 rounding_mode=-",
    ]),
    binary("floor_divide(Tensor self, Tensor other) -> Tensor", floor_div).invalid(by_zero).eg(FLOORED),
    binary("floor_divide.Scalar(Tensor self, Scalar other) -> Tensor", floor_div).invalid(by_zero).eg(BY_NUMBER),
    one("remainder.Tensor(Tensor self, Tensor other) -> Tensor", |cx| rounded(cx, remainder))
        .invalid(by_zero)
        .eg(FLOORED),
    one("remainder.Scalar(Tensor self, Scalar other) -> Tensor", |cx| rounded(cx, remainder))
        .invalid(by_zero)
        .eg(BY_NUMBER),
    one("remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", |cx| rounded(cx, remainder)).eg(&[
        "7 f32[5]+",
        "-7 i64[5]+",
        "2.5 bf16[3]+",
    ]),
    one("fmod.Tensor(Tensor self, Tensor other) -> Tensor", |cx| rounded(cx, V::rem)).invalid(by_zero).eg(FLOORED),
    one("fmod.Scalar(Tensor self, Scalar other) -> Tensor", |cx| rounded(cx, V::rem)).invalid(by_zero).eg(BY_NUMBER),
    binary("maximum(Tensor self, Tensor other) -> Tensor", |a, b| a.max(b)).eg(EXTREMES),
    binary("minimum(Tensor self, Tensor other) -> Tensor", |a, b| a.min(b)).eg(EXTREMES),
    binary("fmax(Tensor self, Tensor other) -> Tensor", |a, b| ignoring_nan(a, b, V::max)).eg(EXTREMES),
    binary("fmin(Tensor self, Tensor other) -> Tensor", |a, b| ignoring_nan(a, b, V::min)).eg(EXTREMES),
];

const EXTREMES: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[40]! f32[40]!",
    "f64[40]! f64[40]!",
    "bf16[40]! bf16[40]!",
    "f16[4] f32[1]",
    "i32[6]! i32[6]!",
    "u8[6]! u8[6]!",
    "bool[4] bool[4]",
    "i64[3] f32[]",
    "f32[0] f32[1]",
];

/// Whether `alpha` is the 1 it is by default.
fn plain(cx: &Cx<'_>) -> bool {
    matches!(cx.arg("alpha"), Arg::Scalar(s) if *s == Scalar::Int(1))
}

/// `self ∘ alpha · other`; alpha's default is a constant that costs nothing.
fn scaled<'b>(cx: &Cx<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (a, b) = (cx.t_as("self", d), cx.t_as("other", d));
    if d == DType::Bool {
        return a | b; // addition of bools is or; subtraction PyTorch rejects
    }
    if plain(cx) { f(a, b) } else { f(a, b * cx.scalar("alpha", d)) }
}

fn reversed<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (a, b) = (cx.t_as("self", d), cx.t_as("other", d));
    if plain(cx) { b - a } else { b - a * cx.scalar("alpha", d) }
}

fn div_mode<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (a, b) = (cx.t_as("self", d), cx.t_as("other", d));
    match cx.str("rounding_mode") {
        Some("floor") => floor_div(a, b),
        Some("trunc") if d.is_float() => (a / b).trunc(),
        _ => a / b,
    }
}

/// Python's floor division. Floats as PyTorch's `div_floor_floating` (c10/util/generic_math.h): by way of the exact
/// remainder, so that a quotient rounded up to a whole number does not count.
fn floor_div<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    let (a, b) = a.broadcast_with(b);
    if a.dtype().is_unsigned() {
        return a / b;
    }
    let r = a.rem(b);
    let crossed = r.ne(0.0) & (r.lt(0.0) ^ b.lt(0.0));
    if a.dtype().is_int() {
        return a / b - crossed.convert(a.dtype());
    }
    let q = (a - r) / b;
    let q = crossed.select(q - 1.0, q);
    let down = q.floor();
    let whole = (q - down).gt(0.5).select(down + 1.0, down);
    let quotient = a / b;
    let zero = super::binary_math::copysign(quotient.zeros_like(), quotient);
    b.eq(0.0).select(quotient, q.ne(0.0).select(whole, zero))
}

/// Numbers take the result's dtype before the arithmetic; only sums, products and quotients keep more of them.
pub(super) fn rounded<'b>(cx: &Cx<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let d = cx.out_dtype();
    f(cx.t_as("self", d).convert(d.opmath()), cx.t_as("other", d).convert(d.opmath()))
}

/// Python's `%`: the divisor's sign.
fn remainder<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    let (a, b) = a.broadcast_with(b);
    let r = a.rem(b);
    if a.dtype().is_unsigned() {
        return r;
    }
    let crossed = r.ne(0.0) & (r.lt(0.0) ^ b.lt(0.0));
    crossed.select(r + b, r)
}

fn ignoring_nan<'b>(a: V<'b>, b: V<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    if !a.dtype().is_float() {
        return f(a, b);
    }
    let (a, b) = a.broadcast_with(b);
    a.is_nan().select(b, b.is_nan().select(a, f(a, b)))
}

/// Integers by the number zero: the CPU raises. (Zeros on the device go unnoticed, as on other accelerators: looking for them
/// would make every quotient wait for a reduction.)
fn by_zero(n: &[Option<Scalar>], d: DType) -> bool {
    let zero = |s: Scalar| matches!(s, Scalar::Int(0) | Scalar::Bool(false));
    (d.is_int() || d == DType::Bool) && n.get(1).copied().flatten().is_some_and(zero)
}
