//! Indexing along one dimension, and the element-by-element gather and scatter family.

use super::index::positions;
use crate::cx::{Arg, Cx};
use crate::def::{OpDef, Refusal, Sig, SigArg, one};
use tpu_base::{DType, ErrorKind, Scalar};
use tpu_hlo::{GatherDims, ScatterDims, V, broadcast_dims};

pub(crate) static DEFS: &[OpDef] = &[
    one("index_select(Tensor self, int dim, Tensor index) -> Tensor", |cx| {
        let x = line(cx.t("self"));
        let d = cx.dim("dim", x.rank());
        let index = checked(cx, line(cx.t("index")), x.dim(d), false, "index out of range in self");
        let out = cx.out(0);
        if out.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        x.take(index, d).reshape(&out.dims)
    })
    .refuse(no_line_of_indices)
    .eg(&[
        "f32[4,5] 0 i64[3]%4",
        "f32[4,5] -1 i32[7]%5",
        "bf16[4,5] 1 i64[]%5",
        "f32[] 0 i64[1]%1",
        "bool[4] 0 i64[2]%4",
        "f32[4,5] 0 i64[0]",
        "f32[0,5] 1 i64[2]%5",
        "c64[3,2] 0 i64[2]%3",
    ]),
    one("gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor", |cx| {
        let (x, index) = (line(cx.t("self")), line(cx.t("index")));
        let out = cx.out(0);
        if out.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let d = cx.dim("dim", x.rank());
        let at = Elements::of(cx, x, d, index);
        let (dims, rank): (Vec<i64>, _) = (at.dims.iter().map(|&d| x.dim(d)).collect(), at.dims.len());
        let map = GatherDims {
            collapsed: (0..rank).collect(),
            start_index_map: (0..rank).collect(),
            index_vector_dim: x.rank(),
            ..GatherDims::default()
        };
        // without the dimensions of size one that no index names: the TPU's compiler dies of them
        x.reshape(&dims).gather(at.index, &map, &vec![1; rank]).reshape(&out.dims)
    })
    .eg(&[
        "f32[4,5] 0 i64[2,5]%4",
        "f32[4,5] -1 i64[3,2]%5",
        "bf16[2,3,4] 1 i64[2,7,4]%3",
        "f32[4,5] 1 i64[4,1]%5",
        "i64[1,512] 1 i64[1,9]%512",
        "f32[] 0 i64[]%1",
        "i64[4] 0 i64[9]%4",
        "f32[4,5] 0 i64[0,5]",
        "bool[4,5] 1 i64[4,2]%5",
    ]),
    one("take(Tensor self, Tensor index) -> Tensor", |cx| {
        let x = cx.t("self");
        let index = checked(cx, cx.t("index"), x.numel(), true, "take(): index out of range in self");
        let out = cx.out(0);
        if out.numel() == 0 { cx.b.zeros(out.dtype, &out.dims) } else { x.reshape(&[x.numel()]).take(index, 0) }
    })
    .eg(&["f32[4,5] i64[3]%20", "f32[4,5] i64[2,2]", "f32[9] i64[]", "f32[0] i64[0]"]),
    one("put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor", |cx| {
        let x = cx.t("self");
        let add = cx.flag("accumulate");
        let wide = if add { x.dtype().opmath() } else { x.dtype() };
        let index = checked(cx, cx.t("index"), x.numel(), true, "put_(): index out of range in self");
        let (n, source) = (index.numel(), cx.t_as("source", wide));
        if n == 0 {
            return x;
        }
        let rows = Rows { dim: 0, index: index.reshape(&[n]) };
        let flat = x.convert(wide).reshape(&[x.numel()]);
        rows.scatter(flat, source.reshape(&[n]), |a, b| if add { a + b } else { b }).reshape(&x.dims())
    })
    .eg(&[
        "f32[4,5] i64[1] f32[1]",
        "f32[4,5] i64[9]%3 f32[9] True",
        "bf16[4] i64[9]%3 bf16[9] True",
        "f32[4] i64[0] f32[0]",
    ]),
    one("index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor", |cx| {
        let wide = cx.out_dtype().opmath();
        let x = line(cx.t_as("self", wide));
        let rows = Rows::of(cx, x, false);
        let mut source = cx.t_as("source", wide);
        if !matches!(cx.arg("alpha"), Arg::Scalar(s) if *s == Scalar::Int(1)) {
            source = source * cx.scalar("alpha", wide);
        }
        rows.scatter(x, rows.shaped(source, x), |a, b| a + b).reshape(&cx.out(0).dims)
    })
    .eg(&[
        "f32[4,5] 0 i64[3]%4 f32[3,5]",
        "f32[4,5] -1 i32[9]%5 f32[4,9] alpha=2.5",
        "bf16[4,5] 0 i64[9]%4 bf16[9,5]",
        "i64[4] 0 i64[9]%4 i64[9] alpha=2",
        "f32[] 0 i64[]%1 f32[]",
        "f32[4,5] 0 i64[0] f32[0,5]",
        "f32[4,5] 0 i64[1]%4 f32[1,5]",
        "bool[4] 0 i64[9]%4 bool[9]",
    ]),
    one("index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor", |cx| {
        let x = line(cx.t("self"));
        let rows = Rows::of(cx, x, false);
        rows.scatter(x, rows.shaped(cx.t_as("source", x.dtype()), x), |_, b| b).reshape(&cx.out(0).dims)
    })
    .eg(&[
        "f32[4,5] 0 i64[1]%4 f32[1,5]",
        "bf16[4,5] 1 i64[1]%5 bf16[4,1]",
        "f32[] 0 i64[1]%1 f32[1]",
        "i64[3] 0 i64[0] i64[0]",
        "bool[3] 0 i64[1]%3 bool[1]",
    ]),
    one("index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", index_fill).eg(&[
        "f32[4,5] 0 i64[3]%4 1.5",
        "f32[9,9] -1 i64[3]%9 2",
        "i64[4] 0 i64[]%4 7",
        "bool[4] 0 i64[2]%4 True",
        "f32[] 0 i64[1]%1 3",
        "f32[3] 0 i64[0] 1",
    ]),
    one("index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor", index_fill)
        .eg(&["f32[4,5] 0 i64[3]%4 f32[]", "f32[4,5] 1 i64[3]%4 i64[]"]),
    one("_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor", |cx| {
        masked_index(cx)
    })
    .eg(&["f32[4,5] bool[3] [i64[3]%4 i64[3]%5] 7", "f32[4,5] bool[3,5] [i64[3,1]%4 i64[5]%5] 0"]),
];

/// Meta lets it pass; the CPU has the words.
fn no_line_of_indices(sig: &Sig<'_>) -> Option<Refusal> {
    let SigArg::Tensor { dtype, dims, .. } = sig.arg("index") else { return None };
    (dims.len() > 1 || !matches!(dtype, DType::I32 | DType::I64)).then_some("the index is no vector of int32 or int64")
}

/// A 0-d value as a 1-d one.
pub(super) fn line<'b>(x: V<'b>) -> V<'b> {
    if x.rank() == 0 { x.reshape(&[1]) } else { x }
}

/// Positions inside `0..n`; otherwise the plan raises `words`.
pub(super) fn checked<'b>(cx: &Cx<'b>, index: V<'b>, n: i64, negative: bool, words: &str) -> V<'b> {
    let (at, ok) = positions(index, n, negative);
    cx.check(ok, ErrorKind::Index, words);
    at
}

/// Whole slices along one dimension.
pub(super) struct Rows<'b> {
    pub(super) dim: usize,
    /// 1-d positions.
    pub(super) index: V<'b>,
}

impl<'b> Rows<'b> {
    /// The call's `dim` and `index` over `x`.
    pub(super) fn of(cx: &Cx<'b>, x: V<'b>, negative: bool) -> Rows<'b> {
        let dim = cx.dim("dim", x.rank());
        Rows { dim, index: checked(cx, line(cx.t("index")), x.dim(dim), negative, "index out of range in self") }
    }

    /// `source` with as many slices as there are positions.
    pub(super) fn shaped(&self, source: V<'b>, x: V<'b>) -> V<'b> {
        let mut d = x.dims();
        d[self.dim] = self.index.numel();
        source.reshape(&d)
    }

    /// Combines slices of `updates` into `x`; where positions repeat, in some order.
    pub(super) fn scatter(&self, x: V<'b>, updates: V<'b>, f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
        if updates.numel() == 0 {
            return x;
        }
        let d = ScatterDims {
            update_window_dims: (0..x.rank()).filter(|&i| i != self.dim).collect(),
            inserted: vec![self.dim],
            scatter_dims: vec![self.dim],
            index_vector_dim: 1,
        };
        x.scatter(self.index, updates, &d, false, f)
    }
}

fn index_fill<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = line(cx.t("self"));
    let rows = Rows::of(cx, x, true);
    // one comparison a position is cheaper than a scatter of whole slices
    let n = x.dim(rows.dim);
    let places = cx.b.iota(rows.index.dtype(), &[n, rows.index.numel()], 0);
    let hit = places.eq(rows.index.broadcast_to(&[n, rows.index.numel()])).any(&[1]);
    let value = cx.t_as("value", x.dtype()).reshape(&[]);
    hit.broadcast_in_dim(&x.dims(), &[rows.dim]).select(value, x).reshape(&cx.out(0).dims)
}

/// Single elements: where a position's coordinate along one dimension comes from an index of the same rank.
pub(super) struct Elements<'b> {
    /// Coordinates in the last dimension.
    pub(super) index: V<'b>,
    /// The dimension of each coordinate.
    pub(super) dims: Vec<usize>,
    /// Sizes of the index.
    pub(super) shape: Vec<i64>,
}

impl<'b> Elements<'b> {
    /// Elements of `x` addressed along `dim` by `index`.
    pub(super) fn of(cx: &Cx<'b>, x: V<'b>, dim: usize, index: V<'b>) -> Elements<'b> {
        let words = format!("index is out of bounds for dimension {dim} with size {}", x.dim(dim));
        let at = checked(cx, index, x.dim(dim), false, &words);
        let shape = at.dims();
        let mut wide = shape.clone();
        wide.push(1);
        // dimensions of a single element need no coordinate
        let dims: Vec<usize> = (0..x.rank()).filter(|&i| i == dim || x.dim(i) > 1).collect();
        let parts: Vec<V<'b>> =
            dims.iter().map(|&i| if i == dim { at.reshape(&wide) } else { cx.b.iota(at.dtype(), &wide, i) }).collect();
        Elements { index: cx.b.concat(&parts, shape.len()), dims, shape }
    }

    /// Combines `updates` (at least as large as the index, or 0-d) into `x`.
    pub(super) fn scatter(&self, x: V<'b>, updates: V<'b>, f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
        if self.shape.contains(&0) {
            return x;
        }
        let updates = if updates.rank() == 0 {
            updates.broadcast_to(&self.shape)
        } else {
            let n = updates.rank();
            updates.slice(&vec![0; n], &self.shape, &vec![1; n])
        };
        let d = ScatterDims {
            inserted: (0..x.rank()).collect(),
            scatter_dims: self.dims.clone(),
            index_vector_dim: x.rank(),
            ..ScatterDims::default()
        };
        x.scatter(self.index, updates, &d, false, f)
    }
}

/// `self[indices]` where `mask` holds, else `fill`; indices outside the mask may lie anywhere.
fn masked_index<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let mask = cx.t_as("mask", DType::Bool);
    let parts: Vec<V<'b>> = cx
        .ts("indices")
        .into_iter()
        .enumerate()
        .map(|(d, i)| {
            let (at, _) = positions(i, x.dim(d), true);
            at
        })
        .collect();
    let batch = parts.iter().try_fold(vec![], |b, p| broadcast_dims(&b, &p.dims())).unwrap_or_default();
    let r = batch.len();
    let parts: Vec<V<'b>> = parts.iter().map(|p| p.broadcast_to(&batch).unsqueeze(r)).collect();
    let dims: Vec<usize> = (0..parts.len()).collect();
    let sizes: Vec<i64> = x.dims().iter().enumerate().map(|(d, &n)| if d < parts.len() { 1 } else { n }).collect();
    let map = GatherDims {
        offset_dims: (r..r + x.rank() - parts.len()).collect(),
        collapsed: dims.clone(),
        start_index_map: dims,
        index_vector_dim: r,
    };
    let read = x.gather(cx.b.concat(&parts, r), &map, &sizes);
    mask.select(read, cx.scalar("fill", x.dtype()))
}
