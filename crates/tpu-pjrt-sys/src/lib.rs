//! The part of the PJRT C API that we call, as `#[repr(C)]` data: no functions of its own, no
//! dependencies. Names are the C API's, so that they can be searched for; offsets are held against
//! an independent table by `tests/layout.rs`.
//!
//! Plugins refuse an argument struct smaller than the one they were built with and accept a larger
//! one, so every struct here has the newest known layout and starts out zero-filled.
#![no_std]
#![allow(
    non_snake_case,
    non_camel_case_types,
    non_upper_case_globals,
    missing_docs,
    reason = "the names and their documentation are the C API's"
)]

pub mod layout;

mod api;
mod buffer;
mod client;
mod device;
mod executable;
mod extension;
mod ffi;
mod topology;

pub use api::*;
pub use buffer::*;
pub use client::*;
pub use device::*;
pub use executable::*;
pub use extension::*;
pub use ffi::*;
pub use layout::CStruct;
pub use topology::*;

use core::ffi::{c_char, c_int};
use layout::{Layout, c_structs};

macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name { _opaque: [u8; 0] }
    )* };
}
opaque! {
    PJRT_Error PJRT_Event PJRT_Client PJRT_Device PJRT_DeviceDescription PJRT_Memory PJRT_Buffer
    PJRT_Executable PJRT_LoadedExecutable PJRT_SerializedExecutable PJRT_TopologyDescription
    PJRT_SerializedTopology PJRT_ExecuteContext PJRT_AsyncHostToDeviceTransferManager
    PJRT_Layouts_MemoryLayout PJRT_Layouts_SerializedLayout PJRT_Device_Attributes
    PJRT_SerializedCompileOptions PJRT_MemoryDescription
}

pub type PJRT_Error_Code = u32;
pub const PJRT_Error_Code_OK: PJRT_Error_Code = 0;
pub const PJRT_Error_Code_CANCELLED: PJRT_Error_Code = 1;
pub const PJRT_Error_Code_UNKNOWN: PJRT_Error_Code = 2;
pub const PJRT_Error_Code_INVALID_ARGUMENT: PJRT_Error_Code = 3;
pub const PJRT_Error_Code_DEADLINE_EXCEEDED: PJRT_Error_Code = 4;
pub const PJRT_Error_Code_NOT_FOUND: PJRT_Error_Code = 5;
pub const PJRT_Error_Code_ALREADY_EXISTS: PJRT_Error_Code = 6;
pub const PJRT_Error_Code_PERMISSION_DENIED: PJRT_Error_Code = 7;
pub const PJRT_Error_Code_RESOURCE_EXHAUSTED: PJRT_Error_Code = 8;
pub const PJRT_Error_Code_FAILED_PRECONDITION: PJRT_Error_Code = 9;
pub const PJRT_Error_Code_ABORTED: PJRT_Error_Code = 10;
pub const PJRT_Error_Code_OUT_OF_RANGE: PJRT_Error_Code = 11;
pub const PJRT_Error_Code_UNIMPLEMENTED: PJRT_Error_Code = 12;
pub const PJRT_Error_Code_INTERNAL: PJRT_Error_Code = 13;
pub const PJRT_Error_Code_UNAVAILABLE: PJRT_Error_Code = 14;
pub const PJRT_Error_Code_DATA_LOSS: PJRT_Error_Code = 15;
pub const PJRT_Error_Code_UNAUTHENTICATED: PJRT_Error_Code = 16;

pub type PJRT_NamedValue_Type = u32;
pub const PJRT_NamedValue_kString: PJRT_NamedValue_Type = 0;
pub const PJRT_NamedValue_kInt64: PJRT_NamedValue_Type = 1;
pub const PJRT_NamedValue_kInt64List: PJRT_NamedValue_Type = 2;
pub const PJRT_NamedValue_kFloat: PJRT_NamedValue_Type = 3;
pub const PJRT_NamedValue_kBool: PJRT_NamedValue_Type = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub union PJRT_NamedValue_Value {
    pub string_value: *const c_char,
    pub int64_value: i64,
    pub int64_array_value: *const i64,
    pub float_value: f32,
    pub bool_value: bool,
}

pub type PJRT_Event_OnReadyCallback = unsafe extern "C" fn(error: *mut PJRT_Error, user_arg: *mut core::ffi::c_void);

c_structs! {
    args PJRT_Api_Version { major_version: c_int, minor_version: c_int }
    sized PJRT_Extension_Base { type_: PJRT_Extension_Type, next: *mut PJRT_Extension_Base }
    args PJRT_NamedValue {
        name: *const c_char,
        name_size: usize,
        type_: PJRT_NamedValue_Type,
        value: PJRT_NamedValue_Value,
        value_size: usize,
    }

    args PJRT_Error_Destroy_Args { error: *mut PJRT_Error }
    args PJRT_Error_Message_Args {
        error: *const PJRT_Error,
        message: *const c_char,
        message_size: usize,
    }
    args PJRT_Error_GetCode_Args { error: *const PJRT_Error, code: PJRT_Error_Code }

    sized PJRT_Plugin_Initialize_Args { extension_start: *mut PJRT_Extension_Base }
    args PJRT_Plugin_Attributes_Args { attributes: *const PJRT_NamedValue, num_attributes: usize }

    args PJRT_Event_Destroy_Args { event: *mut PJRT_Event }
    args PJRT_Event_IsReady_Args { event: *mut PJRT_Event, is_ready: bool }
    args PJRT_Event_Error_Args { event: *mut PJRT_Event }
    args PJRT_Event_Await_Args { event: *mut PJRT_Event }
    args PJRT_Event_OnReady_Args {
        event: *mut PJRT_Event,
        callback: Option<PJRT_Event_OnReadyCallback>,
        user_arg: *mut core::ffi::c_void,
    }
    args PJRT_Event_Create_Args { event: *mut PJRT_Event }
    args PJRT_Event_Set_Args {
        event: *mut PJRT_Event,
        error_code: PJRT_Error_Code,
        error_message: *const c_char,
        error_message_size: usize,
    }
}

/// Every struct of the crate, for the layout test.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        LAYOUTS,
        api::LAYOUTS,
        buffer::LAYOUTS,
        client::LAYOUTS,
        device::LAYOUTS,
        executable::LAYOUTS,
        extension::LAYOUTS,
        ffi::LAYOUTS,
        topology::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}
