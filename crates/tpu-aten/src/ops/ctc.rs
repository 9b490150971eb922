//! Connectionist temporal classification: A. Graves et al., "Connectionist Temporal Classification", ICML 2006. The forward
//! and backward variables run over time in log space; the lengths are operands, so that batches share a plan.

use crate::cx::Cx;
use crate::def::{Extent, OpDef, many, one};
use tpu_base::{DType, ErrorKind, Scalar};
use tpu_hlo::{DotDims, Precision, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_ctc_loss(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0, \
         bool zero_infinity=False) -> (Tensor, Tensor)",
        |cx| Ctc::new(cx).forward(cx),
    )
    .operands(LENGTHS)
    .extent(longest_target)
    .eg(&[
        "f32[5,2,4] i64[2,3]%4 (5,4) (2,1)",
        "f64[6,3,4] i64[6]%4 (6,4,5) (3,1,2) 1",
        "f32[4,2,4] i64[2,2]%4 (4,3) (2,0) 2 True",
        "f32[3,2,4] i32[2,3]%4 (1,3) (3,0)",
    ]),
    one(
        "_ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, \
         Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity=False) -> Tensor",
        |cx| Ctc::new(cx).backward(cx),
    )
    .operands(LENGTHS)
    .extent(longest_target)
    .shapes(|s| Some(vec![s.ty("log_probs")?]))
    .eg(&["f32[2] f32[5,2,4] i64[2,2]%4 (5,4) (2,1) f32[2] f32[2,5,5] 0"]),
];

const LENGTHS: &[&str] = &["input_lengths", "target_lengths"];

/// The longest target decides the size of the forward variables.
fn longest_target(lengths: &[Scalar]) -> Extent {
    [lengths[lengths.len() / 2..].iter().map(|s| s.as_i64()).max().unwrap_or(0), 0]
}

struct Ctc<'b> {
    time: i64,
    batch: i64,
    /// States of the longest target: a label, and a blank on each side of it.
    states: i64,
    dtype: DType,
    /// Lengths, columns of int32.
    input: V<'b>,
    target: V<'b>,
    /// batch × states: the symbol of each, and whether the state two before may step there.
    symbol: V<'b>,
    skips: V<'b>,
    /// Log probability of each state's symbol: time × batch × states.
    emit: V<'b>,
}

/// ln(eᵃ + eᵇ + …), of nothing but −∞ also −∞.
fn log_sum<'b>(terms: &[V<'b>]) -> V<'b> {
    let top = terms[1..].iter().fold(terms[0], |m, &t| m.max(t));
    let base = top.eq(f64::NEG_INFINITY).select(top.zeros_like(), top);
    let sum = terms[1..].iter().fold((terms[0] - base).exp(), |s, &t| s + (t - base).exp());
    sum.log() + base
}

/// `x` moved along its last dimension, −∞ coming in.
fn moved(x: V<'_>, by: i64) -> V<'_> {
    x.pad(x.lit(f64::NEG_INFINITY), &[0, by], &[0, -by], &[0, 0])
}

impl<'b> Ctc<'b> {
    fn new(cx: &Cx<'b>) -> Ctc<'b> {
        let b = cx.b;
        let p = cx.t("log_probs");
        let (time, batch, classes) = (p.dim(0), p.dim(1), p.dim(2));
        let column = |name: &str| {
            let each: Vec<V<'b>> = cx.ts(name).into_iter().map(|v| v.convert(DType::I32).reshape(&[1])).collect();
            if each.is_empty() { b.zeros(DType::I32, &[0, 1]) } else { b.concat(&each, 0).unsqueeze(1) }
        };
        let (input, target) = (column("input_lengths"), column("target_lengths"));
        let states = if cx.wants(1) { cx.out(1).dims[2] } else { cx.t("log_alpha").dim(2) };
        // labels in rows, or one after the other
        let labels = cx.t("targets");
        let room = labels.numel();
        let blank = cx.int("blank");
        let at = b.iota(DType::I32, &[batch, states], 1);
        let is_label = (at & 1i64).ne(0i64);
        let start = if labels.rank() == 2 {
            b.iota(DType::I32, &[batch, 1], 0) * labels.dim(1)
        } else {
            super::scan::cumsum(target, 0) - target
        };
        let symbol = if room == 0 {
            at.full_like(blank)
        } else {
            let from = (start + at / 2i64).min(room - 1);
            let taken = labels.reshape(&[room]).convert(DType::I32).take(from, 0);
            is_label.select(taken, taken.full_like(blank))
        };
        let before = symbol.pad(symbol.lit(blank), &[0, 2], &[0, -2], &[0, 0]);
        let skips = symbol.ne(blank) & symbol.ne(before);
        // rows of one class over time: (batch · classes) × time
        let rows = p.transpose(&[1, 2, 0]).reshape(&[batch * classes, time]);
        let row =
            symbol.clamp(symbol.lit(0i64), symbol.lit(classes - 1)) + b.iota(DType::I32, &[batch, 1], 0) * classes;
        let emit = rows.take(row, 0).transpose(&[2, 0, 1]);
        Ctc { time, batch, states, dtype: p.dtype(), input, target, symbol, skips, emit }
    }

    fn at(&self) -> V<'b> {
        self.emit.builder().iota(DType::I32, &[self.batch, self.states], 1)
    }

    /// The states that the targets have: batch × states.
    fn exist(&self) -> V<'b> {
        self.at().le(self.target * 2i64)
    }

    fn none(&self) -> V<'b> {
        self.emit.builder().full(self.dtype, &[self.batch, self.states], f64::NEG_INFINITY)
    }

    fn emitted(&self, t: V<'b>) -> V<'b> {
        let zero = t.lit(0i64);
        self.emit.dynamic_slice(&[t, zero, zero], &[1, self.batch, self.states]).reshape(&[self.batch, self.states])
    }

    /// Sums over the ways into each state from itself, its neighbour and, where allowed, the one beyond.
    fn step(&self, from: V<'b>, skips: V<'b>, by: i64) -> V<'b> {
        let far = skips.select(moved(from, 2 * by), self.none());
        log_sum(&[from, moved(from, by), far])
    }

    fn forward(&self, cx: &Cx<'b>) -> Vec<V<'b>> {
        let b = cx.b;
        let out = cx.out(1);
        let words = format!("Expected input_lengths to have value at most {}", self.time);
        cx.check(self.input.le(self.time).all(&[0, 1]), ErrorKind::User, words);
        let (none, exist) = (self.none(), self.exist());
        if self.batch * self.time == 0 {
            return vec![self.likelihood(none).neg(), b.full(self.dtype, &out.dims, f64::NEG_INFINITY)];
        }
        let all = b.full(self.dtype, &[self.time, self.batch, self.states], f64::NEG_INFINITY);
        // before the first step only the way into the first two states is open
        let open = self.at().lt(2i64);
        let end = b.scalar(DType::I32, self.time);
        let state = b.while_loop(
            &[b.scalar(DType::I32, 0), none, all],
            |s| s[0].lt(end),
            |s| {
                let (t, alpha, all) = (s[0], s[1], s[2]);
                let first = open.select(none.zeros_like(), none);
                let into = t.eq(0i64).select(first, self.step(alpha, self.skips, 1));
                let next = exist.select(into + self.emitted(t), none);
                let alive = t.lt(self.input).broadcast_to(&next.dims());
                let row = alive.select(next, none).unsqueeze(0);
                let zero = t.lit(0i64);
                let all = all.dynamic_update_slice(row, &[t, zero, zero]);
                vec![t + 1i64, alive.select(next, alpha), all]
            },
        );
        vec![self.likelihood(state[1]).neg(), state[2].swap(0, 1)]
    }

    /// ln of what the last two states hold: the end of the target, with or without the last blank.
    fn likelihood(&self, alpha: V<'b>) -> V<'b> {
        let at = self.at();
        let last = self.target * 2i64;
        let ends = at.eq(last) | at.eq(last - 1i64);
        let ended = ends.select(alpha, self.none());
        let top = ended.max_over(&[1]);
        let base = top.eq(f64::NEG_INFINITY).select(top.zeros_like(), top);
        let sum = (ended - base.unsqueeze(1)).exp().sum(&[1]).log() + base;
        // no time at all fits the empty target only
        let idle = self.input.eq(0i64).reshape(&[self.batch]);
        let empty = self.target.eq(0i64).reshape(&[self.batch]);
        idle.select(empty.select(sum.zeros_like(), sum.full_like(f64::NEG_INFINITY)), sum)
    }

    fn backward(&self, cx: &Cx<'b>) -> V<'b> {
        let b = cx.b;
        let p = cx.t("log_probs");
        if p.numel() == 0 {
            return p;
        }
        let alpha = cx.t_as("log_alpha", self.dtype).swap(0, 1);
        let (none, exist, at) = (self.none(), self.exist(), self.at());
        let last = self.target * 2i64;
        let ends = at.eq(last) | at.eq(last - 1i64);
        let start = ends.select(none.zeros_like(), none);
        // the state two after may be stepped to if it may be reached from here
        let onward = self.skips.pad(self.skips.lit(false), &[0, -2], &[0, 2], &[0, 0]);
        let all = b.full(self.dtype, &[self.time, self.batch, self.states], f64::NEG_INFINITY);
        let state = b.while_loop(
            &[b.scalar(DType::I32, self.time - 1), none, all],
            |s| s[0].ge(0i64),
            |s| {
                let (t, beta, all) = (s[0], s[1], s[2]);
                // without its own emission: alpha holds that already
                let into =
                    (t + 1i64).eq(self.input).broadcast_to(&start.dims()).select(start, self.step(beta, onward, -1));
                let into = exist.select(into, none);
                let zero = t.lit(0i64);
                let all = all.dynamic_update_slice(into.unsqueeze(0), &[t, zero, zero]);
                vec![t - 1i64, into + self.emitted(t), all]
            },
        );
        let miss = cx.t_as("neg_log_likelihood", self.dtype);
        let column = [1, self.batch, 1];
        // how likely the path is in each state at each time, added up by symbol
        let through = (alpha + state[2] + miss.reshape(&column)).exp();
        let classes = p.dim(2);
        let hot = b.iota(DType::I32, &[self.batch, self.states, classes], 2).eq(self.symbol.unsqueeze(2));
        let d = DotDims { lhs_batch: vec![1], rhs_batch: vec![0], lhs_contract: vec![2], rhs_contract: vec![1] };
        let by_class = through.dot_general(hot.convert(self.dtype), &d, self.dtype, Precision::Highest).swap(0, 1);
        let grad = (p.exp() - by_class) * cx.t_as("grad", self.dtype).reshape(&column);
        let alive = b.iota(DType::I32, &[self.time, self.batch], 0).lt(self.input.reshape(&[self.batch]));
        let alive = if cx.flag("zero_infinity") { alive & miss.ne(f64::INFINITY) } else { alive };
        alive.unsqueeze(2).select(grad, grad.zeros_like())
    }
}
