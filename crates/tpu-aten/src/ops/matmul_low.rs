//! Products of matrices stored in few bits, and products of groups of rows.

use super::matmul::{contract, dot};
use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, one};
use tpu_base::DType;
use tpu_hlo::{DotDims, Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        |cx| {
            let y = dot(cx, exact(cx.t("self")), exact(cx.t("mat2")), &[1], &[0]);
            let scale = |name: &str| {
                let s = cx.t_as(name, DType::F32);
                if s.numel() == 1 { s.reshape(&[]) } else { s }
            };
            let y = y * (scale("scale_a") * scale("scale_b"));
            let y = cx.opt_as("bias", DType::F32).map_or(y, |b| y + b);
            cx.opt_as("scale_result", DType::F32).map_or(y, |s| y * s.reshape(&[]))
        },
    )
    .refuse(|sig| coarse(sig, "scale_a", 0).or(coarse(sig, "scale_b", 1)))
    .eg(&[
        "f8e4m3fn[4,16] f8e4m3fn[16,32]| f32[]+ f32[]+ out_dtype=f32",
        "f8e5m2[4,16] f8e4m3fn[16,32]| f32[]+ f32[]+ f32[32] out_dtype=f32",
        "f8e4m3fn[4,16] f8e4m3fn[16,32]| f32[]+ f32[]+ out_dtype=bf16",
    ]),
    one(
        "_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
        |cx| grouped(cx, cx.t("self"), cx.t("mat2")),
    )
    .refuse(|sig| (*sig.arg("bias") != SigArg::None).then_some("PyTorch defines no bias here"))
    .eg(&[
        "bf16[3,8,16] bf16[3,16,8]",
        "f32[8,4] f32[2,4,8] i32[2]%9",
        "f32[8,8] f32[8,8] i32[2]%9",
        "f32[2,8,4] f32[4,8] i32[2]%9",
    ]),
    one(
        "_scaled_grouped_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? offs=None, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        |cx| {
            let groups = groups(cx);
            // a scale belongs to each row of the left side and each column of the right one, in each group
            let scaled = |name: &str, scale: &str, dim: usize| {
                let (x, s) = (cx.t_as(name, DType::F32), cx.t(scale));
                let mut dims = vec![1; 3];
                dims[dim] = x.dim(x.rank() + dim - 3);
                dims[0] = s.numel() / dims[dim];
                let s = s.reshape(&dims);
                if dims[0] == 1 { x * s.reshape(&dims[3 - x.rank()..]) } else { spread(x, groups) * s }
            };
            grouped(cx, scaled("self", "scale_a", 1), scaled("mat2", "scale_b", 2))
        },
    )
    .refuse(|sig| (sig.dtype("scale_a") != Some(DType::F32)).then_some("scales of blocks are not lowered"))
    .eg(&["f8e4m3fn[16,16] f8e4m3fn[2,16,16]| f32[16]+ f32[2,16]+ i32[2]%17 out_dtype=bf16"]),
    one("_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor", |cx| {
        let x = cx.t("self");
        // eight bits are exact in every float
        dot(cx, x, cx.t_as("mat2", x.dtype()), &[1], &[1]) * cx.t_as("scales", x.dtype().opmath())
    })
    .eg(&["f32[3,32] i8[16,32]%90 f32[16]", "bf16[3,32] i8[16,32]%90 bf16[16]"]),
    one("_convert_weight_to_int4pack(Tensor self, int innerKTiles) -> Tensor", |cx| {
        // which lane holds what is the backend's own affair: rows stay rows
        let out = cx.out(0);
        cx.t("self").reshape(&[&out.dims[..], &[4]].concat()).bitcast_to(out)
    })
    .eg(&["u8[16,32] 2"]),
    one("_weight_int4pack_mm(Tensor self, Tensor mat2, int qGroupSize, Tensor qScaleAndZeros) -> Tensor", |cx| {
        let (x, zeros) = (cx.t("self"), cx.t_as("qScaleAndZeros", DType::F32));
        let (k, n) = (x.dim(1), zeros.dim(1));
        let bytes = cx.t("mat2").bitcast_to(Type::new(DType::U8, [&cx.t("mat2").dims()[..], &[4]].concat()));
        let bytes = bytes.reshape(&[n, k / 2, 1]);
        let digits = cx.b.concat(&[bytes.shr_logical(4i64), bytes & 15i64], 2).reshape(&[n, k / cx.int("qGroupSize"), cx.int("qGroupSize")]);
        let part = |i: i64| zeros.slice_dim(2, i, i + 1).swap(0, 1);
        let w = (digits.convert(DType::F32) - 8.0) * part(0) + part(1);
        dot(cx, x, w.reshape(&[n, k]).convert(x.dtype()), &[1], &[1])
    })
    .shapes(|sig| match (sig.arg("self"), sig.arg("qScaleAndZeros")) {
        (SigArg::Tensor { dtype, dims: x, .. }, SigArg::Tensor { dims: w, .. }) if x.len() == 2 && w.len() == 3 => {
            Some(vec![Type::new(*dtype, [x[0], w[1]])])
        }
        _ => None,
    })
    .eg(&["bf16[3,64] i32[2,2,32,1] 32 bf16[2,16,2]"]),
];

/// An eight-bit float in a dtype that holds all of it and that matrix units take.
fn exact(x: V<'_>) -> V<'_> {
    x.convert(DType::BF16)
}

/// Says no to scales of blocks: what is lowered has one scale for all, or one a row.
fn coarse(sig: &Sig<'_>, name: &str, side: usize) -> Option<Refusal> {
    let SigArg::Tensor { dtype: DType::F32, dims, .. } = sig.arg(name) else { return Some("scales are not float32") };
    let row = dims.len() == 2 && dims[1 - side] == 1;
    (!row && dims.iter().product::<i64>() != 1).then_some("scales of blocks are not lowered")
}

fn groups(cx: &Cx<'_>) -> i64 {
    cx.opt("offs").map_or_else(|| cx.t("self").dim(0), |o| o.numel())
}

/// `x` once a group.
fn spread(x: V<'_>, groups: i64) -> V<'_> {
    if x.rank() == 3 { x } else { x.broadcast_to(&[&[groups], &x.dims()[..]].concat()) }
}

/// Products of groups, whose ends along the one side's rows or columns (or along what is summed) `offs` tells: both sides
/// once a group, with zeros outside of it, in one contraction.
fn grouped<'b>(cx: &Cx<'b>, a: V<'b>, b: V<'b>) -> V<'b> {
    let n = groups(cx);
    let (flat_a, flat_b) = (cx.t("self").rank() == 2, cx.t("mat2").rank() == 2);
    let (mut a, mut b) = (spread(a, n), spread(b, n));
    if let Some(ends) = cx.opt_as("offs", DType::I32) {
        let within = |x: V<'b>, dim: usize| {
            let place = cx.b.iota(DType::I32, &x.dims(), dim);
            let at = |v: V<'b>| v.reshape(&[n, 1, 1]);
            let starts = cx.b.concat(&[ends.zeros_like().slice_dim(0, 0, 1), ends.slice_dim(0, 0, n - 1)], 0);
            (place.ge(at(starts)) & place.lt(at(ends))).select(x, x.zeros_like())
        };
        match (flat_a, flat_b) {
            (true, false) => a = within(a, 1),
            (true, true) => (a, b) = (within(a, 2), within(b, 1)),
            _ => b = within(b, 2),
        }
    }
    let mut d = DotDims { lhs_contract: vec![2], rhs_contract: vec![1], ..DotDims::default() };
    if flat_a == flat_b {
        (d.lhs_batch, d.rhs_batch) = (vec![0], vec![0]);
    } else {
        (d.lhs_contract, d.rhs_contract) = (vec![0, 2], vec![0, 1]);
    }
    contract(cx, a, b, d)
}
