//! Batch normalization in its upstream spellings: one forward and one backward serve them all.

use super::norm::{standardize_backward, statistics};
use super::reduce::{count, kept};
use super::reduce_moments::deviations;
use crate::cx::Cx;
use crate::def::{OpDef, Sig, SigArg, maybe};
use tpu_base::DType;
use tpu_hlo::{Type, V};

const RUNNING: &[&str] = &["running_mean", "running_var"];

pub(crate) static DEFS: &[OpDef] = &[
    maybe(
        "native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |cx| forward(cx, cx.flag("training"), 3),
    )
    .retype(saved)
    .operands(&["momentum"])
    .updates(RUNNING)
    .eg(&[
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ True 0.1 1e-5",
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ False 0.1 1e-5",
        "f32[4,3] - - - - True 0.1 1e-5",
        "bf16[4,3,5] f32[3] f32[3] f32[3] f32[3]+ True 0.3 1e-5",
        "f64[2,3,4,5] f64[3] - f64[3] f64[3]+ True 0.1 1e-3",
    ]),
    maybe(
        "_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |cx| forward(cx, cx.flag("training"), 3),
    )
    .retype(saved)
    .operands(&["momentum"])
    .updates(RUNNING)
    .eg(&[
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ True 0.1 1e-5",
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ False 0.1 1e-5",
    ]),
    maybe(
        "_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |cx| forward(cx, true, 3),
    )
    .retype(saved)
    .eg(&["f32[4,3,5] f32[3] f32[3] True 0.1 1e-5"]),
    maybe(
        "_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        |cx| forward(cx, cx.flag("training"), 3),
    )
    .retype(saved)
    .operands(&["momentum"])
    .eg(&[
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ True 0.1 1e-5",
        "f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ False 0.1 1e-5",
    ]),
    maybe(
        "_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |cx| forward(cx, false, 3).into_iter().take(3).collect(),
    )
    .retype(saved)
    .eg(&["f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ 0.1 1e-5"]),
    maybe(
        "_batch_norm_with_update(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        |cx| forward(cx, true, 4),
    )
    .retype(saved)
    .operands(&["momentum"])
    .updates(RUNNING)
    .eg(&["f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ 0.1 1e-5"]),
    maybe(
        "_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        |cx| forward(cx, true, 4),
    )
    .retype(saved)
    .operands(&["momentum"])
    .eg(&["f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ 0.1 1e-5"]),
    maybe(
        "_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        |cx| forward(cx, cx.opt("running_mean").is_none(), 4).into_iter().take(4).collect(),
    )
    .retype(saved)
    .eg(&["f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ 0.1 1e-5"]),
    maybe(
        "native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        |cx| backward(cx, cx.flag("train"), "save_invstd"),
    )
    .eg(&[
        "f32[4,3,5] f32[4,3,5] f32[3] f32[3] f32[3]+ f32[3] f32[3]+ True 1e-5 (True,True,True)",
        "f32[4,3,5] f32[4,3,5] f32[3] f32[3] f32[3]+ f32[3] f32[3]+ False 1e-5 (True,True,True)",
        "f32[4,3] f32[4,3] - - - f32[3] f32[3]+ True 1e-5 (True,False,False)",
        "f64[4,3,2] f64[4,3,2] f64[3] - - f64[3] f64[3]+ True 1e-5 (True,True,False)",
    ]),
    maybe(
        "batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)",
        |cx| backward(cx, cx.flag("update"), "save_var"),
    )
    .eg(&["f32[4,3,5] f32[4,3,5] f32[3] f32[3] f32[3]+ f32[3] f32[3]+ True 1e-5 (True,True,True) u8[0]"]),
];

/// The CPU saves nothing in evaluation.
fn saved(sig: &Sig<'_>, k: usize, given: Type) -> Type {
    let name = sig.schema.name;
    let training = match sig.arg("training") {
        SigArg::Bool(training) => *training,
        _ => !name.contains("no_training") && !name.contains("no_update"),
    };
    let ty = statistics(sig, k, given);
    if training || !matches!(k, 1 | 2) { ty } else { Type::new(ty.dtype, [0]) }
}

/// A vector over channels, laid along dimension 1 of an operand of this rank.
pub(super) fn column(v: V<'_>, rank: usize) -> V<'_> {
    let mut dims = vec![1; rank];
    dims[1] = v.numel();
    v.reshape(&dims)
}

pub(super) fn others(x: V<'_>) -> Vec<usize> {
    (0..x.rank()).filter(|&d| d != 1).collect()
}

/// Result, saved mean and inverse deviation, up to `results` (a reserve is empty), then the new running statistics.
fn forward<'b>(cx: &Cx<'b>, training: bool, results: usize) -> Vec<Option<V<'b>>> {
    let x = cx.t("input");
    let d = x.dtype().opmath();
    let x = x.convert(d);
    let (rank, dims, eps) = (x.rank(), others(x), cx.float("eps"));
    let running = |name: &str| if cx.schema.index(name).is_some() { cx.opt(name) } else { None };
    let old = (running("running_mean"), running("running_var"));
    let (mean, rstd, new) = if training {
        let n = count(x, &dims) as f64;
        let (sq, mean) = deviations(x, &dims);
        let (sq, mean) = (column(sq, rank), column(mean, rank));
        let new = if old.0.is_some() || old.1.is_some() {
            let momentum = cx.scalar("momentum", d);
            let blend = |old: Option<V<'b>>, now: V<'b>| {
                old.map(|o| {
                    let mixed = o.convert(d) * (momentum.neg() + 1.0) + now.reshape(&o.dims()) * momentum;
                    mixed.convert(o.dtype())
                })
            };
            (blend(old.0, mean), blend(old.1, sq / (n - 1.0)))
        } else {
            (None, None)
        };
        (mean, (sq / n + eps).rsqrt(), new)
    } else {
        let given = |v: Option<V<'b>>| column(v.map_or(x.lit(0.0), |v| v.convert(d)), rank);
        (given(old.0), (given(old.1) + eps).rsqrt(), old)
    };
    let mut y = (x - mean) * rstd;
    if let Some(w) = cx.opt_as("weight", d) {
        y = y * column(w, rank);
    }
    if let Some(b) = cx.opt_as("bias", d) {
        y = y + column(b, rank);
    }
    let saved = |k: usize, v: V<'b>| {
        let t = cx.out(k);
        // evaluation saves nothing
        if t.numel() == v.numel() { v.reshape(&t.dims) } else { cx.b.zeros(t.dtype, &t.dims) }
    };
    let mut out = vec![Some(y), Some(saved(1, mean)), Some(saved(2, rstd))];
    if results == 4 {
        out.push(Some(cx.b.zeros(DType::U8, &cx.out(3).dims)));
    }
    out.extend([new.0, new.1]);
    out
}

fn backward<'b>(cx: &Cx<'b>, training: bool, saved_rstd: &str) -> Vec<Option<V<'b>>> {
    let x = cx.t("input");
    let d = x.dtype().opmath();
    let (g, x) = (cx.t_as("grad_out", d), x.convert(d));
    let (rank, dims) = (x.rank(), others(x));
    let (mean, rstd) = if training {
        (cx.t_as("save_mean", d), cx.t_as(saved_rstd, d))
    } else {
        (cx.t_as("running_mean", d), (cx.t_as("running_var", d) + cx.float("eps")).rsqrt())
    };
    let (mean, rstd) = (column(mean, rank), column(rstd, rank));
    let x_hat = (x - mean) * rstd;
    let scaled = cx.opt_as("weight", d).map_or(g, |w| g * column(w, rank));
    vec![
        cx.wants(0).then(|| if training { standardize_backward(scaled, x_hat, rstd, &dims) } else { scaled * rstd }),
        cx.wants(1).then(|| kept(g * x_hat, &dims, V::sum).reshape(&[x.dim(1)])),
        cx.wants(2).then(|| g.sum(&dims)),
    ]
}
