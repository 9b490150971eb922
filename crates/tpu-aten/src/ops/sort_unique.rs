//! Distinct elements and slices. The first program sorts, finds where runs of equals begin and numbers them; the second only
//! cuts to size. NaN equals nothing, not even itself, as on the CPU.

use super::index_mask::{marked, packed, placed};
use super::scan::cumsum;
use super::sort::sorted;
use crate::cx::Cx;
use crate::def::{Counted, OpDef, Refusal, Sig, SigArg, many, roomy};
use tpu_base::DType;
use tpu_hlo::{Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |cx| cut(cx, None),
    )
    .counted(Counted {
        applies: |_| true,
        count: distinct,
        room,
        results: |s, n| results(s, n, s.flag("return_inverse"), s.flag("return_counts")),
    })
    .refuse(complex)
    .eg(&[
        "i64[3,40]%9 True True True",
        "f32[19]! True False True",
        "bool[7] False True",
        "bf16[9]",
        "u8[300]",
        "f32[] True True True",
        "f32[0,3] True True True",
    ]),
    many("_unique(Tensor self, bool sorted=True, bool return_inverse=False) -> (Tensor, Tensor)", |cx| cut(cx, None)[..2].to_vec())
        .counted(Counted {
            applies: |_| true,
            count: distinct,
            room,
            results: |s, n| Ok(results(s, n, s.flag("return_inverse"), false)?[..2].to_vec()),
        })
        .refuse(complex)
        .eg(&["i64[9]%4", "f32[2,3] True True"]),
    many(
        "unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)",
        |cx| cut(cx, cx.opt_int("dim")),
    )
    .counted(Counted {
        applies: |_| true,
        count: |cx| match cx.opt_int("dim") {
            None => runs(cx, begins(flat(cx.t("self"))), None, true),
            Some(_) => runs(cx, begins(slices(cx)), None, true),
        },
        room,
        results: |s, n| {
            let slices = matches!(s.arg("dim"), SigArg::Int(d) if *d != 0 || s.dims("self").len() > 1);
            results(s, n, slices || s.flag("return_inverse"), slices || s.flag("return_counts"))
        },
    })
    .refuse(no_slices)
    .eg(&[
        "i64[3,9]%2 True True",
        "f32[19]! False True",
        "i64[9]%2 False False 0",
        "i64[2,9,3]%2 True True 1",
        "bool[7] True",
        "f32[]",
        "f32[0,3] True True",
    ]),
    many(
        "unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |cx| cut(cx, cx.opt_int("dim")),
    )
    .counted(Counted {
        applies: |_| true,
        count: |cx| {
            let (begins, order) = in_order(slices(cx));
            runs(cx, begins, Some(order), true)
        },
        room,
        results: |s, n| results(s, n, true, true),
    })
    .refuse(|s| complex(s).or(no_slices(s)))
    .eg(&[
        "i64[9,2]%2 0 True True True",
        "i64[2,9,2]%2 -2",
        "bool[20,3] 0",
        "i64[30,90]%2 0",
        "u8[3,1]%2 0",
        "f32[9] 0",
        "f32[0,3] 0",
    ]),
    many(
        "unique_dim_consecutive(Tensor self, int dim, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |cx| cut(cx, cx.opt_int("dim")),
    )
    .counted(Counted {
        applies: |_| true,
        count: |cx| runs(cx, begins(slices(cx)), None, true),
        room,
        results: |s, n| results(s, n, true, true),
    })
    .refuse(no_slices)
    .eg(&["i64[9,2]%2 0", "i64[2,9,2]%2 1 True True", "f32[3,0] 1"]),
];

/// Slices that one comparison looks at.
const KEYS: i64 = 8;

fn complex(s: &Sig<'_>) -> Option<Refusal> {
    s.dtype("self").is_some_and(|d| d.is_complex()).then_some("complex numbers have no order")
}

/// The dimension whose slices are compared; `None`: single elements are.
fn dim(s: &Sig<'_>) -> Option<usize> {
    let (SigArg::Int(d), rank) = (s.arg("dim"), s.dims("self").len()) else { return None };
    (rank > 0).then_some(if *d < 0 { d + rank as i64 } else { *d } as usize)
}

/// No dimension, or nothing in its slices: the CPU has the words.
fn no_slices(s: &Sig<'_>) -> Option<Refusal> {
    let dims = s.dims("self");
    if !matches!(s.arg("dim"), SigArg::Int(_)) {
        return None;
    }
    let inside = dim(s).is_some_and(|d| d < dims.len());
    let empty = |d: usize| dims.iter().enumerate().any(|(i, n)| i != d && *n == 0);
    (!inside || dim(s).is_some_and(empty)).then_some("there are no slices to compare")
}

fn room(s: &Sig<'_>, n: i64) -> i64 {
    roomy(n, dim(s).map_or(s.dims("self").iter().product(), |d| s.dims("self")[d]))
}

fn results(s: &Sig<'_>, n: &[i64], inverse: bool, counts: bool) -> Result<Vec<Type>, Refusal> {
    let own = s.dtype("self").unwrap_or(DType::F32);
    let x = s.dims("self").to_vec();
    let (mut values, mut places) = (vec![n[0]], x.clone());
    if let Some(d) = dim(s) {
        places = vec![x[d]];
        values = x;
        values[d] = n[0];
    }
    Ok(vec![
        Type::new(own, values),
        Type::new(DType::I64, if inverse { places } else { vec![0] }),
        Type::new(DType::I64, [if counts { n[0] } else { 0 }]),
    ])
}

/// The first program of `_unique2`.
fn distinct<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let (values, order) = sorted(flat(cx.t("self")), 0, false);
    runs(cx, begins(values), Some(order.convert(DType::I32)), cx.flag("return_inverse"))
}

fn flat<'b>(x: V<'b>) -> V<'b> {
    x.reshape(&[x.numel()])
}

/// The call's slices as rows.
fn slices<'b>(cx: &Cx<'b>) -> V<'b> {
    let x = cx.t("self");
    let d = cx.dim("dim", x.rank());
    let n = x.dim(d);
    x.move_dim(d, 0).reshape(&[n, x.numel() / n.max(1)])
}

/// Where an element or a row differs from the one before it.
fn begins<'b>(x: V<'b>) -> V<'b> {
    if x.rank() > 1 { changes(x).any(&[1]) } else { changes(x) }
}

/// Where along dimension 0 an element differs from the one before it; the first does.
fn changes<'b>(x: V<'b>) -> V<'b> {
    let n = x.dim(0);
    if n == 0 {
        return x.builder().zeros(DType::Bool, &x.dims());
    }
    let differs = x.slice_dim(0, 1, n).ne(x.slice_dim(0, 0, n - 1));
    let (mut low, zeros) = (vec![0; x.rank()], vec![0; x.rank()]);
    low[0] = 1;
    differs.pad(x.builder().scalar(DType::Bool, true), &low, &zeros, &zeros)
}

/// Where runs of equal rows begin once rows are in lexicographic order, and that order (int32). Groups of columns are replaced by
/// the ranks of what they hold until one is left.
fn in_order<'b>(rows: V<'b>) -> (V<'b>, V<'b>) {
    let (b, n, m) = (rows.builder(), rows.dim(0), rows.dim(1));
    if n <= 1 {
        return (b.full(DType::Bool, &[n], true), b.iota(DType::I32, &[n], 0));
    }
    let groups = (m + KEYS - 1) / KEYS;
    let each = m.min(KEYS);
    let rows = rows.pad(rows.lit(0.0), &[0, 0], &[0, groups * each - m], &[0, 0]).reshape(&[n, groups, each]);
    let at = b.iota(DType::I32, &[n, groups], 0);
    let mut keys: Vec<V<'b>> = (0..each).map(|k| rows.slice_dim(2, k, k + 1).reshape(&[n, groups])).collect();
    keys.push(at);
    let mut found = b.sort(&keys, 0, true, less);
    let order = found.pop().unwrap_or(at);
    let new = found.into_iter().map(changes).reduce(|a, c| a | c).unwrap_or(b.zeros(DType::Bool, &[n, groups]));
    if groups == 1 {
        return (new.reshape(&[n]), order.reshape(&[n]));
    }
    // ranks go back to where their rows came from
    let ranks = b.sort(&[order, cumsum(new.convert(DType::I32), 0)], 0, true, |a, c| a[0].lt(c[0]))[1];
    in_order(ranks)
}

/// Whether the first element of each pair, up to one that differs, is the smaller; the last pair is no key. NaN is largest.
fn less<'b>(a: &[V<'b>], b: &[V<'b>]) -> V<'b> {
    let keys = a.len() - 1;
    let mut answer = a[0].builder().scalar(DType::Bool, false);
    for (&a, &b) in a[..keys].iter().zip(b).rev() {
        let nan = |x: V<'b>| if x.dtype().is_float() { x.is_nan() } else { a.lt(a) };
        let first = a.lt(b) | (nan(b) & nan(a).not());
        let same = a.eq(b) | (nan(a) & nan(b));
        answer = first | (same & answer);
    }
    answer
}

/// From where runs begin, in the order `order` (as they lie, if none): their number, where in `self` each has its first element,
/// the run of each element (if wanted), and how long each run is.
fn runs<'b>(cx: &Cx<'b>, begins: V<'b>, order: Option<V<'b>>, inverse: bool) -> Vec<V<'b>> {
    let (b, n) = (cx.b, begins.numel());
    let none = b.zeros(DType::I32, &[0]);
    if n == 0 {
        return vec![b.zeros(DType::I64, &[1]), none, none, none];
    }
    let rank = cumsum(begins.convert(DType::I32), 0) - 1i64;
    let count = (rank.slice_dim(0, n - 1, n) + 1i64).convert(DType::I64);
    let first = marked(begins, n, n);
    let next = b.concat(&[first.slice_dim(0, 1, n), b.full(DType::I32, &[1], n)], 0);
    let (source, inverse) = match order {
        Some(order) if inverse => (order.take(first, 0), placed(rank.zeros_like(), order, rank)),
        Some(order) => (order.take(first, 0), none),
        None => (first, rank),
    };
    vec![count, source, inverse, next - first]
}

/// The second program: what the first found, cut to size.
fn cut<'b>(cx: &Cx<'b>, dim: Option<i64>) -> Vec<V<'b>> {
    let (x, out, places, counts) = (cx.t("self"), cx.out(0), cx.out(1), cx.out(2));
    let empty = |t: &Type| cx.b.zeros(t.dtype, &t.dims);
    let (x, d) = if dim.is_some() { (x, cx.dim("dim", x.rank())) } else { (flat(x), 0) };
    let values = match out.numel() {
        0 => empty(&out),
        _ => packed(x, d, cx.found(1).slice_dim(0, 0, out.dims[d]), cx.found(0).reshape(&[])),
    };
    let inverse = if places.numel() == 0 { empty(&places) } else { cx.found(2).reshape(&places.dims) };
    vec![values, inverse, cx.found(3).slice_dim(0, 0, counts.dims[0])]
}
