//! Reductions that say where: arg-extremes, and extremes with their positions. The position is found in a second pass, the
//! least index that holds the extreme: two plain reductions vectorize everywhere, one over pairs does not.

use super::reduce::one_dim;
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] =
    &[
        many("max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", |cx| {
            extreme_dim(cx, V::max_over)
        })
        .refuse(nothing_along_dim)
        .eg(&[
            "f32[2,3] -1",
            "f32[2,3,4] 1 True",
            "i64[2,3]%9 0",
            "bool[2,3] 1",
            "bf16[2,3] 0",
            "f32[] 0",
            "f32[0,3] 1",
            "f32[19,2]! 1",
            "f32[4,30]! 1",
        ]),
        many("min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", |cx| {
            extreme_dim(cx, V::min_over)
        })
        .refuse(nothing_along_dim)
        .eg(&["f32[2,3] -1", "f32[2,3,4] 1 True", "i64[2,3]%9 0", "bool[2,3] 1", "f64[2,3] 0", "f32[] 0"]),
        one("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |cx| arg_extreme(cx, V::max_over)).eg(
            &[
                "f32[2,3]",
                "f32[2,3] -1 True",
                "i64[2,3]%9 0",
                "bf16[4,5] 1",
                "f32[]",
                "f32[2,3] - True",
                "f32[19,2]! 1",
                "bf16[40]!",
            ],
        ),
        one("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |cx| arg_extreme(cx, V::min_over))
            .eg(&["f32[2,3]", "f32[2,3] -1 True", "u8[2,3]%9 0", "f32[] 0"]),
    ];

/// Meta lets it pass; the CPU has the words.
fn nothing_along_dim(sig: &Sig<'_>) -> Option<Refusal> {
    let (SigArg::Tensor { dims, .. }, SigArg::Int(d)) = (sig.arg("self"), sig.arg("dim")) else { return None };
    let d = if *d < 0 { d + dims.len() as i64 } else { *d };
    (dims.get(d as usize) == Some(&0)).then_some("nothing has no extreme")
}

/// The dtype of positions below `n`: int32 unless that is too short, for a TPU has no 64-bit integers of its own.
pub(super) fn index_dtype(n: i64) -> DType {
    if n <= i32::MAX as i64 { DType::I32 } else { DType::I64 }
}

/// The least index along dimension `d` where `x` equals `best`, of which dimension `d` is gone; NaN equals NaN.
pub(super) fn position<'b>(x: V<'b>, best: V<'b>, d: usize) -> V<'b> {
    let mut dims = x.dims();
    let n = dims[d];
    dims[d] = 1;
    let best = best.reshape(&dims);
    let hit = x.eq(best);
    let hit = if x.dtype().is_float() { hit | (x.is_nan() & best.is_nan()) } else { hit };
    let at = x.builder().iota(index_dtype(n), &x.dims(), d);
    hit.select(at, at.full_like(n - 1)).min_over(&[d])
}

/// (extremes, positions) along dimension `d`, which is gone.
pub(super) fn extreme<'b>(x: V<'b>, d: usize, f: fn(V<'b>, &[usize]) -> V<'b>) -> (V<'b>, V<'b>) {
    let best = f(x, &[d]);
    (best, position(x, best, d))
}

fn extreme_dim<'b>(cx: &Cx<'b>, f: fn(V<'b>, &[usize]) -> V<'b>) -> Vec<V<'b>> {
    let x = cx.t("self");
    let Some(&d) = one_dim(cx, x).first() else {
        return vec![x, cx.b.scalar(DType::I64, 0)];
    };
    let (best, at) = extreme(x, d, f);
    vec![best.reshape(&cx.out(0).dims), at.reshape(&cx.out(1).dims)]
}

fn arg_extreme<'b>(cx: &Cx<'b>, f: fn(V<'b>, &[usize]) -> V<'b>) -> V<'b> {
    let x = cx.t("self");
    let (x, d) = match cx.opt_int("dim") {
        Some(_) if x.rank() > 0 => (x, cx.dim("dim", x.rank())),
        _ => (x.reshape(&[x.numel()]), 0),
    };
    extreme(x, d, f).1.reshape(&cx.out(0).dims)
}
