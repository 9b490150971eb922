//! Max pooling. One spatial dimension after the other, carrying the position of the largest element along; the gradient
//! compares positions instead of scattering while windows are small.

use super::pool_adaptive::plane_scatter;
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, \
         bool ceil_mode=False) -> (Tensor, Tensor)",
        |cx| max_pool(cx, 2),
    )
    .eg(&[
        "f32[2,3,8,9] (2,2)",
        "f32[2,3,8,9] (3,2) (2,1) (1,0) (1,2)",
        "f32[3,8,9] (3,3) (2,2) (1,1) (1,1) True",
        "bf16[2,3,8,8] (2,2) (2,2)",
        "f64[2,3,20,20] (12,10) (3,2) (5,5)",
        "f32[2,3,8,9] (3) (2) 1",
        "i64[1,2,6,6] (2,2)",
        "f32[0,3,8,9] (2,2)",
    ]),
    one(
        "max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, \
         int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        |cx| max_pool_backward(cx, 2),
    )
    .eg(&[
        "f32[2,3,3,3] f32[2,3,3,3] (5,5) (1,1) (2,2) (1,1) False i64[2,3,3,3]%9",
        "f32[3,2,2] f32[3,3,3] (5,5) (2,2) (2,2) (1,1) False i64[3,2,2]%9",
        "f32[3,3,4] f32[3,3,4] (7,7) (1,1) (3,3) (1,1) False i64[3,3,4]%12",
        "bf16[2,3,1,1] bf16[2,3,2,2] (2,2) (2,2) (0,0) (1,1) False i64[2,3,1,1]%4",
        "f64[1,2,1,1] f64[1,2,3,3] (2,2) (1,1) (0,0) (2,2) False i64[1,2,1,1]%1",
    ]),
    many(
        "max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, \
         bool ceil_mode=False) -> (Tensor, Tensor)",
        |cx| max_pool(cx, 3),
    )
    .eg(&[
        "f32[2,3,4,6,6] (2,2,2)",
        "f32[3,4,7,6] (2,3,2) (1,2,2) (1,1,0) (1,1,2) True",
        "f64[1,2,4,6,6] (3) (2) 1",
    ]),
    one(
        "max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, \
         int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        |cx| max_pool_backward(cx, 3),
    )
    .eg(&["f32[2,1,1,1,1] f32[2,1,2,2,3] (2,2,3) (2,2,2) (0,0,0) (1,1,1) False i64[2,1,1,1,1]%12"]),
    one("max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor", |cx| unpool(cx, 2))
        .eg(&["f32[2,3,1,2] i64[2,3,1,2]%1 (4,4)"]),
    one(
        "max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor",
        |cx| unpool(cx, 3),
    )
    .eg(&["f32[1,2,1,1,2] i64[1,2,1,1,2]%1 (2,2,4) (2,2,2) (0,0,0)"]),
];

/// One dimension's window.
#[derive(Clone, Copy)]
pub(super) struct Slide {
    pub(super) size: i64,
    pub(super) stride: i64,
    pub(super) pad: i64,
    pub(super) dilation: i64,
}

/// The windows of the last `n` dimensions, from arguments with PyTorch's usual names.
pub(super) fn slides(cx: &Cx<'_>, n: usize, dilated: bool) -> Vec<Slide> {
    let size = cx.ints_n("kernel_size", n);
    let stride = cx.ints_n("stride", n);
    let pad = cx.ints_n("padding", n);
    let dilation = if dilated { cx.ints_n("dilation", n) } else { vec![1; n] };
    (0..n)
        .map(|i| Slide {
            size: size[i],
            stride: stride.get(i).copied().unwrap_or(size[i]),
            pad: pad[i],
            dilation: dilation[i],
        })
        .collect()
}

/// Position of each element in its plane of the last `n` dimensions.
pub(super) fn plane_index<'b>(x: V<'b>, n: usize) -> V<'b> {
    let d = x.dims();
    let plane = &d[d.len() - n..];
    x.builder().iota(DType::I32, &[plane.iter().product()], 0).reshape(plane).broadcast_to(&d)
}

fn max_pool<'b>(cx: &Cx<'b>, n: usize) -> Vec<V<'b>> {
    let x = cx.t("self");
    let (lead, out) = (x.rank() - n, cx.out(0).dims);
    let mut best = (x, plane_index(x, n));
    for (i, s) in slides(cx, n, true).into_iter().enumerate().rev() {
        best = slide_max(best, lead + i, out[lead + i], s);
    }
    vec![best.0, best.1.convert(DType::I64)]
}

type Best<'b> = (V<'b>, V<'b>);

/// The larger element, with its position: the earlier `a` unless `b` is greater or NaN, or `a` is padding (position −1).
fn better<'b>(a: Best<'b>, b: Best<'b>) -> Best<'b> {
    let take = b.0.gt(a.0) | b.0.is_nan() | a.1.lt(0i64);
    (take.select(b.0, a.0), take.select(b.1, a.1))
}

/// Running maximum over one dimension: `out` windows.
fn slide_max<'b>(x: Best<'b>, dim: usize, out: i64, s: Slide) -> Best<'b> {
    if s.size == 1 && s.stride == 1 && s.pad == 0 {
        return x;
    }
    let n = x.0.dim(dim);
    let high = ((out - 1) * s.stride + s.dilation * (s.size - 1) + 1 - n - s.pad).max(0);
    let padded = |v: V<'b>, fill: V<'b>| {
        let mut low = vec![0; v.rank()];
        let mut top = low.clone();
        (low[dim], top[dim]) = (s.pad, high);
        let zero = vec![0; v.rank()];
        if s.pad == 0 && high == 0 { v } else { v.pad(fill, &low, &top, &zero) }
    };
    let x = (padded(x.0, x.0.lowest()), padded(x.1, x.1.lit(-1i64)));
    let at = |v: Best<'b>, start: i64, count: i64, step: i64| {
        let cut = |v: V<'b>| {
            let (mut from, mut to, mut by) = (vec![0; v.rank()], v.dims(), vec![1; v.rank()]);
            (from[dim], to[dim], by[dim]) =
                (start, if count == 0 { start } else { start + (count - 1) * step + 1 }, step);
            v.slice(&from, &to, &by)
        };
        (cut(v.0), cut(v.1))
    };
    if s.size <= 8 {
        let mut best = at(x, 0, out, s.stride);
        for j in 1..s.size {
            best = better(best, at(x, j * s.dilation, out, s.stride));
        }
        return best;
    }
    // wide windows: windows of 2, 4, 8… elements, then two of them that overlap cover the whole
    let (mut best, mut width) = (x, 1);
    let grow = |v: Best<'b>, by: i64| {
        let left = v.0.dim(dim) - by * s.dilation;
        better(at(v, 0, left, 1), at(v, by * s.dilation, left, 1))
    };
    while 2 * width <= s.size {
        best = grow(best, width);
        width *= 2;
    }
    if width < s.size {
        best = grow(best, s.size - width);
    }
    at(best, 0, out, s.stride)
}

fn max_pool_backward<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let grad = cx.t_as("grad_output", out.dtype.opmath());
    let indices = cx.t("indices").convert(DType::I32);
    let s = slides(cx, n, true);
    if s.iter().map(|s| s.size).product::<i64>() > 32 {
        return plane_scatter(grad, indices, &out.dims, n, true);
    }
    // coordinates of each window's element
    let lead = out.dims.len() - n;
    let mut rest = indices;
    let mut coordinates = vec![rest; n];
    for i in (0..n).rev() {
        let size = out.dims[lead + i];
        coordinates[i] = if i == 0 { rest } else { rest.rem(size) };
        rest = rest / size;
    }
    spread(grad, &coordinates, &s, &out.dims, lead, 0)
}

/// Puts each window's gradient on the element that `at` names, dimension `lead + i` and those after it.
fn spread<'b>(grad: V<'b>, at: &[V<'b>], s: &[Slide], dims: &[i64], lead: usize, i: usize) -> V<'b> {
    let Some(w) = s.get(i) else { return grad };
    let dim = lead + i;
    let b = grad.builder();
    let start = b.iota(DType::I32, &at[i].dims(), dim) * w.stride;
    let mut sum: Option<V<'b>> = None;
    for j in 0..w.size {
        let offset = j * w.dilation - w.pad;
        let here = at[i].eq(start + offset).select(grad, grad.zeros_like());
        let inner = spread(here, at, s, dims, lead, i + 1);
        let (mut low, mut high, mut hole) = (vec![0; inner.rank()], vec![0; inner.rank()], vec![0; inner.rank()]);
        let reach = (inner.dim(dim) - 1).max(0) * w.stride + 1;
        (low[dim], high[dim], hole[dim]) = (offset, dims[dim] - offset - reach, w.stride - 1);
        let placed = inner.pad(inner.lit(0.0), &low, &high, &hole);
        sum = Some(sum.map_or(placed, |t| t + placed));
    }
    sum.unwrap_or(grad)
}

fn unpool<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let indices = cx.t("indices").convert(DType::I32);
    plane_scatter(cx.t("self"), indices, &cx.out(0).dims, n, false)
}
