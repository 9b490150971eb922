//! Extensions: a chain that starts at the function table; each is found by its type id.

use crate::layout::c_structs;
use crate::*;
use core::ffi::{c_char, c_int, c_void};

pub type PJRT_Extension_Type = u32;
pub const PJRT_Extension_Type_Gpu_Custom_Call: PJRT_Extension_Type = 0;
pub const PJRT_Extension_Type_Profiler: PJRT_Extension_Type = 1;
pub const PJRT_Extension_Type_Custom_Partitioner: PJRT_Extension_Type = 2;
pub const PJRT_Extension_Type_Stream: PJRT_Extension_Type = 3;
pub const PJRT_Extension_Type_Layouts: PJRT_Extension_Type = 4;
pub const PJRT_Extension_Type_FFI: PJRT_Extension_Type = 5;
pub const PJRT_Extension_Type_MemoryDescriptions: PJRT_Extension_Type = 6;
pub const PJRT_Extension_Type_Triton: PJRT_Extension_Type = 7;
pub const PJRT_Extension_Type_RawBuffer: PJRT_Extension_Type = 8;
pub const PJRT_Extension_Type_PhaseCompile: PJRT_Extension_Type = 9;
pub const PJRT_Extension_Type_Example: PJRT_Extension_Type = 10;
pub const PJRT_Extension_Type_Unknown: PJRT_Extension_Type = 11;
pub const PJRT_Extension_Type_CrossHostTransfers: PJRT_Extension_Type = 12;
pub const PJRT_Extension_Type_ExecutableMetadata: PJRT_Extension_Type = 13;
pub const PJRT_Extension_Type_Callback: PJRT_Extension_Type = 14;
pub const PJRT_Extension_Type_HostAllocator: PJRT_Extension_Type = 15;
pub const PJRT_Extension_Type_TpuTopology: PJRT_Extension_Type = 16;
pub const PJRT_Extension_Type_TpuExecutable: PJRT_Extension_Type = 17;
pub const PJRT_Extension_Type_Megascale: PJRT_Extension_Type = 18;
pub const PJRT_Extension_Type_Shardings: PJRT_Extension_Type = 19;
pub const PJRT_Extension_Type_AbiVersion: PJRT_Extension_Type = 20;
pub const PJRT_Extension_Type_Collectives: PJRT_Extension_Type = 21;
pub const PJRT_Extension_Type_MultiSlice: PJRT_Extension_Type = 22;
pub const PJRT_Extension_Type_HostMemoryAllocator: PJRT_Extension_Type = 23;
pub const PJRT_Extension_Type_XlaTransform: PJRT_Extension_Type = 24;

pub type PJRT_Layouts_SerializedLayout_Deleter = unsafe extern "C" fn(*mut PJRT_Layouts_SerializedLayout);

c_structs! {
    plain PJRT_FFI_Extension {
        base: PJRT_Extension_Base,
        type_register: *const c_void,
        user_data_add: *const c_void,
        register_handler: Call<PJRT_FFI_Register_Handler_Args>,
    }
    sized PJRT_FFI_Register_Handler_Args {
        target_name: *const c_char,
        target_name_size: usize,
        handler: *const c_void,
        platform_name: *const c_char,
        platform_name_size: usize,
        traits: u32,
    }

    plain PJRT_Layouts_Extension {
        base: PJRT_Extension_Base,
        PJRT_Layouts_MemoryLayout_Destroy: Call<PJRT_Layouts_MemoryLayout_Destroy_Args>,
        PJRT_Layouts_MemoryLayout_Serialize: Call<PJRT_Layouts_MemoryLayout_Serialize_Args>,
        PJRT_Layouts_PJRT_Client_GetDefaultLayout:
            Call<PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args>,
        PJRT_Layouts_PJRT_Buffer_MemoryLayout: Call<PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args>,
        PJRT_Layouts_PJRT_Topology_GetDefaultLayout: *const c_void,
        PJRT_Layouts_PJRT_Executable_GetOutputLayouts: *const c_void,
        PJRT_Layouts_PJRT_Executable_GetParameterLayouts: *const c_void,
    }
    args PJRT_Layouts_MemoryLayout_Destroy_Args { layout: *mut PJRT_Layouts_MemoryLayout }
    args PJRT_Layouts_MemoryLayout_Serialize_Args {
        layout: *mut PJRT_Layouts_MemoryLayout,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_layout: *mut PJRT_Layouts_SerializedLayout,
        serialized_layout_deleter: Option<PJRT_Layouts_SerializedLayout_Deleter>,
    }
    args PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args {
        client: *mut PJRT_Client,
        type_: PJRT_Buffer_Type,
        dims: *const i64,
        num_dims: usize,
        layout: *mut PJRT_Layouts_MemoryLayout,
    }
    args PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
        buffer: *mut PJRT_Buffer,
        layout: *mut PJRT_Layouts_MemoryLayout,
    }

    plain PJRT_MemoryDescriptions_Extension {
        base: PJRT_Extension_Base,
        PJRT_DeviceDescription_MemoryDescriptions:
            Call<PJRT_DeviceDescription_MemoryDescriptions_Args>,
        PJRT_MemoryDescription_Kind: Call<PJRT_MemoryDescription_Kind_Args>,
    }
    args PJRT_DeviceDescription_MemoryDescriptions_Args {
        device_description: *mut PJRT_DeviceDescription,
        memory_descriptions: *const *const PJRT_MemoryDescription,
        num_memory_descriptions: usize,
        default_memory_index: usize,
    }
    args PJRT_MemoryDescription_Kind_Args {
        memory_description: *const PJRT_MemoryDescription,
        kind: *const c_char,
        kind_size: usize,
        kind_id: c_int,
    }
}
