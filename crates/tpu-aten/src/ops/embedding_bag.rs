//! Sums, means and maxima of bags of table rows. Bags are runs of `indices`; offsets say where each begins.

use super::index_rows::Rows;
use super::reduce::every;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{ScatterDims, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, \
         bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) \
         -> (Tensor, Tensor, Tensor, Tensor)",
        forward,
    )
    .eg(FORWARD),
    many(
        "_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, \
         int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, \
         int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
        forward,
    )
    .eg(FORWARD),
    one(
        "_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, \
         Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, \
         Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
        backward,
    )
    .refuse(sparse)
    .eg(&[
        "f32[1,4] i64[9]%5 i64[1]%1 i64[9]%1 i64[1]+ i64[0] 5 False 0 False -",
        "f64[1,4] i64[9]%5 i64[1]%1 i64[9]%1 i64[1]+ i64[0] 5 True 0 False f64[9] 2",
        "f32[1,4] i64[9]%5 i64[1]%1 i64[9]%1 i64[1]+ i64[0] 5 False 1 False -",
    ]),
    one(
        "_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, \
         Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? per_sample_weights, \
         int padding_idx=-1) -> Tensor",
        backward,
    )
    .eg(&[
        "f32[3,4] i64[9]%5 i64[9]%3 i64[3]+ i64[0] 5 False 0 -",
        "f64[3,4] i64[9]%5 i64[9]%3 i64[3]+ i64[0] 5 True 0 f64[9] 2",
        "f32[3,4] i32[9]%5 i32[9]%3 i32[3]+ i32[0] 5 True 1 -",
        "f32[3,4] i64[9]%5 i64[9]%3 i64[3]+ i64[3,4]%5 5 False 2 -",
        "f32[0,4] i64[0] i64[0] i64[0] i64[0] 5 False 0 -",
    ]),
    one(
        "_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, \
         Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
        |cx| {
            let d = cx.out_dtype().opmath();
            let (w, index) = (cx.t_as("weight", d), cx.t("indices"));
            if index.numel() == 0 {
                return cx.b.zeros(d, &[0]);
            }
            let bags = bags_of(cx, index.numel());
            let each = (cx.t_as("grad", d).take(bags, 0) * w.take(index, 0)).sum(&[1]);
            index.ne(cx.int("padding_idx")).select(each, each.zeros_like())
        },
    )
    .eg(&[
        "f32[3,4] f32[5,4] i64[9]%5 i64[3]%1 i64[9]%3 0",
        "f64[3,4] f64[5,4] i64[9]%5 i64[3]%1 i64[9]%3 0 2",
        "f32[3,4] f32[5,4] i64[0] i64[3]%1 i64[0] 0",
    ]),
];

const FORWARD: &[&str] = &[
    "f32[5,4] i64[9]%5 i64[1]%1",
    "f32[5,4] i64[9]%5 i64[3]%1 mode=1",
    "f32[5,4] i64[9]%5 i64[2]%1 mode=2 padding_idx=1",
    "bf16[5,4] i32[9]%5 i32[2]%1",
    "f64[5,4] i64[9]%5 i64[2]%1 per_sample_weights=f64[9] padding_idx=2",
    "f64[5,4] i64[0] i64[3]%1 mode=1",
];

fn sparse(s: &Sig<'_>) -> Option<Refusal> {
    (*s.arg("sparse") == SigArg::Bool(true)).then_some("its result is sparse")
}

/// How many of `marks` (outer × m, none decreasing along m) are at or before each of `n` positions: outer × n, int32.
pub(super) fn passed<'b>(marks: V<'b>, n: i64) -> V<'b> {
    let b = marks.builder();
    let (outer, m) = (marks.dim(0), marks.dim(1));
    if outer * n * m == 0 {
        return b.zeros(DType::I32, &[outer, n]);
    }
    // positions beyond the end mark nothing; the place behind each row takes them
    let at = marks.convert(DType::I32).min(n) + b.iota(DType::I32, &[outer, m], 0) * (n + 1);
    let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..Default::default() };
    let ones = b.full(DType::I32, &[outer * m], 1);
    let zeros = b.zeros(DType::I32, &[outer * (n + 1)]);
    let counts = zeros.scatter(at.reshape(&[outer * m]), ones, &d, false, |a, b| a + b);
    super::scan::cumsum(counts.reshape(&[outer, n + 1]), 1).slice_dim(1, 0, n)
}

/// The bag of each index: that of `offset2bag`, or found from the offsets where it was not kept.
fn bags_of<'b>(cx: &Cx<'b>, n: i64) -> V<'b> {
    let kept = cx.t("offset2bag");
    if kept.numel() == n {
        return kept.convert(DType::I32);
    }
    let offsets = cx.t("offsets");
    passed(offsets.reshape(&[1, offsets.numel()]), n).reshape(&[n]) - 1i64
}

/// Adds `rows` to zeros × width at `to`; places outside are skipped.
fn collect<'b>(rows: V<'b>, to: V<'b>, n: i64) -> V<'b> {
    let zeros = rows.builder().zeros(rows.dtype(), &[n, rows.dim(1)]);
    Rows { dim: 0, index: to }.scatter(zeros, rows, |a, b| a + b)
}

fn forward<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let out = cx.out(0);
    let d = out.dtype.opmath();
    let (bags, width, mode) = (out.dims[0], out.dims[1], cx.int("mode"));
    let (w, index, offsets) = (cx.t_as("weight", d), cx.t("indices"), cx.t("offsets"));
    let n = index.numel();
    if offsets.numel() > 0 {
        let k = offsets.numel();
        let first = offsets.slice_dim(0, 0, 1).eq(0i64).reshape(&[]);
        cx.check(
            first,
            ErrorKind::User,
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0.",
        );
        let last = offsets.slice_dim(0, k - 1, k).le(n).reshape(&[]);
        cx.check(last, ErrorKind::User, format!("offsets[-1] can not be greater than input's length: {n}"));
    }
    let like = |k: usize, v: V<'b>| {
        let t = cx.out(k);
        // what a mode does not need has no size
        if v.dims() == t.dims { v } else { extended(v, &t.dims) }
    };
    if n == 0 || bags == 0 || width == 0 {
        let none = |k: usize, v: f64| cx.b.full(cx.out(k).dtype, &cx.out(k).dims, v);
        return vec![none(0, 0.0), none(1, 0.0), none(2, 0.0), none(3, if mode == 2 { -1.0 } else { 0.0 })];
    }
    let ok = (index.ge(0i64) & index.lt(w.dim(0))).all(&every(index));
    cx.check(ok, ErrorKind::User, format!("embedding_bag: Expected idx >= 0 && idx < num_embeddings = {}", w.dim(0)));
    let bag = passed(offsets.reshape(&[1, offsets.numel()]), n).reshape(&[n]) - 1i64;
    let counts = index.ne(cx.int("padding_idx"));
    // padding goes nowhere; so does what lies behind the last offset
    let to = counts.select(bag, bag.full_like(-1.0));
    let mut rows = w.take(index, 0);
    if let Some(s) = cx.opt_as("per_sample_weights", d) {
        rows = rows * s.unsqueeze(1);
    }
    let ones = Rows { dim: 0, index: to };
    let sizes = ones.scatter(cx.b.zeros(DType::I32, &[bags]), cx.b.full(DType::I32, &[n], 1), |a, b| a + b);
    let empty = sizes.eq(0i64).unsqueeze(1);
    let (result, winners) = match mode {
        2 => {
            let low = rows.lowest().broadcast_to(&[bags, width]);
            let top = Rows { dim: 0, index: to }.scatter(low, rows, |a, b| a.max(b));
            let hit = rows.eq(top.take(bag, 0));
            let at = cx.b.iota(DType::I32, &[n, width], 0);
            let at = hit.select(at, at.full_like(n));
            let none = cx.b.full(DType::I32, &[bags, width], n);
            let first = Rows { dim: 0, index: to }.scatter(none, at, |a, b| a.min(b));
            let word = index.convert(DType::I32).take(first.min(n - 1), 0);
            (empty.select(top.zeros_like(), top), empty.select(word.full_like(-1.0), word))
        }
        mode => {
            let sum = collect(rows, to, bags);
            let mean = sum / sizes.max(1i64).convert(d).unsqueeze(1);
            (if mode == 1 { mean } else { sum }, cx.b.zeros(DType::I32, &cx.out(3).dims))
        }
    };
    vec![result, like(1, bag), like(2, sizes), like(3, winners)]
}

/// `v` cut or padded with zeros to `dims` of the same rank.
fn extended<'b>(v: V<'b>, dims: &[i64]) -> V<'b> {
    let none = vec![0; dims.len()];
    if v.rank() != dims.len() {
        return v.builder().zeros(v.dtype(), dims);
    }
    let high: Vec<i64> = dims.iter().zip(v.dims()).map(|(a, b)| a - b).collect();
    v.pad(v.lit(0.0), &none, &high, &none)
}

fn backward<'b>(cx: &Cx<'b>) -> V<'b> {
    let out = cx.out(0);
    let d = out.dtype.opmath();
    let (table, width) = (out.dims[0], out.dims[1]);
    let (g, index) = (cx.t_as("grad", d), cx.t("indices").convert(DType::I32));
    let (n, mode) = (index.numel(), cx.int("mode"));
    if n == 0 || g.numel() == 0 {
        return cx.b.zeros(d, &out.dims);
    }
    if mode == 2 {
        // each element goes to the row that won; −1, of an empty bag, is skipped
        let row = cx.t("maximum_indices").convert(DType::I32);
        let column = cx.b.iota(DType::I32, &row.dims(), 1);
        let flat = row.lt(0i64).select(row, row * width + column).reshape(&[row.numel()]);
        let zeros = cx.b.zeros(d, &[table * width]);
        return Rows { dim: 0, index: flat }.scatter(zeros, g.reshape(&[row.numel()]), |a, b| a + b).reshape(&out.dims);
    }
    let bag = bags_of(cx, n);
    let mut rows = g.take(bag, 0);
    if mode == 1 {
        let sizes = cx.t("bag_size").convert(DType::I32).take(bag, 0);
        rows = rows / sizes.max(1i64).convert(d).unsqueeze(1);
    }
    if let Some(s) = cx.opt_as("per_sample_weights", d) {
        rows = rows * s.unsqueeze(1);
    }
    if cx.flag("scale_grad_by_freq") {
        let seen = Rows { dim: 0, index }.scatter(cx.b.zeros(d, &[table]), cx.b.full(d, &[n], 1.0), |a, b| a + b);
        rows = rows / seen.take(index, 0).unsqueeze(1);
    }
    let padding = cx.int("padding_idx");
    let to = if padding < 0 { index } else { index.eq(padding).select(index.full_like(-1.0), index) };
    collect(rows, to, table)
}
