//! Reductions to one number a slice: sums, products, extremes, truth and counts. Results take the shape Meta promised, which
//! settles `keepdim`; halves accumulate in float32 and integers in int64, as in PyTorch.

use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", |cx| shaped(cx, summand(cx), V::sum)).eg(&[
        "f32[2,3]",
        "bf16[4,5]",
        "f64[3]",
        "i32[2,3]%9",
        "bool[5]",
        "f32[]",
        "f32[0,3]",
        "c64[3]",
        "i64[4]%9 dtype=f32",
        "f32[4] dtype=f16",
        "u8[3] dtype=bool",
    ]),
    one("sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", |cx| {
        shaped(cx, summand(cx), V::sum)
    })
    .eg(&[
        "f32[2,3] (-1)",
        "f32[2,3,4] (0,-1) True",
        "bf16[2,300] (1)",
        "bool[2,3] (0)",
        "f32[2,0] (1)",
        "f32[] (0)",
        "f32[2,3] -",
        "f32[2,3] ()",
        "u8[2,3] (1) dtype=i32",
    ]),
    one("mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", mean).eg(&[
        "f32[2,3]",
        "bf16[2,30]",
        "f32[]",
        "f32[0]",
        "i64[4]%9 dtype=f32",
        "c64[3]",
    ]),
    one("mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", mean).eg(&[
        "f32[2,3] (1)",
        "f32[2,3,4] (-1,0) True",
        "f16[2,3] (0)",
        "f32[2,0] (1)",
        "f64[2,3] -",
    ]),
    one("prod(Tensor self, *, ScalarType? dtype=None) -> Tensor", |cx| shaped(cx, summand(cx), V::prod))
        .eg(&["f32[2,3]", "i32[4]%5", "bool[3]", "f32[0]", "bf16[4]", "f32[]"]),
    one("prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", |cx| {
        let x = summand(cx);
        let d = one_dim(cx, x);
        x.prod(&d).reshape(&cx.out(0).dims)
    })
    .eg(&["f32[2,3] -1", "i64[2,3]%4 0 True", "f32[] 0", "f32[2,0] 1"]),
    one("nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", |cx| {
        let x = summand(cx);
        let x = if x.dtype().is_float() { x.is_nan().select(x.zeros_like(), x) } else { x };
        shaped(cx, x, V::sum)
    })
    .eg(&["f32[2,3]", "f32[2,3] (1) True", "i32[3]%9"]),
    one("amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", |cx| shaped(cx, cx.t("self"), V::max_over))
        .eg(&[
            "f32[2,3]",
            "f32[2,3,4] (0,-1) True",
            "i64[2,3]%9 (1)",
            "bool[2,3] (0)",
            "bf16[3] (0)",
            "f32[] (0)",
            "f32[19,2]! (1)",
            "f32[2,40]! (0)",
            "f16[38]!",
        ]),
    one("amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", |cx| shaped(cx, cx.t("self"), V::min_over))
        .eg(&["f32[2,3]", "u8[2,3,4] (0,-1) True", "bool[2,3] (0)", "f32[0,3] (1)", "f64[19,2]! (1)", "f32[38]!"]),
    many("_aminmax(Tensor self) -> (Tensor, Tensor)", |cx| extremes(cx, &every(cx.t("self")))).eg(&["f32[2,3]"]),
    many("_aminmax.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)", |cx| {
        extremes(cx, &optional_dim(cx, cx.t("self")))
    })
    .eg(&["f32[2,3] -1", "i64[2,3] 0 True"]),
    many("aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)", |cx| {
        extremes(cx, &optional_dim(cx, cx.t("self")))
    })
    .eg(&["f32[2,3]", "f32[2,3] dim=-1 keepdim=True", "i32[2,3]%9 dim=0", "f32[]"]),
    one("max(Tensor self) -> Tensor", |cx| shaped(cx, cx.t("self"), V::max_over))
        .refuse(nothing)
        .eg(&["f32[2,3]", "i64[3]%9", "bool[3]", "bf16[3]", "f32[]"]),
    one("min(Tensor self) -> Tensor", |cx| shaped(cx, cx.t("self"), V::min_over))
        .refuse(nothing)
        .eg(&["f32[2,3]", "u8[3]%9", "bool[3]"]),
    one("any(Tensor self) -> Tensor", |cx| shaped(cx, truth(cx), V::any)).eg(&[
        "bool[2,3]",
        "f32[3]",
        "u8[3]%2",
        "i64[0]",
    ]),
    one("any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor", |cx| {
        let x = truth(cx);
        x.any(&one_dim(cx, x)).reshape(&cx.out(0).dims)
    })
    .eg(&["bool[2,3] -1", "f32[2,3] 0 True", "u8[2,3]%2 1", "bool[] 0"]),
    one("any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", |cx| truth_over(cx, V::any)).eg(&[
        "bool[2,3,4] (0,-1) True",
        "i32[2,3]%2 (1)",
        "bool[2,3]",
        "bool[2,3] ()",
    ]),
    one("all(Tensor self) -> Tensor", |cx| shaped(cx, truth(cx), V::all)).eg(&[
        "bool[2,3]",
        "f32[3]",
        "u8[3]%2",
        "i64[0]",
    ]),
    one("all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor", |cx| {
        let x = truth(cx);
        x.all(&one_dim(cx, x)).reshape(&cx.out(0).dims)
    })
    .eg(&["bool[2,3] -1", "f32[2,3] 0 True", "u8[2,3]%2 1", "bool[] 0"]),
    one("all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", |cx| truth_over(cx, V::all)).eg(&[
        "bool[2,3,4] (0,-1) True",
        "i32[2,3]%2 (1)",
        "bool[2,3]",
        "bool[2,3] ()",
    ]),
    one("count_nonzero(Tensor self, int? dim=None) -> Tensor", |cx| {
        let x = truth(cx).convert(DType::I64);
        x.sum(&optional_dim(cx, x)).reshape(&cx.out(0).dims)
    })
    .eg(&["i64[2,3]%2", "f32[2,3] -1", "bool[2,3] 0", "f32[]"]),
    one("count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", |cx| {
        shaped(cx, truth(cx).convert(DType::I64), V::sum)
    })
    .eg(&["i64[2,3,4]%2 (0,-1)", "bool[2,3] ()"]),
    one("logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", |cx| {
        let x = cx.t_as("self", cx.out_dtype().opmath());
        log_sum_exp(x, &cx.dims("dim", x.rank())).reshape(&cx.out(0).dims)
    })
    .eg(&[
        "c64[2,3] (1)",
        "c128[19]! (0)",
        "f32[2,3] (1)",
        "f32[2,3,4] (0,-1) True",
        "bf16[2,3] (0)",
        "i32[2,3]%9 (1)",
        "f32[] (0)",
        "f32[2,0] (1)",
    ]),
    one("trace(Tensor self) -> Tensor", |cx| {
        let x = cx.t_as("self", cx.out_dtype().opmath());
        let on = cx.b.iota(DType::I32, &x.dims(), 0).eq(cx.b.iota(DType::I32, &x.dims(), 1));
        on.select(x, x.zeros_like()).sum(&[0, 1])
    })
    .eg(&["f32[3,3]", "f32[2,4]", "i32[3,3]%9", "f32[0,3]"]),
];

/// Meta lets it pass; the CPU has the words.
fn nothing(sig: &Sig<'_>) -> Option<Refusal> {
    matches!(sig.arg("self"), SigArg::Tensor { dims, .. } if dims.contains(&0)).then_some("nothing has no extreme")
}

/// Smallest and largest along `dims`.
fn extremes<'b>(cx: &Cx<'b>, dims: &[usize]) -> Vec<V<'b>> {
    let x = cx.t("self");
    vec![x.min_over(dims).reshape(&cx.out(0).dims), x.max_over(dims).reshape(&cx.out(1).dims)]
}

/// Every dimension of `x`.
pub(super) fn every(x: V<'_>) -> Vec<usize> {
    (0..x.rank()).collect()
}

/// The dimensions that `dim` names (all of them where it is absent or empty).
pub(super) fn over(cx: &Cx<'_>, x: V<'_>) -> Vec<usize> {
    if cx.schema.index("dim").is_some() { cx.dims("dim", x.rank()) } else { every(x) }
}

/// The one dimension an `int dim` names; none for a 0-d tensor.
pub(super) fn one_dim(cx: &Cx<'_>, x: V<'_>) -> Vec<usize> {
    if x.rank() == 0 { vec![] } else { vec![cx.dim("dim", x.rank())] }
}

fn optional_dim(cx: &Cx<'_>, x: V<'_>) -> Vec<usize> {
    if cx.opt_int("dim").is_some() { one_dim(cx, x) } else { every(x) }
}

fn shaped<'b>(cx: &Cx<'b>, x: V<'b>, f: fn(V<'b>, &[usize]) -> V<'b>) -> V<'b> {
    f(x, &over(cx, x)).reshape(&cx.out(0).dims)
}

/// `self` in the result's dtype (a `dtype=` rounds before it sums), widened to accumulate.
pub(super) fn summand<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype();
    cx.t_as("self", d).convert(d.opmath())
}

fn truth<'b>(cx: &Cx<'b>) -> V<'b> {
    cx.t("self").convert(DType::Bool)
}

/// `any` and `all` over a list, where an empty list means no dimension at all.
fn truth_over<'b>(cx: &Cx<'b>, f: fn(V<'b>, &[usize]) -> V<'b>) -> V<'b> {
    match cx.opt_ints("dim") {
        Some(d) if d.is_empty() => truth(cx),
        _ => shaped(cx, truth(cx), f),
    }
}

/// Number of elements that a reduction over `dims` folds into one.
pub(super) fn count(x: V<'_>, dims: &[usize]) -> i64 {
    dims.iter().map(|&d| x.dim(d)).product()
}

/// Mean over `dims`; 0/0 where there is nothing.
pub(super) fn mean_over<'b>(x: V<'b>, dims: &[usize]) -> V<'b> {
    x.sum(dims) / count(x, dims) as f64
}

fn mean<'b>(cx: &Cx<'b>) -> V<'b> {
    shaped(cx, summand(cx), mean_over)
}

/// `x` reduced over `dims`, each of which stays as size 1 so that the result broadcasts against the operand.
pub(super) fn kept<'b>(x: V<'b>, dims: &[usize], f: impl FnOnce(V<'b>, &[usize]) -> V<'b>) -> V<'b> {
    let mut d = x.dims();
    for &i in dims {
        d[i] = 1;
    }
    f(x, dims).reshape(&d)
}

/// ln Σ eˣ over `dims`, shifted by the maximum; an infinite maximum shifts nothing, so that ∞ − ∞ never happens.
pub(super) fn log_sum_exp<'b>(x: V<'b>, dims: &[usize]) -> V<'b> {
    let m = kept(x.real(), dims, V::max_over);
    let m = m.abs().eq(f64::INFINITY).select(m.zeros_like(), m);
    let m = m.convert(x.dtype());
    let s = (x - m).exp().sum(dims).log();
    s + m.reshape(&s.dims())
}
