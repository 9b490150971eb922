//! Advanced indexing: `x[i, None, j]` and what writes through it. Integer indices become one gather or scatter over
//! int32 positions; a mask becomes a select, or a gather by its running count. Indices out of range raise when the plan runs.

use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{GatherDims, ScatterDims, V, Window};

pub(crate) static DEFS: &[OpDef] = &[
    one("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", index).refuse(read_mask).eg(&[
        "f32[4,5] [i64[3]%4]",
        "f32[4,5] [- i64[2,3]%5]",
        "f32[4,5,6] [i64[3]%4 i64[3]%5]",
        "f32[4,5,6] [i64[3]%4 - i64[2,1]%6]",
        "f32[4,5,6] [- i64[3]%5 i64[2,1]%6]",
        "f32[2,3,4,5] [- i64[3]%3 - i64[3]%5]",
        "bf16[4,5] [i64[3]%4 i64[]%5]",
        "f64[4,5] [i32[3]%4]",
        "bool[4,5] [i64[2]%4]",
        "f32[4,5] [i64[0]]",
        "f32[0,5] [i64[0]]",
        "c64[4] [i64[]%4]",
        "i64[9] [i64[3]]",
        "f32[4,5] [bool[4]]",
    ]),
    one("_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", index)
        .refuse(read_mask)
        .eg(&["f32[4,5] [- i64[2,3]%5]"]),
    one("index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor", index_put)
        .refuse(write_mask)
        .eg(&[
            "f32[4,5] [i64[1]%4] f32[5]",
            "f32[4,5] [i64[3]%4] f32[3,5] True",
            "f32[4,5,6] [i64[3]%4 - i64[3]%6] f32[3,5] True",
            "f32[4,5,6] [- i64[3]%5 i64[2,1]%6] f32[4,2,3] True",
            "bf16[4,5] [i64[1]%4] bf16[1,5] True",
            "i64[4,5] [i64[9]%4 i64[9]%5] i64[] True",
            "f32[4,5] [i64[0]] f32[0,5]",
            "f32[4,5] [bool[4,5]] f32[]",
            "f32[4,5] [bool[4]] f32[5]",
            "f32[4,5] [- bool[5]] f32[1] True",
            "bool[4,5] [bool[4,5]] bool[]",
            "f32[4,5] [- i64[1]%5] f32[4,1]",
        ]),
    one("_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor", index_put)
        .refuse(write_mask)
        .eg(&["f32[4,5] [i64[3]%4] f32[3,5] True"]),
    one(
        "_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, bool unsafe=False) -> Tensor",
        index_put,
    )
    .refuse(write_mask)
    .eg(&["f32[4,5] [i64[3]%4] f32[3,5] True"]),
    one("masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor", |cx| {
        let out = cx.out(0);
        let x = cx.t("self").broadcast_to(&out.dims);
        let mask = cx.t_as("mask", DType::Bool).broadcast_to(&out.dims);
        let source = cx.t_as("source", out.dtype);
        if x.numel() == 0 {
            return x;
        }
        let (order, count) = running(mask);
        cx.check(
            count.le(count.lit(source.numel())),
            ErrorKind::User,
            "masked_scatter: source has fewer elements than mask has ones",
        );
        if source.numel() == 0 {
            return x;
        }
        mask.select(source.reshape(&[source.numel()]).take(order, 0), x)
    })
    .eg(&["f32[2,3] bool[2,3] f32[6]", "f32[2,3] bool[3] f32[3,2]", "i64[3] bool[2,3] i64[7]", "bf16[0] bool[0] bf16[0]", "f32[] bool[] f32[1]"]),
    one("masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor", |cx| {
        let g = cx.t("grad_output");
        let mask = cx.t_as("mask", DType::Bool).broadcast_to(&g.dims());
        let out = cx.out(0);
        let n: i64 = out.dims.iter().product();
        if n == 0 || g.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let (order, _) = running(mask);
        let target = mask.select(order, order.lit(-1i64)).reshape(&[g.numel()]);
        let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..ScatterDims::default() };
        let zeros = cx.b.zeros(g.dtype(), &[n]);
        zeros.scatter(target, g.reshape(&[g.numel()]), &d, false, |_, u| u).reshape(&out.dims)
    })
    .eg(&["f32[2,3] bool[2,3] (6)", "f32[2,3] bool[2,3] (2,4)"]),
];

/// The position of each true element among the true ones (int32, garbage elsewhere), and how many there are (0-d).
fn running<'b>(mask: V<'b>) -> (V<'b>, V<'b>) {
    let n = mask.numel();
    let ones = mask.reshape(&[n]).convert(DType::I32);
    (cumulated(ones).reshape(&mask.dims()) - 1i64, ones.sum(&[0]))
}

/// Running sum of a 1-d value.
pub(super) fn cumulated<'b>(x: V<'b>) -> V<'b> {
    let n = x.dim(0);
    let mut w = Window::unit(1);
    (w.size, w.pad) = (vec![n], vec![(n - 1, 0)]);
    x.reduce_window(x.lit(0.0), &w, |a, b| a + b)
}

/// Positions with negative ones counted from the end, as int32, and whether all lie inside `0..n` (0-d bool).
pub(super) fn positions<'b>(index: V<'b>, n: i64, negative: bool) -> (V<'b>, V<'b>) {
    let index = if index.dtype().is_unsigned() { index.convert(DType::I32) } else { index };
    let index = if index.dtype().size() < 4 { index.convert(DType::I32) } else { index };
    let at = if negative { index.lt(0i64).select(index + n, index) } else { index };
    let every: Vec<usize> = (0..at.rank()).collect();
    let ok = (at.ge(0i64) & at.lt(n)).all(&every);
    (if n <= i32::MAX as i64 { at.convert(DType::I32) } else { at }, ok)
}

fn is_mask(a: &SigArg) -> bool {
    matches!(a, SigArg::Tensor { dtype: DType::Bool | DType::U8, .. })
}

fn read_mask(s: &Sig<'_>) -> Option<Refusal> {
    let SigArg::Tensors(l) = s.arg("indices") else { return None };
    l.iter().any(is_mask).then_some("a mask selects a number of elements that only its values tell")
}

fn write_mask(s: &Sig<'_>) -> Option<Refusal> {
    let SigArg::Tensors(l) = s.arg("indices") else { return None };
    if !l.iter().any(is_mask) {
        return None;
    }
    let given: Vec<&SigArg> = l.iter().filter(|a| **a != SigArg::None).collect();
    let (SigArg::Tensor { dims: x, .. }, SigArg::Tensor { dims: values, .. }) = (s.arg("self"), s.arg("values")) else {
        return Some("a mask with values that are no tensor");
    };
    let [SigArg::Tensor { dims: mask, dtype: DType::Bool, .. }] = given[..] else {
        return Some("a mask among other indices");
    };
    let first = l.iter().position(|a| *a != SigArg::None).unwrap_or(0);
    let rest = x.len().saturating_sub(first + mask.len());
    let one_each = values.len() <= rest || values.iter().rev().skip(rest).all(|&n| n == 1);
    let listed = first == 0 && values.len() == rest + 1;
    (!one_each && !listed).then_some("a mask with values of several dimensions")
}

/// Integer indices, ready for gather or scatter.
struct Indexed<'b> {
    /// Positions, one component in the last dimension for each indexed dimension.
    at: V<'b>,
    /// The indexed dimensions.
    dims: Vec<usize>,
    /// Dimensions of the indices in the result, and those of the slices.
    batch: Vec<i64>,
    window: Vec<usize>,
}

impl<'b> Indexed<'b> {
    fn of(cx: &Cx<'b>, x: V<'b>) -> Indexed<'b> {
        let given = cx.opts("indices");
        let dims: Vec<usize> = (0..given.len()).filter(|&d| given[d].is_some()).collect();
        let mut ok: Option<V<'b>> = None;
        let mut parts = vec![];
        for &d in &dims {
            let Some(i) = given[d] else { continue };
            let (p, fine) = positions(i, x.dim(d), true);
            ok = Some(ok.map_or(fine, |o| o & fine));
            parts.push(p);
        }
        if let Some(ok) = ok {
            cx.check(ok, ErrorKind::Index, out_of_bounds(&dims, &x.dims()));
        }
        let batch = common_shape(&parts);
        let parts: Vec<V<'b>> =
            parts.iter().map(|p| p.convert(parts[0].dtype()).broadcast_to(&batch).unsqueeze(batch.len())).collect();
        let at = if parts.is_empty() { cx.b.zeros(DType::I32, &[0]) } else { cx.b.concat(&parts, batch.len()) };
        // neighbouring indices leave their result where they stood; separated ones put it in front
        let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
        let first = if adjacent { dims.first().copied().unwrap_or(0) } else { 0 };
        let total = x.rank() - dims.len() + batch.len();
        let window = (0..total).filter(|&i| i < first || i >= first + batch.len()).collect();
        Indexed { at, dims, batch, window }
    }
}

/// The shape several values broadcast to.
fn common_shape(values: &[V<'_>]) -> Vec<i64> {
    let rank = values.iter().map(|v| v.rank()).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    for v in values {
        for (i, n) in v.dims().into_iter().enumerate() {
            let k = i + rank - v.rank();
            if n != 1 {
                shape[k] = n;
            }
        }
    }
    shape
}

/// PyTorch's words, without the index, which only the device knows.
fn out_of_bounds(dims: &[usize], sizes: &[i64]) -> String {
    match dims {
        [d] => format!("index is out of bounds for dimension {d} with size {}", sizes[*d]),
        _ => format!("an index is out of bounds for dimensions {dims:?} of a tensor of shape {sizes:?}"),
    }
}

fn index<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let i = Indexed::of(cx, x);
    let out = cx.out(0);
    if out.numel() == 0 || i.dims.is_empty() {
        return if i.dims.is_empty() { x } else { cx.b.zeros(out.dtype, &out.dims) };
    }
    let sizes: Vec<i64> = x.dims().iter().enumerate().map(|(d, &n)| if i.dims.contains(&d) { 1 } else { n }).collect();
    let d = GatherDims {
        offset_dims: i.window,
        collapsed: i.dims.clone(),
        start_index_map: i.dims,
        index_vector_dim: i.batch.len(),
    };
    x.gather(i.at, &d, &sizes)
}

fn index_put<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let accumulate = cx.flag("accumulate");
    // sums of halves lose least when they are rounded once
    let wide = if accumulate { x.dtype().opmath() } else { x.dtype() };
    let values = cx.t_as("values", wide);
    let given = cx.opts("indices");
    let mask = given.iter().enumerate().find_map(|(d, v)| v.filter(|v| v.dtype() == DType::Bool).map(|v| (d, v)));
    if let Some((first, mask)) = mask {
        return put_masked(cx, x, mask, first, values, accumulate);
    }
    let i = Indexed::of(cx, x);
    if x.numel() == 0 || i.batch.contains(&0) || i.dims.is_empty() {
        return x;
    }
    let rank = i.window.len() + i.batch.len();
    let mut kept = x.dims().into_iter().enumerate().filter(|(d, _)| !i.dims.contains(d)).map(|(_, n)| n);
    let mut batch = i.batch.iter().copied();
    let shape: Vec<i64> =
        (0..rank).filter_map(|k| if i.window.contains(&k) { kept.next() } else { batch.next() }).collect();
    // values may have leading ones too many
    let extra = values.rank().saturating_sub(rank);
    let values = values.squeeze(&(0..extra).collect::<Vec<_>>()).broadcast_to(&shape);
    let d = ScatterDims {
        update_window_dims: i.window,
        inserted: i.dims.clone(),
        scatter_dims: i.dims,
        index_vector_dim: i.batch.len(),
    };
    x.convert(wide).scatter(i.at, values, &d, false, |old, new| if accumulate { old + new } else { new })
}

/// `x[:, …, mask] = values` with `first` full dimensions in front.
fn put_masked<'b>(cx: &Cx<'b>, x: V<'b>, mask: V<'b>, first: usize, values: V<'b>, accumulate: bool) -> V<'b> {
    let dims = x.dims();
    let covered: Vec<usize> = (first..first + mask.rank()).collect();
    let rest = &dims[first + mask.rank()..];
    let wide = mask.broadcast_in_dim(&dims, &covered);
    let x = x.convert(values.dtype());
    let leading = values.rank().saturating_sub(rest.len());
    let each = if values.dims()[..leading].iter().all(|&n| n == 1) {
        values.squeeze(&(0..leading).collect::<Vec<_>>()).broadcast_to(&dims)
    } else {
        let (order, count) = running(mask);
        let n = values.dim(0);
        cx.check(
            count.eq(n),
            ErrorKind::User,
            format!(
                "shape mismatch: value tensor of shape {:?} cannot be broadcast to the masked elements",
                values.dims()
            ),
        );
        if n == 0 || x.numel() == 0 {
            return x;
        }
        let values = values.broadcast_to(&[&[n], rest].concat());
        values.take(order, 0)
    };
    wide.select(if accumulate { x + each } else { each }, x)
}
