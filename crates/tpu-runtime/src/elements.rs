//! Our dtypes as PJRT's element types, and numbers as their bytes.

use tpu_base::{DType, Scalar};
use tpu_pjrt::ElementType;

/// PJRT's name of a dtype.
pub(crate) fn element_type(d: DType) -> ElementType {
    match d {
        DType::U8 => ElementType::U8,
        DType::I8 => ElementType::S8,
        DType::I16 => ElementType::S16,
        DType::I32 => ElementType::S32,
        DType::I64 => ElementType::S64,
        DType::F16 => ElementType::F16,
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::C64 => ElementType::C64,
        DType::C128 => ElementType::C128,
        DType::Bool => ElementType::Pred,
        DType::BF16 => ElementType::Bf16,
        DType::F8E5M2 => ElementType::F8E5M2,
        DType::F8E4M3FN => ElementType::F8E4M3Fn,
        DType::F8E5M2FNUZ => ElementType::F8E5M2Fnuz,
        DType::F8E4M3FNUZ => ElementType::F8E4M3Fnuz,
        DType::F8E8M0FNU => ElementType::F8E8M0Fnu,
        DType::U16 => ElementType::U16,
        DType::U32 => ElementType::U32,
        DType::U64 => ElementType::U64,
    }
}

/// A number as one element of `dtype`.
pub(crate) fn scalar_bytes(dtype: DType, s: Scalar) -> Vec<u8> {
    tpu_hlo::element_bytes(dtype, s)
}
