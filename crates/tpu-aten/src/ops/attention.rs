//! Attention without the matrix of all scores: keys are taken block by block and the softmax is corrected as its maximum
//! grows (Rabe and Staats, "Self-attention does not need O(n²) memory", 2021; Dao et al., "FlashAttention", 2022). The
//! backward forms each block's weights again from the logarithms of the sums.

use super::matmul::contract;
use super::reduce::kept;
use crate::cx::Cx;
use crate::def::{OpDef, SigArg, maybe};
use tpu_base::DType;
use tpu_hlo::{DotDims, V};

pub(crate) static DEFS: &[OpDef] = &[
    maybe(
        "_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)",
        forward,
    )
    .random()
    .draws(|sig| !matches!(sig.arg("dropout_p"), SigArg::Float(0.0) | SigArg::None))
    .eg(&[
        "f32[2,2,5,4] f32[2,2,7,4] f32[2,2,7,3]",
        "f32[2,4,5,4] f32[2,2,5,4] f32[2,2,5,4] is_causal=True scale=0.3",
        "bf16[1,2,5,8] bf16[1,2,7,8] bf16[1,2,7,8] bf16[5,7]",
        "f16[1,2,3,8] f16[1,2,7,8] f16[1,2,7,8] f16[2,1,1]",
        "f32[1,2,3,4] f32[1,1,1300,4] f32[1,1,1300,4] f32[3,1300]",
        "f32[1,1,1030,4] f32[1,1,1030,4] f32[1,1,1030,4] is_causal=True",
    ]),
    maybe(
        "_scaled_dot_product_fused_attention_overrideable_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)",
        backward,
    )
    .absent(|sig, k| matches!(sig.arg("grad_input_mask"), SigArg::Ints(m) if m.get(k) == Some(&0)))
    .eg(&[
        "f32[2,2,5,3] f32[2,2,5,4] f32[2,2,7,4] f32[2,2,7,3] - (True,True,True,False) f32[2,2,5,3] f32[2,2,5]+ - - 5 7 0.0 False i64[] i64[]",
        "f32[1,4,5,4] f32[1,4,5,4] f32[1,2,5,4] f32[1,2,5,4] - (True,True,True,False) f32[1,4,5,4] f32[1,4,5]+ - - 5 5 0.0 True i64[] i64[] scale=0.3",
        "f32[1,2,3,4] f32[1,2,3,4] f32[1,1,1300,4] f32[1,1,1300,4] f32[3,1300] (True,True,True,True) f32[1,2,3,4] f32[1,2,3]+ - - 3 1300 0.0 False i64[] i64[]",
        "f32[1,2,3,4] f32[1,2,3,4] f32[1,1,1300,4] f32[1,1,1300,4] f32[2,1,1] (True,True,True,True) f32[1,2,3,4] f32[1,2,3]+ - - 3 1300 0.0 False i64[] i64[]",
    ]),
];

/// Keys of one step. Fewer keys than two steps are taken at once.
const BLOCK: i64 = 512;

/// The call in the shape it is computed in: queries as (batch, key heads, queries a key head, L, E), keys and values as
/// (batch, key heads, S, E), the bias as the scores, with ones where it repeats.
struct Call<'a, 'b> {
    cx: &'a Cx<'b>,
    q: V<'b>,
    k: V<'b>,
    v: V<'b>,
    bias: Option<V<'b>>,
    scale: f64,
    drop: f64,
    /// Key of the random bits, one 64-bit word.
    seed: Option<V<'b>>,
}

/// Some keys: `start` (0-d) and those that follow it.
struct Block<'b> {
    start: V<'b>,
    k: V<'b>,
    v: V<'b>,
    bias: Option<V<'b>>,
}

impl<'a, 'b> Call<'a, 'b> {
    fn of(cx: &'a Cx<'b>, seed: Option<V<'b>>) -> Call<'a, 'b> {
        let (q, k, v) = (cx.t("query"), cx.t("key"), cx.t("value"));
        let (d, heads) = (q.dims(), k.dim(1));
        let split = [d[0], heads, d[1] / heads, d[2], d[3]];
        let bias = cx.opt_as("attn_bias", DType::F32).map(|m| {
            let own = [vec![1; 4 - m.rank()], m.dims()].concat();
            let heads = if own[1] == 1 { [1, 1] } else { [split[1], split[2]] };
            m.reshape(&[own[0], heads[0], heads[1], own[2], own[3]])
        });
        let scale = cx.opt_float("scale").unwrap_or(1.0 / (d[3] as f64).sqrt());
        Call { cx, q: q.reshape(&split), k, v, bias, scale, drop: cx.float("dropout_p"), seed }
    }

    /// `x` (batch, heads, L, …) as the queries are.
    fn grouped(&self, x: V<'b>) -> V<'b> {
        let d = self.q.dims();
        x.reshape(&[&d[..4], &x.dims()[3..]].concat())
    }

    /// A product of (batch, key heads, …) with (batch, key heads, …), in float32.
    fn dot(&self, a: V<'b>, b: V<'b>, lhs: &[usize], rhs: &[usize]) -> V<'b> {
        let d = DotDims {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contract: lhs.to_vec(),
            rhs_contract: rhs.to_vec(),
        };
        contract(self.cx, a, b, d)
    }

    /// `step` over all keys, in blocks: what doesn't fill one comes first, whole ones in a loop.
    fn over_keys(&self, state: Vec<V<'b>>, step: impl Fn(&[V<'b>], &Block<'b>) -> Vec<V<'b>>) -> Vec<V<'b>> {
        let (b, n) = (self.cx.b, self.k.dim(2));
        let first = if n < 2 * BLOCK { n } else { n % BLOCK };
        let zero = b.scalar(DType::I32, 0i64);
        let cut = |x: V<'b>, dim: usize, start: V<'b>, size: i64| {
            let mut starts = vec![zero; x.rank()];
            let mut sizes = x.dims();
            (starts[dim], sizes[dim]) = (start, size);
            if x.dim(dim) == size { x } else { x.dynamic_slice(&starts, &sizes) }
        };
        let block = |start: V<'b>, size: i64| Block {
            start,
            k: cut(self.k, 2, start, size),
            v: cut(self.v, 2, start, size),
            bias: self.bias.map(|m| if m.dim(4) == 1 { m } else { cut(m, 4, start, size) }),
        };
        let state = if first > 0 { step(&state, &block(zero, first)) } else { state };
        if first == n {
            return state;
        }
        let init = [&[b.scalar(DType::I32, first)], &state[..]].concat();
        let done = b.while_loop(
            &init,
            |s| s[0].lt(n),
            |s| [&[s[0] + BLOCK], &step(&s[1..], &block(s[0], BLOCK))[..]].concat(),
        );
        done[1..].to_vec()
    }

    /// Scores of a block: (batch, key heads, queries a key head, L, keys).
    fn scores(&self, block: &Block<'b>) -> V<'b> {
        let s = self.dot(self.q, block.k, &[4], &[3]) * self.scale;
        let s = block.bias.map_or(s, |m| s + m);
        if !self.cx.flag("is_causal") {
            return s;
        }
        let (own, other) = (self.cx.b.iota(DType::I32, &s.dims(), 3), self.cx.b.iota(DType::I32, &s.dims(), 4));
        (other + block.start).le(own).select(s, s.full_like(f64::NEG_INFINITY))
    }

    /// `x`, as a block's scores, with a share of its elements dropped and the others grown; the same ones every time.
    fn dropped(&self, x: V<'b>, block: &Block<'b>) -> V<'b> {
        let Some(seed) = self.seed.filter(|_| self.drop > 0.0) else { return x };
        // each block counts from a place of its own
        let counter = block.start.convert(DType::U64).shl(40i64).reshape(&[1]);
        let state = self.cx.b.concat(&[seed, counter], 0);
        let bits = self.cx.b.threefry(state, DType::U32, &x.dims()).1.shr_logical(8i64).convert(DType::I32);
        let kept = bits.ge((self.drop * (1i64 << 24) as f64).round() as i64);
        kept.select(x * if self.drop < 1.0 { 1.0 / (1.0 - self.drop) } else { 0.0 }, x.zeros_like())
    }
}

fn forward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let drops = cx.float("dropout_p") > 0.0;
    let seed = drops.then(|| cx.random_bits(DType::U64, &[1]));
    let call = Call::of(cx, seed);
    let (d, dtype) = (call.q.dims(), call.q.dtype());
    let row = [d[0], d[1], d[2], d[3], 1];
    let init = vec![
        cx.b.full(DType::F32, &row, f64::NEG_INFINITY),
        cx.b.zeros(DType::F32, &row),
        cx.b.zeros(DType::F32, &[&d[..4], &[call.v.dim(3)]].concat()),
    ];
    let state = call.over_keys(init, |state, block| {
        let (max, sum, mixed) = (state[0], state[1], state[2]);
        let s = call.scores(block);
        let now = max.max(kept(s, &[4], V::max_over));
        // a row of which nothing is seen yet has nothing to subtract
        let base = now.eq(f64::NEG_INFINITY).select(now.zeros_like(), now);
        let (e, shrink) = ((s - base).exp(), (max - base).exp());
        let more = call.dot(call.dropped(e, block).convert(dtype), block.v, &[4], &[2]);
        vec![now, sum * shrink + kept(e, &[4], V::sum), mixed * shrink + more]
    });
    let (max, sum, mixed) = (state[0], state[1], state[2]);
    let nothing = sum.eq(0.0);
    let y = nothing.select(mixed.zeros_like(), mixed / sum);
    let log = nothing.select(sum.zeros_like(), max + sum.log());
    let key = seed.map_or_else(|| cx.b.zeros(DType::I64, &[]), |s| s.bitcast(DType::I64).reshape(&[]));
    let zero = cx.b.zeros(DType::I64, &[]);
    vec![Some(y.reshape(&cx.out(0).dims)), Some(log.reshape(&cx.out(1).dims)), None, None, Some(key), Some(zero), None]
}

fn backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let seed = (cx.float("dropout_p") > 0.0).then(|| cx.t("philox_seed").bitcast(DType::U64).reshape(&[1]));
    let call = Call::of(cx, seed);
    let dtype = call.q.dtype();
    let grad = call.grouped(cx.t("grad_out"));
    let along = grad.convert(DType::F32) * call.grouped(cx.t_as("out", DType::F32));
    let along = kept(along, &[4], V::sum);
    let log = call.grouped(cx.t("logsumexp").unsqueeze(3));
    let bias = call.bias.filter(|_| cx.wants(3));
    let zeros = |v: V<'b>| cx.b.zeros(DType::F32, &v.dims());
    let mut init = vec![zeros(call.q), zeros(call.k), zeros(call.v)];
    init.extend(bias.map(zeros));
    let grads = call.over_keys(init, |state, block| {
        let weights = (call.scores(block) - log).exp();
        let reaches = call.dropped(call.dot(grad, block.v, &[4], &[3]), block);
        let ds = weights * (reaches - along);
        let rounded = ds.convert(dtype);
        let used = call.dropped(weights, block).convert(dtype);
        let dk = call.dot(rounded, call.q, &[2, 3], &[2, 3]) * call.scale;
        let dv = call.dot(used, grad, &[2, 3], &[2, 3]);
        let dq = call.dot(rounded, block.k, &[4], &[2]) * call.scale;
        let put = |all: V<'b>, part: V<'b>, dim: usize| {
            let mut starts = vec![cx.b.scalar(DType::I32, 0i64); all.rank()];
            starts[dim] = block.start;
            if all.dims() == part.dims() { part } else { all.dynamic_update_slice(part, &starts) }
        };
        let mut next = vec![state[0] + dq, put(state[1], dk, 2), put(state[2], dv, 2)];
        if let Some(m) = bias {
            let repeated: Vec<usize> = (0..5).filter(|&i| m.dim(i) == 1 && ds.dim(i) != 1).collect();
            let part = kept(ds, &repeated, V::sum);
            next.push(if m.dim(4) == 1 { state[3] + part } else { put(state[3], part, 4) });
        }
        next
    });
    let mut out: Vec<Option<V<'b>>> = grads.iter().map(|&v| Some(v)).collect();
    out.resize(4, None);
    (0..4).map(|k| if cx.wants(k) { out[k].map(|v| v.reshape(&cx.out(k).dims)) } else { None }).collect()
}
