//! Products of matrices and vectors. Halves accumulate in float32; integers wrap like PyTorch's.

use crate::cx::{Arg, Cx};
use crate::def::{OpDef, SigArg, one};
use tpu_base::{DType, Scalar};
use tpu_hlo::{DotDims, Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    one("mm(Tensor self, Tensor mat2) -> Tensor", |cx| matmul(cx, cx.t("self"), cx.t("mat2"))).eg(&[
        "f32[2,3] f32[3,4]",
        "bf16[8,64] bf16[64,4]",
        "f16[2,3] f16[3,4]",
        "f64[2,3] f64[3,4]",
        "i64[2,3]%9 i64[3,4]%9",
        "i8[2,30]%90 i8[30,4]%90",
        "c64[2,3] c64[3,4]",
        "f32[2,0] f32[0,4]",
        "f32[0,3] f32[3,4]",
    ]),
    one("mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor", |cx| {
        matmul(cx, cx.t("self"), cx.t("mat2"))
    })
    .eg(&["bf16[2,3] bf16[3,4] f32"]),
    one("bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor", |cx| {
        matmul(cx, cx.t("self"), cx.t("mat2"))
    })
    .eg(&["f16[5,2,3] f16[5,3,4] f32"]),
    one(
        "addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |cx| added(cx, matmul(cx, cx.t("mat1"), cx.t("mat2"))),
    )
    .eg(&["f32[4] bf16[2,3] bf16[3,4] f32 beta=0.5 alpha=2"]),
    one(
        "baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |cx| added(cx, matmul(cx, cx.t("batch1"), cx.t("batch2"))),
    )
    .shapes(|sig| match (sig.arg("batch1"), sig.arg("batch2"), sig.arg("out_dtype")) {
        (SigArg::Tensor { dims: a, .. }, SigArg::Tensor { dims: b, .. }, SigArg::Int(code))
            if a.len() == 3 && b.len() == 3 =>
        {
            Some(vec![Type::new(DType::from_code(*code as u8)?, [a[0], a[1], b[2]])])
        }
        _ => None,
    })
    .eg(&["f32[5,2,4] bf16[5,2,3] bf16[5,3,4] f32"]),
    one("bmm(Tensor self, Tensor mat2) -> Tensor", |cx| matmul(cx, cx.t("self"), cx.t("mat2"))).eg(&[
        "f32[5,2,3] f32[5,3,4]",
        "bf16[5,2,3] bf16[5,3,4]",
        "i32[2,2,3]%9 i32[2,3,4]%9",
        "c128[2,2,3] c128[2,3,1]",
        "f32[5,2,0] f32[5,0,4]",
        "f32[0,2,3] f32[0,3,4]",
    ]),
    one("addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", |cx| {
        added(cx, matmul(cx, cx.t("mat1"), cx.t("mat2")))
    })
    .eg(&[
        "f32[4] f32[2,3] f32[3,4]",
        "f32[2,4] f32[2,3] f32[3,4] beta=0.5 alpha=2",
        "f32[1,4] f32[2,3] f32[3,4] beta=0",
        "bf16[4] bf16[2,3] bf16[3,4] alpha=0.5",
        "f64[] f64[2,3] f64[3,4]",
        "i64[4] i64[2,3]%9 i64[3,4]%9 alpha=2 beta=3",
        "f32[4] f32[2,0] f32[0,4]",
    ]),
    one(
        "_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False) \
         -> Tensor",
        |cx| {
            let y = added(cx, matmul(cx, cx.t("mat1"), cx.t("mat2")));
            if cx.flag("use_gelu") { y * 0.5 * ((y * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) } else { y.max(0.0) }
        },
    )
    .eg(&["f32[4] f32[2,3] f32[3,4]", "f32[4] f32[2,3] f32[3,4] use_gelu=True"]),
    one("baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", |cx| {
        added(cx, matmul(cx, cx.t("batch1"), cx.t("batch2")))
    })
    .eg(&[
        "f32[5,2,4] f32[5,2,3] f32[5,3,4]",
        "f32[4] f32[5,2,3] f32[5,3,4] beta=0.5 alpha=2",
        "bf16[5,2,4] bf16[5,2,3] bf16[5,3,4] beta=0",
        "f32[5,2,4] f32[5,2,0] f32[5,0,4]",
    ]),
    one("addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", |cx| {
        added(cx, dot(cx, cx.t("batch1"), cx.t("batch2"), &[0, 2], &[0, 1]))
    })
    .eg(&[
        "f32[2,4] f32[5,2,3] f32[5,3,4]",
        "f64[4] f64[5,2,3] f64[5,3,4] beta=0.5 alpha=2",
        "f32[2,4] f32[0,2,3] f32[0,3,4]",
    ]),
    one("addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor", |cx| {
        added(cx, dot(cx, cx.t("mat"), cx.t("vec"), &[1], &[0]))
    })
    .eg(&[
        "f32[2] f32[2,3] f32[3]",
        "f32[] f32[2,3] f32[3] beta=0.5 alpha=2",
        "i64[2] i64[2,3]%9 i64[3]%9",
        "f32[2] f32[2,0] f32[0]",
    ]),
    one("addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", |cx| {
        let d = cx.out_dtype().opmath();
        added(cx, cx.t_as("vec1", d).unsqueeze(1) * cx.t_as("vec2", d).unsqueeze(0))
    })
    .eg(&["f32[2,3] f32[2] f32[3]", "f32[3] f32[2] f32[3] beta=0 alpha=0.5", "i64[2,3] i64[2] i64[3]", "bool[2,3] bool[2] bool[3]"]),
    one("mv(Tensor self, Tensor vec) -> Tensor", |cx| dot(cx, cx.t("self"), cx.t("vec"), &[1], &[0])).eg(&[
        "f32[2,3] f32[3]",
        "bf16[2,3] bf16[3]",
        "i64[2,3]%9 i64[3]%9",
        "f32[2,0] f32[0]",
    ]),
    one("dot(Tensor self, Tensor tensor) -> Tensor", |cx| dot(cx, cx.t("self"), cx.t("tensor"), &[0], &[0])).eg(&[
        "f32[5] f32[5]",
        "bf16[40] bf16[40]",
        "i64[5]%9 i64[5]%9",
        "c64[5] c64[5]",
        "f32[0] f32[0]",
    ]),
    one("vdot(Tensor self, Tensor other) -> Tensor", |cx| {
        dot(cx, cx.t("self").conj(), cx.t("other"), &[0], &[0])
    })
    .eg(&["f32[5] f32[5]", "c64[5] c64[5]"]),
    one("_int_mm(Tensor self, Tensor mat2) -> Tensor", |cx| {
        let d = DotDims { lhs_contract: vec![1], rhs_contract: vec![0], ..DotDims::default() };
        cx.t("self").dot_general(cx.t("mat2"), &d, DType::I32, cx.precision())
    })
    .eg(&["i8[32,16]%90 i8[16,8]%90"]),
];

/// (Batched) matrix product in the accumulation dtype.
pub(super) fn matmul<'b>(cx: &Cx<'b>, a: V<'b>, b: V<'b>) -> V<'b> {
    let batch: Vec<usize> = (0..a.rank() - 2).collect();
    let (lhs, rhs) = (vec![a.rank() - 1], vec![b.rank() - 2]);
    contract(cx, a, b, DotDims { lhs_batch: batch.clone(), rhs_batch: batch, lhs_contract: lhs, rhs_contract: rhs })
}

/// Contraction without batch dimensions, in the accumulation dtype.
pub(super) fn dot<'b>(cx: &Cx<'b>, a: V<'b>, b: V<'b>, lhs: &[usize], rhs: &[usize]) -> V<'b> {
    contract(cx, a, b, DotDims { lhs_contract: lhs.to_vec(), rhs_contract: rhs.to_vec(), ..DotDims::default() })
}

pub(super) fn contract<'b>(cx: &Cx<'b>, a: V<'b>, b: V<'b>, d: DotDims) -> V<'b> {
    if !matches!(a.dtype(), DType::I64 | DType::U64) {
        return a.dot_general(b, &d, a.dtype().opmath(), cx.precision());
    }
    // TPUs have no 64-bit integer product: multiply and sum, which fuses into one loop
    let free = |rank: usize, batch: &[usize], summed: &[usize]| -> Vec<usize> {
        (0..rank).filter(|i| !batch.contains(i) && !summed.contains(i)).collect()
    };
    let (left, right) = (free(a.rank(), &d.lhs_batch, &d.lhs_contract), free(b.rank(), &d.rhs_batch, &d.rhs_contract));
    let sizes = |v: V<'b>, at: &[usize]| at.iter().map(|&i| v.dim(i)).collect::<Vec<i64>>();
    // both as (batch, left, right, summed), with ones where a side lacks a dimension
    let x = a.transpose(&[&d.lhs_batch[..], &left, &d.lhs_contract].concat());
    let x =
        x.reshape(&[sizes(a, &d.lhs_batch), sizes(a, &left), vec![1; right.len()], sizes(a, &d.lhs_contract)].concat());
    let y = b.transpose(&[&d.rhs_batch[..], &right, &d.rhs_contract].concat());
    let y =
        y.reshape(&[sizes(b, &d.rhs_batch), vec![1; left.len()], sizes(b, &right), sizes(b, &d.rhs_contract)].concat());
    let kept = d.lhs_batch.len() + left.len() + right.len();
    (x * y).sum(&(kept..kept + d.lhs_contract.len()).collect::<Vec<_>>())
}

/// `beta · self + alpha · product`. A zero beta drops `self`, NaN included; ones cost nothing.
fn added<'b>(cx: &Cx<'b>, product: V<'b>) -> V<'b> {
    let d = product.dtype();
    let one = |name: &str| matches!(cx.arg(name), Arg::Scalar(s) if *s == Scalar::Int(1));
    let scaled = if one("alpha") { product } else { product * cx.scalar("alpha", d) };
    let own = cx.t_as("self", d);
    if one("beta") {
        return own + scaled;
    }
    let beta = cx.scalar("beta", d);
    beta.eq(beta.zeros_like()).select(scaled, own * beta + scaled)
}
