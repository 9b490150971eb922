//! Histograms in one dimension or several: each row's bin is found by its coordinates' places among the edges, and its weight
//! added there.

use super::reduce::every;
use super::sort_search::insert;
use crate::cx::Cx;
use crate::def::{OpDef, Sig, SigArg, many, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{ScatterDims, Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False) \
         -> (Tensor hist, Tensor bin_edges)",
        |cx| {
            let x = column(cx);
            let edges = edges(cx, x, &[cx.int("bins")]);
            vec![count(cx, x, &edges), edges[0]]
        },
    )
    .shapes(|s| {
        let (d, SigArg::Int(n)) = (float(s)?, s.arg("bins")) else { return None };
        (*n > 0).then(|| vec![Type::new(d, [*n]), Type::new(d, [*n + 1])])
    })
    .eg(&["f32[5,9] 7", "f64[40] 5 range=(-1,0.5) density=True", "f32[9] 300 weight=f32[9]+", "f32[0] 3", "f32[4]%1 3"]),
    many(
        "histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) \
         -> (Tensor hist, Tensor bin_edges)",
        |cx| {
            let edges = [cx.t("bins")];
            vec![count(cx, column(cx), &edges), edges[0]]
        },
    )
    .shapes(|s| {
        let (d, bins) = (float(s)?, s.ty("bins")?);
        let n = *bins.dims.first()?;
        (bins.dtype == d && bins.dims.len() == 1 && n > 1).then(|| vec![Type::new(d, [n - 1]), bins])
    })
    .eg(&["f32[5,9] f32[2]%1", "f64[9]%1 f64[3]%1 weight=f64[9]+ density=True"]),
    many(
        "_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, bool density=False) \
         -> Tensor[]",
        |cx| edges(cx, rows(cx), &cx.ints("bins")),
    )
    .eg(&["f32[9,2] (3,4)", "f64[3,3,1] (3) range=(-1,2)"]),
    one(
        "_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, \
         bool density=False) -> Tensor",
        |cx| {
            let x = rows(cx);
            count(cx, x, &edges(cx, x, &cx.ints("bins")))
        },
    )
    .eg(&["f32[9,2] (3,4)", "f64[3,3,3] (3,2,4) weight=f64[3,3]+ density=True"]),
    one(
        "_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool density=False) -> Tensor",
        |cx| count(cx, rows(cx), &cx.ts("bins")),
    )
    .eg(&["f32[9,2] [f32[2]%1 f32[3]%1]"]),
];

/// The dtype that the CPU takes.
fn float(s: &Sig<'_>) -> Option<DType> {
    s.dtype("self").filter(|d| matches!(d, DType::F32 | DType::F64))
}

/// One coordinate a row.
fn column<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    x.reshape(&[x.numel(), 1])
}

/// The last dimension is the coordinates.
fn rows<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let n = x.dims().last().copied().unwrap_or(1);
    x.reshape(&[x.numel() / n.max(1), n])
}

/// Evenly spaced edges over the range given, or that of the data; one of no width grows by a half on each side.
fn edges<'b>(cx: &Cx<'b>, x: V<'b>, bins: &[i64]) -> Vec<V<'b>> {
    let d = x.dtype();
    let coordinate = |k: usize| x.slice_dim(1, k as i64, k as i64 + 1);
    let range = cx.opt_floats("range").filter(|r| r.len() == 2 * bins.len());
    bins.iter()
        .enumerate()
        .map(|(k, &n)| {
            let (lo, hi) = match &range {
                Some(r) => (cx.b.scalar(d, r[2 * k]), cx.b.scalar(d, r[2 * k + 1])),
                None if x.dim(0) == 0 => (cx.b.scalar(d, 0.0), cx.b.scalar(d, 1.0)),
                None => (coordinate(k).min_over(&[0, 1]), coordinate(k).max_over(&[0, 1])),
            };
            if range.is_none() && x.dim(0) > 0 {
                let fine = lo.is_finite() & hi.is_finite();
                cx.check(fine, ErrorKind::User, "torch.histogramdd: range is not finite");
            }
            let flat = lo.eq(hi);
            let (lo, hi) = (flat.select(lo - 0.5, lo), flat.select(hi + 0.5, hi));
            // from both ends, as linspace goes
            let step = (hi - lo) / n as f64;
            let at = cx.b.iota(DType::I32, &[n + 1], 0);
            let (up, down) = (at.convert(d), (at.neg() + n).convert(d));
            at.lt((n + 1) / 2).select(up * step + lo, hi - down * step)
        })
        .collect()
}

/// The weights of the rows of `x` (rows × coordinates) by bin; densities if asked for.
fn count<'b>(cx: &Cx<'b>, x: V<'b>, edges: &[V<'b>]) -> V<'b> {
    let (n, d) = (x.dim(0), x.dtype());
    let shape: Vec<i64> = edges.iter().map(|e| e.numel() - 1).collect();
    let total: i64 = shape.iter().product();
    let mut hist = cx.b.zeros(d, &[total]);
    if n > 0 && total > 0 {
        let mut bin = cx.b.zeros(DType::I32, &[n]);
        let mut inside = cx.b.full(DType::Bool, &[n], true);
        for (k, &e) in edges.iter().enumerate() {
            let v = x.slice_dim(1, k as i64, k as i64 + 1).reshape(&[n]);
            let end = |i: i64| e.slice_dim(0, i, i + 1).reshape(&[]);
            inside = inside & v.ge(end(0)) & v.le(end(shape[k]));
            // the last edge belongs to the last bin
            bin = bin * shape[k] + (insert(e, v, true) - 1i64).min(shape[k] - 1);
        }
        let bin = inside.select(bin, bin.full_like(-1.0));
        let weight = cx.opt_as("weight", d).map_or(cx.b.full(d, &[n], 1.0), |w| w.reshape(&[n]));
        let to = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..Default::default() };
        hist = hist.scatter(bin, weight, &to, false, |a, b| a + b);
    }
    let mut hist = hist.reshape(&shape);
    if cx.flag("density") {
        hist = hist / hist.sum(&every(hist));
        for (k, &e) in edges.iter().enumerate() {
            let widths = e.slice_dim(0, 1, shape[k] + 1) - e.slice_dim(0, 0, shape[k]);
            hist = hist / widths.broadcast_in_dim(&shape, &[k]);
        }
    }
    hist
}
