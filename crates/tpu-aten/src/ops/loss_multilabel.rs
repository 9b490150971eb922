//! The margin loss of several labels an example: every label should beat every class that is none, by one.

use super::loss::reduced;
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target)",
        |cx| {
            let m = Margins::new(cx);
            let each = m.lost.sum(&[1, 2]) / m.classes as f64;
            let each = if cx.t("self").rank() < 2 { each.reshape(&[]) } else { each };
            let d = cx.out(1);
            vec![reduced(cx, each), m.is_label.convert(d.dtype).reshape(&d.dims)]
        },
    )
    .eg(&["f32[3,5] i64[3,5]%5 1", "f64[4,5] i64[4,5]%3 0", "f32[6] i64[6]%6 2", "f32[] i64[]%1 1"]),
    one(
        "multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, \
         Tensor is_target) -> Tensor",
        |cx| {
            let m = Margins::new(cx);
            let hit = m.lost.gt(0.0).convert(m.lost.dtype());
            // each pair pushes its class up and pulls its label down
            let labels = m.hot.select(hit.sum(&[2]).unsqueeze(2).broadcast_to(&hit.dims()), hit.zeros_like()).sum(&[1]);
            let slope = (hit.sum(&[1]) - labels) / m.classes as f64;
            let g = cx.t_as("grad_output", slope.dtype());
            let g = if cx.int("reduction") == 1 { g / slope.dim(0) as f64 } else { g };
            let g = if g.rank() == 1 { g.unsqueeze(1) } else { g };
            (slope * g).reshape(&cx.out(0).dims)
        },
    )
    .shapes(|s| Some(vec![s.ty("self")?]))
    .eg(&[
        "f32[] f32[3,5] i64[3,5]%5 1 f32[3,5]%2",
        "f64[3] f64[3,5] i64[3,5]%5 0 f64[3,5]%2",
        "f32[] f32[6] i64[6]%6 2 f32[6]%2",
    ]),
];

/// rows × positions of the label list × classes.
struct Margins<'b> {
    /// How far each class comes within each label's margin.
    lost: V<'b>,
    /// The label's own class.
    hot: V<'b>,
    /// rows × classes: whether it is among the labels.
    is_label: V<'b>,
    classes: i64,
}

impl<'b> Margins<'b> {
    fn new(cx: &Cx<'b>) -> Margins<'b> {
        let x = cx.t("self");
        let x = x.convert(x.dtype().opmath());
        let classes = x.dims().last().copied().unwrap_or(1);
        let rows = x.numel() / classes.max(1);
        let (x, t) = (x.reshape(&[rows, classes]), cx.t("target").convert(DType::I32).reshape(&[rows, classes]));
        cx.check((t.ge(-1i64) & t.lt(classes)).all(&[0, 1]), ErrorKind::User, "argument #2 'target' is out of range");
        // the list ends before its first −1
        let at = cx.b.iota(DType::I32, &[rows, classes], 1);
        let end = t.lt(0i64).select(at, at.full_like(classes)).reduce(at.lit(classes), &[1], |a, b| a.min(b));
        let listed = at.lt(end.unsqueeze(1));
        let cube = [rows, classes, classes];
        let hot = cx.b.iota(DType::I32, &cube, 2).eq(t.unsqueeze(2)) & listed.unsqueeze(2);
        let is_label = if cx.has("is_target") {
            cx.t_as("is_target", DType::Bool).reshape(&[rows, classes])
        } else {
            hot.any(&[1])
        };
        let wide = x.unsqueeze(1).broadcast_to(&cube);
        let own = hot.select(wide, wide.zeros_like()).sum(&[2]).unsqueeze(2);
        let margin = (wide - own + 1.0).max(0.0);
        let counts = listed.unsqueeze(2) & is_label.not().unsqueeze(1);
        Margins { lost: counts.select(margin, margin.zeros_like()), hot, is_label, classes }
    }
}
