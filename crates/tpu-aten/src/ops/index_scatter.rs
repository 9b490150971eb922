//! `scatter`, `scatter_reduce` and `index_reduce`: combining elements or slices at given positions.

use super::index_rows::{Elements, Rows, line};
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", |cx| {
        put(cx, cx.t("self").dtype(), "src", |_, b| b)
    })
    .eg(&[
        "f32[4,5] 0 i64[1,5]%4 f32[2,5]",
        "f32[4,5] -1 i64[3,1]%5 f32[3,1]",
        "bf16[4] 0 i64[1]%4 bf16[1]",
        "f32[] 0 i64[]%1 f32[]",
        "bool[4,5] 0 i64[1,5]%4 bool[1,5]",
        "f32[4,5] 0 i64[0] f32[2,5]",
    ]),
    one("scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", |cx| {
        put(cx, cx.t("self").dtype(), "value", |_, b| b)
    })
    .eg(&[
        "f32[4,5] 0 i64[3,5]%4 1.5",
        "f32[2,4,5] 1 i64[2,3,2]%4 2",
        "i64[4,5] 1 i64[4,2]%5 7",
        "bool[4] 0 i64[2]%4 True",
        "f32[] 0 i64[]%1 3",
        "f64[4] 0 i64[0] 3",
    ]),
    one("scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor", |cx| {
        reduce_named(cx, "src")
    })
    .eg(&["f32[4,5] 0 i64[3,5]%4 f32[3,5] reduce='add'", "f32[4,5] 1 i64[4,7]%5 f32[4,7] reduce='multiply'"]),
    one("scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor", |cx| {
        reduce_named(cx, "value")
    })
    .eg(&["f32[4,5] 0 i64[3,5]%4 1.5 reduce='add'", "f32[4,5] 1 i64[4,7]%5 2 reduce='multiply'", "i64[4] 0 i64[9]%4 2 reduce='add'"]),
    one("scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", |cx| {
        put(cx, cx.t("self").dtype().opmath(), "src", |a, b| a + b)
    })
    .eg(&[
        "f32[4,5] 0 i64[3,5]%4 f32[3,5]",
        "f32[2,4,5] 1 i64[2,9,3]%4 f32[2,9,4]",
        "bf16[4] 0 i64[1]%4 bf16[1]",
        "i64[4] 0 i64[9]%4 i64[9]",
        "f32[] 0 i64[]%1 f32[]",
        "f32[4,5] 0 i64[0] f32[2,5]",
        "bool[4] 0 i64[9]%4 bool[9]",
    ]),
    one(
        "scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
        |cx| {
            let (x, d) = (line(cx.t("self")), cx.out_dtype());
            let index = line(cx.t("index"));
            if index.numel() == 0 {
                return cx.t("self");
            }
            let at = Elements::of(cx, x, cx.dim("dim", x.rank()), index);
            let src = line(cx.t_as("src", d.opmath()));
            reduced(cx, x, src, |x, u, f| match f {
                Fold::Sum => at.scatter(x, u, |a, b| a + b),
                Fold::Product => at.scatter(x, u, |a, b| a * b),
                Fold::Max => at.scatter(x, u, |a, b| a.max(b)),
                Fold::Min => at.scatter(x, u, |a, b| a.min(b)),
            })
        },
    )
    .eg(&[
        "f32[4,5] 0 i64[3,5]%4 f32[3,5] 'sum'",
        "f32[4,5] 0 i64[7,5]%4 f32[7,5] 'prod'",
        "f32[4,5] 0 i64[7,5]%4 f32[7,5] 'mean'",
        "f32[4,5] 1 i64[4,7]%5 f32[4,7] 'amax'",
        "f32[4,5] 1 i64[4,3]%5 f32[4,4] 'amin' include_self=False",
        "f32[4,5] 1 i64[4,3]%5 f32[4,4] 'mean' include_self=False",
        "f32[4,5] 1 i64[4,3]%5 f32[4,4] 'sum' include_self=False",
        "f32[4,5] 1 i64[4,3]%5 f32[4,4] 'prod' include_self=False",
        "i64[4] 0 i64[9]%3 i64[9] 'mean'",
        "i64[4] 0 i64[9]%3 i64[9] 'amax' include_self=False",
        "bf16[4] 0 i64[2]%4 bf16[2] 'amax'",
        "f32[] 0 i64[]%1 f32[] 'sum'",
        "f32[4] 0 i64[0] f32[3] 'sum'",
    ]),
    one(
        "index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor",
        |cx| {
            let (x, d) = (line(cx.t("self")), cx.out_dtype());
            let rows = Rows::of(cx, x, false);
            if rows.index.numel() == 0 {
                return cx.t("self");
            }
            let src = rows.shaped(cx.t_as("source", d.opmath()), x);
            reduced(cx, x, src, |x, u, f| {
                let u = if u.rank() == 0 { u.broadcast_to(&src.dims()) } else { u };
                match f {
                    Fold::Sum => rows.scatter(x, u, |a, b| a + b),
                    Fold::Product => rows.scatter(x, u, |a, b| a * b),
                    Fold::Max => rows.scatter(x, u, |a, b| a.max(b)),
                    Fold::Min => rows.scatter(x, u, |a, b| a.min(b)),
                }
            })
        },
    )
    .eg(&[
        "f32[4,5] 0 i64[7]%4 f32[7,5] 'prod'",
        "f32[4,5] 1 i64[7]%5 f32[4,7] 'mean'",
        "f32[4,5] 1 i64[3]%5 f32[4,3] 'amax' include_self=False",
        "i64[4] 0 i64[9]%3 i64[9] 'amin'",
        "f32[4,5] 0 i64[2]%4 f32[2,5] 'mean' include_self=False",
    ]),
    one(
        "_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor",
        |cx| {
            let x = cx.t("self");
            let wide = x.dtype().opmath();
            let values = cx.t_as("values", wide);
            let mask = cx.t_as("mask", DType::Bool).broadcast_to(&values.dims());
            let each = mask.select(values, values.zeros_like());
            let parts: Vec<V<'_>> = cx.ts("indices");
            // every dimension is indexed; masked-out values add nothing wherever they are put
            let shape = each.dims();
            let mut flat = cx.b.zeros(DType::I64, &shape);
            for (d, i) in parts.iter().enumerate() {
                let n = x.dim(d);
                let i = i.convert(DType::I64);
                let i = i.lt(0i64).select(i + n, i);
                let i = i.clamp(i.lit(0i64), i.lit(n - 1)).broadcast_to(&shape);
                flat = flat * n + i;
            }
            let rows = Rows { dim: 0, index: flat.reshape(&[flat.numel()]).convert(DType::I32) };
            let sum = rows.scatter(x.convert(wide).reshape(&[x.numel()]), each.reshape(&[each.numel()]), |a, b| a + b);
            sum.reshape(&x.dims())
        },
    )
    .eg(&["f32[4,5] bool[3] [i64[3]%4 i64[3]%5] f32[3]", "f32[4,5] bool[3,5] [i64[3,5]%4 i64[3,5]%5] f32[3,5]"]),
];

/// Scatters argument `from` in dtype `wide`.
fn put<'b>(cx: &Cx<'b>, wide: DType, from: &str, f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
    let x = line(cx.t_as("self", wide));
    let index = line(cx.t("index"));
    if index.numel() == 0 {
        return cx.t("self");
    }
    let updates = cx.t_as(from, wide);
    let updates = if from == "src" { line(updates) } else { updates };
    Elements::of(cx, x, cx.dim("dim", x.rank()), index).scatter(x, updates, f).reshape(&cx.out(0).dims)
}

/// The older `reduce` strings: add, multiply.
fn reduce_named<'b>(cx: &Cx<'b>, from: &str) -> V<'b> {
    let wide = cx.out_dtype().opmath();
    if cx.str("reduce") == Some("multiply") {
        put(cx, wide, from, |a, b| a * b)
    } else {
        put(cx, wide, from, |a, b| a + b)
    }
}

/// What a scatter does where an element lands.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Product,
    Max,
    Min,
}

/// `scatter_reduce` and `index_reduce` over `scatter(x, updates, fold)`; 0-d updates go everywhere.
fn reduced<'b>(cx: &Cx<'b>, x: V<'b>, src: V<'b>, scatter: impl Fn(V<'b>, V<'b>, Fold) -> V<'b>) -> V<'b> {
    let out = cx.out(0);
    let include = cx.flag("include_self");
    let mut base = x.convert(src.dtype());
    let how = cx.str("reduce").unwrap_or("sum");
    let (fold, identity) = match how {
        "prod" => (Fold::Product, base.lit(1.0)),
        "amax" => (Fold::Max, base.lowest()),
        "amin" => (Fold::Min, base.highest()),
        _ => (Fold::Sum, base.lit(0.0)),
    };
    // bool has no largest and smallest by name
    let identity = if base.dtype() == DType::Bool && how == "amax" { base.lit(false) } else { identity };
    if !include {
        let touched = scatter(cx.b.zeros(DType::I32, &base.dims()), cx.b.scalar(DType::I32, 1), Fold::Max);
        base = touched.gt(0i64).select(identity, base);
    }
    let folded = scatter(base, src, fold);
    if how != "mean" {
        return folded.reshape(&out.dims);
    }
    let start = cx.b.full(DType::I32, &folded.dims(), include as i64);
    let count = scatter(start, cx.b.scalar(DType::I32, 1), Fold::Sum).max(1i64).convert(folded.dtype());
    let mut mean = folded / count;
    if folded.dtype().is_int() {
        // round down
        mean = (folded.rem(count).ne(0i64) & folded.lt(0i64)).select(mean - 1i64, mean);
    }
    mean.reshape(&out.dims)
}
