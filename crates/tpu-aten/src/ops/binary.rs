//! Arithmetic of two arguments.

use crate::cx::Cx;
use crate::def::{OpDef, binary, one};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a + b)).eg(&[
        "f32[2,3] f32[3]",
        "f32[2,3] f32[3] alpha=2",
        "i64[2] i64[2]",
        "bool[4] bool[4]",
        "bf16[3] f32[1]",
    ]),
    one("sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |cx| scaled(cx, |a, b| a - b))
        .eg(&["f32[2,3] f32[3]", "f32[2,3] f32[3] alpha=2.5"]),
    binary("mul.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a * b),
    binary("div.Tensor(Tensor self, Tensor other) -> Tensor", |a, b| a / b),
];

/// `self ∘ alpha · other`; alpha's default is a constant that costs nothing.
fn scaled<'b>(cx: &Cx<'b>, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (a, b) = (cx.t_as("self", d), cx.t_as("other", d));
    if d == tpu_base::DType::Bool {
        return a | b; // addition of bools is or
    }
    match cx.arg("alpha") {
        crate::Arg::Scalar(s) if *s == tpu_base::Scalar::Int(1) => f(a, b),
        _ => f(a, b * cx.scalar("alpha", d)),
    }
}
