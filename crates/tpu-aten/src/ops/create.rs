//! Ranges and identities: ops that make a tensor from numbers. Their numbers are operands, so that a loop over them
//! compiles once; the size comes with the result type.

use crate::cx::Cx;
use crate::def::{Extent, OpDef, one};
use tpu_base::{DType, Scalar};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        steps,
    )
    .extent(extent)
    .eg(&[
        "0 5",
        "2 11 3",
        "0.5 3 0.25",
        "5 -3 -2",
        "0 1 0.1 dtype=f64",
        "1 9 2 dtype=bf16",
        "0 5 1 dtype=i32",
        "0 5 1 dtype=f32",
        "3 3",
        "-5 5 1 dtype=i8",
    ]),
    one(
        "range.step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        steps,
    )
    .extent(extent)
    .eg(&["0 5", "0.5 3 0.25", "0 6 2 dtype=i64"]),
    one(
        "linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        linear,
    )
    .eg(&["0 1 5", "-2.5 7 10 dtype=f64", "0 10 7 dtype=i64", "3 4 1", "3 4 0", "0 1 4 dtype=bf16", "5 -5 9 dtype=i32"]),
    one(
        "linspace.Tensor_Tensor(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        linear,
    )
    .eg(&["f32[] f32[] 5"]),
    one(
        "linspace.Tensor_Scalar(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        linear,
    )
    .eg(&["f32[] 1 5"]),
    one(
        "linspace.Scalar_Tensor(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        linear,
    )
    .eg(&["0 f32[] 5"]),
    one(
        "logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, \
         Device? device=None, bool? pin_memory=None) -> Tensor",
        exponential,
    )
    .eg(&["0 2 5", "-2 2 9 2.0", "0 3 4 dtype=i64", "0 1 1", "0 1 0", "0 1 6 dtype=f64"]),
    one(
        "logspace.Tensor_Tensor(Tensor start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, \
         Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        exponential,
    )
    .eg(&["f32[] f32[] 5"]),
    one(
        "logspace.Tensor_Scalar(Tensor start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, \
         Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        exponential,
    )
    .eg(&["f32[] 1 5"]),
    one(
        "logspace.Scalar_Tensor(Scalar start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, \
         Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        exponential,
    )
    .eg(&["0 f32[] 5"]),
    one(
        "eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        eye,
    )
    .eg(&["3", "0", "3 dtype=bool", "2 dtype=c64", "3 dtype=bf16"]),
    one(
        "eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, \
         bool? pin_memory=None) -> Tensor",
        eye,
    )
    .eg(&["3 4", "4 2 dtype=i64", "0 3"]),
];

/// How many steps lead from start to end: as PyTorch counts them in floating point, and in whole numbers, which it does for
/// integer results. Its two roundings (up for `arange`, down for `range`) differ where the quotient is not whole.
fn extent(numbers: &[Scalar]) -> Extent {
    let [start, end, step] = [0, 1, 2].map(|k| numbers.get(k).copied().unwrap_or(Scalar::Int(1)));
    let counted = (end.as_f64() - start.as_f64()) / step.as_f64();
    let whole = end.as_i64().wrapping_sub(start.as_i64()).checked_div(step.as_i64());
    let rest = end.as_i64().wrapping_sub(start.as_i64()).checked_rem(step.as_i64());
    let both = |count: i64, exact: bool| count.wrapping_mul(2).wrapping_add(i64::from(exact));
    [
        if counted.is_finite() { both(counted.floor() as i64, counted.fract() == 0.0) } else { i64::MIN },
        whole.map_or(i64::MIN, |w| both(w, rest == Some(0))),
    ]
}

/// `start + i · step`.
fn steps<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    // narrow integers count in int64, as PyTorch's kernel does
    let d = if out.dtype.is_int() { DType::I64 } else { out.dtype.opmath() };
    cx.scalar("start", d) + cx.b.iota(d, &out.dims, 0) * cx.scalar("step", d)
}

/// Evenly spaced from both ends to the middle, so that both are exact. Integers go through float64.
fn spaced<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    let d = if out.dtype.is_int() { DType::F64 } else { out.dtype.opmath() };
    let n = cx.int("steps");
    let whole = |v: V<'b>| if out.dtype.is_int() { v.trunc() } else { v };
    let (start, end) = (whole(cx.t_as("start", d).reshape(&[])), whole(cx.t_as("end", d).reshape(&[])));
    if n <= 1 {
        return start.broadcast_to(&out.dims);
    }
    let step = (end - start) / start.lit(n - 1);
    let at = cx.b.iota(DType::I32, &out.dims, 0);
    let i = at.convert(d);
    let below = start + i * step;
    let above = end - (i.full_like(n - 1) - i) * step;
    at.lt(n / 2).select(below, above)
}

fn linear<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    if out.numel() == 0 { cx.b.zeros(out.dtype, &out.dims) } else { spaced(cx) }
}

fn exponential<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    if out.numel() == 0 {
        return cx.b.zeros(out.dtype, &out.dims);
    }
    let x = spaced(cx);
    x.full_like(cx.float("base")).pow(x)
}

fn eye<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    cx.b.iota(DType::I32, &out.dims, 0).eq(cx.b.iota(DType::I32, &out.dims, 1)).convert(out.dtype)
}
