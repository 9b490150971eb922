//! Convolution where the hardware has none: TPUs don't convolve 64-bit integers.

use super::matmul::contract;
use crate::cx::Cx;
use tpu_base::DType;
use tpu_hlo::{DotDims, V, Window};

/// The convolution of `x` (N, C, …) with `w` (O, C/groups, …) as a sum over the window's positions.
pub(super) fn by_taps<'b>(cx: &Cx<'b>, x: V<'b>, w: V<'b>, window: &Window, groups: i64) -> V<'b> {
    let (n, kernel) = (window.stride.len(), w.dims()[2..].to_vec());
    let around = |of: &dyn Fn(usize) -> i64| [vec![0, 0], (0..n).map(of).collect()].concat();
    let low = around(&|i| window.pad[i].0);
    let x = x.pad(x.lit(0i64), &low, &around(&|i| window.pad[i].1), &around(&|i| window.base_dilation[i] - 1));
    let out: Vec<i64> =
        (0..n).map(|i| (x.dim(i + 2) - (kernel[i] - 1) * window.dilation[i] - 1) / window.stride[i] + 1).collect();
    let (batch, each) = (x.dim(0), w.dim(0) / groups);
    let split = [&[batch, groups, x.dim(1) / groups], &out[..]].concat();
    let step = around(&|i| window.stride[i]).iter().map(|&s| s.max(1)).collect::<Vec<_>>();
    let dims = DotDims { lhs_batch: vec![0], rhs_batch: vec![1], lhs_contract: vec![2], rhs_contract: vec![2] };
    let taps = (0..kernel.iter().product::<i64>()).map(|tap| {
        let place: Vec<i64> = (0..n).map(|i| tap / kernel[i + 1..].iter().product::<i64>() % kernel[i]).collect();
        let start = around(&|i| place[i] * window.dilation[i]);
        let end: Vec<i64> =
            (0..n + 2).map(|i| if i < 2 { x.dim(i) } else { start[i] + (out[i - 2] - 1) * step[i] + 1 }).collect();
        let weight = (0..n).fold(w, |w, i| w.slice_dim(i + 2, place[i], place[i] + 1));
        let weight = weight.reshape(&[groups, each, w.dim(1)]);
        contract(cx, weight, x.slice(&start, &end, &step).reshape(&split), dims.clone())
    });
    let empty = || cx.b.zeros(DType::I64, &[&[groups, each, batch], &out[..]].concat());
    let sum = taps.reduce(|a, b| a + b).unwrap_or_else(empty);
    sum.move_dim(2, 0).reshape(&[&[batch, groups * each], &out[..]].concat())
}
