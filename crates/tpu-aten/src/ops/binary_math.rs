//! Functions of two arguments: powers, angles, signs, logarithms of sums, divisors.

use super::binary::rounded;
use super::compare::sign_bit;
use super::unary::{exp2, reciprocal};
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, binary, one};
use std::f64::consts::LN_2;
use tpu_base::{DType, Scalar};
use tpu_hlo::V;

const FLOATS: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[40]! f32[40]!",
    "f64[40]! f64[40]!",
    "bf16[6] bf16[1]",
    "f16[6] f16[6]",
    "f32[] f32[2]",
    "f32[0] f32[1]",
];
const FLOATS_AND_COMPLEX: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[40]! f32[40]!",
    "f64[40]! f64[40]!",
    "bf16[6] bf16[1]",
    "f16[6] f16[6]",
    "f32[] f32[2]",
    "f32[0] f32[1]",
    "c64[9] c64[9]",
    "c128[9] c128[]",
];
const MIXED: &[&str] = &[
    "f32[2,3] f32[3]",
    "f32[40]! f32[40]!",
    "f64[40]! f64[40]!",
    "bf16[6] bf16[1]",
    "i32[4] i32[4]",
    "i64[3] f32[3]",
    "f32[0] f32[1]",
    "bool[3] i32[3]",
];
const NUMBERS: &[&str] = &["bf16[9]+ 0.3", "f32[5] 2", "f32[19]! 0.5", "i32[5] 3", "bf16[4] 1.5"];

pub(crate) static DEFS: &[OpDef] = &[
    binary("pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", pow).eg(&[
        "f32[2,3]+ f32[3]",
        "f32[40]! f32[40]!",
        "f64[40]! f64[40]!",
        "bf16[6]+ bf16[1]",
        "i32[6] i32[6]%5",
        "i64[9] i64[9]",
        "u8[4] u8[4]%3",
        "u8[6] u8[6]!",
        "i8[9]! i8[9]",
        "c64[4] c64[4]",
        "f32[4]+ i64[4]",
        "f32[] f32[2]",
        "f32[0] f32[1]",
        "i32[4] f32[]",
    ]),
    one("pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", pow_number)
        .consts(&["exponent"])
        .refuse(inverse_of_integers)
        .eg(&[
            "f32[19]! 0.5",
            "f32[19]! 2",
            "f32[19]! 3",
            "f32[19]! -1",
            "f32[19]! -2",
            "f32[19]! -0.5",
            "f32[19]! 0",
            "f32[19]! 1",
            "f32[4]+ 1.7",
            "f32[4] -3",
            "f32[4] 4.0",
            "bf16[6]+ 2",
            "bf16[6]+ 0.5",
            "bf16[6] 3",
            "f16[6] 2",
            "f64[4]+ -1.5",
            "i32[6] 2",
            "i64[9] 3",
            "i64[6] 0",
            "i32[6] 7",
            "i32[6] 0.5",
            "i32[4]+ 2.0",
            "u8[4] 2",
            "c64[4] 2",
            "c64[4] 0.5",
            "c128[4] 2.5",
            "c64[4] -1",
            "bool[3] 2",
            "f32[] 2",
            "f32[0] 2",
            "i32[5] -0.5",
        ]),
    one("pow.Scalar(Scalar self, Tensor exponent) -> Tensor", |cx| {
        let d = cx.out_dtype();
        pow(cx.t_as("self", d).convert(d.opmath()), cx.t_as("exponent", d.opmath()))
    })
    .eg(&[
        "2 f32[19]!",
        "1 f32[19]!",
        "0.5 f64[5]",
        "2 i64[5]%9",
        "2.5 i32[4]",
        "-1 i64[5]",
        "10 bf16[3]",
        "0.3 bf16[3]",
        "2 c64[3]",
    ]),
    binary("atan2(Tensor self, Tensor other) -> Tensor", |a, b| a.atan2(b)).eg(MIXED),
    binary("hypot(Tensor self, Tensor other) -> Tensor", hypot).eg(FLOATS),
    binary("copysign.Tensor(Tensor self, Tensor other) -> Tensor", copysign).eg(MIXED),
    binary("copysign.Scalar(Tensor self, Scalar other) -> Tensor", copysign).eg(&[
        "f32[5] -2",
        "f32[19]! -0.0",
        "i32[5] 3",
        "bf16[4] -1.5",
    ]),
    one("nextafter(Tensor self, Tensor other) -> Tensor", |cx| {
        let d = cx.out_dtype();
        let (a, b) = cx.t_as("self", d).broadcast_with(cx.t_as("other", d));
        a.next_after(b)
    })
    .eg(&["f32[2,3] f32[3]", "f32[40]! f32[40]!", "f64[40]! f64[40]!", "bf16[6] bf16[6]", "f32[0] f32[1]"]),
    binary("logaddexp(Tensor self, Tensor other) -> Tensor", |a, b| {
        if a.dtype().is_complex() { complex_log_sum(a, b) } else { log_sum(a, b, V::exp, 1.0) }
    })
    .eg(FLOATS_AND_COMPLEX),
    binary("logaddexp2(Tensor self, Tensor other) -> Tensor", |a, b| log_sum(a, b, exp2, 1.0 / LN_2))
        .refuse(no_complex)
        .eg(FLOATS),
    binary("heaviside(Tensor self, Tensor values) -> Tensor", |a, v| {
        let (a, v) = a.broadcast_with(v);
        a.eq(0.0).select(v, a.gt(0.0).convert(a.dtype()))
    })
    .eg(&["f32[19]! f32[19]!", "i32[9]! i32[9]", "f32[2,3] f32[]", "bool[3] bool[3]", "bf16[4] bf16[4]"]),
    one("xlogy.Tensor(Tensor self, Tensor other) -> Tensor", |cx| rounded(cx, |a, b| times_log(a, b, V::log)))
        .eg(MIXED),
    one("xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor", |cx| rounded(cx, |a, b| times_log(a, b, V::log)))
        .eg(NUMBERS),
    one("xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor", |cx| rounded(cx, |a, b| times_log(a, b, V::log)))
        .eg(&["2 f32[5]+", "0 f32[19]!"]),
    one("special_xlog1py(Tensor self, Tensor other) -> Tensor", |cx| rounded(cx, |a, b| times_log(a, b, V::log1p)))
        .eg(MIXED),
    one("special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor", |cx| {
        rounded(cx, |a, b| times_log(a, b, V::log1p))
    })
    .eg(NUMBERS),
    one("special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor", |cx| {
        rounded(cx, |a, b| times_log(a, b, V::log1p))
    })
    .eg(&["2 f32[5]+", "0 f32[19]!"]),
    binary("special_zeta(Tensor self, Tensor other) -> Tensor", zeta).eg(&[
        "f32[2,3]+ f32[3]+",
        "f64[5]+ f64[5]+",
        "i32[4]+ f32[4]+",
    ]),
    binary("special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor", |a, b| {
        let (a, b) = a.broadcast_with(b);
        zeta(a, b)
    })
    .eg(&["f32[5]+ 2", "f64[4]+ 0.5"]),
    binary("special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor", |a, b| {
        let (a, b) = a.broadcast_with(b);
        zeta(a, b)
    })
    .eg(&["2 f32[5]+", "1.5 f64[4]+"]),
    binary("gcd(Tensor self, Tensor other) -> Tensor", gcd).eg(DIVISORS),
    binary("lcm(Tensor self, Tensor other) -> Tensor", |a, b| {
        let (a, b) = a.broadcast_with(b);
        let g = gcd(a, b);
        let none = g.eq(0i64);
        let g = none.select(g.full_like(1i64), g);
        none.select(a.zeros_like(), (a / g * b).abs())
    })
    .eg(DIVISORS),
];

/// Meta lets it pass; the CPU has the words.
fn inverse_of_integers(sig: &Sig<'_>) -> Option<Refusal> {
    let whole = sig.dtype("self").is_some_and(DType::is_int);
    matches!(sig.arg("exponent"), SigArg::Scalar(Scalar::Int(n)) if whole && *n < 0)
        .then_some("integers have no inverse")
}

const DIVISORS: &[&str] =
    &["i32[9] i32[9]", "i64[2,3]%40 i64[3]%40", "u8[6] u8[6]", "i16[9] i16[1]", "i64[] i64[2]", "i32[0] i32[1]"];

fn no_complex(sig: &Sig<'_>) -> Option<Refusal> {
    sig.dtype("self").filter(|d| d.is_complex()).map(|_| "complex numbers")
}

/// General power. Integers: by squaring modulo 2ⁿ; a negative exponent leaves only ±1 (c10 `powi`).
fn pow<'b>(x: V<'b>, e: V<'b>) -> V<'b> {
    let (x, e) = x.broadcast_with(e);
    let d = x.dtype();
    if d.is_complex() {
        // 0⁰ = 1, and no logarithm of zero
        return e.eq(0.0).select(x.full_like(1.0), x.pow(e));
    }
    if d.is_int() && d.is_unsigned() {
        // XLA reads a large unsigned exponent as a negative one
        let wide = |v: V<'b>| v.convert(DType::I64);
        return wide(x).pow(wide(e)).convert(d);
    }
    if !d.is_int() {
        return x.pow(e);
    }
    let odd = (e & 1i64).ne(0i64);
    let one = x.full_like(1i64);
    let of_minus_one = odd.select(one.neg(), one);
    let inverse = x.eq(1i64).select(one, x.eq(-1i64).select(of_minus_one, x.zeros_like()));
    let negative = e.lt(0i64);
    negative.select(inverse, x.pow(negative.select(e.zeros_like(), e)))
}

/// The exponents that PyTorch's kernel singles out, and small whole ones of integers; else `power`.
fn pow_number<'b>(cx: &Cx<'b>) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let x = cx.t_as("self", d);
    let e = cx.number("exponent");
    let is = |v: f64| e.imag() == 0.0 && e.as_f64() == v;
    if d.is_int() {
        let n = e.as_i64();
        return if n < 0 { pow(x, x.full_like(n)) } else { whole_power(x, n) };
    }
    if is(0.0) {
        x.full_like(1.0)
    } else if is(1.0) {
        x
    } else if is(2.0) {
        x * x
    } else if is(3.0) {
        x * x * x
    } else if is(-1.0) {
        reciprocal(x)
    } else if is(-2.0) {
        reciprocal(x * x)
    } else if is(0.5) {
        x.sqrt()
    } else if is(-0.5) {
        if d.is_complex() { reciprocal(x.sqrt()) } else { x.rsqrt() }
    } else {
        pow(x, x.full_like(e))
    }
}

fn whole_power(x: V<'_>, n: i64) -> V<'_> {
    let (mut n, mut square, mut result) = (n, x, None);
    while n > 0 {
        if n & 1 == 1 {
            result = Some(result.map_or(square, |r: V<'_>| r * square));
        }
        n >>= 1;
        if n > 0 {
            square = square * square;
        }
    }
    result.unwrap_or_else(|| x.full_like(Scalar::Int(1)))
}

/// Scaled by the larger side, so that no square overflows; infinite beside NaN too (C's `hypot`).
fn hypot<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    let (a, b) = a.broadcast_with(b);
    let (a, b) = (a.abs(), b.abs());
    let (big, small) = (a.max(b), a.min(b));
    let ratio = small / big;
    let h = big * (ratio * ratio + 1.0).sqrt();
    let h = big.eq(0.0).select(big, h);
    let inf = f64::INFINITY;
    (a.eq(inf) | b.eq(inf)).select(a.full_like(inf), h)
}

pub(super) fn copysign<'b>(x: V<'b>, sign: V<'b>) -> V<'b> {
    let x = x.abs();
    sign_bit(sign).select(x.neg(), x)
}

/// log(bᵃ + bᶜ) from the larger; equal infinities have no difference.
fn log_sum<'b>(a: V<'b>, c: V<'b>, power: fn(V<'b>) -> V<'b>, per_ln: f64) -> V<'b> {
    let (a, c) = a.broadcast_with(c);
    let same_inf = a.eq(c) & a.abs().eq(f64::INFINITY);
    let tail = power((a - c).abs().neg()).log1p();
    let tail = if per_ln == 1.0 { tail } else { tail * per_ln };
    same_inf.select(a, a.max(c) + tail)
}

/// The same of complex numbers, by the one with the larger real part; not a number beside one that is not.
pub(super) fn complex_log_sum<'b>(a: V<'b>, c: V<'b>) -> V<'b> {
    let (a, c) = a.broadcast_with(c);
    let (ar, cr) = (a.real(), c.real());
    let less = ar.lt(cr);
    let (low, high) = (less.select(a, c), less.select(c, a));
    let same_inf = ar.eq(cr) & ar.abs().eq(f64::INFINITY);
    let sum = (low - high).exp().log1p() + high;
    let nan = ar.full_like(f64::NAN);
    let none = a.ne(a) | c.ne(c);
    let infinite = ar.lt(0.0).select(low, (low.exp() + high.exp()).log());
    none.select(nan.complex(nan), same_inf.select(infinite, sum))
}

/// a · log b, where 0 · log b is 0 unless b is NaN.
fn times_log<'b>(a: V<'b>, b: V<'b>, log: fn(V<'b>) -> V<'b>) -> V<'b> {
    let (a, b) = a.broadcast_with(b);
    b.is_nan().select(b, a.eq(0.0).select(a.zeros_like(), a * log(b)))
}

/// Euclid's algorithm on all elements at once, until no remainder is left.
fn gcd<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    let (a, b) = a.broadcast_with(b);
    let all: Vec<usize> = (0..a.rank()).collect();
    let state = a.builder().while_loop(
        &[a.abs(), b.abs()],
        |s| {
            let left = s[1].ne(0i64);
            left.convert(DType::I32).max_over(&all).ne(0i64)
        },
        |s| {
            let done = s[1].eq(0i64);
            let divisor = done.select(s[1].full_like(1i64), s[1]);
            vec![done.select(s[0], s[1]), done.select(s[1].zeros_like(), s[0].rem(divisor))]
        },
    );
    state[0]
}

/// ζ(s, q) with PyTorch's answers where the sum has none: the pole at s = 1, the poles at whole q ≤ 0.
fn zeta<'b>(s: V<'b>, q: V<'b>) -> V<'b> {
    let (s, q) = s.broadcast_with(q);
    let (infinity, nan) = (s.full_like(f64::INFINITY), s.full_like(f64::NAN));
    let left = q.le(0.0);
    let z = (left & s.ne(s.floor())).select(nan, s.zeta(q));
    let z = (left & q.eq(q.floor())).select(infinity, z);
    s.eq(1.0).select(infinity, s.lt(1.0).select(nan, z))
}
