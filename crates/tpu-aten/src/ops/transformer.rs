//! The fused inference paths of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, which PyTorch takes on every device
//! that is not an accelerator it knows better.

use super::activation::normal_cdf;
use super::matmul::contract;
use super::norm::standardize;
use super::softmax::softmax;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, maybe, one};
use tpu_base::DType;
use tpu_hlo::{DotDims, Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    maybe(
        "_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> (Tensor, Tensor)",
        |cx| {
            let [q, k, v] = ["query", "key", "value"].map(|name| cx.t(name));
            let (y, weights) = attention(cx, q, k, v, "num_head");
            let weights = cx.flag("need_weights").then(|| {
                if cx.flag("average_attn_weights") { weights.sum(&[1]) / cx.int("num_head") as f64 } else { weights }
            });
            vec![Some(y), weights]
        },
    )
    .refuse(refuse)
    .absent(|sig, k| k == 1 && *sig.arg("need_weights") == SigArg::Bool(false))
    .eg(&[
        "f32[2,5,4] f32[2,5,4] f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4]",
        "f32[2,5,4] f32[2,5,4] f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] need_weights=False",
        "f32[2,5,4] f32[2,5,4] f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] average_attn_weights=False",
        "f32[2,5,4] f32[2,5,4] f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] mask=bool[5,5] mask_type=0",
        "f32[2,9,4] f32[2,9,4] f32[2,9,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] mask=bool[2,9] mask_type=1",
        "f64[2,5,4] f64[2,5,4] f64[2,5,4] 4 2 f64[12,4] f64[12] f64[4,4] f64[4] mask=bool[2,2,5,5] mask_type=2",
    ]),
    one(
        "_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor",
        encoder_layer,
    )
    .refuse(refuse)
    .eg(&[
        "f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] False False 1e-5 f32[4] f32[4] f32[4] f32[4] f32[7,4] f32[7] f32[4,7] f32[4]",
        "f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] True True 1e-5 f32[4] f32[4] f32[4] f32[4] f32[7,4] f32[7] f32[4,7] f32[4]",
        "f32[2,5,4] 4 2 f32[12,4] f32[12] f32[4,4] f32[4] False True 1e-5 f32[4] f32[4] f32[4] f32[4] f32[7,4] f32[7] f32[4,7] f32[4] bool[5,5] 0",
    ]),
    many("_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> (Tensor, Tensor, Tensor)", |cx| {
        let (x, heads) = (cx.t("qkv"), cx.int("num_heads"));
        let d = x.dtype().opmath();
        let (x, each) = (x.convert(d) + cx.t_as("qkv_bias", d), x.dim(2) / 3 / heads);
        let x = x.reshape(&[x.dim(0), x.dim(1), 3, heads, each]).transpose(&[2, 0, 3, 1, 4]);
        let part = |i: i64| x.slice_dim(0, i, i + 1).squeeze(&[0]);
        vec![part(0) / (each as f64).sqrt(), part(1), part(2)]
    })
    .shapes(|sig| match (sig.arg("qkv"), sig.arg("num_heads")) {
        (SigArg::Tensor { dtype, dims, .. }, &SigArg::Int(heads)) if dims.len() == 3 && heads > 0 => {
            Some(vec![Type::new(*dtype, [dims[0], heads, dims[1], dims[2] / 3 / heads]); 3])
        }
        _ => None,
    })
    .eg(&["f32[2,5,12] f32[12] 2", "bf16[2,5,12] bf16[12] 2"]),
];

/// What PyTorch itself says no to goes to the CPU, for its words.
fn refuse(sig: &Sig<'_>) -> Option<Refusal> {
    let first = if *sig.arg("src") == SigArg::None { "query" } else { "src" };
    let SigArg::Tensor { dims, dtype, .. } = sig.arg(first) else { return None };
    let plain = dims.len() == 3 && dims.iter().all(|&d| d > 0) && matches!(dtype.opmath(), DType::F32 | DType::F64);
    let same = |name| match sig.arg(name) {
        SigArg::Tensor { dims: other, .. } => other == dims,
        _ => true,
    };
    (!plain || !same("key") || !same("value")).then_some("not self-attention over one dense batch")
}

/// `x · weightᵀ + bias`, rounded to `x`'s dtype.
fn linear<'b>(cx: &Cx<'b>, x: V<'b>, weight: V<'b>, bias: V<'b>) -> V<'b> {
    let d = DotDims { lhs_contract: vec![x.rank() - 1], rhs_contract: vec![1], ..DotDims::default() };
    let y = contract(cx, x, weight.convert(x.dtype()), d);
    (y + bias.convert(y.dtype())).convert(x.dtype())
}

/// The projected attention of all heads, and the weights of each (batch, head, query, key).
fn attention<'b>(cx: &Cx<'b>, q: V<'b>, k: V<'b>, v: V<'b>, heads: &str) -> (V<'b>, V<'b>) {
    let (dims, heads) = (q.dims(), cx.int(heads));
    let (width, each) = (dims[2], dims[2] / heads);
    let (weight, bias) = (cx.t("qkv_weight"), cx.t("qkv_bias"));
    let project = |x: V<'b>, part: i64| {
        let at = |v: V<'b>| v.slice_dim(0, part * width, (part + 1) * width);
        let y = linear(cx, x, at(weight), at(bias));
        y.reshape(&[dims[0], dims[1], heads, each]).swap(1, 2)
    };
    let (q, k, v) = (project(q, 0), project(k, 1), project(v, 2));
    let over_width =
        DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: vec![3], rhs_contract: vec![3] };
    let scores = contract(cx, q, k, over_width) / (each as f64).sqrt();
    let scores = match cx.opt_as("mask", DType::Bool) {
        Some(mask) => {
            let map: &[usize] = match mask.rank() {
                4 => &[0, 1, 2, 3],
                _ if cx.opt_int("mask_type") == Some(1) => &[0, 3],
                _ => &[2, 3],
            };
            mask.broadcast_in_dim(&scores.dims(), map).select(scores.full_like(f64::NEG_INFINITY), scores)
        }
        None => scores,
    };
    let weights = softmax(scores, 3).convert(q.dtype());
    let over_keys =
        DotDims { rhs_contract: vec![2], lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: vec![3] };
    let mixed = contract(cx, weights, v, over_keys).convert(q.dtype()).swap(1, 2).reshape(&dims);
    (linear(cx, mixed, cx.t("proj_weight"), cx.t("proj_bias")), weights)
}

fn encoder_layer<'b>(cx: &Cx<'b>) -> V<'b> {
    let src = cx.t("src");
    let d = src.dtype();
    let norm = |x: V<'b>, weight: &str, bias: &str| {
        let wide = x.convert(d.opmath());
        let (y, _, _) = standardize(wide, &[2], cx.float("eps"));
        (y * cx.t_as(weight, d.opmath()) + cx.t_as(bias, d.opmath())).convert(d)
    };
    let norm_1 = |x: V<'b>| norm(x, "norm_weight_1", "norm_bias_1");
    let norm_2 = |x: V<'b>| norm(x, "norm_weight_2", "norm_bias_2");
    let first = cx.flag("norm_first");
    let x = if first { norm_1(src) } else { src };
    let x = attention(cx, x, x, x, "num_heads").0 + src;
    let between = if first { x } else { norm_1(x) };
    let x = if first { norm_2(between) } else { between };
    let hidden = linear(cx, x, cx.t("ffn_weight_1"), cx.t("ffn_bias_1")).convert(d.opmath());
    let active = if cx.flag("use_gelu") { hidden * normal_cdf(hidden) } else { hidden.max(0.0) };
    let x = linear(cx, active.convert(d), cx.t("ffn_weight_2"), cx.t("ffn_bias_2")) + between;
    if first { x } else { norm_2(x) }
}
