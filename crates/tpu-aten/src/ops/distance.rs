//! Distances between the rows of one matrix. Pairs (i, j), i < j, stand in one row, i by i.

use super::reduce_norm::{distance_backward, p_norm};
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::{Builder, V};

pub(crate) static DEFS: &[OpDef] = &[
    one("_pdist_forward(Tensor self, float p=2.) -> Tensor", |cx| {
        let x = cx.t("self");
        let out = cx.out(0);
        if out.numel() == 0 || x.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let (i, j) = pairs(cx.b, x.dim(0));
        p_norm(x.take(i, 0) - x.take(j, 0), cx.float("p"), &[1])
    })
    .eg(&["f32[4,3]", "f64[7,3] 1.0", "f32[4,3] 3.0", "f32[4,3] inf", "f32[4,3] 0.0", "f32[1,3]", "f32[40,2]"]),
    one("_pdist_backward(Tensor grad_output, Tensor self, float p, Tensor pdist) -> Tensor", |cx| {
        let x = cx.t("self");
        let (n, p) = (x.dim(0), cx.float("p"));
        if n < 2 || x.numel() == 0 {
            return x.zeros_like();
        }
        let (a, b) = (cx.b.iota(DType::I32, &[n, n], 0), cx.b.iota(DType::I32, &[n, n], 1));
        let at = first(a.min(b), n) + a.max(b) - a.min(b) - 1i64;
        let whole = |name: &str| {
            let v = cx.t(name).take(at, 0);
            a.eq(b).select(v.zeros_like(), v)
        };
        let (g, d) = (whole("grad_output"), whole("pdist"));
        distance_backward(x.unsqueeze(1) - x.unsqueeze(0), g.unsqueeze(2), d.unsqueeze(2), p)
    })
    .eg(&[
        "f32[6] f32[4,3] 2.0 f32[6]+",
        "f64[6] f64[4,3] 1.0 f64[6]+",
        "f32[6] f32[4,3] 3.0 f32[6]+",
        "f32[6] f32[4,3] 0.5 f32[6]+",
        "f32[6] f32[4,3] 0.0 f32[6]+",
        "f32[0] f32[1,3] 2.0 f32[0]",
    ]),
];

/// Where the pairs of row i begin.
fn first(i: V<'_>, n: i64) -> V<'_> {
    (i * i.lit(2 * n - 1) - i * i) / i.lit(2)
}

/// Both rows of each pair of `n` rows.
fn pairs(b: &Builder, n: i64) -> (V<'_>, V<'_>) {
    let k = b.iota(DType::I32, &[n * (n - 1) / 2], 0);
    let end = 2.0 * n as f64 - 1.0;
    // the root of first(i) = k, which rounding may put beside a whole number
    let root = (k.convert(DType::F64) * -8.0 + end * end).sqrt();
    let i = ((root.neg() + end) * 0.5).floor().convert(DType::I32);
    let i = first(i, n).gt(k).select(i - 1i64, i);
    let i = first(i + 1i64, n).le(k).select(i + 1i64, i);
    (i, k - first(i, n) + i + 1i64)
}
