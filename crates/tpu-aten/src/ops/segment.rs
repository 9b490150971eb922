//! Reductions over runs of rows whose lengths (or ends) are data.

use super::embedding_bag::passed;
use super::index_rows::Rows;
use super::scan::cumsum;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, \
         int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor",
        forward,
    )
    .consts(&["initial"])
    .refuse(unmarked)
    .eg(&[
        "f32[9,2] 'sum' lengths=i64[4]%3 unsafe=True",
        "f64[9] 'mean' lengths=i64[4]%3 unsafe=True",
        "f32[2,9] 'max' lengths=i64[2,4]%3 axis=1 unsafe=True",
        "f32[9,2] 'min' lengths=i32[4]%3 unsafe=True initial=0.5",
        "f32[9,2] 'prod' lengths=i64[4]%3 unsafe=True initial=2",
        "f32[9,2] 'mean' lengths=i64[4]%3 unsafe=True initial=2",
        "f32[9,2] 'sum' offsets=i64[2]%1",
        "f32[19]! 'max' lengths=i64[4]%5 unsafe=True",
    ]),
    one(
        "_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, Tensor? lengths=None, \
         Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor",
        backward,
    )
    .consts(&["initial"])
    .refuse(unmarked)
    .eg(&[
        "f32[2,2] f32[2,2] f32[9,2] 'sum' lengths=i64[2]%5",
        "f64[3] f64[3] f64[9] 'mean' lengths=i64[3]%4",
        "f32[2,2] f32[2,2] f32[9,2]%4 'prod' lengths=i64[2]%5 initial=2",
        "f32[2,3] f32[2,3] f32[2,9] 'max' lengths=i64[2,3]%4 axis=1",
        "f32[2,2]%2 f32[2,2]%2 f32[9,2]%2 'min' lengths=i64[2]%5",
    ]),
];

fn unmarked(s: &Sig<'_>) -> Option<Refusal> {
    (*s.arg("lengths") == SigArg::None && *s.arg("offsets") == SigArg::None).then_some("neither lengths nor offsets")
}

/// Rows of `outer` parallel sequences, and the segment of each.
struct Segments<'b> {
    /// (outer · length) × inner.
    rows: V<'b>,
    /// For each row its segment among outer · segments; −1: of none.
    to: V<'b>,
    /// Rows in each segment, a column in the data's dtype.
    sizes: V<'b>,
    count: i64,
}

impl<'b> Segments<'b> {
    fn new(cx: &Cx<'b>, x: V<'b>) -> Segments<'b> {
        let axis = cx.dim("axis", x.rank());
        let d = x.dims();
        let (outer, length, inner): (i64, i64, i64) =
            (d[..axis].iter().product(), d[axis], d[axis + 1..].iter().product());
        // where each segment begins and ends
        let bounds = match cx.opt("offsets") {
            Some(o) => o.convert(DType::I32).reshape(&[outer, o.dims().last().copied().unwrap_or(0)]),
            None => {
                let l = cx.t("lengths");
                let n = l.dims().last().copied().unwrap_or(0);
                let l = l.convert(DType::I32).reshape(&[outer, n]);
                let ends = cumsum(l, 1);
                if cx.has("unsafe") && !cx.flag("unsafe") && n > 0 {
                    cx.check(l.ge(0i64).all(&[0, 1]), ErrorKind::User, "lengths contains negative value!");
                    let words = "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.";
                    cx.check(ends.slice_dim(1, n - 1, n).eq(length).all(&[0, 1]), ErrorKind::User, words);
                }
                ends.pad(ends.lit(0i64), &[0, 1], &[0, 0], &[0, 0])
            }
        };
        let n = bounds.dim(1) - 1;
        let sizes = bounds.slice_dim(1, 1, n + 1) - bounds.slice_dim(1, 0, n);
        let at = passed(bounds, length) - 1i64;
        let to = at + cx.b.iota(DType::I32, &[outer, length], 0) * n;
        let to = (at.ge(0i64) & at.lt(n)).select(to, to.full_like(-1.0));
        Segments {
            rows: x.reshape(&[outer * length, inner]),
            to: to.reshape(&[outer * length]),
            sizes: sizes.convert(x.dtype()).reshape(&[outer * n, 1]),
            count: outer * n,
        }
    }

    /// Folds `rows` segment by segment, from `init`.
    fn fold(&self, rows: V<'b>, init: V<'b>, f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
        let start = init.broadcast_to(&[self.count, rows.dim(1)]);
        if self.count == 0 { start } else { Rows { dim: 0, index: self.to }.scatter(start, rows, f) }
    }

    /// Each row's share of a value a segment; zero where it has none.
    fn spread(&self, v: V<'b>) -> V<'b> {
        if self.count == 0 {
            return self.rows.zeros_like();
        }
        let none = self.to.lt(0i64);
        let v = v.broadcast_to(&[self.count, self.rows.dim(1)]).take(self.to, 0);
        none.unsqueeze(1).select(v.zeros_like(), v)
    }
}

fn forward<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    let s = Segments::new(cx, cx.t_as("data", out.dtype.opmath()));
    let initial = cx.opt_number("initial").map(|n| s.rows.lit(n));
    let from = |v: V<'b>| initial.unwrap_or(v);
    let result = match cx.str("reduce").unwrap_or("sum") {
        "max" => s.fold(s.rows, from(s.rows.lowest()), |a, b| a.max(b)),
        "min" => s.fold(s.rows, from(s.rows.highest()), |a, b| a.min(b)),
        "prod" => s.fold(s.rows, from(s.rows.lit(1.0)), |a, b| a * b),
        "mean" => {
            let sum = s.fold(s.rows, from(s.rows.lit(0.0)), |a, b| a + b);
            let none = if initial.is_some() { sum } else { sum.full_like(f64::NAN) };
            s.sizes.gt(0.0).select(sum / s.sizes, none)
        }
        _ => s.fold(s.rows, from(s.rows.lit(0.0)), |a, b| a + b),
    };
    result.reshape(&out.dims)
}

fn backward<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    let d = out.dtype.opmath();
    let s = Segments::new(cx, cx.t_as("data", d));
    let inner = s.rows.dim(1);
    let flat = |name: &str| cx.t_as(name, d).reshape(&[s.count, inner]);
    let (grad, output) = (flat("grad"), flat("output"));
    let grad = match cx.str("reduce").unwrap_or("sum") {
        "max" | "min" => {
            // shared by all that attain it
            let hit = (s.rows.eq(s.spread(output)) | s.rows.is_nan()) & s.to.ge(0i64).unsqueeze(1);
            let ties = s.fold(hit.convert(d), s.rows.lit(0.0), |a, b| a + b);
            hit.select(s.spread(grad / ties.max(1.0)), s.rows.zeros_like())
        }
        "mean" => s.spread(grad / s.sizes.max(1.0)),
        "prod" => {
            // a zero's slope is the product of the others
            let zero = s.rows.eq(0.0);
            let rest = zero.select(s.rows.full_like(1.0), s.rows);
            let start = cx.opt_number("initial").map_or(s.rows.lit(1.0), |n| s.rows.lit(n));
            let others = s.fold(rest, start, |a, b| a * b);
            let zeros = s.fold(zero.convert(d), s.rows.lit(0.0), |a, b| a + b);
            let alone = s.spread(zeros).eq(1.0);
            let at_zero = alone.select(s.spread(grad * others), s.rows.zeros_like());
            zero.select(at_zero, s.spread(grad * output) / s.rows)
        }
        _ => s.spread(grad),
    };
    grad.reshape(&out.dims)
}
