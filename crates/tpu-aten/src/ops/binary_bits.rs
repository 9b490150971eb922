//! Operations on bits.

use crate::def::{OpDef, binary, unary_same};
use tpu_base::DType;
use tpu_hlo::V;

const BITS: &[&str] = &[
    "i32[2,3] i32[3]",
    "u8[4]! u8[4]!",
    "i64[3] i32[]",
    "bool[6] bool[6]",
    "bool[3] i16[3]",
    "i8[0] i8[1]",
    "i32[3] 5",
];
const NUMBERS: &[&str] = &["i32[4] 6", "u8[4] 3", "bool[4] True", "i64[2,2] -5", "bool[3] 2"];
const REVERSED: &[&str] = &["6 i32[4]", "True bool[4]", "-5 i64[2,2]"];
const SHIFTS: &[&str] = &[
    "i32[2,3] i32[3]%9",
    "i64[9]! i64[9]%70",
    "i8[9]! i8[9]",
    "u8[6]! u8[6]%12",
    "i32[4]! -1",
    "i16[3] i32[3]%20",
    "i32[0] i32[1]",
];
const SHIFT_BY: &[&str] = &["i32[4] 3", "u8[4] 9", "i64[9]! 70", "i32[4] -1"];

pub(crate) static DEFS: &[OpDef] = &[
    unary_same("bitwise_not(Tensor self) -> Tensor", |x| x.not())
        .eg(&["i32[4]!", "u8[4]!", "bool[4]", "i64[0]", "i8[]"]),
    binary("bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.and(b)).eg(BITS),
    binary("bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.and(b)).eg(NUMBERS),
    binary("bitwise_and.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", |a, b| a.and(b)).eg(REVERSED),
    binary("bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.or(b)).eg(BITS),
    binary("bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.or(b)).eg(NUMBERS),
    binary("bitwise_or.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", |a, b| a.or(b)).eg(REVERSED),
    binary("bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a.xor(b)).eg(BITS),
    binary("bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor", |a, b| a.xor(b)).eg(NUMBERS),
    binary("bitwise_xor.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", |a, b| a.xor(b)).eg(REVERSED),
    binary("bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor", left).eg(SHIFTS),
    binary("bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor", left).eg(SHIFT_BY),
    binary("bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", left).eg(&["3 i32[4]%5"]),
    binary("bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor", right).eg(SHIFTS),
    binary("bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor", right).eg(SHIFT_BY),
    binary("bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", right).eg(&["-77 i32[4]%5"]),
    binary("__lshift__.Tensor(Tensor self, Tensor other) -> Tensor", left).eg(&["i32[4] i32[4]%5", "u8[4] u8[4]%9"]),
    binary("__lshift__.Scalar(Tensor self, Scalar other) -> Tensor", left).eg(&["i32[4] 3", "i64[4] 2"]),
    binary("__rshift__.Tensor(Tensor self, Tensor other) -> Tensor", right).eg(&["i32[4] i32[4]%5", "u8[4] u8[4]%9"]),
    binary("__rshift__.Scalar(Tensor self, Scalar other) -> Tensor", right).eg(&["i32[4] 3", "i64[4] 2"]),
];

fn width(d: DType) -> i64 {
    8 * d.size() as i64
}

/// Whether a shift amount lies outside 0..width, where C leaves the result open and PyTorch defines it.
fn outside<'b>(by: V<'b>) -> V<'b> {
    let high = by.ge(width(by.dtype()));
    if by.dtype().is_unsigned() { high } else { high | by.lt(0i64) }
}

/// Nothing is left of a value shifted too far.
fn left<'b>(x: V<'b>, by: V<'b>) -> V<'b> {
    let (x, by) = x.broadcast_with(by);
    outside(by).select(x.zeros_like(), x.shl(by))
}

/// The sign is left of a value shifted too far.
fn right<'b>(x: V<'b>, by: V<'b>) -> V<'b> {
    let (x, by) = x.broadcast_with(by);
    if x.dtype().is_unsigned() {
        return outside(by).select(x.zeros_like(), x.shr_logical(by));
    }
    let most = by.full_like(width(by.dtype()) - 1);
    x.shr(outside(by).select(most, by))
}
