//! Average pooling over sliding windows.

use super::pool::{Slide, slides};
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::{V, Window};

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, \
         bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        |cx| avg_pool(cx, 2),
    )
    .eg(&[
        "f32[2,3,8,9] (2,2)",
        "f32[2,3,8,9] (3,2) (2,1) (1,1) False True",
        "f32[2,3,8,9] (3,2) (2,1) (1,1) False False",
        "f32[3,8,9] (3,3) (2,2) (1,1) True True",
        "f32[3,8,9] (3,3) (2,2) (1,1) True False",
        "f32[2,3,8,9] (3) (2) 1 False True 5",
        "bf16[2,3,8,8] (4,4) (2,2)",
        "f64[2,3,8,8] (3,3) (2,2)",
        "i64[2,3,8,8]%99 (2,2)",
    ]),
    one(
        "avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, \
         bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        |cx| avg_pool_backward(cx, 2),
    )
    .eg(&[
        "f32[2,3,4,4] f32[2,3,8,9] (2,2) (2,2) (0,0) False True -",
        "f32[2,3,4,10] f32[2,3,8,9] (3,2) (2,1) (1,1) False False -",
        "f32[3,5,5] f32[3,8,9] (3,3) (2,2) (1,1) True True -",
        "bf16[2,3,4,4] bf16[2,3,8,8] (2,2) (2,2) (0,0) False True 3",
    ]),
    one(
        "avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, \
         bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        |cx| avg_pool(cx, 3),
    )
    .eg(&["f32[2,3,4,6,6] (2,2,2)", "f32[3,4,7,6] (2,3,2) (1,2,2) (1,1,0) True False"]),
    one(
        "avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, \
         bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        |cx| avg_pool_backward(cx, 3),
    )
    .eg(&["f32[2,3,2,3,3] f32[2,3,4,6,6] (2,2,2) (2,2,2) (0,0,0) False True -"]),
];

/// Sums over windows of the last dimensions, one a [`Slide`]; `out` is the result's shape.
fn window_sum<'b>(x: V<'b>, s: &[Slide], out: &[i64]) -> V<'b> {
    let lead = x.rank() - s.len();
    let mut w = Window::unit(x.rank());
    for (i, s) in s.iter().enumerate() {
        let high = (out[lead + i] - 1) * s.stride + s.size - x.dim(lead + i) - s.pad;
        w.size[lead + i] = s.size;
        w.stride[lead + i] = s.stride;
        w.pad[lead + i] = (s.pad, high.max(0));
    }
    x.reduce_window(x.lit(0.0), &w, |a, b| a + b)
}

/// How many elements each window counts, to be broadcast against the result's last dimensions.
fn divisor<'b>(cx: &Cx<'b>, s: &[Slide], input: &[i64], out: &[i64], dtype: DType) -> V<'b> {
    if let Some(d) = cx.opt_int("divisor_override") {
        return cx.b.scalar(dtype, d);
    }
    let include = cx.flag("count_include_pad");
    let n = s.len();
    let mut total: Option<V<'b>> = None;
    for (i, s) in s.iter().enumerate() {
        let counts: Vec<i64> = (0..out[i])
            .map(|o| {
                let start = o * s.stride - s.pad;
                let end = (start + s.size).min(input[i] + s.pad);
                if include { end - start } else { end.min(input[i]) - start.max(0) }
            })
            .collect();
        let count = if counts.iter().all(|&c| c == counts[0]) {
            cx.b.scalar(dtype, counts.first().copied().unwrap_or(1))
        } else {
            let mut shape = vec![1; n];
            shape[i] = out[i];
            cx.b.table(dtype, &[out[i]], &counts).reshape(&shape)
        };
        total = Some(total.map_or(count, |t| t * count));
    }
    total.unwrap_or_else(|| cx.b.scalar(dtype, 1))
}

fn avg_pool<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let x = cx.t_as("self", out.dtype.opmath());
    let s = slides(cx, n, false);
    let lead = x.rank() - n;
    let count = divisor(cx, &s, &x.dims()[lead..], &out.dims[lead..], x.dtype());
    window_sum(x, &s, &out.dims) / count
}

fn avg_pool_backward<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let grad = cx.t_as("grad_output", out.dtype.opmath());
    let s = slides(cx, n, false);
    let lead = grad.rank() - n;
    let each = grad / divisor(cx, &s, &out.dims[lead..], &grad.dims()[lead..], grad.dtype());
    // spread to the input's spacing, then each input element sums the windows that reach it
    let (mut low, mut high, mut hole) = (vec![0; grad.rank()], vec![0; grad.rank()], vec![0; grad.rank()]);
    for (i, s) in s.iter().enumerate() {
        let d = lead + i;
        let reach = (grad.dim(d) - 1) * s.stride + 1;
        low[d] = s.size - 1 - s.pad;
        high[d] = out.dims[d] + s.size - 1 - low[d] - reach;
        hole[d] = s.stride - 1;
    }
    let spaced = each.pad(each.lit(0.0), &low, &high, &hole);
    let back: Vec<Slide> = s.iter().map(|s| Slide { stride: 1, pad: 0, ..*s }).collect();
    window_sum(spaced, &back, &out.dims)
}
