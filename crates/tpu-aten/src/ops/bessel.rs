//! Bessel functions of both kinds, modified ones, Airy's Ai: Chebyshev series near zero, and the amplitudes of their
//! oscillation or decay beyond.

use super::bessel_series as series;
use super::unary_special::{chebyshev, i0, i1};
use crate::def::{OpDef, unary};
use std::f64::consts::{FRAC_2_PI, PI};
use tpu_hlo::V;

const EG: &[&str] = &["f32[2,30]", "f64[40]", "f32[19]!", "f64[19]!", "i32[4]", "f32[0]"];

pub(crate) static DEFS: &[OpDef] = &[
    unary("special_bessel_j0(Tensor self) -> Tensor", j0).eg(EG),
    unary("special_bessel_j1(Tensor self) -> Tensor", |x| {
        let y = first_kind(x.abs(), 1);
        x.lt(0.0).select(y.neg(), y)
    })
    .eg(EG),
    unary("special_bessel_y0(Tensor self) -> Tensor", |x| second_kind(x, 0)).eg(EG),
    unary("special_bessel_y1(Tensor self) -> Tensor", |x| second_kind(x, 1)).eg(EG),
    unary("special_modified_bessel_k0(Tensor self) -> Tensor", |x| k(x, 0, false)).eg(EG),
    unary("special_modified_bessel_k1(Tensor self) -> Tensor", |x| k(x, 1, false)).eg(EG),
    unary("special_scaled_modified_bessel_k0(Tensor x) -> Tensor", |x| k(x, 0, true)).eg(EG),
    unary("special_scaled_modified_bessel_k1(Tensor x) -> Tensor", |x| k(x, 1, true)).eg(EG),
    unary("special_airy_ai(Tensor x) -> Tensor", airy).eg(&["f32[2,30]", "f64[40]+", "f32[19]!", "i32[4]", "f32[0]"]),
];

/// `x` where `keep` holds, else `other`, which the branch can bear.
fn guarded<'b>(x: V<'b>, keep: V<'b>, other: f64) -> V<'b> {
    keep.select(x, x.full_like(other))
}

/// The argument of the series in x², x in 0..8.
fn low_argument(x: V<'_>) -> V<'_> {
    x * x / 32.0 - 1.0
}

/// √(2/πx) (P f(χ) ∓ Q g(χ)) from x = 8 on.
fn wave<'b>(x: V<'b>, order: usize, second: bool) -> V<'b> {
    let z = x.full_like(8.0) / x;
    let t = z * z * 2.0 - 1.0;
    let (p, q) = if order == 0 { (&series::P0[..], &series::Q0[..]) } else { (&series::P1[..], &series::Q1[..]) };
    let (p, q) = (chebyshev(t, p), chebyshev(t, q) * z);
    let angle = x - (2 * order + 1) as f64 * PI / 4.0;
    let (sin, cos) = (angle.sin(), angle.cos());
    (if second { p * sin + q * cos } else { p * cos - q * sin }) * FRAC_2_PI.sqrt() / x.sqrt()
}

/// J₀ or J₁ right of zero.
fn first_kind(x: V<'_>, order: usize) -> V<'_> {
    let near = x.le(8.0);
    let small = guarded(x, near, 0.0);
    let low = if order == 0 {
        chebyshev(low_argument(small), &series::J0_LOW)
    } else {
        chebyshev(low_argument(small), &series::J1_LOW) * small
    };
    near.select(low, wave(guarded(x, !near, 8.0), order, false))
}

fn j0(x: V<'_>) -> V<'_> {
    first_kind(x.abs(), 0)
}

/// Y₀ or Y₁: −∞ at zero, no number left of it.
fn second_kind(x: V<'_>, order: usize) -> V<'_> {
    let near = x.le(8.0);
    let small = guarded(x, near & x.gt(0.0), 1.0);
    let t = low_argument(small);
    let smooth = chebyshev(t, if order == 0 { &series::Y0_LOW[..] } else { &series::Y1_LOW[..] });
    let log = small.log() * first_kind(small, order);
    let low = if order == 0 {
        log * FRAC_2_PI + smooth
    } else {
        (log - small.full_like(1.0) / small) * FRAC_2_PI + smooth * small
    };
    let y = near.select(low, wave(guarded(x, !near, 8.0), order, true));
    let y = x.lt(0.0).select(x.full_like(f64::NAN), y);
    x.eq(0.0).select(x.full_like(f64::NEG_INFINITY), y)
}

/// K₀ or K₁, times eˣ if scaled.
fn k(x: V<'_>, order: usize, scaled: bool) -> V<'_> {
    let near = x.le(2.0);
    let small = guarded(x, near & x.gt(0.0), 1.0);
    let t = small * small * 0.5 - 1.0;
    let log = (small * 0.5).log();
    let low = if order == 0 {
        chebyshev(t, &series::K0_LOW) - log * i0(small)
    } else {
        chebyshev(t, &series::K1_LOW) / small + log * i1(small)
    };
    let big = guarded(x, !near, 2.0);
    let t = big.full_like(4.0) / big - 1.0;
    let high = chebyshev(t, if order == 0 { &series::K0_HIGH[..] } else { &series::K1_HIGH[..] }) / big.sqrt();
    let (low, high) = if scaled { (low * small.exp(), high) } else { (low, high * big.neg().exp()) };
    let y = near.select(low, high);
    let y = x.lt(0.0).select(x.full_like(f64::NAN), y);
    x.eq(0.0).select(x.full_like(f64::INFINITY), y)
}

fn zeta(x: V<'_>) -> V<'_> {
    x * x.sqrt() * (2.0 / 3.0)
}

/// Ai: no number at ±∞, zero where it underflows.
fn airy(x: V<'_>) -> V<'_> {
    let (left, right) = (x.lt(-4.0), x.gt(2.0));
    let middle = chebyshev((guarded(x, !(left | right), 0.0) + 1.0) / 3.0, &series::AIRY_MIDDLE);
    let big = guarded(x, right, 2.0);
    let z = zeta(big);
    let t = z.full_like(2.0 * 4.0 * 2f64.sqrt() / 3.0) / z - 1.0;
    let decay = chebyshev(t, &series::AIRY_HIGH) * z.neg().exp() / (big.sqrt().sqrt() * (2.0 * PI.sqrt()));
    let far = guarded(x, left, -4.0).neg();
    let z = zeta(far);
    let s = z.full_like(16.0 / 3.0) / z;
    let t = s * s * 2.0 - 1.0;
    let angle = z + PI / 4.0;
    let swing = chebyshev(t, &series::AIRY_P) * angle.sin() - chebyshev(t, &series::AIRY_Q) * s * angle.cos();
    let swing = swing / (far.sqrt().sqrt() * PI.sqrt());
    let y = right.select(decay, left.select(swing, middle));
    let y = x.gt(103.892).select(x.zeros_like(), y);
    x.is_finite().select(y, x.full_like(f64::NAN))
}
