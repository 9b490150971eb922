//! Table look-ups and their gradients.

use super::index_rows::{Rows, checked};
use super::reduce_norm::p_norm;
use crate::def::{OpDef, one};
use tpu_base::DType;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) \
         -> Tensor",
        |cx| {
            let (w, out) = (cx.t("weight"), cx.out(0));
            let index = checked(cx, cx.t("indices"), w.dim(0), false, "index out of range in self");
            if out.numel() == 0 { cx.b.zeros(out.dtype, &out.dims) } else { w.take(index, 0) }
        },
    )
    .eg(&[
        "f32[7,4] i64[2,3]%7",
        "bf16[7,4] i32[5]%7",
        "f32[7,4] i64[]%7 2",
        "f64[7,4] i64[0,3]",

    ]),
    one("embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor", |cx| {
        let w = cx.t("self");
        let index = cx.t("indices");
        let index = checked(cx, index.reshape(&[index.numel()]), w.dim(0), false, "index out of range in self");
        let rows = Rows { dim: 0, index };
        let used = w.take(index, 0).convert(w.dtype().opmath());
        let norm = p_norm(used, cx.float("norm_type"), &[1]).unsqueeze(1);
        let most = cx.float("max_norm");
        let shrunk = used * norm.gt(most).select(norm.full_like(most) / (norm + 1e-7), norm.full_like(1.0));
        rows.scatter(w, shrunk.convert(w.dtype()), |_, b| b) // a row named twice gets the same numbers twice
    })
        .eg(&["f32[5,4] i64[3]%5 1.0 2.0", "f32[5,4] i64[2,2]%5 0.5 1.0"]),
    one(
        "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, \
         bool scale_grad_by_freq) -> Tensor",
        |cx| {
            let out = cx.out(0);
            let wide = out.dtype.opmath();
            let width = out.dims[1];
            let index = cx.t("indices");
            let n = index.numel();
            let index = index.reshape(&[n]).convert(DType::I32);
            let mut g = cx.t_as("grad_output", wide).reshape(&[n, width]);
            let zeros = cx.b.zeros(wide, &out.dims);
            if n == 0 {
                return zeros;
            }
            if cx.flag("scale_grad_by_freq") {
                let seen = Rows { dim: 0, index };
                let ones = cx.b.full(wide, &[n], 1.0);
                let counts = seen.scatter(cx.b.zeros(wide, &[out.dims[0]]), ones, |a, b| a + b);
                g = g / counts.take(index, 0).unsqueeze(1);
            }
            // positions outside are skipped
            let padding = cx.int("padding_idx");
            let index = if padding < 0 { index } else { index.eq(padding).select(index.lit(-1i64), index) };
            Rows { dim: 0, index }.scatter(zeros, g, |a, b| a + b)
        },
    )
    .eg(&[
        "f32[2,3,4] i64[2,3]%7 7 -1 False",
        "f32[9,4] i64[9]%5 5 2 False",
        "f32[9,4] i64[9]%5 5 -1 True",
        "f32[9,4] i32[9]%5 5 1 True",
        "bf16[2,4] i64[2]%7 7 -1 False",
        "f64[0,4] i64[0] 7 -1 False",
        "f32[4] i64[]%7 7 -1 False",
    ]),
];
