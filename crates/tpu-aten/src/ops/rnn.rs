//! Cells of recurrent networks, whose matrix products PyTorch has already done. The state that a backward reads (the
//! *workspace*) is laid out as on CUDA: blocks of the hidden size along dimension 1.

use crate::cx::Cx;
use crate::def::{OpDef, many, maybe};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)",
        lstm,
    )
    .eg(&[
        "f32[2,12] f32[2,12] f32[2,3] f32[12] f32[12]",
        "f32[2,12] f32[2,12] f32[2,3]",
        "bf16[2,8] bf16[2,8] bf16[2,2] bf16[8] bf16[8]",
        "f64[0,8] f64[0,8] f64[0,2]",
    ]),
    maybe(
        "_thnn_fused_lstm_cell_backward_impl(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor)",
        lstm_backward,
    )
    .eg(&[
        "f32[2,3] f32[2,3] f32[2,3] f32[2,3] f32[2,12]~ True",
        "f32[2,3] - f32[2,3] f32[2,3] f32[2,12]~ False",
        "- f64[2,3] f64[2,3] f64[2,3] f64[2,12]~ True",
        "bf16[2,2] bf16[2,2] bf16[2,2] bf16[2,2] bf16[2,8]~ True",
    ]),
    many(
        "_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor)",
        gru,
    )
    .eg(&[
        "f32[2,9] f32[2,9] f32[2,3] f32[9] f32[9]",
        "f64[2,9] f64[2,9] f64[2,3]",
        "bf16[2,6] bf16[2,6] bf16[2,2] bf16[6] bf16[6]",
    ]),
    maybe(
        "_thnn_fused_gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        gru_backward,
    )
    .eg(&["f32[2,3] f32[2,15]~ True", "f64[2,3] f64[2,15]~ False", "bf16[2,2] bf16[2,10]~ True"]),
];

/// `x` cut into `n` equal blocks along dimension 1.
fn blocks<'b>(x: V<'b>, n: i64) -> Vec<V<'b>> {
    let width = x.dim(1) / n;
    (0..n).map(|i| x.slice_dim(1, i * width, (i + 1) * width)).collect()
}

/// The `which` gates with their bias, in opmath.
fn gates<'b>(cx: &Cx<'b>, which: &str, bias: &str, d: DType) -> V<'b> {
    let x = cx.t_as(which, d);
    match cx.opt_as(bias, d) {
        Some(b) => x + b,
        None => x,
    }
}

/// The derivative of the logistic function, by its value.
fn logistic_slope(y: V<'_>) -> V<'_> {
    y * (y.full_like(1.0) - y)
}

/// The derivative of tanh, by its value.
fn tanh_slope(y: V<'_>) -> V<'_> {
    y.full_like(1.0) - y * y
}

fn lstm<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let d = cx.out_dtype().opmath();
    let all = gates(cx, "input_gates", "input_bias", d) + gates(cx, "hidden_gates", "hidden_bias", d);
    let g = blocks(all, 4);
    let (input, forget, cell, output) = (g[0].logistic(), g[1].logistic(), g[2].tanh(), g[3].logistic());
    let cy = forget * cx.t_as("cx", d) + input * cell;
    vec![output * cy.tanh(), cy, cx.b.concat(&[input, forget, cell, output], 1)]
}

fn lstm_backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let d = cx.out_dtype().opmath();
    let g = blocks(cx.t_as("workspace", d), 4);
    let (input, forget, cell, output) = (g[0], g[1], g[2], g[3]);
    let (c, tanh_c) = (cx.t_as("cx", d), cx.t_as("cy", d).tanh());
    let grad_h = cx.opt_as("grad_hy", d).unwrap_or_else(|| c.zeros_like());
    let mut grad_c = grad_h * output * tanh_slope(tanh_c);
    if let Some(direct) = cx.opt_as("grad_cy", d) {
        grad_c = grad_c + direct;
    }
    let grads = cx.b.concat(
        &[
            grad_c * cell * logistic_slope(input),
            grad_c * c * logistic_slope(forget),
            grad_c * input * tanh_slope(cell),
            grad_h * tanh_c * logistic_slope(output),
        ],
        1,
    );
    vec![Some(grads), Some(grad_c * forget), cx.flag("has_bias").then(|| grads.sum(&[0]))]
}

fn gru<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let d = cx.out_dtype().opmath();
    let x = blocks(gates(cx, "input_gates", "input_bias", d), 3);
    let h = blocks(gates(cx, "hidden_gates", "hidden_bias", d), 3);
    let state = cx.t_as("hx", d);
    let (reset, update) = ((x[0] + h[0]).logistic(), (x[1] + h[1]).logistic());
    let new = (x[2] + reset * h[2]).tanh();
    vec![new + update * (state - new), cx.b.concat(&[reset, update, new, state, h[2]], 1)]
}

fn gru_backward<'b>(cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
    let d = cx.out_dtype().opmath();
    let w = blocks(cx.t_as("workspace", d), 5);
    let (reset, update, new, state, hidden) = (w[0], w[1], w[2], w[3], w[4]);
    let grad = cx.t_as("grad_hy", d);
    let grad_update = grad * (state - new) * logistic_slope(update);
    let grad_new = grad * (update.full_like(1.0) - update) * tanh_slope(new);
    let grad_reset = grad_new * hidden * logistic_slope(reset);
    let input = cx.b.concat(&[grad_reset, grad_update, grad_new], 1);
    let hidden = cx.b.concat(&[grad_reset, grad_update, grad_new * reset], 1);
    let bias = cx.flag("has_bias");
    vec![Some(input), Some(hidden), Some(grad * update), bias.then(|| input.sum(&[0])), bias.then(|| hidden.sum(&[0]))]
}
