//! The regularized incomplete gamma functions P and Q = 1 − P: the power series below x = a + 1, the continued fraction
//! above (DLMF 8.7.1, 8.9.2), and for large a an expansion about the normal distribution (N. Temme, 1979; DLMF 8.12).

use crate::def::{OpDef, binary};
use std::f64::consts::{FRAC_1_SQRT_2, TAU};
use tpu_base::DType;
use tpu_hlo::V;

const EG: &[&str] = &[
    "f32[2,30]+ f32[30]+",
    "f64[40]+ f64[40]+",
    "f32[19]! f32[19]!",
    "f64[40]! f64[40]!",
    "f32[9]+ f32[]",
    "f64[100,1]%1000 f64[9]%1000",
    "f32[0] f32[1]",
];

pub(crate) static DEFS: &[OpDef] = &[
    binary("igamma(Tensor self, Tensor other) -> Tensor", |a, x| incomplete(a, x, false)).eg(EG),
    binary("igammac(Tensor self, Tensor other) -> Tensor", |a, x| incomplete(a, x, true)).eg(EG),
];

/// From here on the normal approximation is exact to float64's tolerance; the loops would take √a steps and more.
const LARGE: f64 = 1e4;
/// From here on Stirling's series is.
const STIRLING: f64 = 16.0;

/// ln(1 + u) taken from u, by its series where both nearly cancel.
fn excess(u: V<'_>) -> V<'_> {
    // Σ (−1)ᵏ uᵏ/k from the second
    let near = (2..18).rev().fold(u.zeros_like(), |sum, k| sum * u + if k % 2 == 0 { 1.0 } else { -1.0 } / k as f64);
    u.abs().lt(0.1).select(near * u * u, u - u.max(-1.0).log1p())
}

/// xᵃ e⁻ˣ / Γ(a + 1): by Stirling's series where the logarithms would be large and cancel.
fn front<'b>(a: V<'b>, x: V<'b>) -> V<'b> {
    let big = a.ge(STIRLING);
    let small = big.select(a.full_like(1.0), a);
    let plain = (small * x.log() - x - (small + 1.0).lgamma()).exp();
    let a = big.select(a, a.full_like(STIRLING));
    let r = a.full_like(1.0) / a;
    let s = r * r;
    let tail = (((s * (1.0 / 1188.0) - 1.0 / 1680.0) * s + 1.0 / 1260.0) * s - 1.0 / 360.0) * s + 1.0 / 12.0;
    let stirling = (excess((x - a) / a) * a.neg() - tail * r).exp() / (a * TAU).sqrt();
    big.select(stirling, plain)
}

/// Sum of the series for P over its front factor, 1 + x/(a+1) + x²/((a+1)(a+2)) + …, where `on` holds.
fn series<'b>(a: V<'b>, x: V<'b>, on: V<'b>) -> V<'b> {
    let all: Vec<usize> = (0..a.rank()).collect();
    let tiny = epsilon(a) * 0.25;
    let (one, b) = (a.full_like(1.0), a.builder());
    let more = |term: V<'b>, sum: V<'b>| on & term.gt(sum * tiny);
    let end = b.while_loop(
        &[b.scalar(DType::I32, 0), a, one, one],
        |s| more(s[2], s[3]).convert(DType::I32).max_over(&all).ne(0i64) & s[0].lt(2000i64),
        |s| {
            let r = s[1] + 1.0;
            let term = s[2] * x / r;
            vec![s[0] + 1i64, r, term, s[3] + term]
        },
    );
    end[3]
}

/// The continued fraction of Q over x times its front factor, by Lentz's method, where `on` holds.
fn fraction<'b>(a: V<'b>, x: V<'b>, on: V<'b>) -> V<'b> {
    let all: Vec<usize> = (0..a.rank()).collect();
    let small = epsilon(a);
    let (one, b) = (a.full_like(1.0), a.builder());
    let base = x + 1.0 - a;
    let d = one / base;
    let floor = |v: V<'b>| v.abs().lt(1e-30).select(v.full_like(1e-30), v);
    let more = |step: V<'b>| on & (step - 1.0).abs().gt(small);
    let end = b.while_loop(
        &[b.scalar(DType::I32, 1), base, one.full_like(1e30), d, d, one.full_like(2.0)],
        |s| more(s[5]).convert(DType::I32).max_over(&all).ne(0i64) & s[0].lt(2000i64),
        |s| {
            let k = s[0].convert(a.dtype());
            let an = (a - k) * k;
            let base = s[1] + 2.0;
            let d = one / floor(an * s[3] + base);
            let c = floor(base + an / s[2]);
            let step = c * d;
            let go = more(s[5]);
            let keep = |new: V<'b>, old: V<'b>| go.select(new, old);
            vec![s[0] + 1i64, keep(base, s[1]), keep(c, s[2]), keep(d, s[3]), keep(s[4] * step, s[4]), keep(step, s[5])]
        },
    );
    end[4]
}

fn epsilon(a: V<'_>) -> f64 {
    if a.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 }
}

/// Q for large a.
fn normal<'b>(a: V<'b>, x: V<'b>) -> V<'b> {
    let u = (x - a) / a;
    let half = excess(u);
    let eta = (half * 2.0).sqrt();
    let eta = u.lt(0.0).select(eta.neg(), eta);
    let c = (((eta * (1.0 / 2835.0) + 1.0 / 864.0) * eta - 2.0 / 135.0) * eta + 1.0 / 12.0) * eta - 1.0 / 3.0;
    let bell = (half * a.neg()).exp() / (a * TAU).sqrt();
    let tail = (eta * a.sqrt() * FRAC_1_SQRT_2).erfc() * 0.5;
    eta.abs().lt(1.0).select(tail + bell * c, tail)
}

fn incomplete<'b>(a: V<'b>, x: V<'b>, upper: bool) -> V<'b> {
    let (a, x) = a.broadcast_with(x);
    let inf = f64::INFINITY;
    let plain = a.gt(0.0) & x.gt(0.0) & a.lt(inf) & x.lt(inf);
    let large = plain & a.gt(LARGE);
    let body = plain & !large;
    let one = a.full_like(1.0);
    // the branches compute on arguments that they can bear
    let (sa, sx) = (body.select(a, one), body.select(x, one));
    let below = sx.lt(sa + 1.0);
    let front = front(sa, sx);
    let p = front * series(sa, sx, body & below);
    let q = front * sa * fraction(sa, below.select(sa + 2.0, sx), body & !below);
    let value = |p: V<'b>, q: V<'b>| if upper { q } else { p };
    let inner = below.select(value(p, one - p), value(one - q, q));
    let far = normal(large.select(a, a.full_like(LARGE)), large.select(x, a.full_like(LARGE)));
    let y = large.select(value(one - far, far), inner);
    let (zero, nan) = (a.zeros_like(), a.full_like(f64::NAN));
    let (low, high) = (value(zero, one), value(one, zero));
    let y = x.eq(0.0).select(low, y);
    let y = x.eq(inf).select(high, y);
    let y = a.eq(inf).select(x.eq(inf).select(nan, low), y);
    let y = a.eq(0.0).select(x.gt(0.0).select(high, nan), y);
    (a.lt(0.0) | x.lt(0.0) | a.is_nan() | x.is_nan()).select(nan, y)
}
