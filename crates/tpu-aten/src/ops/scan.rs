//! Running reductions. See [`scan`] for how they stay near linear.

use super::binary_math::complex_log_sum;
use super::reduce::summand;
use crate::cx::Cx;
use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::{V, Window};

pub(crate) static DEFS: &[OpDef] = &[
    one("cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", |cx| {
        along(cx, summand(cx), |x, d| cumsum(x, d))
    })
    .eg(&[
        "f32[2,3] -1",
        "f32[2,300] 1",
        "f32[40,3] 0",
        "f64[5000] 0",
        "i32[2,3]%9 0",
        "bool[20] 0",
        "bf16[2,50] 1",
        "f32[] 0",
        "f32[2,0] 1",
        "i64[4] 0 dtype=f32",
        "c64[20] 0",
    ]),
    one("cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", |cx| {
        along(cx, summand(cx), |x, d| scan(x, x.lit(1.0), d, CHEAP, |a, b| a * b))
    })
    .eg(&["f32[2,3] -1", "f32[40,3] 0", "i32[2,3]%3 0", "bool[20] 0", "bf16[2,20] 1", "f32[] 0"]),
    many("cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", |cx| running_extreme(cx, true)).eg(&[
        "f32[2,3] -1",
        "f32[40,3] 0",
        "i64[2,30]%9 1",
        "bool[20] 0",
        "bf16[2,20] 1",
        "f32[] 0",
        "f32[2,20]! 1",
    ]),
    many("cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", |cx| running_extreme(cx, false)).eg(&[
        "f32[2,3] -1",
        "u8[2,30]%9 1",
        "bool[20] 0",
        "f64[2,20] 1",
        "f32[2,20]! 1",
    ]),
    one("logcumsumexp(Tensor self, int dim) -> Tensor", running_log_sum_exp).eg(LOG_EG),
    one("_logcumsumexp(Tensor self, int dim) -> Tensor", running_log_sum_exp).eg(LOG_EG),
];

const LOG_EG: &[&str] =
    &["f32[2,3] -1", "c64[2,20] 1", "f32[40,3] 0", "f64[2,200] 1", "bf16[2,20] 1", "f32[] 0", "f32[2,20]! 1"];

/// Elements folded by one window. A scan of n costs about `block` · n steps over log(n) / log(`block`) levels: measured, 16 is
/// best for an operation that costs nothing, 4 for one with transcendental functions.
const CHEAP: i64 = 16;
const DEAR: i64 = 4;

/// Inclusive running reduction along `d` with an associative `f` whose identity is `init` (0-d): windows over blocks, the
/// blocks' totals scanned alike, and each block joined with what came before it.
fn scan<'b>(x: V<'b>, init: V<'b>, d: usize, block: i64, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let dims = x.dims();
    let n = dims[d];
    if n <= block {
        return window(x, init, d, f);
    }
    let (blocks, rank) = ((n + block - 1) / block, x.rank());
    let mut high = vec![0; rank];
    high[d] = blocks * block - n;
    let mut split = dims.clone();
    split.splice(d..=d, [blocks, block]);
    let inner = window(x.pad(init, &vec![0; rank], &high, &vec![0; rank]).reshape(&split), init, d + 1, f);
    let mut total = dims.clone();
    total[d] = blocks;
    let totals = scan(inner.slice_dim(d + 1, block - 1, block).reshape(&total), init, d, block, f);
    // block k starts from the total of all blocks before it
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    (low[d], high[d]) = (1, -1);
    let before = totals.pad(init, &low, &high, &vec![0; rank]).unsqueeze(d + 1);
    let mut padded = dims;
    padded[d] = blocks * block;
    f(before, inner).reshape(&padded).slice_dim(d, 0, n)
}

/// Running reduction along a short dimension, by one window that ends at each element.
fn window<'b>(x: V<'b>, init: V<'b>, d: usize, f: fn(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let n = x.dim(d);
    if x.numel() == 0 || n == 1 {
        return x;
    }
    let mut w = Window::unit(x.rank());
    w.size[d] = n;
    w.pad[d] = (n - 1, 0);
    x.reduce_window(init, &w, f)
}

/// Running sum along `d`.
pub(super) fn cumsum<'b>(x: V<'b>, d: usize) -> V<'b> {
    scan(x, x.lit(0.0), d, CHEAP, |a, b| a + b)
}

/// Running maximum along `d`; NaN wins.
pub(super) fn cummax<'b>(x: V<'b>, d: usize) -> V<'b> {
    scan(x, x.lowest(), d, CHEAP, |a, b| a.max(b))
}

fn along<'b>(cx: &Cx<'b>, x: V<'b>, f: impl FnOnce(V<'b>, usize) -> V<'b>) -> V<'b> {
    if x.rank() == 0 { x } else { f(x, cx.dim("dim", x.rank())) }
}

/// The running extreme and the last position that attained it.
fn running_extreme<'b>(cx: &Cx<'b>, largest: bool) -> Vec<V<'b>> {
    let x = cx.t("self");
    if x.rank() == 0 {
        return vec![x, cx.b.scalar(DType::I64, 0)];
    }
    let d = cx.dim("dim", x.rank());
    let best = if largest { cummax(x, d) } else { scan(x, x.highest(), d, CHEAP, |a, b| a.min(b)) };
    let hit = x.eq(best);
    let hit = if x.dtype().is_float() { hit | x.is_nan() } else { hit };
    let at = cx.b.iota(DType::I32, &x.dims(), d);
    vec![best, cummax(hit.select(at, at.zeros_like()), d)]
}

fn running_log_sum_exp<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t_as("self", cx.out_dtype().opmath());
    let f = if x.dtype().is_complex() { complex_log_sum } else { log_add_exp };
    along(cx, x, |x, d| scan(x, x.lit(f64::NEG_INFINITY), d, DEAR, f))
}

/// ln(eᵃ + eᵇ). Equal infinities stand for themselves.
fn log_add_exp<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    let (hi, lo) = (a.max(b), a.min(b));
    let same = hi.eq(lo) & hi.abs().eq(f64::INFINITY);
    same.select(hi, hi + (lo - hi).exp().log1p())
}
