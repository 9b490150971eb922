//! Client and compilation.

use crate::layout::c_structs;
use crate::*;
use core::ffi::{c_char, c_int, c_void};

c_structs! {
    args PJRT_Client_Create_Args {
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        kv_get_callback: *const c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *const c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client,
        kv_try_get_callback: *const c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    args PJRT_Client_Destroy_Args { client: *mut PJRT_Client }
    args PJRT_Client_PlatformName_Args {
        client: *mut PJRT_Client,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    args PJRT_Client_ProcessIndex_Args { client: *mut PJRT_Client, process_index: c_int }
    args PJRT_Client_PlatformVersion_Args {
        client: *mut PJRT_Client,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    args PJRT_Client_TopologyDescription_Args {
        client: *mut PJRT_Client,
        topology: *mut PJRT_TopologyDescription,
    }
    args PJRT_Client_Devices_Args {
        client: *mut PJRT_Client,
        devices: *const *mut PJRT_Device,
        num_devices: usize,
    }
    args PJRT_Client_AddressableDevices_Args {
        client: *mut PJRT_Client,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    args PJRT_Client_LookupDevice_Args {
        client: *mut PJRT_Client,
        id: c_int,
        device: *mut PJRT_Device,
    }
    args PJRT_Client_LookupAddressableDevice_Args {
        client: *mut PJRT_Client,
        local_hardware_id: c_int,
        addressable_device: *mut PJRT_Device,
    }
    args PJRT_Client_AddressableMemories_Args {
        client: *mut PJRT_Client,
        addressable_memories: *const *mut PJRT_Memory,
        num_addressable_memories: usize,
    }
    args PJRT_Program {
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }
    args PJRT_Client_Compile_Args {
        client: *mut PJRT_Client,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut PJRT_LoadedExecutable,
    }
    args PJRT_Client_Load_Args {
        client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
        compile_options: *const c_char,
        compile_options_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
    }
    args PJRT_Compile_Args {
        topology: *const PJRT_TopologyDescription,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
    }
    args PJRT_Client_DefaultDeviceAssignment_Args {
        client: *mut PJRT_Client,
        num_replicas: c_int,
        num_partitions: c_int,
        default_assignment_size: usize,
        default_assignment: *mut c_int,
    }
    args PJRT_Client_DmaMap_Args { client: *mut PJRT_Client, data: *mut c_void, size: usize }
    args PJRT_Client_DmaUnmap_Args { client: *mut PJRT_Client, data: *mut c_void }
}
