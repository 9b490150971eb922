//! Sorting and what a sort answers: order statistics, the most frequent value, the k largest. NaN counts as the largest.

use super::reduce::every;
use super::reduce_index::{extreme, index_dtype};
use super::scan::cummax;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many("sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)", sort)
        .refuse(no_such_dim)
        .eg(SORT_EG),
    many(
        "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        sort,
    )
    .refuse(no_such_dim)
    .eg(&[
        "f32[2,30] stable=True",
        "i64[3,40]%5 stable=True dim=-1",
        "i64[40,3]%5 stable=True dim=0 descending=True",
        "bool[20] stable=True",
        "f32[30]! stable=True",
        "f32[30]! stable=True descending=True",
        "bf16[2,8] stable=False",
        "f16[38]! stable=True",
        "bf16[38]! stable=True descending=True",
        "f64[38]! stable=True",
        "i16[9]%5 stable=True",
        "i64[2,3000]%50 stable=True",
        "i64[5000]! stable=True descending=True",
        "i32[2,9]%5 stable=True descending=True",
        "u8[9]%4 stable=True descending=True",
        "f32[] stable=True",
        "f32[2,0] stable=True",
    ]),
    many(
        "topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
        |cx| {
            let x = cx.t("self");
            if x.rank() == 0 && cx.int("k") == 1 {
                return vec![x, cx.b.scalar(DType::I64, 0)];
            }
            let x = if x.rank() == 0 { x.reshape(&[1]) } else { x };
            let (d, k) = (cx.dim("dim", x.rank()), cx.int("k"));
            let (values, at) = top(x, d, k, cx.flag("largest"));
            vec![values.reshape(&cx.out(0).dims), at.reshape(&cx.out(1).dims)]
        },
    )
    .eg(&["f32[2,30] 4", "f32[30,2] 3 0 False", "bf16[9] 9", "f32[5] 0", "f32[] 1", "f64[2,3,8] 2 1", "f32[19]! 5", "f32[19]! 6 -1 False", "i64[7]! 3 -1 False", "f16[2,9,3] 4 1"]),
    many(
        "kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        |cx| nth(cx, |x, d| everywhere(x, d, cx.int("k") - 1)),
    )
    .eg(&["f32[2,9] 4", "f32[9,2] 3 0 True", "f32[] 1", "f64[8] 8"]),
    one("median(Tensor self) -> Tensor", |cx| middle(cx, false)).eg(&[
        "f32[2,3]",
        "f32[8]",
        "i64[9]%5",
        "f32[]",
        "bf16[7]",
        "f32[20]!",
        "f32[0]",
    ]),
    one("nanmedian(Tensor self) -> Tensor", |cx| middle(cx, true)).eg(&["f32[2,3]", "i64[9]%5", "f32[20]!", "f32[8]"]),
    many("median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", |cx| {
        nth(cx, |x, d| median_position(x, d, false))
    })
    .eg(&["f32[2,9] -1", "f32[8,3] 0 True", "f32[] 0", "f64[2,4] 1"]),
    many("nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", |cx| {
        nth(cx, |x, d| median_position(x, d, true))
    })
    .eg(&["f32[2,9] -1", "f32[8,3] 0 True", "f32[] 0"]),
    many("mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)", |cx| {
        let x = cx.t("self");
        if x.rank() == 0 {
            return vec![x, cx.b.scalar(DType::I64, 0)];
        }
        let d = cx.dim("dim", x.rank());
        let n = x.dim(d);
        let (values, at) = sorted(x, d, false);
        // the length of the run of equal values that ends at each position
        let place = cx.b.iota(DType::I32, &x.dims(), d);
        let first = values.slice_dim(d, 1, n).ne(values.slice_dim(d, 0, n - 1));
        let (mut low, zeros) = (vec![0; x.rank()], vec![0; x.rank()]);
        low[d] = 1;
        let first = first.pad(cx.b.scalar(DType::Bool, true), &low, &zeros, &zeros);
        let run = place - cummax(first.select(place, place.zeros_like()), d);
        let best = extreme(run, d, V::max_over).1;
        vec![
            at_position(values, best, d).reshape(&cx.out(0).dims),
            at_position(at, best, d).reshape(&cx.out(1).dims),
        ]
    })
    .eg(&["i64[3,12]%5", "i32[12,3]%4 0 True", "f32[] ", "bool[9]", "f32[2,5]"]),
];

const SORT_EG: &[&str] = &["f32[2,30]", "f32[30,2] 0 True", "f32[]", "bf16[9]"];

/// `x` in order along `d`, and where each element came from. Stable.
pub(super) fn sorted<'b>(x: V<'b>, d: usize, descending: bool) -> (V<'b>, V<'b>) {
    let at = x.builder().iota(index_dtype(x.dim(d)), &x.dims(), d);
    if x.dim(d) <= 1 {
        return (x, at);
    }
    if at.dtype() == DType::I32 && (x.dtype().size() < 4 || matches!(x.dtype(), DType::I32 | DType::F32)) {
        return sorted_words(x, at, d, descending);
    }
    if at.dtype() == DType::I32 && x.dtype() == DType::I64 && x.numel() >= MANY {
        // as a rule int64 holds numbers that int32 could
        let narrow = x.convert(DType::I32);
        let fits = narrow.convert(DType::I64).eq(x).all(&every(x));
        let few = || {
            let (values, at) = sorted_words(narrow, at, d, descending);
            vec![values.convert(DType::I64), at]
        };
        let r = x.builder().if_else(fits, vec![x.ty(), at.ty()], few, || sorted_pairs(x, at, d, descending));
        return (r[0], r[1]);
    }
    let r = sorted_pairs(x, at, d, descending);
    (r[0], r[1])
}

/// Elements from which on two ways to sort are worth compiling.
const MANY: i64 = 4096;

fn sorted_pairs<'b>(x: V<'b>, at: V<'b>, d: usize, descending: bool) -> Vec<V<'b>> {
    x.builder().sort(&[x, at], d, true, |a, b| {
        let (a, b) = (a[0], b[0]);
        match (descending, a.dtype().is_float()) {
            (false, false) => a.lt(b),
            (true, false) => a.gt(b),
            (false, true) => a.lt(b) | (b.is_nan() & a.eq(a)),
            (true, true) => a.gt(b) | (a.is_nan() & b.eq(b)),
        }
    })
}

/// The same as [`sorted_pairs`] for at most 32 bits: one sort of words, the element's rank above and its place below. All words differ, so they
/// needn't be sorted stably, and XLA:CPU sorts one array of numbers 10 times faster than two by a comparison it calls.
fn sorted_words<'b>(x: V<'b>, at: V<'b>, d: usize, descending: bool) -> (V<'b>, V<'b>) {
    let float = x.dtype().is_float();
    // as integers, floats are in order but for the negative ones, which are backwards; its own inverse
    let turn = |bits: V<'b>| bits ^ (bits.shr(31i64) & i64::from(i32::MAX));
    let (mut rank, mut low) = (x.convert(if float { DType::F32 } else { DType::I32 }), at.convert(DType::I64));
    if float {
        let bits = rank.bitcast(DType::I32);
        let nan = (bits & i64::from(i32::MAX)).gt(i64::from(f32::INFINITY.to_bits()));
        // zeros are equal, so their sign goes below the place
        let minus_zero = bits.eq(i64::from(i32::MIN));
        rank = nan.select(bits.full_like(i64::from(i32::MAX)), turn(bits));
        rank = minus_zero.select(bits.zeros_like(), rank);
        low = low.shl(1i64) | minus_zero.convert(DType::I64);
    }
    let flip = |rank: V<'b>| if descending { rank ^ -1i64 } else { rank };
    let words = order_words(flip(rank), low, d);
    let rank = flip(words.shr(32i64).convert(DType::I32));
    let low = words & i64::from(u32::MAX);
    if !float {
        return (rank.convert(x.dtype()), low.convert(DType::I32));
    }
    let minus_zero = (low & 1i64).ne(0i64);
    let bits = minus_zero.select(rank.full_like(i64::from(i32::MIN)), turn(rank));
    (bits.bitcast(DType::F32).convert(x.dtype()), low.shr(1i64).convert(DType::I32))
}

/// Words of 64 bits in order along `d`: int32 `high` above `low`, which is from 0 to 2³² − 1.
pub(super) fn order_words<'b>(high: V<'b>, low: V<'b>, d: usize) -> V<'b> {
    let words = high.convert(DType::I64).shl(32i64) | low;
    words.builder().sort(&[words], d, false, |a, b| a[0].lt(b[0]))[0]
}

/// The first `k` of `x` in order along `d`, and where they came from.
fn top<'b>(x: V<'b>, d: usize, k: i64, largest: bool) -> (V<'b>, V<'b>) {
    if k == 0 || x.dtype() == DType::F64 || !x.dtype().is_float() {
        let (values, at) = sorted(x, d, largest);
        return (values.slice_dim(d, 0, k), at.slice_dim(d, 0, k));
    }
    // XLA selects in float32, along the last dimension, without sorting all; it orders by bits, so that NaN needs the sign that
    // puts it where it belongs
    let last = x.rank() - 1;
    let y = x.convert(DType::F32).move_dim(d, last);
    let (y, nan) = if largest { (y, y.lit(f64::NAN)) } else { (y.neg(), y.lit(-f64::NAN)) };
    let (values, at) = y.is_nan().select(nan, y).top_k(k);
    let values = if largest { values } else { values.neg() };
    (values.convert(x.dtype()).move_dim(last, d), at.move_dim(last, d))
}

fn sort<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let x = cx.t("self");
    if x.rank() == 0 {
        return vec![x, cx.b.scalar(DType::I64, 0)];
    }
    let (values, at) = sorted(x, cx.dim("dim", x.rank()), cx.flag("descending"));
    vec![values, at]
}

/// The element of `x` at position `k` along `d`, which is gone; `k` (int32) has `x`'s shape without `d`.
fn at_position<'b>(x: V<'b>, k: V<'b>, d: usize) -> V<'b> {
    let hit = x.builder().iota(k.dtype(), &x.dims(), d).eq(k.unsqueeze(d));
    hit.select(x, x.zeros_like()).sum(&[d])
}

/// Position `k` in every slice of `x` along `d`.
fn everywhere<'b>(x: V<'b>, d: usize, k: i64) -> V<'b> {
    let mut dims = x.dims();
    dims.remove(d);
    x.builder().full(DType::I32, &dims, k)
}

/// Where in a sorted slice its median is: the lower of two middles. NaN, being last, is either never counted or, if there is
/// any, itself the median.
fn median_position<'b>(sorted: V<'b>, d: usize, skip_nan: bool) -> V<'b> {
    let n = sorted.dim(d);
    let middle = everywhere(sorted, d, (n - 1) / 2);
    if !sorted.dtype().is_float() {
        return middle;
    }
    let real = sorted.eq(sorted).convert(DType::I32).sum(&[d]);
    if skip_nan {
        return (real - 1i64).max(0i64) / 2i64;
    }
    // the first NaN stands right after the real numbers
    real.lt(n).select(real, middle)
}

/// The value at a position of the sorted slice, and where it came from.
fn nth<'b>(cx: &Cx<'b>, k: impl FnOnce(V<'b>, usize) -> V<'b>) -> Vec<V<'b>> {
    let x = cx.t("self");
    if x.rank() == 0 {
        return vec![x, cx.b.scalar(DType::I64, 0)];
    }
    let d = cx.dim("dim", x.rank());
    let (values, at) = sorted(x, d, false);
    let k = k(values, d);
    vec![at_position(values, k, d).reshape(&cx.out(0).dims), at_position(at, k, d).reshape(&cx.out(1).dims)]
}

fn middle<'b>(cx: &Cx<'b>, skip_nan: bool) -> V<'b> {
    let x = cx.t("self");
    let n = x.numel();
    if n == 0 {
        return if x.dtype().is_float() { x.lit(f64::NAN) } else { x.lowest() };
    }
    let (values, _) = sorted(x.reshape(&[n]), 0, false);
    at_position(values, median_position(values, 0, skip_nan), 0)
}

/// Meta lets it pass; the CPU has the words.
fn no_such_dim(sig: &Sig<'_>) -> Option<Refusal> {
    let (SigArg::Tensor { dims, .. }, SigArg::Int(d)) = (sig.arg("self"), sig.arg("dim")) else { return None };
    let rank = dims.len().max(1) as i64;
    (*d < -rank || *d >= rank).then_some("the tensor has no such dimension")
}
