//! The steps of batch normalization over several devices: statistics of one device's part, statistics joined, and the halves
//! of the gradient around the exchange. PyTorch has them for CUDA alone.

use super::norm_batch::{column, others};
use super::reduce::count;
use super::reduce_moments::deviations;
use crate::cx::Cx;
use crate::def::{OpDef, Sig, many, maybe, one};
use tpu_hlo::{Type, V};

const RUNNING: &[&str] = &["running_mean", "running_var"];

pub(crate) static DEFS: &[OpDef] = &[
    many("batch_norm_stats(Tensor input, float eps) -> (Tensor, Tensor)", |cx| {
        let x = cx.t_as("input", cx.out_dtype());
        let dims = others(x);
        let (sq, mean) = deviations(x, &dims);
        vec![flat(mean), flat((sq / count(x, &dims) as f64 + cx.float("eps")).rsqrt())]
    })
    .shapes(statistics)
    .eg(&["f32[4,3,5] 1e-5", "bf16[4,3] 1e-3"]),
    maybe(
        "batch_norm_update_stats(Tensor input, Tensor? running_mean, Tensor? running_var, float momentum) -> (Tensor, Tensor)",
        |cx| {
            let x = cx.t_as("input", cx.out_dtype().opmath());
            let dims = others(x);
            let n = count(x, &dims) as f64;
            let (sq, mean) = deviations(x, &dims);
            let (mean, sq) = (flat(mean), flat(sq));
            [vec![Some(mean), Some(sq / n)], blended(cx, mean, sq / (n - 1.0))].concat()
        },
    )
    .operands(&["momentum"])
    .updates(RUNNING)
    .shapes(statistics)
    .eg(&["f32[4,3,5] f32[3] f32[3]+ 0.1", "f64[4,3] f64[3] f64[3]+ 0.3"]),
    one(
        "batch_norm_elemt(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor invstd, float eps) -> Tensor",
        |cx| {
            let x = cx.t_as("input", cx.out_dtype().opmath());
            let line = |name: &str| cx.opt_as(name, x.dtype()).map(|v| column(v, x.rank()));
            let y = (x - column(cx.t_as("mean", x.dtype()), x.rank())) * column(cx.t_as("invstd", x.dtype()), x.rank());
            let y = line("weight").map_or(y, |w| y * w);
            line("bias").map_or(y, |b| y + b)
        },
    )
    .shapes(|s| Some(vec![s.ty("input")?]))
    .eg(&["f32[4,3,5] f32[3] f32[3] f32[3] f32[3]+ 1e-5", "bf16[4,3] - - f32[3] f32[3]+ 1e-5"]),
    maybe(
        "batch_norm_gather_stats(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, Tensor? running_var, \
         float momentum, float eps, int count) -> (Tensor, Tensor)",
        |cx| {
            let counts = cx.b.full(cx.out_dtype(), &[cx.t("mean").dim(0)], cx.int("count"));
            joined(cx, counts)
        },
    )
    .operands(&["momentum"])
    .updates(RUNNING)
    .shapes(statistics)
    .eg(&["f32[4,3,5] f32[2,3] f32[2,3]+ f32[3] f32[3]+ 0.1 1e-5 20"]),
    maybe(
        "batch_norm_gather_stats_with_counts(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, \
         Tensor? running_var, float momentum, float eps, Tensor counts) -> (Tensor, Tensor)",
        |cx| joined(cx, cx.t_as("counts", cx.out_dtype())),
    )
    .operands(&["momentum"])
    .updates(RUNNING)
    .shapes(statistics)
    .eg(&[
        "f32[4,3,5] f32[2,3] f32[2,3]~ f32[3] f32[3]+ 0.1 1e-5 f32[2]+",
        "bf16[4,3] f32[3,3] f32[3,3]~ - - 0.1 1e-5 f32[3]+",
    ]),
    maybe(
        "batch_norm_backward_reduce(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight, bool input_g, \
         bool weight_g, bool bias_g) -> (Tensor, Tensor, Tensor, Tensor)",
        |cx| {
            let d = cx.t("input").dtype().opmath();
            let (g, x) = (cx.t_as("grad_out", d), cx.t_as("input", d));
            let dims = others(x);
            let sum = g.sum(&dims);
            let centred = (g * (x - column(cx.t_as("mean", d), x.rank()))).sum(&dims);
            let weight = centred * cx.t_as("invstd", d);
            vec![
                cx.wants(0).then_some(sum),
                cx.wants(1).then_some(centred),
                cx.wants(2).then_some(weight),
                cx.wants(3).then_some(sum),
            ]
        },
    )
    .shapes(|s| {
        let t = statistics(s)?.pop()?;
        let parameter = s.ty("weight").unwrap_or_else(|| t.clone());
        Some(vec![t.clone(), t, parameter.clone(), parameter])
    })
    .absent(|s, k| {
        let asked = ["input_g", "input_g", "weight_g", "bias_g"][k.min(3)];
        *s.arg(asked) == crate::def::SigArg::Bool(false)
    })
    .eg(&[
        "f32[4,3,5] f32[4,3,5] f32[3] f32[3]+ f32[3] True True True",
        "bf16[4,3] bf16[4,3] f32[3] f32[3]+ - True False False",
    ]),
    one(
        "batch_norm_backward_elemt(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight, Tensor sum_dy, \
         Tensor sum_dy_xmu, Tensor count) -> Tensor",
        |cx| {
            let d = cx.t("input").dtype().opmath();
            let (g, x) = (cx.t_as("grad_out", d), cx.t_as("input", d));
            let line = |name: &str| column(cx.t_as(name, d), x.rank());
            let n = cx.t("count");
            let n = n.convert(d).sum(&(0..n.rank()).collect::<Vec<_>>());
            let rstd = line("invstd");
            let trend = rstd * rstd * line("sum_dy_xmu") / n;
            let y = (g - line("sum_dy") / n - (x - line("mean")) * trend) * rstd;
            cx.opt_as("weight", d).map_or(y, |w| y * column(w, x.rank()))
        },
    )
    .shapes(|s| Some(vec![s.ty("input")?]))
    .eg(&["f32[4,3,5] f32[4,3,5] f32[3] f32[3]+ f32[3] f32[3] f32[3] i32[2]+"]),
];

/// Two vectors over channels, in the dtype that statistics are kept in.
fn statistics(s: &Sig<'_>) -> Option<Vec<Type>> {
    let x = s.ty("input")?;
    let channels = *x.dims.get(1)?;
    let t = Type::new(x.dtype.opmath(), [channels]);
    Some(vec![t.clone(), t])
}

fn flat(v: V<'_>) -> V<'_> {
    v.reshape(&[v.numel()])
}

/// The running statistics after a batch of these.
fn blended<'b>(cx: &Cx<'b>, mean: V<'b>, var: V<'b>) -> Vec<Option<V<'b>>> {
    let momentum = cx.scalar("momentum", mean.dtype());
    let blend = |name: &str, now: V<'b>| {
        let mix =
            |old: V<'b>| (old.convert(now.dtype()) * (momentum.neg() + 1.0) + now * momentum).convert(old.dtype());
        cx.opt(name).map(mix)
    };
    vec![blend("running_mean", mean), blend("running_var", var)]
}

/// Joins statistics of parts (parts × channels) by their counts (T. Chan et al., 1979).
fn joined<'b>(cx: &Cx<'b>, counts: V<'b>) -> Vec<Option<V<'b>>> {
    let d = cx.out_dtype();
    let eps = cx.float("eps");
    let (means, rstd) = (cx.t_as("mean", d), cx.t_as("invstd", d));
    let parts = means.dim(0);
    let counts = counts.reshape(&[parts, 1]);
    let n = counts.sum(&[0, 1]);
    let mean = (means * counts).sum(&[0]) / n;
    let inner = rstd.full_like(1.0) / (rstd * rstd) - eps;
    let sq = ((inner + (means - mean.unsqueeze(0)).square()) * counts).sum(&[0]);
    [vec![Some(mean), Some((sq / n + eps).rsqrt())], blended(cx, mean, sq / (n - 1.0))].concat()
}
