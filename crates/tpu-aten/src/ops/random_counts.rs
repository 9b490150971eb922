//! Gamma, Dirichlet, Poisson and binomial numbers: all elements draw at once, again and again, until each has accepted.

use super::random::whole;
use super::random_bits::Stream;
use super::reduce::every;
use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("_standard_gamma(Tensor self, Generator? generator=None) -> Tensor", |cx| {
        let alpha = cx.t_as("self", cx.out_dtype().opmath());
        let (log, boost) = log_gamma(cx, alpha);
        // the smallest number of the dtype stands for what underflows: the density has no value at zero
        let least = if cx.out_dtype() == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE as f64 };
        alpha.eq(0.0).select(alpha.zeros_like(), (log + boost).exp().max(least))
    })
    .random()
    .refuse(whole)
    .eg(&["f32[2,3]+", "f64[5]+", "f32[0]"]),
    one("_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor", |cx| {
        let alpha = cx.t_as("self", cx.out_dtype().opmath());
        let (log, boost) = log_gamma(cx, alpha);
        // normalized as logarithms, which no small concentration makes vanish
        let log = log + boost;
        if alpha.rank() == 0 || alpha.numel() == 0 {
            return alpha.full_like(1.0);
        }
        let last = [alpha.rank() - 1];
        let e = (log - super::reduce::kept(log, &last, V::max_over)).exp();
        e / super::reduce::kept(e, &last, V::sum)
    })
    .random()
    .shapes(|s| Some(vec![s.ty("self").filter(|t| t.dtype.is_float())?]))
    .eg(&["f32[2,3]+", "f64[5]+", "f32[0,2]"]),
    one("poisson(Tensor self, Generator? generator=None) -> Tensor", |cx| {
        let rate = cx.t_as("self", if cx.out_dtype() == DType::F64 { DType::F64 } else { DType::F32 });
        let ok = (rate.ge(0.0) | rate.is_nan()).all(&every(rate));
        cx.check(ok, ErrorKind::User, "invalid Poisson rate, expected rate to be non-negative");
        poisson(cx, rate)
    })
    .random()
    .refuse(whole)
    .eg(&["f32[2,3]+", "f64[9]+", "bf16[4]+", "f32[0]"]),
    one("binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor", |cx| {
        let d = if cx.out_dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let (n, p) = cx.t_as("count", d).broadcast_with(cx.t_as("prob", d));
        binomial(cx, n, p)
    })
    .random()
    .shapes(|s| {
        let (n, p) = (s.ty("count")?, s.ty("prob")?);
        (n == p && n.dtype.is_float()).then_some(vec![n])
    })
    .eg(&["f32[2,3]+ f32[2,3]~", "f64[9]+ f64[9]~"]),
];

/// The state, `done` and `value` of a draw that repeats until every element of `value` is done. `attempt` draws from the
/// stream: which elements accept, and what.
fn until_accepted<'b>(
    cx: &Cx<'b>,
    like: V<'b>,
    idle: V<'b>,
    attempt: impl FnOnce(&mut Stream<'b>) -> (V<'b>, V<'b>),
) -> V<'b> {
    let all = every(like);
    let end = cx.b.while_loop(
        &[cx.random_stream(), idle, like.zeros_like()],
        |s| s[1].all(&all).not(),
        |s| {
            let mut stream = Stream::new(s[0]);
            let (accept, value) = attempt(&mut stream);
            let fresh = accept & s[1].not();
            vec![stream.state(), s[1] | accept, fresh.select(value, s[2])]
        },
    );
    end[2]
}

/// Logarithm of a standard gamma number of shape max(α, 1) or α + 1, and what lifts it to shape α: G. Marsaglia and
/// W. Tsang, "A simple method for generating gamma variables", 2000.
fn log_gamma<'b>(cx: &Cx<'b>, alpha: V<'b>) -> (V<'b>, V<'b>) {
    if alpha.numel() == 0 {
        return (alpha, alpha);
    }
    let (one, dims) = (alpha.full_like(1.0), alpha.dims());
    let low = alpha.lt(1.0);
    let d = low.select(alpha + 1.0, alpha) - 1.0 / 3.0;
    let c = one / (d * 9.0).sqrt();
    let never = alpha.is_nan() | alpha.le(0.0);
    let drawn = until_accepted(cx, alpha, never, |s| {
        let x = s.standard_normal(alpha.dtype(), &dims);
        let y = x * c + 1.0;
        let positive = y.gt(0.0);
        let log_v = positive.select(y, one).log() * 3.0;
        let u = s.open_unit(alpha.dtype(), &dims);
        let bound = x * x * 0.5 + d * (one - log_v.exp() + log_v);
        (positive & u.log().lt(bound), log_v)
    });
    let u = Stream::new(cx.random_stream()).other().open_unit(alpha.dtype(), &dims);
    let boost = low.select(u.log() / alpha, alpha.zeros_like());
    let log = d.log() + drawn;
    (never.select(alpha.is_nan().select(alpha, alpha.full_like(f64::NAN)), log), boost)
}

/// Below a rate of 10 by products of uniforms (D. Knuth), above by transformed rejection, "PTRS" of W. Hörmann, 1993.
fn poisson<'b>(cx: &Cx<'b>, rate: V<'b>) -> V<'b> {
    if rate.numel() == 0 {
        return rate;
    }
    let (dims, d) = (rate.dims(), rate.dtype());
    let small = rate.lt(10.0);
    let idle = rate.is_nan() | rate.le(0.0);
    let l = small.select(rate.full_like(10.0), rate);
    let b = l.sqrt() * 2.53 + 0.931;
    let a = b * 0.02483 - 0.059;
    let inv_alpha = b.full_like(1.1328) / (b - 3.4) + 1.1239;
    let v_r = b.full_like(-3.6224) / (b - 2.0) + 0.9277;
    let all = every(rate);
    let end = cx.b.while_loop(
        // how much of the product's logarithm is left, how many factors fit, done, the number
        &[cx.random_stream(), rate, idle, rate.zeros_like()],
        |s| s[2].all(&all).not(),
        |s| {
            let mut stream = Stream::new(s[0]);
            let (left, done, count) = (s[1], s[2], s[3]);
            let (u, v) = (stream.open_unit(d, &dims), stream.open_unit(d, &dims));
            let left = left + u.log();
            let over = left.le(0.0);
            let u = u - 0.5;
            let us = u.abs().neg() + 0.5;
            let k = ((a * 2.0 / us + b) * u + l + 0.43).floor();
            let quick = us.ge(0.07) & v.le(v_r);
            let slow = v.log() + inv_alpha.log() - (a / (us * us) + b).log();
            let slow = slow.le(l.log() * k - l - (k + 1.0).lgamma());
            let sane = k.ge(0.0) & (us.ge(0.013) | v.le(us));
            let accept = quick | (sane & slow);
            let step = over.select(count, count + 1.0);
            let next = small.select(step, accept.select(k, count));
            let now = small.select(over, accept);
            vec![stream.state(), left, done | now, done.select(count, next)]
        },
    );
    rate.is_nan().select(rate, end[3])
}

/// Of the rarer outcome: where fewer than 10 are expected by the gaps between them (L. Devroye, 1986, X.4), else by "BTRS"
/// of W. Hörmann, 1993.
fn binomial<'b>(cx: &Cx<'b>, n: V<'b>, prob: V<'b>) -> V<'b> {
    if n.numel() == 0 {
        return n;
    }
    let (dims, d, one) = (n.dims(), n.dtype(), n.full_like(1.0));
    let flip = prob.gt(0.5);
    let p = flip.select(one - prob, prob);
    let nan = prob.is_nan() | n.is_nan();
    let idle = nan | p.le(0.0) | n.le(0.0);
    let small = (n * p).lt(10.0);
    let per_gap = idle.select(one.neg(), p.neg().log1p());
    // arguments that the rejection can bear
    let (m, q) = (small.select(n.full_like(40.0), n), small.select(n.full_like(0.25), p));
    let (m, q) = (idle.select(n.full_like(40.0), m), idle.select(n.full_like(0.25), q));
    let deviation = (m * q * (one - q)).sqrt();
    let b = deviation * 2.53 + 1.15;
    let a = b * 0.0248 + q * 0.01 - 0.0873;
    let centre = m * q + 0.5;
    let v_r = b.full_like(-4.2) / b + 0.92;
    let odds = q / (one - q);
    let alpha = (b.full_like(5.1) / b + 2.83) * deviation;
    let mode = ((m + 1.0) * q).floor();
    let choose = |k: V<'b>| (k + 1.0).lgamma() + (m - k + 1.0).lgamma();
    let at_mode = choose(mode);
    let all = every(n);
    let end = cx.b.while_loop(
        &[cx.random_stream(), n.zeros_like(), idle, n.zeros_like()],
        |s| s[2].all(&all).not(),
        |s| {
            let mut stream = Stream::new(s[0]);
            let (place, done, count) = (s[1], s[2], s[3]);
            let (u, v) = (stream.open_unit(d, &dims), stream.open_unit(d, &dims));
            let place = place + (u.log() / per_gap).ceil().max(1.0);
            let over = place.gt(n);
            let u = u - 0.5;
            let us = u.abs().neg() + 0.5;
            let k = ((a * 2.0 / us + b) * u + centre).floor();
            let sane = k.ge(0.0) & k.le(m);
            let quick = us.ge(0.07) & v.le(v_r);
            let kept = sane.select(k, mode);
            let ratio = at_mode - choose(kept) + (kept - mode) * odds.log();
            let slow = (v * alpha / (a / (us * us) + b)).log().le(ratio);
            let accept = sane & (quick | slow);
            let step = over.select(count, count + 1.0);
            let next = small.select(step, accept.select(k, count));
            let now = small.select(over, accept);
            vec![stream.state(), place, done | now, done.select(count, next)]
        },
    );
    let none = nan.select(n.full_like(f64::NAN), n.zeros_like());
    let rare = idle.select(none, end[3]);
    let whole = n.max(0.0);
    flip.select(whole - rare, rare)
}
