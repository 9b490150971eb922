//! Special functions of one argument.

use super::unary_chebyshev::{ERFCX, I0E_HIGH, I0E_LOW, I1E_HIGH, I1E_LOW};
use crate::cx::Cx;
use crate::def::{OpDef, many, one, unary};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use tpu_base::DType;
use tpu_hlo::V;

const FLOAT: &[&str] = &[
    "f32[2,3]",
    "f32[19]!",
    "f64[19]!",
    "bf16[2,3]",
    "f16[5]",
    "f64[4]+",
    "i32[4]",
    "u8[4]",
    "bool[3]",
    "f32[]",
    "f32[0,2]",
];
const POSITIVE: &[&str] =
    &["f32[2,3]+", "f32[19]!", "f64[19]!", "bf16[2,3]+", "f16[5]+", "f64[4]+", "i32[4]+", "f32[]", "f32[0,2]"];

pub(crate) static DEFS: &[OpDef] = &[
    unary("erf(Tensor self) -> Tensor", |x| x.erf()).eg(FLOAT),
    unary("erfc(Tensor self) -> Tensor", |x| x.erfc()).eg(FLOAT),
    unary("erfinv(Tensor self) -> Tensor", erfinv).eg(&[
        "f32[2,3]~",
        "f32[19]!",
        "f64[19]!",
        "f64[9]~",
        "bf16[5]~",
        "i32[4]",
        "f32[0]",
    ]),
    unary("lgamma(Tensor self) -> Tensor", |x| x.lgamma()).eg(FLOAT),
    unary("digamma(Tensor self) -> Tensor", digamma).eg(FLOAT),
    one("polygamma(int n, Tensor self) -> Tensor", polygamma).eg(&[
        "0 f32[19]!",
        "1 f32[2,3]+",
        "1 f32[9]",
        "2 f64[5]+",
        "3 f32[4]+",
        "1 i32[4]+",
        "1 f64[9]",
        "2 f64[19]",
        "2 f32[2,3]",
        "4 f64[9]",
        "2 bool[2]",
        "3 f32[3]+",
    ]),
    one("mvlgamma(Tensor self, int p) -> Tensor", |cx| {
        let (x, p) = (cx.t_as("self", cx.out_dtype().opmath()), cx.int("p"));
        let sum = (1..p).fold(x.lgamma(), |s, j| s + (x - j as f64 / 2.0).lgamma());
        sum + (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln()
    })
    .eg(&["f32[2,3]+ 1", "f64[5]+ 4", "i64[4]+ 3", "f32[0] 2"]),
    one("logit(Tensor self, float? eps=None) -> Tensor", |cx| {
        let x = cx.t_as("self", cx.out_dtype().opmath());
        // the bounds are numbers of the result's dtype
        let bound = |v: f64| cx.b.scalar(cx.out_dtype(), v).convert(x.dtype());
        let x = cx.opt_float("eps").map_or(x, |e| x.clamp(bound(e), bound(1.0 - e)));
        (x / (x.full_like(1.0) - x)).log()
    })
    .eg(&["f32[2,3]~", "f32[19]!", "f32[19]! 0.1", "bf16[] 0.2", "f64[4]~", "f32[0]"]),
    unary("i0(Tensor self) -> Tensor", i0).eg(MODERATE),
    unary("special_i0e(Tensor self) -> Tensor", i0e).eg(MODERATE),
    unary("special_i1(Tensor self) -> Tensor", i1).eg(MODERATE),
    unary("special_i1e(Tensor self) -> Tensor", i1e).eg(MODERATE),
    unary("special_modified_bessel_i0(Tensor self) -> Tensor", i0).eg(MODERATE),
    unary("special_modified_bessel_i1(Tensor self) -> Tensor", i1).eg(MODERATE),
    unary("special_erfcx(Tensor self) -> Tensor", erfcx)
        .eg(&["f32[2,3]", "f32[19]!", "f64[19]!", "f64[9]", "i32[4]", "f32[0]"]),
    unary("special_log_ndtr(Tensor self) -> Tensor", log_ndtr)
        .eg(&["f32[2,3]", "f32[19]!", "f64[19]!", "f64[9]", "i32[4]", "f32[0]"]),
    unary("special_entr(Tensor self) -> Tensor", |x| {
        let outside = x.eq(0.0).select(x.zeros_like(), x.full_like(f64::NEG_INFINITY));
        x.is_nan().select(x, x.gt(0.0).select(x.neg() * x.log(), outside))
    })
    .eg(POSITIVE),
    unary("special_ndtri(Tensor self) -> Tensor", ndtri).eg(&[
        "f32[2,30]~",
        "f64[2,30]~",
        "f32[19]!",
        "f64[19]!",
        "i32[4]%2",
        "bool[3]",
        "f32[0]",
    ]),
    many("frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)", frexp).eg(&[
        "f32[2,3]",
        "f32[19]!",
        "f64[19]!",
        "bf16[19]!",
        "f16[5]",
        "f32[]",
        "f32[0]",
    ]),
    unary("special_spherical_bessel_j0(Tensor x) -> Tensor", spherical_j0)
        .eg(&["f32[2,3]", "f32[19]!", "f64[19]!", "i32[4]"]),
];

/// No halves: PyTorch's CPU kernels of these compute in them throughout, or lack them.
const MODERATE: &[&str] = &["f32[2,3]", "f64[2,3]", "f32[19]!", "f64[19]!", "i32[4]", "bool[3]", "f32[]", "f32[0]"];

/// XLA's single-precision fit (Giles, *Approximating the erfinv function*, 2010) errs in the seventh digit, which its
/// derivative √π/2·exp(x²) makes the sixth: one Newton step mends it. Near ±1 the residual comes from erfc, which is exact there.
fn erfinv(y: V<'_>) -> V<'_> {
    let x = y.erf_inv();
    if y.dtype() == DType::F64 {
        return x;
    }
    let (a, t) = (x.abs(), y.abs());
    let residual = t.lt(0.5).select(a.erf() - t, (t.full_like(1.0) - t) - a.erfc());
    let step = residual * (a * a).exp() / FRAC_2_SQRT_PI;
    let better = (a - step) * y.sign();
    x.is_finite().select(better, x)
}

/// The pole at zero has the sign of its side; other poles have none.
fn digamma(x: V<'_>) -> V<'_> {
    let whole = x.lt(0.0) & x.floor().eq(x);
    let pole = super::binary_math::copysign(x.full_like(f64::INFINITY), x.neg());
    x.eq(0.0).select(pole, whole.select(x.full_like(f64::NAN), x.digamma()))
}

/// ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ n! ζ(n+1, x); trigamma by reflection left of zero, where ζ has no value.
fn polygamma<'b>(cx: &Cx<'b>) -> V<'b> {
    let n = cx.int("n");
    let x = cx.t_as("self", cx.out_dtype().opmath());
    if n == 0 {
        return digamma(x);
    }
    let zeta = |x: V<'b>| x.full_like(n as f64 + 1.0).zeta(x);
    if n == 1 {
        let low = x.lt(0.5);
        let pi = std::f64::consts::PI;
        let s = (x * pi).sin() / pi;
        let z = zeta(low.select(x.full_like(1.0) - x, x));
        return low.select((s * s).full_like(1.0) / (s * s) - z, z);
    }
    let factorial: f64 = (1..=n).map(|k| k as f64).product();
    let sign = if n % 2 == 1 { 1.0 } else { -1.0 };
    // left of zero: ψ⁽ⁿ⁾(x) = (−1)ⁿ ψ⁽ⁿ⁾(1 − x) − πⁿ⁺¹ Pₙ(cot πx), with P₀(c) = c and Pₙ₊₁(c) = −(1 + c²) Pₙ′(c)
    let low = x.lt(0.0);
    let direct = zeta(low.select(x.full_like(1.0) - x, x)) * (sign * factorial);
    let mut powers = vec![0.0, 1.0];
    for _ in 0..n {
        let slope: Vec<f64> = (1..powers.len()).map(|k| k as f64 * powers[k]).collect();
        powers = vec![0.0; slope.len() + 2];
        for (k, s) in slope.iter().enumerate() {
            powers[k] -= s;
            powers[k + 2] -= s;
        }
    }
    let pi = std::f64::consts::PI;
    let phase = (x - x.round_even()) * pi; // cot has the period 1, which the difference takes off exactly
    let cot = phase.cos() / phase.sin();
    let bend = powers.iter().rev().fold(x.zeros_like(), |sum, &p| sum * cot + p) * -pi.powi(n as i32 + 1);
    let reflected = direct * -sign + bend;
    let pole = x.le(0.0) & x.eq(x.floor());
    let below = pole.select(x.full_like(sign * f64::INFINITY), reflected);
    (low | pole).select(below, direct)
}

/// Clenshaw's sum of a Chebyshev series; float32 takes only the terms it can feel.
pub(super) fn chebyshev<'b>(t: V<'b>, terms: &[f64]) -> V<'b> {
    let enough = if t.dtype() == DType::F64 { 0.0 } else { 1e-9 };
    let n = terms.iter().rposition(|c| c.abs() > enough).map_or(1, |i| i + 1);
    let twice = t * 2.0;
    let (mut b1, mut b2) = (t.zeros_like(), t.zeros_like());
    for &c in terms[1..n].iter().rev() {
        (b1, b2) = (twice * b1 - b2 + c, b1);
    }
    t * b1 - b2 + terms[0]
}

/// Chooses between a series near zero and one in 1/x, at |x| = 8.
fn at_eight<'b>(x: V<'b>, low: &[f64], high: &[f64]) -> (V<'b>, V<'b>, V<'b>) {
    let x = x.abs();
    let near = x.le(8.0);
    let small = chebyshev(near.select(x, x.zeros_like()) * 0.25 - 1.0, low);
    let far = near.select(x.full_like(8.0), x);
    let large = chebyshev(far.full_like(16.0) / far - 1.0, high) * far.rsqrt();
    (near, small, large)
}

pub(super) fn i0(x: V<'_>) -> V<'_> {
    i0e(x) * x.abs().exp()
}

pub(super) fn i1(x: V<'_>) -> V<'_> {
    i1e(x) * x.abs().exp()
}

fn i0e(x: V<'_>) -> V<'_> {
    let (near, small, large) = at_eight(x, &I0E_LOW, &I0E_HIGH);
    x.is_nan().select(x, near.select(small, large))
}

fn i1e(x: V<'_>) -> V<'_> {
    let (near, small, large) = at_eight(x, &I1E_LOW, &I1E_HIGH);
    let large = x.lt(0.0).select(large.neg(), large);
    x.is_nan().select(x, near.select(small * x, large))
}

/// e^(x²) erfc(x): a series right of zero, reflected left of it.
pub(super) fn erfcx(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let bounded = a.min(1e18);
    let t = (bounded - 3.75) / (bounded + 3.75);
    let right = chebyshev(t, &ERFCX) / (a * 2.0 + 1.0);
    let left = (x * x).exp() * 2.0 - right;
    x.is_nan().select(x, x.lt(0.0).select(left, right))
}

/// ln Φ(x), by erfcx where Φ underflows.
fn log_ndtr(x: V<'_>) -> V<'_> {
    let t = x * FRAC_1_SQRT_2;
    let tail = (erfcx(t.neg()) * 0.5).log() - t * t;
    let body = (t.erfc() * -0.5).log1p();
    x.lt(-1.0).select(tail, body)
}

/// Φ⁻¹: Abramowitz and Stegun 26.2.23 in the lower tail (within 4.5e-4), then Halley's step twice.
fn ndtri(p: V<'_>) -> V<'_> {
    let one = p.full_like(1.0);
    let upper = p.gt(0.5);
    let q = upper.select(one - p, p);
    let t = (q.log() * -2.0).sqrt();
    let below = ((t * 0.001308 + 0.189269) * t + 1.432788) * t + 1.0;
    let mut x = ((t * 0.010328 + 0.802853) * t + 2.515517) / below - t;
    for _ in 0..2 {
        let density = (x * x * -0.5).exp() * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
        let step = ((x * -FRAC_1_SQRT_2).erfc() * 0.5 - q) / density;
        x = x - step / (x * step * 0.5 + 1.0);
    }
    let x = q.eq(0.0).select(q.full_like(f64::NEG_INFINITY), x);
    let x = upper.select(x.neg(), x);
    (p.lt(0.0) | p.gt(1.0)).select(p.full_like(f64::NAN), x)
}

fn spherical_j0(x: V<'_>) -> V<'_> {
    let s = x * x;
    // sin(x)/x by its first terms near zero
    let near = [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0];
    let near = near[1..].iter().fold(x.full_like(near[0]), |p, &c| p * s + c);
    let a = x.abs();
    let far = a.eq(f64::INFINITY).select(x.zeros_like(), x.sin() / x);
    a.lt(0.5).select(near, far)
}

/// Mantissa in ±[½, 1) and exponent, from the bits. Zeros and what is not finite stay themselves with exponent 0.
fn frexp<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let x = cx.t_as("self", cx.out_dtype().opmath());
    let d = x.dtype();
    let (int, width, bias, field) =
        if d == DType::F64 { (DType::I64, 52i64, 1022i64, 0x7ffi64) } else { (DType::I32, 23, 126, 0xff) };
    // subnormal numbers have no exponent of their own
    let lift = 64i64;
    let tiny = x.abs().lt(2f64.powi(2 - bias as i32));
    let bits = tiny.select(x * 2f64.powi(lift as i32), x).bitcast(int);
    let shift = bits.lit(width);
    let exponent = bits.shr_logical(shift) & field;
    let exponent = exponent - tiny.select(exponent.full_like(bias + lift), exponent.full_like(bias));
    let mantissa = ((bits & !(field << width)) | (bias << width)).bitcast(d);
    let plain = x.is_finite() & x.ne(0.0);
    vec![plain.select(mantissa, x), plain.select(exponent, exponent.zeros_like())]
}
