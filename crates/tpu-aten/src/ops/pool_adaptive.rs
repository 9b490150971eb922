//! Adaptive pooling: window `o` of `out` covers elements ⌊o·n/out⌋ up to ⌈(o+1)·n/out⌉.

use super::pool::plane_index;
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::{ScatterDims, V};

pub(crate) static DEFS: &[OpDef] = &[
    one("_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", |cx| avg(cx, 2)).eg(&[
        "f32[2,3,8,9] (4,3)",
        "f32[2,3,8,9] (5,4)",
        "f32[3,8,9] (1,1)",
        "bf16[2,3,8,9] (3,3)",
        "f64[2,3,4,3] (7,5)",
    ]),
    one("_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor", |cx| avg_backward(cx, 2)).eg(&[
        "f32[2,3,4,3] f32[2,3,8,9]",
        "f32[2,3,5,4] f32[2,3,8,9]",
        "bf16[3,3,3] bf16[3,8,9]",
        "f64[2,3,7,5] f64[2,3,4,3]",
    ]),
    one("_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor", |cx| avg(cx, 3))
        .eg(&["f32[2,3,4,6,5] (2,3,5)", "f32[3,4,6,5] (3,4,2)"]),
    one("_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor", |cx| avg_backward(cx, 3))
        .eg(&["f32[2,3,2,3,5] f32[2,3,4,6,5]", "f32[3,3,4,2] f32[3,4,6,5]"]),
    many("adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)", |cx| max(cx, 2)).eg(&[
        "f32[2,3,8,9] (4,3)",
        "f32[2,3,8,9] (5,4)",
        "f32[3,8,9] (1,1)",
        "bf16[2,3,8,9] (3,3)",
    ]),
    one("adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor", |cx| {
        max_backward(cx, 2)
    })
    .eg(&["f32[2,3,4,3] f32[2,3,8,9] i64[2,3,4,3]%72", "bf16[3,4,3] bf16[3,8,9] i64[3,4,3]%1"]),
    many("adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)", |cx| max(cx, 3))
        .eg(&["f32[2,3,4,6,5] (2,3,5)", "f32[3,4,6,5] (3,4,2)"]),
    one("adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor", |cx| {
        max_backward(cx, 3)
    })
    .eg(&["f32[2,3,2,3,5] f32[2,3,4,6,5] i64[2,3,2,3,5]%120"]),
];

/// The windows that `n` elements fall into: (first, one past the last) of each of `out`.
fn windows(n: i64, out: i64) -> Vec<(i64, i64)> {
    (0..out).map(|o| (o * n / out, ((o + 1) * n + out - 1) / out)).collect()
}

/// Dimension `dim` split in two, (windows, elements of the window). Where windows differ in size, short ones repeat their last
/// element, and the second value says which elements count.
pub(super) fn gather_windows<'b>(x: V<'b>, dim: usize, w: &[(i64, i64)]) -> (V<'b>, Option<V<'b>>) {
    let b = x.builder();
    let (count, n) = (w.len() as i64, x.dim(dim));
    let size = w.iter().map(|(s, e)| e - s).max().unwrap_or(0);
    let mut shape = x.dims();
    shape[dim] = count;
    shape.insert(dim + 1, size);
    if count * size == n && w.iter().enumerate().all(|(o, &(s, e))| s == o as i64 * size && e == s + size) {
        return (x.reshape(&shape), None);
    }
    let positions: Vec<i64> =
        w.iter().flat_map(|&(s, e)| (0..size).map(move |j| (s + j).min((e - 1).max(0)))).collect();
    let taken = x.take(b.table(DType::I32, &[count, size], &positions), dim);
    if w.iter().all(|(s, e)| e - s == size) {
        return (taken, None);
    }
    let lengths: Vec<i64> = w.iter().map(|(s, e)| e - s).collect();
    let mut line = vec![1; x.rank() + 1];
    line[dim] = count;
    let lengths = b.table(DType::I32, &[count], &lengths).reshape(&line).broadcast_to(&shape);
    (taken, Some(b.iota(DType::I32, &shape, dim + 1).lt(lengths)))
}

/// Sum over the windows of one dimension.
pub(super) fn sum_windows<'b>(x: V<'b>, dim: usize, w: &[(i64, i64)]) -> V<'b> {
    let (taken, valid) = gather_windows(x, dim, w);
    valid.map_or(taken, |v| v.select(taken, taken.zeros_like())).sum(&[dim + 1])
}

/// Divides dimension `dim` by the sizes of its windows.
fn divide<'b>(x: V<'b>, dim: usize, w: &[(i64, i64)]) -> V<'b> {
    let mut line = vec![1; x.rank()];
    line[dim] = w.len() as i64;
    let sizes: Vec<i64> = w.iter().map(|(s, e)| e - s).collect();
    x / x.builder().table(x.dtype(), &[w.len() as i64], &sizes).reshape(&line)
}

fn avg<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let mut x = cx.t_as("self", out.dtype.opmath());
    let lead = x.rank() - n;
    for d in lead..lead + n {
        let w = windows(x.dim(d), out.dims[d]);
        x = divide(sum_windows(x, d, &w), d, &w);
    }
    x
}

fn avg_backward<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let mut g = cx.t_as("grad_output", out.dtype.opmath());
    let lead = g.rank() - n;
    for d in lead..lead + n {
        let w = windows(out.dims[d], g.dim(d));
        // the windows that hold element i are neighbours
        let back: Vec<(i64, i64)> = (0..out.dims[d])
            .map(|i| {
                let first = w.iter().position(|&(s, e)| s <= i && i < e).unwrap_or(0) as i64;
                (first, first + w.iter().filter(|&&(s, e)| s <= i && i < e).count() as i64)
            })
            .collect();
        g = sum_windows(divide(g, d, &w), d, &back);
    }
    g
}

fn max<'b>(cx: &Cx<'b>, n: usize) -> Vec<V<'b>> {
    let out = cx.out(0);
    let x = cx.t("self");
    let lead = x.rank() - n;
    let mut best = (x, plane_index(x, n));
    for d in (lead..lead + n).rev() {
        let w = windows(x.dim(d), out.dims[d]);
        let (v, _) = gather_windows(best.0, d, &w);
        let (i, _) = gather_windows(best.1, d, &w);
        let r = cx.b.reduce_many(&[v, i], &[v.lowest(), i.highest()], &[d + 1], |a, b| {
            // NaN beats all; of equals the first
            let (an, bn) = (a[0].is_nan(), b[0].is_nan());
            let tie = (a[0].eq(b[0]) | (an & bn)) & b[1].lt(a[1]);
            let take = (bn & !an) | (b[0].gt(a[0]) & !an) | tie;
            vec![take.select(b[0], a[0]), take.select(b[1], a[1])]
        });
        best = (r[0], r[1]);
    }
    vec![best.0, best.1.convert(DType::I64)]
}

fn max_backward<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let grad = cx.t_as("grad_output", out.dtype.opmath());
    plane_scatter(grad, cx.t("indices").convert(DType::I32), &out.dims, n, true)
}

/// Zeros of shape `dims` with `x` put (or added) at positions `index` of each plane of the last `n` dimensions.
pub(super) fn plane_scatter<'b>(x: V<'b>, index: V<'b>, dims: &[i64], n: usize, add: bool) -> V<'b> {
    let b = x.builder();
    let lead = dims.len() - n;
    let (planes, plane): (i64, i64) = (dims[..lead].iter().product(), dims[lead..].iter().product());
    let each = x.dims()[lead..].iter().product::<i64>();
    if x.numel() == 0 || planes * plane == 0 {
        return b.zeros(x.dtype(), dims);
    }
    let base = b.iota(DType::I32, &[planes, each], 0) * plane;
    let flat = (index.reshape(&[planes, each]) + base).reshape(&[planes * each]);
    let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..ScatterDims::default() };
    let zeros = b.zeros(x.dtype(), &[planes * plane]);
    let put = zeros.scatter(flat, x.reshape(&[planes * each]), &d, false, |a, u| if add { a + u } else { u });
    put.reshape(dims)
}
