//! Attention without the matrix of all scores: keys are taken tile by tile and the softmax is corrected as its maximum
//! grows (Rabe and Staats, "Self-attention does not need O(n²) memory", 2021; Dao et al., "FlashAttention", 2022). The
//! backward forms each tile's weights again from the logarithms of the sums.

use super::attention_tiles::{Part, parts, placed};
use super::reduce::kept;
use crate::cx::Cx;
use crate::def::{OpDef, SigArg, maybe};
use tpu_base::DType;
use tpu_hlo::V;

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
        "f32[4,8,270,4] f32[4,4,300,4] f32[4,4,300,3] is_causal=True",
        "f32[4,8,520,4] f32[4,4,260,4] f32[4,4,260,3] is_causal=True scale=0.3",
        "f32[4,8,300,4] f32[4,8,270,4] f32[4,8,270,4] f32[8,300,1]",
        "bf16[4,8,270,4] bf16[4,8,270,4] bf16[4,8,270,4] is_causal=True scale=0.3",
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

fn forward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let drops = cx.float("dropout_p") > 0.0;
    let seed = drops.then(|| cx.random_bits(DType::U64, &[1]));
    let done: Vec<[V<'b>; 2]> = parts(cx, seed).iter().map(attended).collect();
    let all = |k: usize| {
        let own: Vec<V<'b>> = done.iter().map(|r| r[k]).collect();
        cx.b.concat(&own, 3).reshape(&cx.out(k).dims)
    };
    let key = seed.map_or_else(|| cx.b.zeros(DType::I64, &[]), |s| s.bitcast(DType::I64).reshape(&[]));
    let zero = cx.b.zeros(DType::I64, &[]);
    vec![Some(all(0)), Some(all(1)), None, None, Some(key), Some(zero), None]
}

/// What a part's queries find, and the logarithms of their sums.
fn attended<'b>(part: &Part<'_, 'b>) -> [V<'b>; 2] {
    let (b, d, dtype) = (part.cx.b, part.q.dims(), part.q.dtype());
    let like = |rows: i64, last: i64| [d[0], d[1], d[2], rows, last];
    let wide = part.cx.t("value").dim(3);
    let init = vec![b.zeros(dtype, &like(d[3], wide)), b.zeros(DType::F32, &like(d[3], 1))];
    let found = part.over_rows(init, |found, rows| {
        let q = rows.of(part.q);
        let n = q.dim(3);
        let init = vec![
            b.full(DType::F32, &like(n, 1), f64::NEG_INFINITY),
            b.zeros(DType::F32, &like(n, 1)),
            b.zeros(DType::F32, &like(n, wide)),
        ];
        let state = part.over_keys(rows, init, |state, tile| {
            let (max, sum, mixed) = (state[0], state[1], state[2]);
            let s = part.scores(q, rows, tile);
            let now = max.max(kept(s, &[4], V::max_over));
            // a row of which nothing is seen yet has nothing to subtract
            let base = now.eq(f64::NEG_INFINITY).select(now.zeros_like(), now);
            let (e, shrink) = ((s - base).exp(), (max - base).exp());
            let more = part.dot(part.dropped(e, rows, tile).convert(dtype), tile.v[0], &[4], &[2]);
            vec![now, sum * shrink + kept(e, &[4], V::sum), mixed * shrink + more]
        });
        let (max, sum, mixed) = (state[0], state[1], state[2]);
        let nothing = sum.eq(0.0);
        let y = nothing.select(mixed.zeros_like(), mixed / sum).convert(dtype);
        let log = nothing.select(sum.zeros_like(), max + sum.log());
        vec![rows.put(found[0], y), rows.put(found[1], log)]
    });
    [0, 1].map(|k| found[k].slice_dim(3, 0, part.rows))
}

fn backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let seed = (cx.float("dropout_p") > 0.0).then(|| cx.t("philox_seed").bitcast(DType::U64).reshape(&[1]));
    let parts = parts(cx, seed);
    let done: Vec<Vec<V<'b>>> = parts.iter().map(gradients).collect();
    let sum = |k: usize| done.iter().filter_map(|r| r.get(k).copied()).reduce(|a, b| a + b);
    let rows: Vec<V<'b>> = done.iter().map(|r| r[0]).collect();
    let all = [Some(cx.b.concat(&rows, 3)), sum(1), sum(2), sum(3)];
    (0..4).map(|k| if cx.wants(k) { all[k].map(|v| v.reshape(&cx.out(k).dims)) } else { None }).collect()
}

/// The gradients of a part's queries, and what it adds to those of all keys, values and, if wanted, the bias.
fn gradients<'b>(part: &Part<'_, 'b>) -> Vec<V<'b>> {
    let (cx, d, dtype) = (part.cx, part.q.dims(), part.q.dtype());
    let whole = |x: V<'b>| x.reshape(&[&[d[0], d[1], d[2], x.dim(2)], &x.dims()[3..]].concat());
    let grad = whole(cx.t("grad_out"));
    let along = kept(grad.convert(DType::F32) * whole(cx.t_as("out", DType::F32)), &[4], V::sum);
    let (grad, along) = (part.rows_of(grad), part.rows_of(along));
    let log = part.rows_of(whole(cx.t("logsumexp").unsqueeze(3)));
    let bias = part.bias.filter(|_| cx.wants(3));
    let zeros = |dims: &[i64]| cx.b.zeros(DType::F32, dims);
    // in tiles, gradients of keys are (batch, key heads, E, keys), so that the large operand is taken as it lies; out of a
    // single product XLA would turn them back
    let turned = part.in_tiles();
    let keys = |last: i64| {
        let (m, n) = if turned { (last, part.all_keys()) } else { (part.all_keys(), last) };
        zeros(&[d[0], d[1], m, n])
    };
    let onto_keys = |scores: V<'b>, x: V<'b>| {
        let (x, y) = if turned { (x, scores) } else { (scores, x) };
        part.dot(x, y, &[2, 3], &[2, 3])
    };
    let mut init = vec![zeros(&d), keys(d[4]), keys(grad.dim(4))];
    init.extend(bias.map(|m| zeros(&m.dims())));
    let done = part.over_rows(init, |all, rows| {
        let (q, grad, along, log) = (rows.of(part.q), rows.of(grad), rows.of(along), rows.of(log));
        let init = [&[zeros(&q.dims())], &all[1..]].concat();
        let mut state = part.over_keys(rows, init, |state, tile| {
            let weights = (part.scores(q, rows, tile) - log).exp();
            let reaches = part.dropped(part.dot(grad, tile.v[1], &[4], &[2]), rows, tile);
            let ds = weights * (reaches - along);
            let rounded = ds.convert(dtype);
            let used = part.dropped(weights, rows, tile).convert(dtype);
            let (dk, dv) = (onto_keys(rounded, q), onto_keys(used, grad));
            let dq = part.dot(rounded, tile.k[0], &[4], &[2]);
            let mut next = vec![state[0] + dq, tile.add(state[1], dk), tile.add(state[2], dv)];
            if let Some(m) = bias {
                let repeated: Vec<usize> = (0..5).filter(|&i| m.dim(i) == 1 && ds.dim(i) != 1).collect();
                next.push(tile.add_for(rows, state[3], kept(ds, &repeated, V::sum)));
            }
            next
        });
        state[0] = rows.put(all[0], state[0] * part.scale);
        state
    });
    let (rows, keys) = ((part.first, part.rows), (0, part.keys));
    let keyed = |x: V<'b>| {
        let x = if turned { x.transpose(&[0, 1, 3, 2]) } else { x };
        placed(x, 2, keys, cx.t("key").dim(2))
    };
    let dk = if part.late.is_some() { done[1] * part.scale } else { done[1] };
    let mut out = vec![done[0].slice_dim(3, 0, part.rows), keyed(dk), keyed(done[2])];
    out.extend(bias.map(|m| {
        let x = if m.dim(3) == 1 { done[3] } else { placed(done[3], 3, rows, cx.t("query").dim(2)) };
        if m.dim(4) == 1 { x } else { placed(x, 4, keys, cx.t("key").dim(2)) }
    }));
    out
}
