//! Depthwise convolution as a sum over the kernel's taps: each is a shifted slice times one weight a channel. A grouped
//! convolution with one channel a group gives XLA nothing to multiply matrices with; the taps fuse into one loop. Measured
//! for 8×32×56×56 and 3×3 taps: 40 times faster on the CPU plugin, a quarter of libtpu's estimate for v6e.

use tpu_base::DType;
use tpu_hlo::{V, Window};

/// Above this many taps the program grows more than the loop gains.
const MOST_TAPS: i64 = 64;

/// Whether a kernel of this spatial size over `groups` of `channels` is one.
pub(crate) fn serves(groups: i64, channels: i64, kernel: &[i64]) -> bool {
    groups == channels && groups > 1 && kernel.iter().product::<i64>() <= MOST_TAPS
}

/// Every position of the kernel, last dimension fastest.
fn taps(kernel: &[i64]) -> Vec<Vec<i64>> {
    kernel.iter().fold(vec![vec![]], |done, &k| {
        done.iter().flat_map(|t| (0..k).map(|i| [t.as_slice(), &[i]].concat())).collect()
    })
}

/// `x` (N, C, …) padded and dilated as the window says, each channel `times` times over.
fn spread<'b>(x: V<'b>, w: &Window, times: i64, acc: DType) -> V<'b> {
    let edge = |pick: fn(&(i64, i64)) -> i64| [vec![0, 0], w.pad.iter().map(pick).collect()].concat();
    let interior = [vec![0, 0], w.base_dilation.iter().map(|d| d - 1).collect()].concat();
    let x = x.convert(acc);
    let x = x.pad(x.lit(0.0), &edge(|p| p.0), &edge(|p| p.1), &interior);
    if times == 1 {
        return x;
    }
    let d = x.dims();
    let (split, joined) = ([&[d[0], d[1], times], &d[2..]].concat(), [&[d[0], d[1] * times], &d[2..]].concat());
    x.unsqueeze(2).broadcast_to(&split).reshape(&joined)
}

/// What tap `t` meets: one value for each of `out` positions.
fn shifted<'b>(x: V<'b>, w: &Window, t: &[i64], out: &[i64]) -> V<'b> {
    let first: Vec<i64> = t.iter().zip(&w.dilation).map(|(t, d)| t * d).collect();
    let last = first.iter().zip(out).zip(&w.stride).map(|((f, o), s)| f + (o - 1) * s + 1);
    let limit = [x.dims()[..2].to_vec(), last.collect()].concat();
    x.slice(&[vec![0, 0], first].concat(), &limit, &[vec![1, 1], w.stride.clone()].concat())
}

/// `x` (N, C, …) with `weight` (O, 1, …), O a multiple of C, in `acc`.
pub(crate) fn conv<'b>(x: V<'b>, weight: V<'b>, w: &Window, acc: DType) -> V<'b> {
    let (kernel, outs) = (weight.dims()[2..].to_vec(), weight.dim(0));
    let x = spread(x, w, outs / x.dim(1), acc);
    let padded = &x.dims()[2..];
    let out: Vec<i64> =
        (0..kernel.len()).map(|i| (padded[i] - w.dilation[i] * (kernel[i] - 1) - 1) / w.stride[i] + 1).collect();
    let taps = taps(&kernel);
    let weight = weight.convert(acc).reshape(&[outs, taps.len() as i64]);
    let mut sum: Option<V<'b>> = None;
    for (k, t) in taps.iter().enumerate() {
        let channel = [[outs].as_slice(), &vec![1; kernel.len()]].concat();
        let term = shifted(x, w, t, &out) * weight.slice_dim(1, k as i64, k as i64 + 1).reshape(&channel);
        sum = Some(sum.map_or(term, |s| s + term));
    }
    sum.unwrap_or(x)
}

/// Gradient of the weight (O, 1, `kernel`…) from `x` (N, C, …) and `grad` (N, O, …).
pub(crate) fn weight_grad<'b>(x: V<'b>, grad: V<'b>, w: &Window, kernel: &[i64], acc: DType) -> V<'b> {
    let (outs, out) = (grad.dim(1), grad.dims()[2..].to_vec());
    let (x, grad) = (spread(x, w, outs / x.dim(1), acc), grad.convert(acc));
    let over: Vec<usize> = (0..grad.rank()).filter(|&d| d != 1).collect();
    let sums: Vec<V<'b>> =
        taps(kernel).iter().map(|t| (shifted(x, w, t, &out) * grad).sum(&over).reshape(&[outs, 1])).collect();
    x.builder().concat(&sums, 1).reshape(&[&[outs, 1], kernel].concat())
}
