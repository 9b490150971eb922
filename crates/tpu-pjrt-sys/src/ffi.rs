//! XLA's typed FFI: what a custom-call handler is given.

use crate::layout::c_structs;
use core::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct XLA_FFI_Error {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct XLA_FFI_ExecutionContext {
    _opaque: [u8; 0],
}

/// The version that `XLA_FFI_Metadata` answers with.
pub const XLA_FFI_API_MAJOR: c_int = 0;
pub const XLA_FFI_API_MINOR: c_int = 3;

pub type XLA_FFI_Extension_Type = u32;
pub const XLA_FFI_Extension_Metadata: XLA_FFI_Extension_Type = 1;

pub type XLA_FFI_ExecutionStage = u32;
pub const XLA_FFI_ExecutionStage_EXECUTE: XLA_FFI_ExecutionStage = 3;

pub type XLA_FFI_AttrType = u32;
pub const XLA_FFI_AttrType_ARRAY: XLA_FFI_AttrType = 1;
pub const XLA_FFI_AttrType_DICTIONARY: XLA_FFI_AttrType = 2;
pub const XLA_FFI_AttrType_SCALAR: XLA_FFI_AttrType = 3;
pub const XLA_FFI_AttrType_STRING: XLA_FFI_AttrType = 4;

/// Not the numbering of `PJRT_Buffer_Type`, and not dense.
pub type XLA_FFI_DataType = u32;
pub const XLA_FFI_DataType_PRED: XLA_FFI_DataType = 1;
pub const XLA_FFI_DataType_S8: XLA_FFI_DataType = 2;
pub const XLA_FFI_DataType_S16: XLA_FFI_DataType = 3;
pub const XLA_FFI_DataType_S32: XLA_FFI_DataType = 4;
pub const XLA_FFI_DataType_S64: XLA_FFI_DataType = 5;
pub const XLA_FFI_DataType_U8: XLA_FFI_DataType = 6;
pub const XLA_FFI_DataType_U16: XLA_FFI_DataType = 7;
pub const XLA_FFI_DataType_U32: XLA_FFI_DataType = 8;
pub const XLA_FFI_DataType_U64: XLA_FFI_DataType = 9;
pub const XLA_FFI_DataType_F16: XLA_FFI_DataType = 10;
pub const XLA_FFI_DataType_F32: XLA_FFI_DataType = 11;
pub const XLA_FFI_DataType_F64: XLA_FFI_DataType = 12;
pub const XLA_FFI_DataType_C64: XLA_FFI_DataType = 15;
pub const XLA_FFI_DataType_BF16: XLA_FFI_DataType = 16;
pub const XLA_FFI_DataType_TOKEN: XLA_FFI_DataType = 17;
pub const XLA_FFI_DataType_C128: XLA_FFI_DataType = 18;
pub const XLA_FFI_DataType_F8E5M2: XLA_FFI_DataType = 19;
pub const XLA_FFI_DataType_F8E4M3FN: XLA_FFI_DataType = 20;

pub type XLA_FFI_Handler = unsafe extern "C" fn(*mut XLA_FFI_CallFrame) -> *mut XLA_FFI_Error;

c_structs! {
    sized XLA_FFI_Extension_Base {
        type_: XLA_FFI_Extension_Type,
        next: *mut XLA_FFI_Extension_Base,
    }
    sized XLA_FFI_Api_Version {
        extension_start: *mut XLA_FFI_Extension_Base,
        major_version: c_int,
        minor_version: c_int,
    }
    sized XLA_FFI_Metadata {
        api_version: XLA_FFI_Api_Version,
        traits: u32,
        state_type_id: XLA_FFI_TypeId,
    }
    plain XLA_FFI_TypeId { type_id: i64 }
    plain XLA_FFI_Metadata_Extension {
        extension_base: XLA_FFI_Extension_Base,
        metadata: *mut XLA_FFI_Metadata,
    }
    plain XLA_FFI_ByteSpan { ptr: *const c_char, len: usize }
    plain XLA_FFI_Scalar { dtype: XLA_FFI_DataType, value: *mut c_void }
    plain XLA_FFI_Array { dtype: XLA_FFI_DataType, size: usize, data: *mut c_void }
    sized XLA_FFI_Buffer {
        extension_start: *mut XLA_FFI_Extension_Base,
        dtype: XLA_FFI_DataType,
        data: *mut c_void,
        rank: i64,
        dims: *mut i64,
    }
    sized XLA_FFI_Args {
        extension_start: *mut XLA_FFI_Extension_Base,
        size: i64,
        types: *mut u32,
        args: *mut *mut c_void,
    }
    sized XLA_FFI_Rets {
        extension_start: *mut XLA_FFI_Extension_Base,
        size: i64,
        types: *mut u32,
        rets: *mut *mut c_void,
    }
    sized XLA_FFI_Attrs {
        extension_start: *mut XLA_FFI_Extension_Base,
        size: i64,
        types: *mut XLA_FFI_AttrType,
        names: *mut *mut XLA_FFI_ByteSpan,
        attrs: *mut *mut c_void,
    }
    sized XLA_FFI_CallFrame {
        extension_start: *mut XLA_FFI_Extension_Base,
        api: *const XLA_FFI_Api,
        ctx: *mut XLA_FFI_ExecutionContext,
        stage: XLA_FFI_ExecutionStage,
        args: XLA_FFI_Args,
        rets: XLA_FFI_Rets,
        attrs: XLA_FFI_Attrs,
        future: *mut c_void,
    }
    sized XLA_FFI_Error_Create_Args {
        extension_start: *mut XLA_FFI_Extension_Base,
        message: *const c_char,
        errc: u32,
    }
    sized XLA_FFI_Api {
        extension_start: *mut XLA_FFI_Extension_Base,
        api_version: XLA_FFI_Api_Version,
        internal_api: *const c_void,
        XLA_FFI_Error_Create:
            Option<unsafe extern "C" fn(*mut XLA_FFI_Error_Create_Args) -> *mut XLA_FFI_Error>,
        XLA_FFI_Error_GetMessage: usize,
        XLA_FFI_Error_Destroy: usize,
        XLA_FFI_Handler_Register: usize,
        XLA_FFI_Stream_Get: usize,
        XLA_FFI_Type_Register: usize,
        XLA_FFI_ExecutionContext_Get: usize,
        XLA_FFI_State_Set: usize,
        XLA_FFI_State_Get: usize,
        XLA_FFI_DeviceMemory_Allocate: usize,
        XLA_FFI_DeviceMemory_Free: usize,
        XLA_FFI_ThreadPool_Schedule: usize,
        XLA_FFI_ThreadPool_NumThreads: usize,
        XLA_FFI_Future_Create: usize,
        XLA_FFI_Future_SetAvailable: usize,
        XLA_FFI_Future_SetError: usize,
        XLA_FFI_RunId_Get: usize,
        XLA_FFI_DeviceOrdinal_Get: usize,
    }
}
