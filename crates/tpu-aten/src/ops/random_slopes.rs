//! How a gamma or beta number moves with its parameter when its quantile is held (M. Figurnov et al., "Implicit
//! reparameterization gradients", 2018): −(∂F/∂α)/f, from the series and fractions of the distribution function F, term by
//! term with their derivatives. The CPU's rational fits are good to three or four digits; these to all.

use super::reduce::every;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("_standard_gamma_grad(Tensor self, Tensor output) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        let (a, x) = cx.t_as("self", d).broadcast_with(cx.t_as("output", d));
        gamma(a, x)
    })
    .shapes(|s| Some(vec![s.ty("self").filter(|t| t.dtype.is_float())?]))
    .eg(&["f64[40]+ f64[40]+", "f32[9]+ f32[9]+", "f64[4]%30 f64[4]%40", "f32[0] f32[0]"]),
    one("_dirichlet_grad(Tensor x, Tensor alpha, Tensor total) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        beta(cx.t_as("x", d), cx.t_as("alpha", d), cx.t_as("total", d))
    })
    .shapes(|s| Some(vec![s.ty("x").filter(|t| t.dtype.is_float())?]))
    .eg(&["f64[20]~ f64[20]~ f64[20]%9", "f32[0] f32[0] f32[0]"]),
];

/// Steps after which a loop gives up: the terms of large parameters fall off within about their square root.
const PATIENCE: i64 = 4000;
/// From here on a gamma number's distribution is normal with a correction.
const LARGE: f64 = 1e4;

fn epsilon(x: V<'_>) -> f64 {
    if x.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 }
}

/// Σ tₙ and Σ tₙ′ for tₙ₊₁ = tₙ · `ratio(n)`, t₀ = 1; `ratio` gives its logarithm's derivative too.
fn series<'b>(like: V<'b>, ratio: impl FnOnce(V<'b>) -> (V<'b>, V<'b>)) -> (V<'b>, V<'b>) {
    let (one, zero, small) = (like.full_like(1.0), like.zeros_like(), epsilon(like) * 0.25);
    let all = every(like);
    let end = like.builder().while_loop(
        &[like.builder().scalar(DType::I32, 0), one, zero, one, zero],
        |s| s[1].gt(s[3] * small).any(&all) & s[0].lt(PATIENCE),
        |s| {
            let (r, log_slope) = ratio(s[0].convert(like.dtype()));
            let (term, slope) = (s[1] * r, s[2] + log_slope);
            vec![s[0] + 1i64, term, slope, s[3] + term, s[4] + term * slope]
        },
    );
    (end[3], end[4])
}

fn gamma<'b>(a: V<'b>, x: V<'b>) -> V<'b> {
    if a.numel() == 0 {
        return a;
    }
    let one = a.full_like(1.0);
    let x = x.max(if a.dtype() == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE as f64 });
    let (large, below) = (a.ge(LARGE), x.lt(a + 1.0));
    let valid = a.gt(0.0) & x.lt(f64::INFINITY);
    let low = valid & below & !large;
    let (sa, sx) = (low.select(a, one), low.select(x, one));
    let (sum, slope) = series(sa, |n| {
        let k = n + 1.0 + sa;
        (sx / k, k.full_like(-1.0) / k)
    });
    let under = (sum * (sx.log() - (sa + 1.0).digamma()) + slope) * sx.neg() / sa;
    let high = valid & !below & !large;
    let (fa, fx) = (high.select(a, one), high.select(x, one * 4.0));
    let (h, slope) = fraction(fa, fx);
    let over = (h * (fx.log() - fa.digamma()) + slope) * fx;
    let la = large.select(a, one);
    let off = (x - la) / la;
    let far = off * 0.5 + 1.0 - (off * off - la.full_like(1.0) / la) / 6.0;
    let y = large.select(far, below.select(under, over));
    valid.select(y, a.full_like(f64::NAN))
}

/// The continued fraction h of Q(a, x) = x f(x) h, and its derivative in a: Lentz's method on pairs.
fn fraction<'b>(a: V<'b>, x: V<'b>) -> (V<'b>, V<'b>) {
    let (one, zero, all) = (a.full_like(1.0), a.zeros_like(), every(a));
    let (b, small) = (a.builder(), epsilon(a));
    let base = x + 1.0 - a;
    let d = one / base;
    // states: k, base, c, c′, d, d′, h, h′, how far the last step moved them
    let start = [b.scalar(DType::I32, 1), base, one * 1e30, zero, d, d * d, d, d * d, one];
    let end = b.while_loop(
        &start,
        |s| s[8].gt(small * 4.0).any(&all) & s[0].lt(PATIENCE),
        |s| {
            let k = s[0].convert(a.dtype());
            let (n, base) = ((a - k) * k, s[1] + 2.0);
            let (c, cs, d, ds, h, hs) = (s[2], s[3], s[4], s[5], s[6], s[7]);
            let below = n * d + base;
            let below_slope = k * d + n * ds - 1.0;
            let d = one / below;
            let ds = below_slope.neg() * d * d;
            let (c, cs) = (base + n / c, k / c - n * cs / (c * c) - 1.0);
            let (step, step_slope) = (c * d, cs * d + c * ds);
            let moved = (step - 1.0).abs().max(step_slope.abs());
            let go = s[8].gt(small * 4.0);
            let keep = |new: V<'b>, old: V<'b>| go.select(new, old);
            let (next, next_slope) = (h * step, hs * step + h * step_slope);
            vec![
                s[0] + 1i64,
                base,
                keep(c, s[2]),
                keep(cs, s[3]),
                keep(d, s[4]),
                keep(ds, s[5]),
                keep(next, h),
                keep(next_slope, hs),
                keep(moved, s[8]),
            ]
        },
    );
    (end[6], end[7])
}

/// Of Beta(a, total − a), over 1 − x.
fn beta<'b>(x: V<'b>, a: V<'b>, total: V<'b>) -> V<'b> {
    if x.numel() == 0 {
        return x;
    }
    let (one, b) = (x.full_like(1.0), total - a);
    let least = if x.dtype() == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE as f64 };
    let valid = a.gt(0.0) & b.gt(0.0) & x.ge(0.0) & x.le(1.0);
    let x = x.max(least);
    let low = (x * total).lt(a);
    // each series on the side where it falls off; elsewhere arguments that it can bear
    let ratio =
        |on: V<'b>, p: V<'b>, z: V<'b>| (on.select(total, one * 2.0), on.select(p, one), on.select(z, one * 0.25));
    let (t, p, z) = ratio(valid & low, a, x);
    let (sum, slope) = series(x, |n| {
        let (up, down) = (t + n, p + 1.0 + n);
        (up / down * z, one / up - one / down)
    });
    let under = (sum * (z.log() + t.digamma() - (p + 1.0).digamma()) + slope) * z.neg() / p;
    let on = valid & !low;
    let (t, q, z) = ratio(on, b, one - x);
    let (sum, slope) = series(x, |n| {
        let up = t + n;
        (up / (q + 1.0 + n) * z, one / up)
    });
    let (x, a) = (on.select(x, one * 0.75), on.select(a, one));
    let over = (sum * (x.log() + t.digamma() - a.digamma()) + slope) * x / q;
    valid.select(low.select(under, over), one * f64::NAN)
}
