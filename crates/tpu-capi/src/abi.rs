//! `include/capi.h` in Rust: layouts and codes.

use std::ffi::c_void;
use tpu_base::{DType, ErrorKind, Scalar};

pub const OK: i32 = 0;
pub const NEED_META: i32 = 1;
pub const FALLBACK: i32 = 2;
pub const ERROR: i32 = 3;
pub const PENDING: i32 = 4;

pub fn kind_code(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::User | ErrorKind::Device => 0,
        ErrorKind::Value => 1,
        ErrorKind::Type => 2,
        ErrorKind::Index => 3,
        ErrorKind::Unsupported => 4,
        ErrorKind::OutOfMemory => 5,
        ErrorKind::Bug => 6,
        ErrorKind::LinAlg => 7,
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TpuScalar {
    pub tag: u8,
    pub lo: u64,
    pub hi: u64,
}

impl TpuScalar {
    pub fn get(self) -> Scalar {
        Scalar::from_bits(self.tag, self.lo, self.hi).unwrap_or(Scalar::Int(0))
    }
}

pub const WRAPPED: u8 = 1;
pub const CONJ: u8 = 2;
pub const NEG: u8 = 4;
pub const ABSENT: u8 = 8;
pub const HOST: u8 = 16;

#[repr(C)]
pub struct TpuTensor {
    pub storage: *mut crate::storage::TpuStorage,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub offset: i64,
    pub ndim: u32,
    pub dtype: u8,
    pub flags: u8,
    pub host: TpuScalar,
}

#[repr(C)]
pub union ArgValue {
    pub i: i64,
    pub d: f64,
    pub scalar: TpuScalar,
    pub tensors: *const TpuTensor,
    pub scalars: *const TpuScalar,
    pub ints: *const i64,
    pub doubles: *const f64,
    pub str: *const u8,
}

#[repr(C)]
pub struct TpuArg {
    pub kind: u8,
    pub n: u32,
    pub value: ArgValue,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TpuOut {
    pub storage: *mut crate::storage::TpuStorage,
    pub address: *mut c_void,
    pub nbytes: u64,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub ndim: u32,
    pub dtype: u8,
    pub absent: u8,
    pub owner: i32,
    pub offset: i64,
}

impl Default for TpuOut {
    fn default() -> Self {
        let (sizes, strides) = (std::ptr::null(), std::ptr::null());
        let (storage, address) = (std::ptr::null_mut(), std::ptr::null_mut());
        TpuOut { storage, address, nbytes: 0, sizes, strides, ndim: 0, dtype: 0, absent: 0, owner: -1, offset: 0 }
    }
}

pub const MAX_OUTS: usize = 8;

#[repr(C)]
pub struct TpuResult {
    pub n_outs: u32,
    pub rng_increment: u64,
    pub outs: [TpuOut; MAX_OUTS],
    pub more: *const TpuOut,
}

#[repr(C)]
#[derive(Default)]
pub struct TpuMemoryStats {
    pub current: u64,
    pub peak: u64,
    pub limit: u64,
    pub allocated_total: u64,
    pub freed_total: u64,
    pub active_count: u64,
    pub allocation_count: u64,
    pub oom_count: u64,
    pub retry_count: u64,
}

pub fn dtype(code: u8) -> Option<DType> {
    DType::from_code(code)
}
