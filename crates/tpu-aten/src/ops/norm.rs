//! Layer and group normalization. Statistics are taken in opmath precision, whatever dtype they are saved in.

use super::reduce::{count, kept, mean_over};
use super::reduce_moments::deviations;
use crate::cx::Cx;
use crate::def::{OpDef, Sig, many, maybe};
use tpu_base::DType;
use tpu_hlo::{Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
        layer_norm,
    )
    .retype(statistics)
    .eg(&[
        "bf16[2,3] (3) - - 1e-5",
        "f32[2,3,4] (4) f32[4] f32[4] 1e-5",
        "f32[2,3,4] (3,4) - - 1e-5",
        "bf16[2,30] (30) bf16[30] bf16[30] 1e-5",
        "bf16[2,30] (30) f32[30] f32[30] 1e-5",
        "f64[2,3] (3) f64[3] - 1e-3",
        "f32[0,3] (3) f32[3] f32[3] 1e-5",
    ]),
    maybe(
        "native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        layer_norm_backward,
    )
    .eg(&[
        "f32[2,3,4] f32[2,3,4] (4) f32[2,3,1] f32[2,3,1]+ f32[4] f32[4] (True,True,True)",
        "f32[2,3,4] f32[2,3,4] (3,4) f32[2,1,1] f32[2,1,1]+ - - (True,False,False)",
        "f32[2,4] f32[2,4] (4) f32[2,1] f32[2,1]+ f32[4] f32[4] (False,True,True)",
        "bf16[2,4] bf16[2,4] (4) bf16[2,1] bf16[2,1]+ bf16[4] bf16[4] (True,True,True)",
    ]),
    many(
        "native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
        group_norm,
    )
    .retype(statistics)
    .eg(&[
        "bf16[2,4,8] f32[4] f32[4] 2 4 8 2 1e-5",
        "f32[2,6,3,4] f32[6] f32[6] 2 6 12 3 1e-5",
        "f32[2,6] - - 2 6 1 2 1e-5",
        "bf16[2,4,8] bf16[4] bf16[4] 2 4 8 2 1e-5",
        "f64[2,4,3] f64[4] - 2 4 3 1 1e-3",
    ]),
    maybe(
        "native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        group_norm_backward,
    )
    .eg(&[
        "f32[2,6,3,4] f32[2,6,3,4] f32[2,3] f32[2,3]+ f32[6] 2 6 12 3 (True,True,True)",
        "f32[2,6,5] f32[2,6,5] f32[2,2] f32[2,2]+ - 2 6 5 2 (True,False,False)",
        "f64[2,4,3] f64[2,4,3] f64[2,1] f64[2,1]+ f64[4] 2 4 3 1 (False,True,True)",
    ]),
];

/// The CPU keeps statistics in the dtype of the parameters, or of the input where there are none.
pub(super) fn statistics(sig: &Sig<'_>, k: usize, given: Type) -> Type {
    let own = ["weight", "bias", "running_mean"].iter().find_map(|name| sig.dtype(name));
    let dtype = if matches!(k, 1 | 2) { own.or(sig.dtype("input")) } else { None };
    Type::new(dtype.unwrap_or(given.dtype), given.dims)
}

/// (x − mean) · rstd with both statistics, over `dims`.
pub(super) fn standardize<'b>(x: V<'b>, dims: &[usize], eps: f64) -> (V<'b>, V<'b>, V<'b>) {
    let (sq, mean) = deviations(x, dims);
    let rstd = (sq.reshape(&mean.dims()) / count(x, dims) as f64 + eps).rsqrt();
    ((x - mean) * rstd, mean, rstd)
}

/// Gradient through [`standardize`]: `g` arrives at x̂.
pub(super) fn standardize_backward<'b>(g: V<'b>, x_hat: V<'b>, rstd: V<'b>, dims: &[usize]) -> V<'b> {
    let mean = kept(g, dims, mean_over);
    let along = kept(g * x_hat, dims, mean_over);
    (g - mean - x_hat * along) * rstd
}

fn opmath(cx: &Cx<'_>, name: &str) -> DType {
    cx.t(name).dtype().opmath()
}

fn layer_norm<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let d = opmath(cx, "input");
    let x = cx.t_as("input", d);
    let inner = cx.ints("normalized_shape").len();
    let dims: Vec<usize> = (x.rank() - inner..x.rank()).collect();
    let (mut y, mean, rstd) = standardize(x, &dims, cx.float("eps"));
    if let Some(w) = cx.opt_as("weight", d) {
        y = y * w;
    }
    if let Some(b) = cx.opt_as("bias", d) {
        y = y + b;
    }
    vec![y, mean.reshape(&cx.out(1).dims), rstd.reshape(&cx.out(2).dims)]
}

fn layer_norm_backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let d = opmath(cx, "input");
    let (g, x) = (cx.t_as("grad_out", d), cx.t_as("input", d));
    let outer = x.rank() - cx.ints("normalized_shape").len();
    let inner: Vec<usize> = (outer..x.rank()).collect();
    let outer: Vec<usize> = (0..outer).collect();
    let mut column = x.dims();
    inner.iter().for_each(|&i| column[i] = 1);
    let (mean, rstd) = (cx.t_as("mean", d).reshape(&column), cx.t_as("rstd", d).reshape(&column));
    let x_hat = (x - mean) * rstd;
    let scaled = cx.opt_as("weight", d).map_or(g, |w| g * w);
    vec![
        cx.wants(0).then(|| standardize_backward(scaled, x_hat, rstd, &inner)),
        cx.wants(1).then(|| (g * x_hat).sum(&outer)),
        cx.wants(2).then(|| g.sum(&outer)),
    ]
}

/// The shapes a group norm works in: (N, groups, channels of a group, positions), and (N, C, positions).
fn grouped(cx: &Cx<'_>) -> ([i64; 4], [i64; 3]) {
    let (n, c, hw, g) = (cx.int("N"), cx.int("C"), cx.int("HxW"), cx.int("group"));
    ([n, g, c / g.max(1), hw], [n, c, hw])
}

fn group_norm<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let d = opmath(cx, "input");
    let (split, whole) = grouped(cx);
    let (y, mean, rstd) = standardize(cx.t_as("input", d).reshape(&split), &[2, 3], cx.float("eps"));
    let mut y = y.reshape(&whole);
    if let Some(w) = cx.opt_as("weight", d) {
        y = y * w.broadcast_in_dim(&whole, &[1]);
    }
    if let Some(b) = cx.opt_as("bias", d) {
        y = y + b.broadcast_in_dim(&whole, &[1]);
    }
    vec![y.reshape(&cx.out(0).dims), mean.reshape(&cx.out(1).dims), rstd.reshape(&cx.out(2).dims)]
}

fn group_norm_backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let d = opmath(cx, "input");
    let (split, whole) = grouped(cx);
    let column = [split[0], split[1], 1, 1];
    let (g, x) = (cx.t_as("grad_out", d).reshape(&whole), cx.t_as("input", d).reshape(&split));
    let (mean, rstd) = (cx.t_as("mean", d).reshape(&column), cx.t_as("rstd", d).reshape(&column));
    let x_hat = (x - mean) * rstd;
    let scaled = cx.opt_as("weight", d).map_or(g, |w| g * w.broadcast_in_dim(&whole, &[1]));
    let shape = cx.t("input").dims();
    vec![
        cx.wants(0).then(|| standardize_backward(scaled.reshape(&split), x_hat, rstd, &[2, 3]).reshape(&shape)),
        cx.wants(1).then(|| (g * x_hat.reshape(&whole)).sum(&[0, 2])),
        cx.wants(2).then(|| g.sum(&[0, 2])),
    ]
}
