//! Optimizer steps over whole lists of parameters (`torch.optim.AdamW(…, fused=True)`): one plan a step. Results are the
//! updated lists one after the other. Learning rate, weight decay and momentum are operands, so schedules compile once;
//! `beta2` is a constant because 1 − beta2ⁿ wants its logarithm exactly.

use crate::cx::{Arg, Cx};
use crate::def::{OpDef, many};
use tpu_base::DType;
use tpu_hlo::V;

const ADAM_OPERANDS: &[&str] = &["lr", "weight_decay", "beta1"];
const ADAM_EXAMPLES: &[&str] = &[
    "[f32[3,2] f32[4]] [f32[3,2] f32[4]] [f32[3,2] f32[4]] [f32[3,2]+ f32[4]+] [] [f32[]+ f32[]+] lr=0.01 beta1=0.9 \
     beta2=0.999 weight_decay=0.0 eps=1e-8 amsgrad=False maximize=False",
    "[f32[3,2] f32[4]] [f32[3,2] f32[4]] [f32[3,2] f32[4]] [f32[3,2]+ f32[4]+] [f32[3,2]+ f32[4]+] [f32[]+ f32[]+] lr=0.01 \
     beta1=0.9 beta2=0.95 weight_decay=0.1 eps=1e-8 amsgrad=True maximize=True",
    "[f32[3]] [f32[3]] [f32[3]] [f32[3]+] [] [f32[]+] lr=0.01 beta1=0.9 beta2=0.999 weight_decay=0.1 eps=1e-8 amsgrad=False \
     maximize=False grad_scale=f32[]+ found_inf=f32[]%1",
    "[f32[3]] [f32[3]] [f32[3]] [f32[3]+] [] [f32[]+] lr=0.01 beta1=0.9 beta2=0.999 weight_decay=0.1 eps=1e-8 amsgrad=False \
     maximize=False",
];

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "_fused_adamw(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs, \
         Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, \
         bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, \
         Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)",
        |cx| adam(cx, true),
    )
    .operands(ADAM_OPERANDS)
    .eg(ADAM_EXAMPLES),
    many(
        "_fused_adamw.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, \
         Tensor[] max_exp_avg_sqs, Tensor[] state_steps, *, Tensor lr, float beta1, float beta2, float weight_decay, \
         float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, \
         Tensor[] grads_out, Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)",
        |cx| adam(cx, true),
    )
    .operands(&["weight_decay", "beta1"])
    .eg(&["[f32[3]] [f32[3]] [f32[3]] [f32[3]+] [] [f32[]+] lr=f32[]+ beta1=0.9 beta2=0.999 weight_decay=0.1 eps=1e-8 \
           amsgrad=False maximize=False"]),
    many(
        "_fused_adam(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs, \
         Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, \
         bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, \
         Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)",
        |cx| adam(cx, false),
    )
    .operands(ADAM_OPERANDS)
    .eg(ADAM_EXAMPLES),
    many(
        "_fused_adam.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, \
         Tensor[] max_exp_avg_sqs, Tensor[] state_steps, *, Tensor lr, float beta1, float beta2, float weight_decay, \
         float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, \
         Tensor[] grads_out, Tensor[] exp_avgs_out, Tensor[] exp_avg_sqs_out, Tensor[] max_exp_avg_sqs_out)",
        |cx| adam(cx, false),
    )
    .operands(&["weight_decay", "beta1"])
    .eg(&["[f32[3]] [f32[3]] [f32[3]] [f32[3]+] [] [f32[]+] lr=f32[]+ beta1=0.9 beta2=0.999 weight_decay=0.1 eps=1e-8 \
           amsgrad=False maximize=False"]),
    many(
        "_fused_sgd(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay, float momentum, \
         float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? grad_scale=None, \
         Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] momentum_buffer_list_out)",
        sgd,
    )
    .operands(&["weight_decay", "momentum", "lr"])
    .eg(&[
        "[f32[3,2] f32[4]] [f32[3,2] f32[4]] [] weight_decay=0.0 momentum=0.0 lr=0.1 dampening=0.0 nesterov=False \
         maximize=False is_first_step=True",
        "[f32[3,2] f32[4]] [f32[3,2] f32[4]] [f32[3,2] f32[4]] weight_decay=0.1 momentum=0.9 lr=0.1 dampening=0.2 \
         nesterov=False maximize=True is_first_step=False",
        "[f32[3]] [f32[3]] [f32[3]] weight_decay=0.1 momentum=0.9 lr=0.1 dampening=0.0 nesterov=True maximize=False \
         is_first_step=True grad_scale=f32[]+ found_inf=f32[]%1",
    ]),
    many(
        "_fused_sgd.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay, \
         float momentum, Tensor lr, float dampening, bool nesterov, bool maximize, bool is_first_step, \
         Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, \
         Tensor[] momentum_buffer_list_out)",
        sgd,
    )
    .operands(&["weight_decay", "momentum"])
    .eg(&["[f32[3]] [f32[3]] [f32[3]] weight_decay=0.1 momentum=0.9 lr=f32[]+ dampening=0.0 nesterov=True maximize=False \
           is_first_step=False"]),
    many(
        "_fused_adagrad(Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, float lr, \
         float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> \
         (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out, Tensor[] state_steps_out)",
        adagrad,
    )
    .operands(&["lr", "weight_decay"])
    .eg(&["[f32[3,2]] [f32[3,2]] [f32[3,2]+] [f32[]+] lr=0.1 lr_decay=0.01 weight_decay=0.1 eps=1e-10 maximize=False"]),
    many(
        "_fused_adagrad.tensor_lr(Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, Tensor lr, \
         float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> \
         (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out)",
        |cx| adagrad(cx)[..3 * cx.ts("self").len()].to_vec(),
    )
    .operands(&["weight_decay"])
    .eg(&["[f32[3]] [f32[3]] [f32[3]+] [f32[]+] lr=f32[]+ lr_decay=0.0 weight_decay=0.0 eps=1e-10 maximize=True"]),
];

/// Lists of results under construction, in the order of the schema's results.
struct Lists<'b> {
    lists: Vec<Vec<V<'b>>>,
    skip: Option<V<'b>>,
}

impl<'b> Lists<'b> {
    fn new(cx: &Cx<'b>, count: usize) -> Lists<'b> {
        let skip = cx.opt_as("found_inf", DType::F32).map(|f| f.reshape(&[]).eq(1.0));
        Lists { lists: vec![vec![]; count], skip }
    }

    /// The new value of an element of list `k`; the old one stays when a gradient overflowed.
    fn push(&mut self, k: usize, old: V<'b>, new: V<'b>) {
        let new = new.convert(old.dtype());
        self.lists[k].push(self.skip.map_or(new, |s| s.select(old, new)));
    }

    fn flat(self) -> Vec<V<'b>> {
        self.lists.concat()
    }
}

/// The gradient without its scale, and what the update uses (negated to maximize).
fn gradient<'b>(cx: &Cx<'b>, g: V<'b>, d: DType) -> (V<'b>, V<'b>) {
    let g = match cx.opt_as("grad_scale", d) {
        Some(s) => g.convert(d) / s.reshape(&[]),
        None => g.convert(d),
    };
    (g, if cx.flag("maximize") { -g } else { g })
}

/// Whether weight decay is a constant zero.
fn no_decay(cx: &Cx<'_>) -> bool {
    matches!(cx.arg("weight_decay"), Arg::Float(w) if *w == 0.0)
}

fn number<'b>(cx: &Cx<'b>, name: &str, d: DType) -> V<'b> {
    cx.t_as(name, d).reshape(&[])
}

fn adam<'b>(cx: &Cx<'b>, decoupled: bool) -> Vec<V<'b>> {
    let mut out = Lists::new(cx, 5);
    let (grads, firsts, seconds) = (cx.ts("grads"), cx.ts("exp_avgs"), cx.ts("exp_avg_sqs"));
    let (maxima, counts) = (cx.ts("max_exp_avg_sqs"), cx.ts("state_steps"));
    for (k, p) in cx.ts("self").into_iter().enumerate() {
        let d = p.dtype().opmath();
        let (mut x, (unscaled, mut g)) = (p.convert(d), gradient(cx, grads[k], d));
        let (lr, beta1, beta2) = (number(cx, "lr", d), number(cx, "beta1", d), cx.float("beta2"));
        if !no_decay(cx) {
            let decay = number(cx, "weight_decay", d);
            if decoupled {
                x = x - x * (lr * decay);
            } else {
                g = g + x * decay;
            }
        }
        let first = firsts[k].convert(d);
        let first = first + (g - first) * (-beta1 + 1.0);
        let second = seconds[k].convert(d) * beta2 + g * g * (1.0 - beta2);
        let n = counts[k].convert(d).reshape(&[]);
        let correction1 = -beta1.pow(n) + 1.0;
        // 1 − beta2ⁿ without cancellation
        let correction2 = -(n * beta2.ln()).expm1();
        let spread = if cx.flag("amsgrad") {
            let top = maxima[k].convert(d).max(second);
            out.push(4, maxima[k], top);
            top
        } else {
            second
        };
        let denominator = spread.sqrt() / correction2.sqrt() + cx.float("eps");
        out.push(0, p, x - first / denominator * (lr / correction1));
        out.push(1, grads[k], unscaled);
        out.push(2, firsts[k], first);
        out.push(3, seconds[k], second);
    }
    if !cx.flag("amsgrad") {
        out.lists[4] = maxima;
    }
    out.flat()
}

fn sgd<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let mut out = Lists::new(cx, 3);
    let (grads, buffers) = (cx.ts("grads"), cx.ts("momentum_buffer_list"));
    for (k, p) in cx.ts("self").into_iter().enumerate() {
        let d = p.dtype().opmath();
        let (x, (unscaled, mut g)) = (p.convert(d), gradient(cx, grads[k], d));
        if !no_decay(cx) {
            g = g + x * number(cx, "weight_decay", d);
        }
        if let Some(&buffer) = buffers.get(k) {
            let momentum = number(cx, "momentum", d);
            let moved = if cx.flag("is_first_step") {
                g
            } else {
                buffer.convert(d) * momentum + g * (1.0 - cx.float("dampening"))
            };
            out.push(2, buffer, moved);
            g = if cx.flag("nesterov") { g + moved * momentum } else { moved };
        }
        out.push(0, p, x - g * number(cx, "lr", d));
        out.push(1, grads[k], unscaled);
    }
    out.flat()
}

fn adagrad<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let mut out = Lists::new(cx, 4);
    let (grads, sums, counts) = (cx.ts("grads"), cx.ts("state_sums"), cx.ts("state_steps"));
    for (k, p) in cx.ts("self").into_iter().enumerate() {
        let d = p.dtype().opmath();
        let (x, (unscaled, mut g)) = (p.convert(d), gradient(cx, grads[k], d));
        if !no_decay(cx) {
            g = g + x * number(cx, "weight_decay", d);
        }
        let n = counts[k].convert(d).reshape(&[]);
        let rate = number(cx, "lr", d) / ((n - 1.0) * cx.float("lr_decay") + 1.0);
        let sum = sums[k].convert(d) + g * g;
        out.push(0, p, x - g / (sum.sqrt() + cx.float("eps")) * rate);
        out.push(1, grads[k], unscaled);
        out.push(2, sums[k], sum);
        out.push(3, counts[k], counts[k]);
    }
    out.flat()
}
