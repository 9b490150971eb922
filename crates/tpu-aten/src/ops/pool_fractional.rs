//! Fractional max pooling (B. Graham, 2014): windows of one size whose starts follow from a random sample a plane.

use super::pool_adaptive::plane_scatter;
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)",
        |cx| pool(cx, 2),
    )
    .eg(&["f32[2,3,8,9] (3,2) (4,3) f32[2,3,2]~", "f64[3,8,9] (2,2) (1,8) f64[1,3,2]~", "f32[1,1,8,19]! (2,2) (5,9) f32[1,1,2]~"]),
    one(
        "fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] output_size, \
         Tensor indices) -> Tensor",
        |cx| backward(cx, 2),
    )
    .eg(&["f32[2,3,4,3] f32[2,3,8,9] (3,2) (4,3) i64[2,3,4,3]%72"]),
    many(
        "fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)",
        |cx| pool(cx, 3),
    )
    .eg(&["f32[2,3,5,8,6] (2,3,2) (3,4,3) f32[2,3,3]~", "f64[3,5,8,6] (2,2,1) (3,4,5) f64[1,3,3]~"]),
    one(
        "fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] output_size, \
         Tensor indices) -> Tensor",
        |cx| backward(cx, 3),
    )
    .shapes(|s| Some(vec![s.ty("self")?]))
    .eg(&["f32[2,3,2,4,3] f32[2,3,4,8,9] (2,3,2) (2,4,3) i64[2,3,2,4,3]%288"]),
];

/// Where the windows of one dimension begin: planes × out, int32. `u` is the planes' sample.
fn starts<'b>(u: V<'b>, n: i64, out: i64, size: i64) -> V<'b> {
    let b = u.builder();
    let planes = u.dim(0);
    let end = b.full(DType::I32, &[planes, 1], n - size);
    if out == 1 {
        return end;
    }
    let alpha = u.full_like(n - size) / (out - 1) as f64;
    let at = b.iota(u.dtype(), &[planes, out - 1], 1) + u.unsqueeze(1);
    let whole = |v: V<'b>| v.convert(DType::I32);
    let inner = whole(at * alpha.unsqueeze(1)) - whole(u * alpha).unsqueeze(1);
    b.concat(&[inner, end], 1)
}

fn pool<'b>(cx: &Cx<'b>, n: usize) -> Vec<V<'b>> {
    let (x, out) = (cx.t("self"), cx.out(0));
    let lead = x.rank() - n;
    let (space, small) = (&x.dims()[lead..], &out.dims[lead..]);
    let planes: i64 = x.dims()[..lead].iter().product();
    let (plane, each): (i64, i64) = (space.iter().product(), small.iter().product());
    if out.numel() == 0 {
        return vec![cx.b.zeros(out.dtype, &out.dims), cx.b.zeros(DType::I64, &out.dims)];
    }
    let samples = cx.t("random_samples").reshape(&[planes, n as i64]);
    let (size, base) = (cx.ints_n("kernel_size", n), cx.b.iota(DType::I32, &[planes, each], 0) * plane);
    let mut wide = vec![planes];
    wide.extend(small);
    // the first element of each window
    let mut corner = cx.b.zeros(DType::I32, &wide);
    for d in 0..n {
        // the two-dimensional samples are for width, then height
        let k = if n == 2 { 1 - d } else { d } as i64;
        let from = starts(samples.slice_dim(1, k, k + 1).reshape(&[planes]), space[d], small[d], size[d]);
        corner = corner * space[d] + from.broadcast_in_dim(&wide, &[0, d + 1]);
    }
    let corner = corner.reshape(&[planes, each]);
    let flat = x.reshape(&[planes * plane]);
    let mut best: Option<(V<'b>, V<'b>)> = None;
    for tap in 0..size.iter().product::<i64>() {
        let (mut rest, mut step, mut offset) = (tap, 1, 0);
        for d in (0..n).rev() {
            offset += rest % size[d] * step;
            rest /= size[d];
            step *= space[d];
        }
        let at = corner + offset;
        let v = flat.take(at + base, 0);
        best = Some(best.map_or((v, at), |(top, where_)| {
            let take = v.gt(top) | v.is_nan();
            (take.select(v, top), take.select(at, where_))
        }));
    }
    let (top, at) = best.unwrap_or((corner, corner));
    vec![top.reshape(&out.dims), at.convert(DType::I64).reshape(&out.dims)]
}

fn backward<'b>(cx: &Cx<'b>, n: usize) -> V<'b> {
    let out = cx.out(0);
    let grad = cx.t_as("grad_output", out.dtype.opmath());
    plane_scatter(grad, cx.t("indices").convert(DType::I32), &out.dims, n, true)
}
