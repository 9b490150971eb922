//! Negative log likelihood, for rows (class dimension last of one or two) and for images (class dimension 1). The class is
//! picked by comparing against an iota: it fuses with the softmax that made the operand, and a TPU gathers slowly.

use super::reduce::every;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, many, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        forward,
    )
    .refuse(no_classes)
    .eg(&[
        "f32[4,5] i64[4]%5 - 1 -100",
        "f32[4,5] i64[4]%5 f32[5]+ 1 2",
        "f32[4,5] i64[4]%5 f32[5]+ 0 1",
        "f32[5] i64[]%5 - 2 -100",
        "f32[5] i64[]%5 f32[5]+ 0 -100",
        "bf16[4,5] i64[4]%5 - 1 -100",
        "f64[4,5] u8[4]%5 f64[5]+ 2 -100",
        "f32[0,5] i64[0] - 1 -100",
    ]),
    one(
        "nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
        backward,
    )
    .eg(&[
        "f32[] f32[4,5] i64[4]%5 - 1 -100 f32[]+",
        "f32[4] f32[4,5] i64[4]%5 f32[5]+ 0 1 f32[]+",
        "f32[] f32[5] i64[]%5 f32[5]+ 2 -100 f32[]+",
        "bf16[] bf16[4,5] i64[4]%5 - 1 -100 bf16[]+",
    ]),
    many(
        "nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        forward,
    )
    .eg(&[
        "f32[2,5,3,4] i64[2,3,4]%5 - 1 -100",
        "f32[2,5,3,4] i64[2,3,4]%5 f32[5]+ 0 2",
        "f32[2,5,3,4] i64[2,3,4]%5 f32[5]+ 1 1",
        "f64[2,5,3,4] i64[2,3,4]%5 - 2 -100",
    ]),
    one(
        "nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
        backward,
    )
    .eg(&[
        "f32[] f32[2,5,3,4] i64[2,3,4]%5 - 1 -100 f32[]+",
        "f32[2,3,4] f32[2,5,3,4] i64[2,3,4]%5 f32[5]+ 0 2 f32[]+",
        "f32[] f32[2,5,3,4] i64[2,3,4]%5 f32[5]+ 2 2 f32[]+",
    ]),
];

/// Meta lets it pass; the CPU has the words.
fn no_classes(sig: &Sig<'_>) -> Option<Refusal> {
    let d = sig.dtype("target")?;
    (!matches!(d, DType::I64 | DType::U8)).then_some("the target's dtype is neither int64 nor uint8")
}

struct Targets<'b> {
    /// Log probabilities.
    x: V<'b>,
    /// The class dimension.
    class: usize,
    /// Where `x` is the target's, unless that is ignored.
    hot: V<'b>,
    /// Weight of each position, 0 where ignored, with the class dimension kept as 1.
    weight: V<'b>,
}

fn targets<'b>(cx: &Cx<'b>) -> Targets<'b> {
    let x = cx.t("self");
    let x = x.convert(x.dtype().opmath());
    let class = usize::from(x.rank() > 1);
    let mut column = x.dims();
    column[class] = 1;
    let t = cx.t_as("target", DType::I64).reshape(&column);
    let counts = t.ne(cx.int("ignore_index"));
    let inside = t.ge(0i64) & t.lt(x.dim(class));
    let ok = (inside | counts.not()).all(&every(t));
    cx.check(ok, ErrorKind::Index, "Target is out of bounds.");
    let narrow = t.convert(DType::I32);
    let hot = cx.b.iota(DType::I32, &x.dims(), class).eq(narrow) & counts;
    let weight = match cx.opt_as("weight", x.dtype()) {
        Some(w) => {
            let w = w.broadcast_in_dim(&x.dims(), &[class]);
            hot.select(w, x.zeros_like()).sum(&[class]).reshape(&column)
        }
        None => counts.convert(x.dtype()),
    };
    Targets { x, class, hot, weight }
}

fn forward<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let t = targets(cx);
    let picked = t.hot.select(t.x, t.x.zeros_like()).sum(&[t.class]);
    let weight = t.weight.reshape(&picked.dims());
    // 0 − 0 where ignored: not −0
    let each = picked.zeros_like() - picked * weight;
    let reduction = cx.int("reduction");
    if reduction == 0 {
        // a lone row reports its weight all the same
        let total = if t.x.rank() == 1 { weight.reshape(&[]) } else { weight.lit(0.0) };
        return vec![each.reshape(&cx.out(0).dims), total];
    }
    let all = every(each);
    let (loss, total) = (each.sum(&all), weight.sum(&all));
    vec![if reduction == 1 { loss / total } else { loss }, total]
}

fn backward<'b>(cx: &Cx<'b>) -> V<'b> {
    let t = targets(cx);
    let g = cx.t_as("grad_output", t.x.dtype());
    let g = if cx.int("reduction") == 1 { g / cx.t_as("total_weight", g.dtype()) } else { g };
    let g = if g.rank() == 0 { g } else { g.reshape(&t.weight.dims()) };
    t.hot.select((g * t.weight).neg().broadcast_to(&t.x.dims()), t.x.zeros_like())
}
