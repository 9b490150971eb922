//! Interpolation. Linear and cubic kernels are small dense matrices, one a dimension, multiplied in turn: on a TPU that
//! runs on the matrix unit, where gathers along a minor dimension would crawl; gradients use the transposed matrices.
//! (An infinite element therefore spreads along its row; PyTorch's kernels touch neighbours only.) Nearest copies elements.

use super::pool_adaptive::sum_windows;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, one};
use tpu_base::DType;
use tpu_hlo::{DotDims, Precision, V};

pub(crate) static DEFS: &[OpDef] = &[
    one("upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor", |cx| nearest(cx, 0.0))
        .eg(&["f32[2,3,4] (8)", "f32[2,3,7] (5)", "bf16[2,3,4] (12)", "f32[2,3,4] (10) 2.6", "f64[2,3,5] (5)"]),
    one(
        "upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest(cx, 0.0),
    )
    .eg(&["f32[2,3,4,5] (8,10)", "f32[2,3,4,5] (3,7)", "bf16[2,3,4,5] (9,10) 2.3 2", "u8[1,3,4,5]%200 (8,15)"]),
    one(
        "upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| nearest(cx, 0.0),
    )
    .eg(&["f32[1,2,3,4,5] (6,8,10)", "f32[1,2,3,4,5] (2,5,10)"]),
    one("_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor", |cx| {
        nearest(cx, 0.5)
    })
    .eg(&["f32[2,3,4] (8)", "f32[2,3,7] (5)", "f32[2,3,4] (10) 2.6"]),
    one(
        "_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest(cx, 0.5),
    )
    .eg(&["f32[2,3,4,5] (8,10)", "f32[2,3,4,5] (3,7)"]),
    one(
        "_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| nearest(cx, 0.5),
    )
    .eg(&["f32[1,2,3,4,5] (2,5,10)"]),
    one(
        "upsample_nearest1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, float? scales=None) \
         -> Tensor",
        |cx| nearest_backward(cx, 0.0),
    )
    .eg(&["f32[2,3,8] (8) (2,3,4)", "f32[2,3,5] (5) (2,3,7)", "bf16[2,3,12] (12) (2,3,4)"]),
    one(
        "upsample_nearest2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest_backward(cx, 0.0),
    )
    .eg(&["f32[2,3,8,10] (8,10) (2,3,4,5)", "f32[2,3,3,7] (3,7) (2,3,4,5)"]),
    one(
        "upsample_nearest3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, \
         float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest_backward(cx, 0.0),
    )
    .eg(&["f32[1,2,6,8,10] (6,8,10) (1,2,3,4,5)"]),
    one(
        "_upsample_nearest_exact1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, \
         float? scales=None) -> Tensor",
        |cx| nearest_backward(cx, 0.5),
    )
    .eg(&["f32[2,3,8] (8) (2,3,4)", "f32[2,3,5] (5) (2,3,7)"]),
    one(
        "_upsample_nearest_exact2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest_backward(cx, 0.5),
    )
    .eg(&["f32[2,3,3,7] (3,7) (2,3,4,5)"]),
    one(
        "_upsample_nearest_exact3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, \
         float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| nearest_backward(cx, 0.5),
    )
    .eg(&["f32[1,2,2,5,10] (2,5,10) (1,2,3,4,5)"]),
    one(
        "upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor",
        |cx| forward(cx, Kernel::Linear),
    )
    .eg(&["f32[2,3,4] (8) False", "f32[2,3,7] (5) True", "bf16[2,3,4] (9) False 2.3", "f32[2,3,1] (4) True"]),
    one(
        "upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::Linear),
    )
    .refuse(integers)
    .eg(&[
        "f32[2,3,4,5] (8,10) False",
        "f32[2,3,4,5] (3,7) True",
        "bf16[2,3,4,5] (8,10) False",
        "u8[1,3,8,5]%255 (3,5) True",
        "f64[2,3,4,5] (7,9) False 1.8 1.9",
        "u8[1,3,4,5]%200 (8,10) False",
    ]),
    one(
        "upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, \
         float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::Linear),
    )
    .eg(&["f32[1,2,3,4,5] (6,8,7) False", "f32[1,2,3,4,5] (2,5,10) True"]),
    one(
        "upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::Cubic),
    )
    .refuse(integers)
    .eg(&["f32[2,3,4,5] (8,10) False", "u8[2,3,4,5]%255 (9,7) False", "u8[2,3,9,5]%255 (4,7) True", "f64[2,3,4,5] (9,9) False"]),
    one(
        "_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::LinearAa),
    )
    .refuse(integers)
    .eg(&["f32[2,3,8,9] (3,4) False", "f32[2,3,4,5] (7,9) True"]),
    one(
        "_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::CubicAa),
    )
    .refuse(integers)
    .eg(&["f32[2,3,8,9] (3,4) False", "u8[2,3,8,9]%255 (3,14) False", "f32[2,3,4,5] (7,9) False"]),
    one(
        "_upsample_lanczos2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, \
         float? scales_w=None) -> Tensor",
        |cx| forward(cx, Kernel::LanczosAa),
    )
    .refuse(integers)
    .eg(&["f32[2,3,8,9] (3,4) False", "u8[2,3,8,9]%255 (3,14) False", "f64[2,3,4,5] (7,9) True"]),
    one(
        "_upsample_lanczos2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::LanczosAa),
    )
    .eg(&["f32[2,3,3,4] (3,4) (2,3,8,9) False"]),
    one(
        "upsample_linear1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, bool align_corners, \
         float? scales=None) -> Tensor",
        |cx| backward(cx, Kernel::Linear),
    )
    .eg(&["f32[2,3,8] (8) (2,3,4) False", "f32[2,3,5] (5) (2,3,7) True"]),
    one(
        "upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::Linear),
    )
    .eg(&["f32[2,3,8,10] (8,10) (2,3,4,5) False", "bf16[2,3,3,7] (3,7) (2,3,4,5) True"]),
    one(
        "upsample_trilinear3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, \
         bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::Linear),
    )
    .eg(&["f32[1,2,6,8,7] (6,8,7) (1,2,3,4,5) False"]),
    one(
        "upsample_bicubic2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::Cubic),
    )
    .eg(&["f32[2,3,8,10] (8,10) (2,3,4,5) False", "f32[2,3,3,7] (3,7) (2,3,4,5) True"]),
    one(
        "_upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::LinearAa),
    )
    .eg(&["f32[2,3,3,4] (3,4) (2,3,8,9) False"]),
    one(
        "_upsample_bicubic2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, \
         bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |cx| backward(cx, Kernel::CubicAa),
    )
    .eg(&["f32[2,3,3,4] (3,4) (2,3,8,9) False"]),
];

fn integers(s: &Sig<'_>) -> Option<Refusal> {
    s.dtype("self")
        .is_some_and(|d| !d.is_float() && d != DType::U8)
        .then_some("of integers only bytes are interpolated")
}

/// The scale argument of spatial dimension `i` of `n`.
fn scale(cx: &Cx<'_>, i: usize, n: usize) -> Option<f64> {
    let name = if n == 1 { "scales" } else { ["scales_d", "scales_h", "scales_w"][i + 3 - n] };
    cx.opt_float(name).filter(|&s| s > 0.0)
}

/// Which of `n` elements each of `out` copies. PyTorch computes this in float32 whatever the dtype.
fn nearest_map(n: i64, out: i64, scale: Option<f64>, shift: f32) -> Vec<i64> {
    let ratio = scale.map_or(n as f32 / out as f32, |s| (1.0 / s) as f32);
    (0..out)
        .map(|o| match () {
            () if n == out => o,
            () if shift == 0.0 && out == 2 * n => o / 2,
            () => (((o as f32 + shift) * ratio).floor() as i64).min(n - 1),
        })
        .collect()
}

fn nearest<'b>(cx: &Cx<'b>, shift: f32) -> V<'b> {
    let mut x = cx.t("self");
    let (out, n) = (cx.out(0).dims, x.rank() - 2);
    for i in 0..n {
        let (d, size) = (i + 2, x.dim(i + 2));
        let map = nearest_map(size, out[d], scale(cx, i, n), shift);
        let times = out[d] / size.max(1);
        if times * size == out[d] && map.iter().enumerate().all(|(o, &m)| m == o as i64 / times) {
            let mut wide = x.dims();
            wide.insert(d + 1, times);
            x = x.unsqueeze(d + 1).broadcast_to(&wide);
            wide.remove(d + 1);
            wide[d] = out[d];
            x = x.reshape(&wide);
        } else {
            x = x.take(cx.b.table(DType::I32, &[out[d]], &map), d);
        }
    }
    x
}

fn nearest_backward<'b>(cx: &Cx<'b>, shift: f32) -> V<'b> {
    let out = cx.out(0);
    let mut g = cx.t_as("grad_output", out.dtype.opmath());
    let n = g.rank() - 2;
    for i in 0..n {
        let d = i + 2;
        let map = nearest_map(out.dims[d], g.dim(d), scale(cx, i, n), shift);
        // the map does not decrease: those that copied element k are neighbours
        let copies: Vec<(i64, i64)> = (0..out.dims[d])
            .map(|k| {
                let first = map.partition_point(|&m| m < k) as i64;
                (first, map.partition_point(|&m| m <= k) as i64)
            })
            .collect();
        g = sum_windows(g, d, &copies);
    }
    g
}

#[derive(Clone, Copy, PartialEq)]
enum Kernel {
    Linear,
    Cubic,
    LinearAa,
    CubicAa,
    LanczosAa,
}

/// Keys' cubic convolution at distance `x`.
fn keys(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// Lanczos' window of three lobes.
fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) };
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

/// The matrix (out × n, row-major) that interpolates `n` elements to `out`.
fn matrix(kernel: Kernel, n: i64, out: i64, align: bool, scale: Option<f64>, dtype: DType) -> Vec<f64> {
    // positions are computed in the kernel's own float, which decides the element at exact hits
    let r = |x: f64| if dtype == DType::F64 { x } else { x as f32 as f64 };
    let ratio = match scale {
        _ if align && out > 1 => r((n - 1) as f64 / (out - 1) as f64),
        _ if align => 0.0,
        Some(s) => r(1.0 / s),
        None => r(n as f64 / out as f64),
    };
    let mut m = vec![0.0; (n * out) as usize];
    for o in 0..out {
        let row = &mut m[(o * n) as usize..((o + 1) * n) as usize];
        let centre = if align { r(ratio * o as f64) } else { r(r(ratio * (o as f64 + 0.5)) - 0.5) };
        match kernel {
            Kernel::Linear if n == out => row[o as usize] = 1.0,
            Kernel::Linear => {
                let at = centre.max(0.0);
                let low = (at as i64).min(n - 1);
                let t = r(at - low as f64).clamp(0.0, 1.0);
                row[low as usize] += r(1.0 - t);
                row[(low + 1).min(n - 1) as usize] += t;
            }
            Kernel::Cubic => {
                let low = (centre.floor() as i64).min(n - 1);
                let t = r(centre - low as f64).clamp(0.0, 1.0);
                for k in -1..=2 {
                    row[(low + k).clamp(0, n - 1) as usize] += keys(t - k as f64, -0.75);
                }
            }
            Kernel::LinearAa | Kernel::CubicAa | Kernel::LanczosAa => {
                let reach = match kernel {
                    Kernel::LinearAa => 1.0,
                    Kernel::CubicAa => 2.0,
                    _ => 3.0,
                };
                let wide = ratio.max(1.0);
                let middle = r(ratio * (o as f64 + 0.5));
                let first = (r(middle - reach * wide + 0.5) as i64).max(0);
                let end = (r(middle + reach * wide + 0.5) as i64).min(n);
                let weight = |k: i64| {
                    let x = (k as f64 - middle + 0.5) / wide;
                    match kernel {
                        Kernel::LinearAa => (1.0 - x.abs()).max(0.0),
                        Kernel::CubicAa => keys(x, -0.5),
                        _ => lanczos(x),
                    }
                };
                let total: f64 = (first..end).map(weight).sum();
                for k in first..end {
                    row[k as usize] = weight(k) / if total == 0.0 { 1.0 } else { total };
                }
            }
        }
    }
    m
}

/// Contracts dimension `d` of `x` with dimension `with` of `m`; the other dimension of `m` takes its place.
fn contract<'b>(x: V<'b>, d: usize, m: V<'b>, with: usize) -> V<'b> {
    let dims = DotDims { lhs_contract: vec![d], rhs_contract: vec![with], ..DotDims::default() };
    x.dot_general(m, &dims, x.dtype(), Precision::Highest).move_dim(x.rank() - 1, d)
}

/// Bytes, as PyTorch does them: one dimension after the other in fixed point, weights of as many bits as int16 holds, each
/// result rounded to a byte.
fn bytes<'b>(cx: &Cx<'b>, kernel: Kernel) -> V<'b> {
    let (mut x, out) = (cx.t_as("self", DType::I32), cx.out(0).dims);
    let n = x.rank() - 2;
    for i in (0..n).rev() {
        let (from, to) = (x.dim(i + 2), out[i + 2]);
        if from == to {
            continue;
        }
        let m = matrix(kernel, from, to, cx.flag("align_corners"), scale(cx, i, n), DType::F64);
        let top = m.iter().copied().fold(0.0, f64::max);
        let fits = |bits: &i32| top * 2f64.powi(bits + 1) + 0.5 < 2f64.powi(15);
        let bits = (0..22).find(|b| !fits(b)).unwrap_or(22);
        let weights: Vec<i64> = m.iter().map(|w| (w * 2f64.powi(bits)).round() as i64).collect();
        let sum = contract(x, i + 2, cx.b.table(DType::I32, &[to, from], &weights), 1);
        let rounded = (sum + ((1i64 << bits) >> 1)).shr(sum.lit(bits as i64));
        x = rounded.clamp(sum.lit(0i64), sum.lit(255i64));
    }
    x
}

fn forward<'b>(cx: &Cx<'b>, kernel: Kernel) -> V<'b> {
    let out = cx.out(0);
    if out.dtype == DType::U8 {
        return bytes(cx, kernel);
    }
    let mut x = cx.t_as("self", out.dtype.opmath());
    let n = x.rank() - 2;
    // the last dimension first, as PyTorch's separable kernels go
    for i in (0..n).rev() {
        let (from, to) = (x.dim(i + 2), out.dims[i + 2]);
        if from == to && kernel == Kernel::Linear {
            continue;
        }
        let m = matrix(kernel, from, to, cx.flag("align_corners"), scale(cx, i, n), x.dtype());
        x = contract(x, i + 2, cx.b.table_f64(x.dtype(), &[to, from], &m), 1);
    }
    x
}

fn backward<'b>(cx: &Cx<'b>, kernel: Kernel) -> V<'b> {
    let out = cx.out(0);
    let mut g = cx.t_as("grad_output", out.dtype.opmath());
    let n = g.rank() - 2;
    for i in 0..n {
        let (from, to) = (out.dims[i + 2], g.dim(i + 2));
        let m = matrix(kernel, from, to, cx.flag("align_corners"), scale(cx, i, n), g.dtype());
        g = contract(g, i + 2, cx.b.table_f64(g.dtype(), &[to, from], &m), 0);
    }
    g
}
