//! Discrete Fourier transforms. StableHLO transforms the innermost dimensions, three at most in one operation; its inverse
//! kinds divide by the length, PyTorch's scale as `normalization` says.

use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor", |cx| {
        let x = cx.t("self");
        if !cx.flag("onesided") {
            return both_ways(cx, x.convert(x.dtype().complex()), "FFT");
        }
        let dims = axes(cx, x.rank());
        let inner = &dims[dims.len().saturating_sub(MOST)..];
        let y = innermost(x, inner, |v| v.fft("RFFT", &sizes(v, inner.len())));
        let y = complex(y, &dims[..dims.len() - inner.len()], "FFT");
        scaled(cx, y, total(x, &dims), false)
    })
    .eg(&[
        "f32[4,6] (1) 0 True",
        "f32[4,5] (0) 1 True",
        "f64[2,5,4] (0,2) 2 True",
        "f32[2,3,2,3,5] (0,1,2,3,4) 0 True",
        "f32[4,5] (1) 1 False",
        "f64[3,4,2] (2,0) 2 False",
        "f32[0,4] (1) 0 True",
        "f32[3,1] (1) 0 True",
    ]),
    one("_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor", |cx| {
        let x = cx.t("self");
        let dims = axes(cx, x.rank());
        let Some(&last) = dims.last() else { return x.real() };
        let n = cx.int("last_dim_size");
        let (outer, inner) = dims.split_at(dims.len().saturating_sub(MOST));
        // the half spectrum that belongs to n: what lies beyond is not read
        let half = x.slice_dim(last, 0, x.dim(last).min(n / 2 + 1));
        let y = innermost(complex(half, outer, "IFFT"), inner, |v| {
            let mut length = sizes(v, inner.len());
            length[inner.len() - 1] = n;
            v.fft("IRFFT", &length)
        });
        scaled(cx, y, total(y, &dims), true)
    })
    .eg(&[
        "c64[4,4] (1) 2 6",
        "c64[4,3] (1) 0 5",
        "c128[3,4,3] (0,2) 1 5",
        "c64[2,3,2,3,3] (0,1,2,3,4) 2 4",
        "c64[4,4] (0) 2 6",
        "c64[3,1] (1) 0 1",
        "c64[0,4] (1) 2 6",
    ]),
    one("_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor", |cx| {
        both_ways(cx, cx.t("self"), if cx.flag("forward") { "FFT" } else { "IFFT" })
    })
    .eg(&[
        "c64[4,6] (1) 0 True",
        "c64[4,5] (0) 1 False",
        "c128[2,5,4] (0,2) 2 True",
        "c64[2,3,2,3,5] (0,1,2,3,4) 2 False",
        "c64[3,4] (1,0) 0 False",
        "c64[3,4] () 2 True",
        "c64[2,0,4] (2) 0 True",
    ]),
];

/// How many dimensions one StableHLO `fft` takes.
const MOST: usize = 3;

fn both_ways<'b>(cx: &Cx<'b>, x: V<'b>, kind: &str) -> V<'b> {
    let dims = axes(cx, x.rank());
    scaled(cx, complex(x, &dims, kind), total(x, &dims), kind == "IFFT")
}

/// The transformed dimensions, in the caller's order.
fn axes(cx: &Cx<'_>, rank: usize) -> Vec<usize> {
    cx.ints("dim").iter().map(|&d| if d < 0 { d + rank as i64 } else { d } as usize).collect()
}

/// `f` of `x` with `dims` moved to the end, and they back at their places.
fn innermost<'b>(x: V<'b>, dims: &[usize], f: impl FnOnce(V<'b>) -> V<'b>) -> V<'b> {
    let mut perm: Vec<usize> = (0..x.rank()).filter(|d| !dims.contains(d)).collect();
    perm.extend(dims);
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    f(x.transpose(&perm)).transpose(&back)
}

/// Complex transform over `dims`, a few at a time.
fn complex<'b>(x: V<'b>, dims: &[usize], kind: &str) -> V<'b> {
    dims.chunks(MOST).fold(x, |x, d| innermost(x, d, |v| v.fft(kind, &sizes(v, d.len()))))
}

/// Sizes of the last `n` dimensions.
fn sizes(v: V<'_>, n: usize) -> Vec<i64> {
    v.dims()[v.rank() - n..].to_vec()
}

/// Product of the sizes of `dims`.
fn total(x: V<'_>, dims: &[usize]) -> f64 {
    dims.iter().map(|&d| x.dim(d) as f64).product()
}

/// PyTorch's normalization: 0 none, 1 by √n, 2 by n. StableHLO's inverse has already divided by n.
fn scaled<'b>(cx: &Cx<'b>, y: V<'b>, n: f64, divided: bool) -> V<'b> {
    let factor = match cx.int("normalization") {
        0 => 1.0,
        1 => 1.0 / n.sqrt(),
        _ => 1.0 / n,
    };
    let factor = if divided { factor * n } else { factor };
    match factor {
        1.0 => y,
        // each part by itself: a complex product would turn infinities into NaN
        _ if y.dtype().is_complex() => (y.real() * factor).complex(y.imag() * factor),
        _ => y * factor,
    }
}
