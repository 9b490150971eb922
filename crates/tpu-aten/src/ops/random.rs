//! Random numbers. The in-place ops of PyTorch are declared under their functional names.

use super::random_bits::{integers, open_unit, standard_exponential, standard_normal, uniform, unit};
use super::reduce::{every, kept};
use super::reduce_index::extreme;
use super::scan::cumsum;
use super::sort::sorted;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, one};
use tpu_base::{DType, ErrorKind, Scalar};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        uniform(cx, d, &dims, cx.scalar("from", d.opmath()), cx.scalar("to", d.opmath()))
    })
    .operands(&["from", "to"])
    .random()
    .refuse(whole)
    .invalid(no_range)
    .eg(&["f32[2,3]", "f64[5] -1.0 2.0", "bf16[40] 1.0 2.0", "f16[7]", "f32[0]", "f32[]", "c64[3]"]),
    one("normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        let (mean, std) = (cx.scalar("mean", d.real().opmath()), cx.scalar("std", d.real().opmath()));
        gaussian(cx, d, &dims, mean, std)
    })
    .operands(&["mean", "std"])
    .random()
    .invalid(|n, _| !number(n, 2).is_some_and(|std| std >= 0.0))
    .eg(&["f32[2,3]", "f64[5] 1.0 2.0", "bf16[40]", "f32[0]", "c64[3]"]),
    one("normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor", normal)
        .operands(&["std"])
        .random()
        .invalid(|n, _| !number(n, 1).is_some_and(|std| std >= 0.0))
        .eg(&["f32[2,3]", "bf16[4] 2.0"]),
    one("normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor", normal)
        .operands(&["mean"])
        .random()
        .eg(&["1.0 f32[2,3]+"]),
    one("normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor", normal)
        .random()
        .eg(&["f32[2,3] f32[3]+", "f64[2] f64[2]+"]),
    one("log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        gaussian(cx, d.opmath(), &dims, cx.scalar("mean", d.opmath()), cx.scalar("std", d.opmath())).exp()
    })
    .operands(&["mean", "std"])
    .random()
    .invalid(|n, _| number(n, 2).is_some_and(|std| std <= 0.0))
    .eg(&["f32[2,3]", "bf16[4] 0.0 0.5"]),
    one("exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        standard_exponential(cx, d.opmath(), &dims) / cx.scalar("lambd", d.opmath())
    })
    .operands(&["lambd"])
    .random()
    .invalid(|n, _| number(n, 1).is_some_and(|rate| rate <= 0.0))
    .eg(&["f32[2,3]", "f64[5] 2.5", "bf16[40]"]),
    one("cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        let f = d.opmath();
        let angle = (open_unit(cx, f, &dims) - 0.5) * std::f64::consts::PI;
        angle.tan() * cx.scalar("sigma", f) + cx.scalar("median", f)
    })
    .operands(&["median", "sigma"])
    .random()
    .invalid(|n, _| number(n, 2).is_some_and(|sigma| sigma <= 0.0))
    .eg(&["f32[2,3]", "f64[5] 1.0 0.5"]),
    one("geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        let f = if d.is_float() { d.opmath() } else { DType::F32 };
        (open_unit(cx, f, &dims).log() / cx.scalar("p", f).neg().log1p()).ceil().max(1.0)
    })
    .operands(&["p"])
    .random()
    .invalid(|n, _| !number(n, 1).is_some_and(|p| 0.0 < p && p < 1.0))
    .eg(&["f32[2,3] 0.5", "i64[5] 0.1", "bf16[4] 0.9"]),
    one("bernoulli(Tensor self, *, Generator? generator=None) -> Tensor", |cx| {
        let p = cx.t("self");
        coins(cx, p)
    })
    .random()
    .eg(&["f32[2,3]~", "f64[5]~", "bf16[4]~", "f32[0]~"]),
    one("bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor", |cx| {
        let d = if cx.out_dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        unit(cx, d, &cx.out(0).dims).lt(cx.scalar("p", d))
    })
    .operands(&["p"])
    .random()
    .invalid(|n, _| !number(n, 1).is_some_and(|p| (0.0..=1.0).contains(&p)))
    .eg(&["f32[2,3] 0.5", "bool[5] 0.3", "i64[4] 1.0"]),
    one("bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor", |cx| {
        let p = cx.t("p");
        coins(cx, p.broadcast_to(&cx.out(0).dims))
    })
    .random()
    .eg(&["f32[2,3] f32[2,3]~", "i64[2,3] f64[3]~"]),
    one("random(Tensor self, *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        integers(cx, &dims, 0, top(d).wrapping_add(1))
    })
    .random()
    .eg(&["f32[2,3]", "i64[5]", "u8[4]", "bool[7]", "bf16[4]", "f64[2]"]),
    one("random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor", |cx| {
        integers(cx, &result(cx).1, 0, cx.int("to") as u64)
    })
    .random()
    .invalid(|n, d| no_integers(Some(0), whole_number(n, 1), d))
    .eg(&["i64[5] 10", "f32[2,3] 7", "i64[3] 8589934592"]),
    one("random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor", |cx| {
        let (d, dims) = result(cx);
        let from = cx.int("from");
        let range = match cx.opt_int("to") {
            Some(to) => to.wrapping_sub(from) as u64,
            // up to the largest value, which counts
            None => top(d).wrapping_sub(from as u64).wrapping_add(1),
        };
        integers(cx, &dims, from, range)
    })
    .random()
    .invalid(|n, d| no_integers(whole_number(n, 1), whole_number(n, 2), d))
    .eg(&["i64[5] -3 10", "i32[5] 2 -", "i64[4] -9223372036854775808 -", "f32[3] -5 5"]),
    one(
        "randperm(SymInt n, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        permutation,
    )
    .random()
    .refuse(too_many)
    .eg(&["10", "0", "7 dtype=i32"]),
    one(
        "randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        permutation,
    )
    .random()
    .refuse(too_many)
    .eg(&["10"]),
    many("native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)", |cx| {
        let x = cx.t("input");
        let p = cx.float("p");
        if cx.opt_number("train").is_some_and(|t| !t.truthy()) || p == 0.0 {
            return vec![x, cx.b.full(DType::Bool, &x.dims(), true)];
        }
        let d = x.dtype().opmath();
        let keep = unit(cx, if d == DType::F64 { d } else { DType::F32 }, &x.dims()).ge(p);
        let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
        vec![keep.select(x.convert(d) * scale, x.convert(d).zeros_like()), keep]
    })
    .random()
    .eg(&["f32[2,3] 0.5 True", "f32[2,3] 0.5 False", "bf16[4] 0.1 True", "f32[3] 1.0 True", "f64[3] 0.0 True"]),
    one(
        "multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor",
        multinomial,
    )
    .random()
    .refuse(|s| (matches!(s.arg("num_samples"), SigArg::Int(n) if *n <= 0)).then_some("it asks for no sample"))
    .eg(&["f32[5]+ 3", "f32[2,5]+ 1", "f32[2,50]+ 7 True", "bf16[2,5]+ 4", "f64[6]+ 2 True"]),
    many(
        "rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)",
        rrelu,
    )
    .random()
    .eg(&["f32[2,3] f32[2,3]", "f32[2,3] f32[2,3] training=True"]),
    many(
        "rrelu_with_noise(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor",
        rrelu,
    )
    .updates(&["noise"])
    .random()
    .eg(&["f32[2,3] f32[2,3]", "f32[2,3] f32[2,3] training=True"]),
];

fn number(n: &[Option<Scalar>], i: usize) -> Option<f64> {
    n.get(i).copied().flatten().map(Scalar::as_f64)
}

fn whole_number(n: &[Option<Scalar>], i: usize) -> Option<i64> {
    n.get(i).copied().flatten().map(Scalar::as_i64)
}

/// Meta lets it pass; the CPU has the words.
pub(super) fn whole(s: &Sig<'_>) -> Option<Refusal> {
    s.dtype("self").is_some_and(|d| d.is_int() || d == DType::Bool).then_some("not a floating-point dtype")
}

fn no_range(n: &[Option<Scalar>], d: DType) -> bool {
    let (from, to, top) = (number(n, 1).unwrap_or(0.0), number(n, 2).unwrap_or(1.0), d.max_value());
    !(from <= to && -top <= from && to <= top && to - from <= top)
}

/// Whether no integer of the dtype lies in from..to (without `to`: up to the largest), or not all of them.
fn no_integers(from: Option<i64>, to: Option<i64>, d: DType) -> bool {
    let low = if d.is_float() {
        -d.max_value()
    } else if d.is_unsigned() {
        0.0
    } else {
        -d.max_value() - 1.0
    };
    let fits = |v: i64| (low..=d.max_value()).contains(&(v as f64));
    let from = from.unwrap_or(0);
    !fits(from) || to.is_some_and(|to| to <= from || !fits(to - 1))
}

/// More numbers than the dtype tells apart; the CPU has the words.
fn too_many(s: &Sig<'_>) -> Option<Refusal> {
    let (SigArg::Int(n), SigArg::Int(code)) = (s.arg("n"), s.arg("dtype")) else { return None };
    let d = DType::from_code(*code as u8)?;
    let top = match d {
        DType::F16 => 2048.0,
        DType::BF16 => 256.0,
        DType::F32 => 16_777_216.0,
        d => d.max_value(),
    };
    (*n as f64 > top).then_some("the dtype has fewer numbers")
}

fn result(cx: &Cx<'_>) -> (DType, Vec<i64>) {
    let t = cx.out(0);
    (t.dtype, t.dims)
}

/// The largest integer that `random` draws for a dtype: of floats, the last up to which every integer is representable.
fn top(d: DType) -> u64 {
    match d {
        DType::F64 => 1 << 53,
        DType::F32 => 1 << 24,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::Bool => 1,
        d if d.is_unsigned() => u64::MAX >> (64 - 8 * d.size()),
        d => (i64::MAX as u64) >> (64 - 8 * d.size()),
    }
}

/// mean + std · z. A complex number has half of the variance in each part.
fn gaussian<'b>(cx: &Cx<'b>, d: DType, dims: &[i64], mean: V<'b>, std: V<'b>) -> V<'b> {
    if !d.is_complex() {
        return standard_normal(cx, d.opmath(), dims) * std + mean;
    }
    let mut both = dims.to_vec();
    both.insert(0, 2);
    let z = standard_normal(cx, d.real(), &both) * (std * std::f64::consts::FRAC_1_SQRT_2);
    let part = |k| z.slice_dim(0, k, k + 1).reshape(dims);
    (part(0) + mean).complex(part(1))
}

fn normal<'b>(cx: &Cx<'b>) -> V<'b> {
    let (d, dims) = result(cx);
    let (mean, std) = (cx.scalar("mean", d.real().opmath()), cx.scalar("std", d.real().opmath()));
    cx.check(std.ge(0.0).all(&every(std)), ErrorKind::User, "normal expects all elements of std >= 0.0");
    gaussian(cx, d, &dims, mean, std)
}

/// Whether a uniform number falls below each probability of `p`.
fn coins<'b>(cx: &Cx<'b>, p: V<'b>) -> V<'b> {
    let d = if p.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let p = p.convert(d);
    cx.check((p.ge(0.0) & p.le(1.0)).all(&every(p)), ErrorKind::User, "Expected p_in >= 0 && p_in <= 1 to be true");
    unit(cx, d, &p.dims()).lt(p)
}

/// The order that random keys sort into. The place is the low bits of its own key, so that one array is sorted (as in
/// `sort::sorted_words`); the bits above make ties rare, and a tie only keeps two places in order.
fn permutation<'b>(cx: &Cx<'b>) -> V<'b> {
    let n = cx.int("n");
    let at = cx.b.iota(if n < 1 << 31 { DType::I32 } else { DType::I64 }, &[n], 0);
    if n < 2 {
        return at;
    }
    let low = (1i64 << (64 - (n - 1).leading_zeros())) - 1;
    let keys = (cx.random_bits(DType::U64, &[n]) & !low) | at.convert(DType::U64);
    (cx.b.sort(&[keys], 0, false, |a, b| a[0].lt(b[0]))[0] & low).convert(at.dtype())
}

/// Draws categories. Without replacement, or for a single draw, by a race: category i arrives after an exponential time of
/// rate pᵢ, and the first arrivals win (P. Efraimidis and P. Spirakis, "Weighted random sampling with a reservoir", 2006).
/// With replacement by inverting the cumulative distribution.
fn multinomial<'b>(cx: &Cx<'b>) -> V<'b> {
    let p = cx.t("self");
    let p = p.convert(p.dtype().opmath());
    let classes = p.dims().last().copied().unwrap_or(1);
    let p = p.reshape(&[p.numel() / classes.max(1), classes]);
    let fine = (p.ge(0.0) & p.is_finite()).all(&[0, 1]);
    cx.check(fine, ErrorKind::User, "probability tensor contains either `inf`, `nan` or element < 0");
    let possible = p.gt(0.0).any(&[1]).all(&[0]);
    cx.check(possible, ErrorKind::User, "invalid multinomial distribution (sum of probabilities <= 0)");
    let n = cx.int("num_samples");
    let shape = cx.out(0).dims;
    if n == 1 || !cx.flag("replacement") {
        let speed = p / standard_exponential(cx, p.dtype(), &p.dims());
        let order = if n == 1 { extreme(speed, 1, V::max_over).1 } else { sorted(speed, 1, true).1.slice_dim(1, 0, n) };
        return order.reshape(&shape);
    }
    let rows = p.dim(0);
    let sums = cumsum(p, 1);
    let at = unit(cx, p.dtype(), &[rows, n]) * sums.slice_dim(1, classes - 1, classes);
    // the first possible category whose sum passes the drawn point; rounding may leave none: the last possible one
    let index = cx.b.iota(DType::I32, &p.dims(), 1);
    let last = kept(p.gt(0.0).select(index, index.zeros_like()), &[1], V::max_over);
    let passed = sums.unsqueeze(1).gt(at.unsqueeze(2)) & p.gt(0.0).unsqueeze(1);
    let first = passed.select(index.unsqueeze(1), index.full_like(classes).unsqueeze(1)).min_over(&[2]);
    first.min(last.broadcast_to(&[rows, n])).reshape(&shape)
}

/// Leaky ReLU with a random slope in training, and the slopes it took (1 where the input passed).
fn rrelu<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let (d, dims) = result(cx);
    let f = d.opmath();
    let x = cx.t_as("self", f);
    let (lower, upper) = (cx.scalar("lower", f), cx.scalar("upper", f));
    if !cx.flag("training") {
        return vec![x.gt(0.0).select(x, x * ((lower + upper) / 2.0)), cx.t("noise")];
    }
    let slope = uniform(cx, f, &dims, lower, upper);
    let noise = x.le(0.0).select(slope, slope.full_like(1.0));
    vec![x * noise, noise.convert(cx.t("noise").dtype())]
}
