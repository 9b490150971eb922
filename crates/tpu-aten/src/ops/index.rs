//! Advanced indexing: `x[i, None, j]` and what writes through it. Integer indices become one gather or scatter over
//! int32 positions. A mask alone reads where it is true and writes by a select; among other indices it becomes coordinates.
//! Indices out of range raise when the plan runs.

use super::index_mask::{count, packed, running, split, true_positions};
use crate::cx::Cx;
use crate::def::{Counted, OpDef, Refusal, Sig, SigArg, one, roomy};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{GatherDims, ScatterDims, Type, V, broadcast_dims};

pub(crate) static DEFS: &[OpDef] = &[
    one("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", index).counted(READ).refuse(unfit_masks).eg(&[
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
        "i64[4,5] [bool[4,5]]",
        "bf16[2,9,3] [- bool[9]]",
        "c64[3,2,4] [- bool[2,4]]",
        "f32[3,4,5] [bool[3,4] i64[1]%5]",
        "f32[3,4,5] [i64[]%3 - u8[5]%2]",
        "f32[0,5] [bool[0]]",
    ]),
    one("_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", index)
        .counted(READ)
        .refuse(unfit_masks)
        .eg(&["f32[4,5] [- i64[2,3]%5]"]),
    one("index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor", index_put)
        .counted(WRITE)
        .refuse(unfit_masks)
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
        "f32[4,5] [- bool[5]] f32[4,1]",
        "f32[4,5,2] [u8[4,5]+] f32[20,1] True",
        "f32[2,3,5] [- u8[3]+] f32[3,5] True",
        "f32[3,4,5] [bool[3,4] i64[1]%5] f32[]",
            "bool[4,5] [bool[4,5]] bool[]",
            "f32[4,5] [- i64[1]%5] f32[4,1]",
        ]),
    one("_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor", index_put)
        .counted(WRITE)
        .refuse(unfit_masks)
        .eg(&["f32[4,5] [i64[3]%4] f32[3,5] True"]),
    one(
        "_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, bool unsafe=False) -> Tensor",
        index_put,
    )
    .counted(WRITE)
    .refuse(unfit_masks)
    .eg(&["f32[4,5] [i64[3]%4] f32[3,5] True"]),
];

/// Positions with negative ones counted from the end, as int32, and whether all lie inside `0..n` (0-d bool).
pub(super) fn positions<'b>(index: V<'b>, n: i64, negative: bool) -> (V<'b>, V<'b>) {
    let index = if index.dtype().is_unsigned() { index.convert(DType::I32) } else { index };
    let index = if index.dtype().size() < 4 { index.convert(DType::I32) } else { index };
    let at = if negative { index.lt(0i64).select(index + n, index) } else { index };
    let every: Vec<usize> = (0..at.rank()).collect();
    let ok = (at.ge(0i64) & at.lt(n)).all(&every);
    (if n <= i32::MAX as i64 { at.convert(DType::I32) } else { at }, ok)
}

const READ: Counted = Counted {
    applies: |s| laid(s).is_none_or(|l| l.iter().any(|(_, a)| is_mask(a))),
    count: count_masks,
    room: |s, n| if let Some((_, mask)) = lone(s) { roomy(n, mask.iter().product()) } else { n },
    results: |s, n| {
        let dims = shape_read(s, n).ok_or("the indices have no common shape")?;
        Ok(vec![Type::new(s.dtype("self").unwrap_or(DType::F32), dims)])
    },
};
const WRITE: Counted = Counted {
    applies: |s| lone(s).is_none() && (READ.applies)(s),
    count: count_masks,
    room: |_, n| n,
    results: |s, _| Ok(vec![Type::new(s.dtype("self").unwrap_or(DType::F32), s.dims("self"))]),
};

fn is_mask(a: &SigArg) -> bool {
    matches!(a, SigArg::Tensor { dtype: DType::Bool | DType::U8, .. })
}

/// The indices given, each with the first dimension of `self` it is for. None if a mask doesn't fit there.
fn laid<'a>(s: &'a Sig<'_>) -> Option<Vec<(usize, &'a SigArg)>> {
    let (SigArg::Tensors(l), x) = (s.arg("indices"), s.dims("self")) else { return Some(vec![]) };
    let (mut at, mut given) = (0, vec![]);
    for a in l {
        match a {
            SigArg::Tensor { dims, .. } if is_mask(a) => {
                if dims.is_empty() || x.get(at..at + dims.len()) != Some(dims) {
                    return None;
                }
                given.push((at, a));
                at += dims.len();
                continue;
            }
            SigArg::Tensor { .. } => given.push((at, a)),
            _ => {}
        }
        at += 1;
    }
    (at <= x.len() || !l.iter().any(is_mask)).then_some(given)
}

fn unfit_masks(s: &Sig<'_>) -> Option<Refusal> {
    laid(s).is_none().then_some("a mask doesn't have the shape of what it is for")
}

/// A mask that is the only index: its first dimension and its sizes.
fn lone<'a>(s: &'a Sig<'_>) -> Option<(usize, &'a [i64])> {
    match laid(s)?[..] {
        [(first, a @ SigArg::Tensor { dims, .. })] if is_mask(a) => Some((first, dims)),
        _ => None,
    }
}

/// The shape of what is read when the masks have `counts` true elements.
fn shape_read(s: &Sig<'_>, counts: &[i64]) -> Option<Vec<i64>> {
    let (x, mut counts) = (s.dims("self"), counts.iter());
    let (mut batch, mut indexed) = (vec![], vec![]);
    for (at, a) in laid(s)? {
        let SigArg::Tensor { dims, .. } = a else { continue };
        let (shape, covered) = if is_mask(a) { (vec![*counts.next()?], dims.len()) } else { (dims.clone(), 1) };
        batch = broadcast_dims(&batch, &shape)?;
        indexed.extend(at..at + covered);
    }
    let mut dims: Vec<i64> = (0..x.len()).filter(|d| !indexed.contains(d)).map(|d| x[d]).collect();
    let first = first_of(&indexed);
    dims.splice(first..first, batch);
    Some(dims)
}

/// Where the dimensions of the indices stand in the result: neighbouring indices leave theirs where they stood, separated ones
/// put them in front.
fn first_of(dims: &[usize]) -> usize {
    let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
    if adjacent { dims.first().copied().unwrap_or(0) } else { 0 }
}

/// The indices given, each with the first dimension of `self` it is for; masks as bool.
fn given<'b>(cx: &Cx<'b>) -> Vec<(usize, V<'b>)> {
    let mut at = 0;
    let mut given = vec![];
    for i in cx.opts("indices") {
        let mask = i.filter(|i| matches!(i.dtype(), DType::Bool | DType::U8));
        given.extend(mask.map(|m| m.convert(DType::Bool)).or(i).map(|i| (at, i)));
        at += mask.map_or(1, V::rank);
    }
    given
}

fn count_masks<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let counts: Vec<V<'b>> =
        given(cx).into_iter().filter(|(_, i)| i.dtype() == DType::Bool).map(|(_, i)| count(i)).collect();
    vec![cx.b.concat(&counts, 0)]
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
    /// The call's indices; masks among them as the coordinates of as many elements as were counted.
    fn of(cx: &Cx<'b>, x: V<'b>, given: Vec<(usize, V<'b>)>) -> Indexed<'b> {
        let mut counts = cx.rooms().iter();
        let (mut dims, mut parts) = (vec![], vec![]);
        let mut ok: Option<V<'b>> = None;
        for (d, i) in given {
            if i.dtype() == DType::Bool {
                let n = counts.next().copied().unwrap_or(0);
                let flat = if n == 0 { cx.b.zeros(DType::I32, &[0]) } else { true_positions(i, n) };
                parts.extend(split(flat, &i.dims()));
                dims.extend(d..d + i.rank());
                continue;
            }
            let (p, fine) = positions(i, x.dim(d), true);
            ok = Some(ok.map_or(fine, |o| o & fine));
            parts.push(p);
            dims.push(d);
        }
        if let Some(ok) = ok {
            cx.check(ok, ErrorKind::Index, out_of_bounds(&dims, &x.dims()));
        }
        let batch = parts.iter().try_fold(vec![], |b, p| broadcast_dims(&b, &p.dims())).unwrap_or_default();
        let parts: Vec<V<'b>> =
            parts.iter().map(|p| p.convert(parts[0].dtype()).broadcast_to(&batch).unsqueeze(batch.len())).collect();
        let at = if parts.is_empty() { cx.b.zeros(DType::I32, &[0]) } else { cx.b.concat(&parts, batch.len()) };
        let first = first_of(&dims);
        let total = x.rank() - dims.len() + batch.len();
        let window = (0..total).filter(|&i| i < first || i >= first + batch.len()).collect();
        Indexed { at, dims, batch, window }
    }
}

/// PyTorch's words, without the index, which only the device knows.
fn out_of_bounds(dims: &[usize], sizes: &[i64]) -> String {
    match dims {
        [d] => format!("index is out of bounds for dimension {d} with size {}", sizes[*d]),
        _ => format!("an index is out of bounds for dimensions {dims:?} of a tensor of shape {sizes:?}"),
    }
}

fn index<'b>(cx: &Cx<'b>) -> V<'b> {
    let (x, out, given) = (cx.t("self"), cx.out(0), given(cx));
    if let [(first, mask)] = given[..]
        && mask.dtype() == DType::Bool
    {
        if out.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let mut dims = x.dims();
        dims.splice(first..first + mask.rank(), [mask.numel()]);
        let at = true_positions(mask, out.dims[first]);
        return packed(x.reshape(&dims), first, at, cx.found(0).reshape(&[]));
    }
    let i = Indexed::of(cx, x, given);
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
    let (x, given) = (cx.t("self"), given(cx));
    let accumulate = cx.flag("accumulate");
    // sums of halves lose least when they are rounded once
    let wide = if accumulate { x.dtype().opmath() } else { x.dtype() };
    let values = cx.t_as("values", wide);
    if let [(first, mask)] = given[..]
        && mask.dtype() == DType::Bool
    {
        return put_masked(cx, x, mask, first, values, accumulate);
    }
    let i = Indexed::of(cx, x, given);
    if x.numel() == 0 || i.batch.contains(&0) || i.dims.is_empty() {
        return x;
    }
    let rank = i.window.len() + i.batch.len();
    let mut kept = x.dims().into_iter().enumerate().filter(|(d, _)| !i.dims.contains(d)).map(|(_, n)| n);
    let mut batch = i.batch.iter().copied();
    let shape: Vec<i64> =
        (0..rank).filter_map(|k| if i.window.contains(&k) { kept.next() } else { batch.next() }).collect();
    let values = without_leading(values, rank).broadcast_to(&shape);
    let d = ScatterDims {
        update_window_dims: i.window,
        inserted: i.dims.clone(),
        scatter_dims: i.dims,
        index_vector_dim: i.batch.len(),
    };
    x.convert(wide).scatter(i.at, values, &d, false, |old, new| if accumulate { old + new } else { new })
}

/// Values may have leading ones too many.
fn without_leading<'b>(values: V<'b>, rank: usize) -> V<'b> {
    values.squeeze(&(0..values.rank().saturating_sub(rank)).collect::<Vec<_>>())
}

/// `x[:, …, mask] = values` with `first` full dimensions in front.
fn put_masked<'b>(cx: &Cx<'b>, x: V<'b>, mask: V<'b>, first: usize, values: V<'b>, accumulate: bool) -> V<'b> {
    let dims = x.dims();
    let rest = &dims[first + mask.rank()..];
    // values line up with what reading would give: full dimensions, one for the mask, the others
    let rank = first + 1 + rest.len();
    let values = without_leading(values, rank);
    let mut shape = vec![1; rank - values.rank()];
    shape.extend(values.dims());
    let n = shape[first];
    let each = if n == 1 {
        shape.splice(first..=first, vec![1; mask.rank()]);
        values.reshape(&shape).broadcast_to(&dims)
    } else {
        let fits = count(mask).reshape(&[]).eq(n);
        let words =
            format!("shape mismatch: value tensor of shape {shape:?} cannot be broadcast to the masked elements");
        cx.check(fits, ErrorKind::User, words);
        if n == 0 || x.numel() == 0 {
            return x;
        }
        values.broadcast_to(&[&dims[..first], &[n], rest].concat()).take(running(mask), first)
    };
    let wide = mask.broadcast_in_dim(&dims, &(first..first + mask.rank()).collect::<Vec<_>>());
    let x = x.convert(values.dtype());
    wide.select(if accumulate { x + each } else { each }, x)
}
