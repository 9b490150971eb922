//! Searching: where a value would stand in a sorted row, whether it occurs at all, and into which bin it falls.

use super::reduce::every;
use super::sort::sorted;
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{ScatterDims, V};

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        searchsorted,
    )
    .eg(&[
        "i64[1]%9 i64[7]%9",
        "f32[2,1] f32[2,5]",
        "f32[1] f32[2,3] right=True",
        "f32[2,1] f32[2,5] side='right' out_int32=True",
        "f32[1] f32[]",
        "f32[2,4] f32[2,5] sorter=i64[2,4]%4",
        "f32[0] f32[3]",
    ]),
    one(
        "searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        searchsorted,
    )
    .eg(&["f32[1] 0.5", "i64[1]%9 4 right=True"]),
    one("bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor", |cx| {
        bucketize(cx)
    })
    .eg(&["f32[2,3] f32[1]", "i64[9]%9 i64[1]%9 right=True out_int32=True", "f32[] f32[1]"]),
    one("bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor", |cx| {
        bucketize(cx)
    })
    .eg(&["0.5 f32[1]"]),
    one(
        "isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        |cx| isin(cx, "elements", "test_elements"),
    )
    .late_shape()
    .eg(&["i64[3,4]%9 i64[5]%9", "f32[30]! f32[8]!", "i32[9]%9 i64[2,2]%9 invert=True", "i64[300]%2000 i64[1500]%2000"]),
    one(
        "isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor",
        |cx| isin(cx, "elements", "test_element"),
    )
    .late_shape()
    .eg(&["i64[3,4]%9 3", "f32[30]! 0.5 invert=True"]),
    one(
        "isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        |cx| isin(cx, "element", "test_elements"),
    )
    .late_shape()
    .eg(&["3 i64[3,4]%9", "2 i64[4]%2 invert=True"]),
    // whole numbers too, as CUDA counts them and the CPU does not: mixtures of experts ask for it
    one("histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor", histc)
        .consts(&["min", "max"])
        .eg(&["f32[50] 10", "f32[5,9] 8 -1 1.5", "f64[40] 7 0 2", "f32[4] 3 1 1"]),
];

/// Up to this many candidates, comparing with each beats bisecting: it is one fused reduction and no gather.
const FEW: i64 = 256;

/// First position along the last dimension of `rows` (… × n) for whose element `f(element, value)` does not hold; n if none.
/// `values` (… × m) belong to the same rows; `f` holds for a prefix. int32.
fn first_not<'b>(rows: V<'b>, values: V<'b>, f: impl Fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let b = rows.builder();
    let (last, n) = (rows.rank() - 1, rows.dims().last().copied().unwrap_or(0));
    if n <= FEW {
        let before = f(rows.unsqueeze(last), values.unsqueeze(last + 1));
        let at = b.iota(DType::I32, &before.dims(), last + 1);
        return before.select(at.full_like(n), at).reduce(b.scalar(DType::I32, n), &[last + 1], |x, y| x.min(y));
    }
    let outer = rows.numel() / n;
    let m = values.numel() / outer.max(1);
    let flat = rows.reshape(&[rows.numel()]);
    let shape = values.dims();
    let values = values.reshape(&[outer, m]);
    let base = b.iota(DType::I32, &[outer, m], 0) * n;
    let (mut low, mut high) = (base.zeros_like(), base.full_like(n));
    let mut left = n;
    while left > 0 {
        let open = low.lt(high);
        let mid = low + (high - low) / 2i64;
        let before = f(flat.take(base + mid.min(n - 1), 0), values);
        let next = (open & before).select(mid + 1i64, low);
        high = (open & before.not()).select(mid, high);
        low = next;
        left /= 2;
    }
    low.reshape(&shape)
}

/// PyTorch's order of search: a value that compares with nothing goes to the end.
pub(super) fn insert<'b>(rows: V<'b>, values: V<'b>, right: bool) -> V<'b> {
    first_not(rows, values, |x, v| if right { x.gt(v).not() } else { x.ge(v).not() })
}

fn searchsorted<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.common_dtype(&["sorted_sequence", "self"]);
    let (mut rows, values) = (cx.t_as("sorted_sequence", d), cx.t_as("self", d));
    if let Some(order) = cx.opt("sorter") {
        let n = rows.dims().last().copied().unwrap_or(0);
        let ok = (order.ge(0i64) & order.lt(n)).all(&every(order));
        cx.check(ok, ErrorKind::User, "torch.searchsorted(): sorter index out of range");
        let shape = rows.dims();
        let outer = rows.numel() / n.max(1);
        let order = order.convert(DType::I32).reshape(&[outer, n]);
        let at = order + cx.b.iota(DType::I32, &[outer, n], 0) * n;
        rows = rows.reshape(&[rows.numel()]).take(at, 0).reshape(&shape);
    }
    let right = cx.flag("right") || cx.str("side") == Some("right");
    let shape = cx.out(0).dims;
    let shared = rows.rank() == 1;
    let values = if shared { values.reshape(&[values.numel()]) } else { values };
    insert(rows, values, right).reshape(&shape)
}

fn bucketize<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.common_dtype(&["self", "boundaries"]);
    let values = cx.t_as("self", d);
    insert(cx.t_as("boundaries", d), values.reshape(&[values.numel()]), cx.flag("right")).reshape(&cx.out(0).dims)
}

fn isin<'b>(cx: &Cx<'b>, elements: &str, tests: &str) -> V<'b> {
    let d = cx.common_dtype(&[elements, tests]);
    let (x, t) = (cx.t_as(elements, d), cx.t_as(tests, d));
    let (flat, t) = (x.reshape(&[x.numel()]), t.reshape(&[t.numel()]));
    let n = t.numel();
    let found = if n <= FEW {
        flat.unsqueeze(1).eq(t.unsqueeze(0)).any(&[1])
    } else {
        let (t, _) = sorted(t, 0, false);
        let at = first_not(t, flat, |x, v| x.lt(v));
        t.take(at.min(n - 1), 0).eq(flat)
    };
    let found = if cx.flag("invert") { found.not() } else { found };
    found.reshape(&cx.out(0).dims)
}

fn histc<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let whole = x.dtype().is_int();
    let x = x.convert(if whole { DType::I64 } else { x.dtype().opmath() }).reshape(&[x.numel()]);
    let bins = cx.int("bins");
    let (lo, hi) = (cx.number("min").as_f64(), cx.number("max").as_f64());
    let of_data = lo == hi && x.numel() > 0;
    let (lo, hi) = if of_data { (x.min_over(&[0]), x.max_over(&[0])) } else { (x.lit(lo), x.lit(hi)) };
    if of_data && !whole {
        let finite = (lo.is_finite() & hi.is_finite()).reshape(&[]);
        cx.check(finite, ErrorKind::User, "torch.histc: range is not finite");
    }
    // a range of no width grows by one on each side
    let flat = lo.eq(hi);
    let (lo, hi) = (flat.select(lo - lo.lit(1), lo), flat.select(hi + hi.lit(1), hi));
    let bin = (x - lo) * x.lit(bins) / (hi - lo);
    let bin = if whole { bin } else { bin.floor() }.min(bin.lit(bins - 1));
    let inside = x.ge(lo) & x.le(hi);
    let bin = inside.select(bin, bin.full_like(-1i64)).convert(DType::I32);
    // measured: comparing with every bin costs thirty times as much on a CPU
    let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..Default::default() };
    let one = bin.full_like(1i64);
    cx.b.zeros(DType::I32, &[bins]).scatter(bin, one, &d, false, |a, b| a + b)
}
