//! Executables: what they say about themselves, serialization, execution.

use crate::layout::c_structs;
use crate::*;
use core::ffi::{c_char, c_int, c_void};

pub type PJRT_SerializedExecutable_Deleter = unsafe extern "C" fn(*mut PJRT_SerializedExecutable);
pub type PJRT_SerializedCompileOptions_Deleter = unsafe extern "C" fn(*mut PJRT_SerializedCompileOptions);

c_structs! {
    args PJRT_Executable_Destroy_Args { executable: *mut PJRT_Executable }
    args PJRT_Executable_Name_Args {
        executable: *mut PJRT_Executable,
        executable_name: *const c_char,
        executable_name_size: usize,
    }
    args PJRT_Executable_NumReplicas_Args { executable: *mut PJRT_Executable, num_replicas: usize }
    args PJRT_Executable_NumPartitions_Args {
        executable: *mut PJRT_Executable,
        num_partitions: usize,
    }
    args PJRT_Executable_NumOutputs_Args { executable: *mut PJRT_Executable, num_outputs: usize }
    args PJRT_Executable_SizeOfGeneratedCodeInBytes_Args {
        executable: *mut PJRT_Executable,
        size_in_bytes: i64,
    }
    args PJRT_Executable_GetCostAnalysis_Args {
        executable: *mut PJRT_Executable,
        num_properties: usize,
        properties: *const PJRT_NamedValue,
    }
    args PJRT_Executable_OutputMemoryKinds_Args {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        memory_kinds: *const *const c_char,
        memory_kind_sizes: *const usize,
    }
    args PJRT_Executable_OptimizedProgram_Args {
        executable: *mut PJRT_Executable,
        program: *mut PJRT_Program,
    }
    args PJRT_Executable_Serialize_Args {
        executable: *const PJRT_Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<PJRT_SerializedExecutable_Deleter>,
    }
    args PJRT_Executable_OutputElementTypes_Args {
        executable: *mut PJRT_Executable,
        output_types: *mut PJRT_Buffer_Type,
        num_output_types: usize,
    }
    args PJRT_Executable_OutputDimensions_Args {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    args PJRT_Executable_Fingerprint_Args {
        executable: *mut PJRT_Executable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }
    args PJRT_Executable_GetCompiledMemoryStats_Args {
        executable: *mut PJRT_Executable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
        total_size_in_bytes: i64,
        total_allocation_bytes: i64,
        indefinite_allocations: i64,
        peak_unpadded_heap_bytes: i64,
    }
    args PJRT_Executable_GetCompileOptions_Args {
        executable: *mut PJRT_Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_compile_options: *mut PJRT_SerializedCompileOptions,
        serialized_compile_options_deleter: Option<PJRT_SerializedCompileOptions_Deleter>,
    }
    args PJRT_Executable_DeserializeAndLoad_Args {
        client: *mut PJRT_Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
        overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize,
        load_options: *mut c_void,
    }

    args PJRT_LoadedExecutable_Destroy_Args { executable: *mut PJRT_LoadedExecutable }
    args PJRT_LoadedExecutable_GetExecutable_Args {
        loaded_executable: *mut PJRT_LoadedExecutable,
        executable: *mut PJRT_Executable,
    }
    args PJRT_LoadedExecutable_AddressableDevices_Args {
        executable: *mut PJRT_LoadedExecutable,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    args PJRT_LoadedExecutable_Delete_Args { executable: *mut PJRT_LoadedExecutable }
    args PJRT_LoadedExecutable_IsDeleted_Args {
        executable: *mut PJRT_LoadedExecutable,
        is_deleted: bool,
    }
    args PJRT_LoadedExecutable_Fingerprint_Args {
        executable: *mut PJRT_LoadedExecutable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }
    args PJRT_ExecuteOptions {
        send_callbacks: *mut *mut c_void,
        recv_callbacks: *mut *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut PJRT_ExecuteContext,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
        multi_slice_config: *mut c_void,
        use_major_to_minor_data_layout_for_callbacks: bool,
        hlo_output_callbacks: *mut c_void,
        num_hlo_output_callbacks: usize,
    }
    args PJRT_LoadedExecutable_Execute_Args {
        executable: *mut PJRT_LoadedExecutable,
        options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer,
        device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }
    args PJRT_ExecuteContext_Create_Args { context: *mut PJRT_ExecuteContext }
    args PJRT_ExecuteContext_Destroy_Args { context: *mut PJRT_ExecuteContext }
}
