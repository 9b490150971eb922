//! What masks select: `nonzero`, `masked_select`, and the other numbers of elements that only values tell.

use super::index_rows::Rows;
use super::reduce::every;
use super::scan::cumsum;
use crate::cx::Cx;
use crate::def::{Counted, OpDef, SigArg, one, roomy};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{ScatterDims, Type, V, broadcast_dims};

pub(crate) static DEFS: &[OpDef] = &[
    one("nonzero(Tensor self) -> Tensor", |cx| {
        let x = cx.t("self");
        let out = cx.out(0);
        if out.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        coordinates(true_positions(x.ne(x.lit(0.0)), out.dims[0]), &x.dims(), 1)
    })
    .counted(Counted {
        applies: |_| true,
        count: |cx| {
            let x = cx.t("self");
            vec![count(x.ne(x.lit(0.0)))]
        },
        room: |s, n| roomy(n, s.dims("self").iter().product()),
        results: |s, n| Ok(vec![Type::new(DType::I64, [n[0], s.dims("self").len() as i64])]),
    })
    .eg(&[
        "f32[5]",
        "f32[19]!",
        "bool[3,4]",
        "i64[9]%2",
        "bf16[2,3,4]",
        "c64[3]",
        "f32[]",
        "f32[0,3]",
        "bool[40,30]",
    ]),
    one("nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor", |cx| {
        let (x, out) = (cx.t("self"), cx.out(0));
        if out.numel() == 0 || x.numel() == 0 {
            return cx.b.full(out.dtype, &out.dims, cx.int("fill_value"));
        }
        let hit = x.ne(x.lit(0.0));
        let found = coordinates(true_positions(hit, out.dims[0]), &x.dims(), 1).convert(DType::I64);
        let fill = found.full_like(cx.int("fill_value"));
        cx.b.iota(DType::I64, &out.dims, 0).lt(count(hit).reshape(&[])).select(found, fill)
    })
    .eg(&[
        "f32[5] size=3",
        "bool[3,4] size=20",
        "i64[9]%2 size=9 fill_value=7",
        "f32[] size=2",
        "f32[0,3] size=2",
        "bool[4] size=0",
    ]),
    one("masked_select(Tensor self, Tensor mask) -> Tensor", |cx| {
        let (x, mask) = cx.t("self").broadcast_with(cx.t("mask"));
        let out = cx.out(0);
        if out.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        x.reshape(&[x.numel()]).take(true_positions(mask, out.dims[0]), 0)
    })
    .counted(Counted {
        applies: |_| true,
        count: |cx| {
            let (_, mask) = cx.t("self").broadcast_with(cx.t("mask"));
            vec![count(mask)]
        },
        room: |s, n| roomy(n, broadcast_dims(s.dims("self"), s.dims("mask")).unwrap_or_default().iter().product()),
        results: |s, n| Ok(vec![Type::new(s.dtype("self").unwrap_or(DType::F32), [n[0]])]),
    })
    .refuse(|s| {
        let fits = s.dtype("mask") == Some(DType::Bool) && broadcast_dims(s.dims("self"), s.dims("mask")).is_some();
        (!fits).then_some("the mask isn't bool or doesn't fit")
    })
    .eg(&[
        "f32[5] bool[5]",
        "bf16[3,4] bool[4]",
        "i64[4] bool[3,1]",
        "c64[3] bool[]",
        "f32[0] bool[0]",
        "bool[40,30] bool[40,30]",
    ]),
    one("masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor", |cx| {
        let out = cx.out(0);
        let x = cx.t("self").broadcast_to(&out.dims);
        let mask = cx.t_as("mask", DType::Bool).broadcast_to(&out.dims);
        let source = cx.t_as("source", out.dtype);
        if x.numel() == 0 {
            return x;
        }
        cx.check(
            count(mask).reshape(&[]).le(source.numel()),
            ErrorKind::User,
            "masked_scatter: source has fewer elements than mask has ones",
        );
        if source.numel() == 0 {
            return x;
        }
        mask.select(source.reshape(&[source.numel()]).take(running(mask), 0), x)
    })
    .eg(&[
        "f32[2,3] bool[2,3] f32[6]",
        "f32[2,3] bool[3] f32[3,2]",
        "i64[3] bool[2,3] i64[7]",
        "bf16[0] bool[0] bf16[0]",
        "f32[] bool[] f32[1]",
    ]),
    one("masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor", |cx| {
        let g = cx.t("grad_output");
        let mask = cx.t_as("mask", DType::Bool).broadcast_to(&g.dims());
        let out = cx.out(0);
        let n: i64 = out.dims.iter().product();
        if n == 0 || g.numel() == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let outside = cx.b.iota(DType::I32, &[g.numel()], 0).reshape(&g.dims()) + n;
        let to = mask.select(running(mask), outside).reshape(&[g.numel()]);
        placed(cx.b.zeros(g.dtype(), &[n]), to, g.reshape(&[g.numel()])).reshape(&out.dims)
    })
    .eg(&["f32[2,3] bool[2,3] (6)", "f32[2,3] bool[2,3] (2,4)"]),
    one("bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor", |cx| {
        let (x, out) = (cx.t("self"), cx.out(0));
        let wide = if out.dtype == DType::I64 { DType::I32 } else { out.dtype };
        let zeros = cx.b.zeros(wide, &out.dims);
        let each = cx.opt_as("weights", wide).unwrap_or(cx.b.full(wide, &x.dims(), 1));
        Rows { dim: 0, index: x.convert(DType::I64) }.scatter(zeros, each, |a, b| a + b)
    })
    .counted(Counted {
        applies: |_| true,
        count: |cx| {
            let x = cx.t("self").convert(DType::I64);
            let (least, length) = (cx.b.scalar(DType::I64, 0), cx.int("minlength"));
            cx.check(x.ge(0i64).all(&[0]), ErrorKind::User, "bincount only supports 1-d non-negative integral inputs.");
            let bins = (x + 1i64).reduce(least, &[0], V::max);
            vec![bins.max(length).reshape(&[1])]
        },
        room: |_, n| roomy(n, i64::MAX),
        results: |s, n| {
            let dtype = match s.dtype("weights") {
                Some(DType::F32) if s.dims("self") != [0] => DType::F32,
                Some(_) if s.dims("self") != [0] => DType::F64,
                _ => DType::I64,
            };
            Ok(vec![Type::new(dtype, [n[0]])])
        },
    })
    .refuse(|s| {
        let whole = s.dtype("self").is_some_and(|d| d.is_int()) && s.dims("self").len() == 1;
        let weighed = *s.arg("weights") == SigArg::None || s.dims("weights") == s.dims("self");
        let length = matches!(s.arg("minlength"), SigArg::Int(n) if *n >= 0);
        (!(whole && weighed && length)).then_some("its arguments have no bins")
    })
    .eg(&[
        "i64[9]%5",
        "u8[40]%7 minlength=9",
        "i32[9]%5 f32[9]",
        "i64[9]%5 bf16[9] 3",
        "i64[0] - 3",
        "i64[0] f32[0]",
    ]),
    one("repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor", |cx| {
        let (repeats, out) = (cx.t("repeats"), cx.out(0));
        let (n, total) = (repeats.numel(), out.dims[0]);
        let repeats = repeats.convert(DType::I32);
        if cx.rooms().is_empty() {
            check_repeats(cx, repeats);
            let same = repeats.sum(&[0]).eq(total);
            cx.check(same, ErrorKind::User, "allocated size does not match required size");
        }
        if n == 0 || total == 0 {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        // a mark where each element's run ends; the running count of marks is the element
        let ends = cumsum(repeats, 0);
        let ones = cx.b.full(DType::I32, &[n], 1);
        let marks = Rows { dim: 0, index: ends }.scatter(cx.b.zeros(DType::I32, &[total]), ones, |a, b| a + b);
        cumsum(marks, 0)
    })
    .counted(Counted {
        applies: |s| *s.arg("output_size") == SigArg::None,
        count: |cx| {
            let repeats = cx.t("repeats").convert(DType::I64);
            check_repeats(cx, repeats);
            vec![repeats.sum(&[0]).reshape(&[1])]
        },
        room: |_, n| roomy(n, i64::MAX),
        results: |s, n| Ok(vec![Type::new(s.dtype("repeats").unwrap_or(DType::I64), [n[0]])]),
    })
    .refuse(|s| {
        let fits = s.dims("repeats").len() == 1 && matches!(s.dtype("repeats"), Some(DType::I32 | DType::I64));
        (!fits).then_some("repeats are no vector of int32 or int64")
    })
    .eg(&["i64[4]+", "i32[4]%5", "i64[4]%1", "i64[0]", "i32[0] output_size=0"]),
];

fn check_repeats<'b>(cx: &Cx<'b>, repeats: V<'b>) {
    cx.check(repeats.ge(0i64).all(&every(repeats)), ErrorKind::User, "repeats can not be negative");
}

/// How many are true: int64, one element.
pub(super) fn count<'b>(mask: V<'b>) -> V<'b> {
    mask.convert(DType::I32).sum(&every(mask)).convert(DType::I64).reshape(&[1])
}

/// The position of each true element among the true ones (int32, one less than the next's elsewhere).
pub(super) fn running<'b>(mask: V<'b>) -> V<'b> {
    let n = mask.numel();
    cumsum(mask.reshape(&[n]).convert(DType::I32), 0).reshape(&mask.dims()) - 1i64
}

/// Where the first `k` true elements of a mask lie in its flat order (int32); behind the last come `rest`s.
pub(super) fn marked<'b>(mask: V<'b>, k: i64, rest: i64) -> V<'b> {
    let (b, n) = (mask.builder(), mask.numel());
    let mask = mask.reshape(&[n]);
    let at = b.iota(DType::I32, &[n], 0);
    // the others go outside, each to a place of its own
    let to = mask.select(running(mask), at + k);
    placed(b.full(DType::I32, &[k], rest), to, at)
}

/// The 1-d `x` with `values` at positions of which none comes twice; those outside are skipped.
pub(super) fn placed<'b>(x: V<'b>, at: V<'b>, values: V<'b>) -> V<'b> {
    let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..ScatterDims::default() };
    x.scatter(at, values, &d, true, |_, b| b)
}

/// [`marked`], behind the last true element 0.
pub(super) fn true_positions<'b>(mask: V<'b>, k: i64) -> V<'b> {
    marked(mask, k, 0)
}

/// Coordinates of flat positions in an array of `sizes`, side by side in dimension `d`.
fn coordinates<'b>(flat: V<'b>, sizes: &[i64], d: usize) -> V<'b> {
    let parts: Vec<V<'b>> = split(flat, sizes).into_iter().map(|p| p.unsqueeze(d)).collect();
    flat.builder().concat(&parts, d)
}

/// Coordinates of flat positions in an array of `sizes`, a value a dimension.
pub(super) fn split<'b>(flat: V<'b>, sizes: &[i64]) -> Vec<V<'b>> {
    let mut inner: i64 = sizes.iter().product();
    let mut rest = flat;
    let mut parts = vec![];
    for (d, n) in sizes.iter().enumerate() {
        inner /= n.max(&1);
        parts.push(if inner == 1 { rest } else { rest / inner });
        if d + 1 < sizes.len() {
            rest = rest.rem(inner);
        }
    }
    parts
}

/// Slices of `x` along dimension `d` at `positions`, of which `count` (0-d) are meant: what belongs to those stands in front, in
/// row-major order, as if the result had `count` slices.
pub(super) fn packed<'b>(x: V<'b>, d: usize, positions: V<'b>, count: V<'b>) -> V<'b> {
    let (dims, k) = (x.dims(), positions.numel());
    let (outer, inner): (i64, i64) = (dims[..d].iter().product(), dims[d + 1..].iter().product());
    let mut out = dims.clone();
    out[d] = k;
    if outer == 1 {
        return x.take(positions, d);
    }
    let count = count.convert(DType::I32).max(1i64);
    let row = x.builder().iota(DType::I32, &[outer * k], 0);
    let at = (row / count).min(outer - 1) * dims[d] + positions.take(row.rem(count), 0);
    x.reshape(&[outer * dims[d], inner]).take(at, 0).reshape(&out)
}
