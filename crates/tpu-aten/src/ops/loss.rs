//! Elementwise losses and their gradients: one formula each, then the reduction (0 none, 1 mean, 2 sum).

use super::reduce::{every, mean_over};
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::ErrorKind;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        reduced(cx, (x - t).square())
    })
    .late_shape()
    .eg(EG),
    one("mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        (x - t) * 2.0 * grad(cx, x)
    })
    .eg(BACK_EG),
    one("smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        let (z, beta) = ((x - t).abs(), cx.float("beta"));
        let far = z - 0.5 * beta;
        // without the guard, beta 0 would divide by zero where nothing is selected
        reduced(cx, if beta == 0.0 { z } else { z.lt(beta).select(z.square() * 0.5 / beta, far) })
    })
    .late_shape()
    .eg(&["f32[2,3] f32[2,3]", "f32[2,3] f32[2,3] 0 0.5", "bf16[2,3] bf16[2,3] 2", "f32[3] f32[3] 1 0.0"]),
    one(
        "smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor",
        |cx| {
            let (x, t) = operands(cx);
            let (d, g, beta) = (x - t, grad(cx, x), cx.float("beta"));
            let near = if beta == 0.0 { g.neg() } else { d * g / beta };
            d.le(-beta).select(g.neg(), d.ge(beta).select(g, near))
        },
    )
    .eg(&["f32[] f32[2,3] f32[2,3] 1 1.0", "f32[2,3] f32[2,3] f32[2,3] 0 0.5", "f32[] f32[3] f32[3] 2 0.0"]),
    one("huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        let (z, delta) = ((x - t).abs(), cx.float("delta"));
        reduced(cx, z.le(delta).select(z.square() * 0.5, (z - 0.5 * delta) * delta))
    })
    .eg(&["f32[2,3] f32[2,3]", "f32[2,3] f32[2,3] 0 0.5", "f64[2,3] f64[2,3] 2"]),
    one(
        "huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> Tensor",
        |cx| {
            let (x, t) = operands(cx);
            let (d, delta) = (x - t, cx.float("delta"));
            d.clamp(d.lit(-delta), d.lit(delta)) * grad(cx, x)
        },
    )
    .eg(&["f32[] f32[2,3] f32[2,3] 1 1.0", "f32[2,3] f32[2,3] f32[2,3] 0 0.5"]),
    one("soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        reduced(cx, softplus((x * t).neg()))
    })
    .eg(EG),
    one("soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor", |cx| {
        let (x, t) = operands(cx);
        t.neg() * (x * t).neg().logistic() * grad(cx, x)
    })
    .eg(BACK_EG),
    one(
        "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
        |cx| {
            let (x, t) = operands(cx);
            probabilities(cx, x);
            // logarithms stop at −100, so that a hopeless guess costs much but not everything
            let (yes, no) = (x.log().max(-100.0), x.neg().log1p().max(-100.0));
            reduced(cx, weighed(cx, (t - 1.0) * no - t * yes))
        },
    )
    .eg(&["f32[2,3]~ f32[2,3]~", "f32[2,3]~ f32[2,3]~ f32[2,3] 0", "bf16[2,3]~ bf16[2,3]~ - 2", "f64[3]~ f64[3]%2"]),
    one(
        "binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
        |cx| {
            let (x, t) = operands(cx);
            let slope = (x - t) / ((x.neg() + 1.0) * x).max(1e-12);
            weighed(cx, slope * grad(cx, x))
        },
    )
    .eg(&["f32[] f32[2,3]~ f32[2,3]~", "f32[2,3] f32[2,3]~ f32[2,3]~ f32[2,3] 0"]),
    one(
        "binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor",
        |cx| {
            let (x, t) = operands(cx);
            let miss = softplus(x.neg());
            let miss = match cx.opt_as("pos_weight", x.dtype()) {
                Some(p) => miss * ((p - 1.0) * t + 1.0),
                None => miss,
            };
            reduced(cx, weighed(cx, (t.neg() + 1.0) * x + miss))
        },
    )
    .eg(&[
        "f32[2,3] f32[2,3]~",
        "f32[2,3] f32[2,3]~ f32[3] f32[3]+ 0",
        "bf16[2,3] bf16[2,3]~ - bf16[3]+ 2",
        "f32[30]! f32[30]~ - - 0",
    ]),
    one(
        "multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor",
        |cx| {
            let m = margins(cx);
            let each = if cx.int("p") == 2 { m.lost.square() } else { m.lost };
            let each = (each * m.scale).sum(&[1]);
            let shape = if cx.t("self").rank() < 2 { vec![] } else { each.dims() };
            reduced(cx, each.reshape(&shape))
        },
    )
    .consts(&["p"])
    .eg(&[
        "f32[4,5] i64[4]%5",
        "f32[4,5] i64[4]%5 2 0.5 f32[5]+ 0",
        "f32[5] i64[]%5 1 1 - 2",
        "f32[4,5] i64[4]%5 1 1.5 f32[5]+ 1",
    ]),
    one(
        "multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p, Scalar margin, Tensor? weight=None, int reduction=1) -> Tensor",
        |cx| {
            let m = margins(cx);
            let slope = m.lost.gt(0.0).convert(m.lost.dtype());
            let slope = (if cx.int("p") == 2 { m.lost * 2.0 } else { slope }) * m.scale;
            let all = m.hot.select(slope.sum(&[1]).neg().unsqueeze(1), slope);
            let g = cx.t_as("grad_output", all.dtype());
            let g = if cx.int("reduction") == 1 { g / all.dim(0) as f64 } else { g };
            let g = if g.rank() == 1 { g.unsqueeze(1) } else { g };
            (all * g).reshape(&cx.out(0).dims)
        },
    )
    .consts(&["p"])
    .shapes(|s| Some(vec![s.ty("self")?]))
    .eg(&[
        "f32[] f32[4,5] i64[4]%5 1 1",
        "f32[4] f32[4,5] i64[4]%5 2 0.5 f32[5]+ 0",
        "f32[] f32[5] i64[]%5 1 1 - 2",
    ]),
];

const EG: &[&str] =
    &["f32[2,3] f32[2,3]", "f32[2,3] f32[2,3] 0", "bf16[2,3] bf16[2,3] 2", "f64[] f64[]", "f32[0] f32[0]"];
const BACK_EG: &[&str] = &[
    "f32[] f32[2,3] f32[2,3] 1",
    "f32[2,3] f32[2,3] f32[2,3] 0",
    "bf16[] bf16[2,3] bf16[2,3] 2",
    "f64[] f64[3] f64[3] 1",
];

fn operands<'b>(cx: &Cx<'b>) -> (V<'b>, V<'b>) {
    let d = cx.out_dtype().opmath();
    cx.t_as("self", d).broadcast_with(cx.t_as("target", d))
}

/// `each` as the `reduction` argument wants it.
pub(super) fn reduced<'b>(cx: &Cx<'b>, each: V<'b>) -> V<'b> {
    match cx.int("reduction") {
        1 => mean_over(each, &every(each)),
        2 => each.sum(&every(each)),
        _ => each,
    }
}

/// The incoming gradient of each element of a loss over `x`.
fn grad<'b>(cx: &Cx<'b>, x: V<'b>) -> V<'b> {
    let g = cx.t_as("grad_output", x.dtype());
    let g = if cx.int("reduction") == 1 { g / x.numel() as f64 } else { g };
    g.broadcast_to(&x.dims())
}

fn weighed<'b>(cx: &Cx<'b>, each: V<'b>) -> V<'b> {
    match cx.opt_as("weight", each.dtype()) {
        Some(w) => each * w,
        None => each,
    }
}

fn probabilities<'b>(cx: &Cx<'b>, x: V<'b>) {
    let ok = (x.ge(0.0) & x.le(1.0)).all(&every(x));
    cx.check(ok, ErrorKind::User, "all elements of input should be between 0 and 1");
}

/// ln(1 + eˣ) without overflow.
fn softplus(x: V<'_>) -> V<'_> {
    x.max(0.0) + x.abs().neg().exp().log1p()
}

/// A multi-class margin loss before its power: rows × classes.
struct Margins<'b> {
    /// How far each wrong class comes within the margin (0 for the right one).
    lost: V<'b>,
    /// Where the right class is.
    hot: V<'b>,
    /// Weight over the number of classes, a column.
    scale: V<'b>,
}

fn margins<'b>(cx: &Cx<'b>) -> Margins<'b> {
    let x = cx.t_as("self", cx.out_dtype().opmath());
    let classes = x.dims().last().copied().unwrap_or(1);
    let x = x.reshape(&[x.numel() / classes.max(1), classes]);
    let rows = x.dim(0);
    let t = cx.t("target").reshape(&[rows, 1]);
    cx.check((t.ge(0i64) & t.lt(classes)).all(&[0, 1]), ErrorKind::User, "target out of range");
    let hot = cx.b.iota(t.dtype(), &x.dims(), 1).eq(t);
    let pick = |v: V<'b>| hot.select(v.broadcast_to(&x.dims()), x.zeros_like()).sum(&[1]).unsqueeze(1);
    let z = x - pick(x) + cx.scalar("margin", x.dtype());
    let lost = hot.select(x.zeros_like(), z.max(0.0));
    let scale = match cx.opt_as("weight", x.dtype()) {
        Some(w) => pick(w) / classes as f64,
        None => x.lit(1.0 / classes as f64),
    };
    Margins { lost, hot, scale }
}
