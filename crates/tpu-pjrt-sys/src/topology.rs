//! Topologies: devices known without holding them.

use crate::layout::c_structs;
use crate::*;
use core::ffi::c_char;

pub type PJRT_SerializedTopology_Deleter = unsafe extern "C" fn(*mut PJRT_SerializedTopology);

c_structs! {
    args PJRT_TopologyDescription_Create_Args {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        topology: *mut PJRT_TopologyDescription,
    }
    args PJRT_TopologyDescription_Destroy_Args { topology: *mut PJRT_TopologyDescription }
    args PJRT_TopologyDescription_PlatformName_Args {
        topology: *mut PJRT_TopologyDescription,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    args PJRT_TopologyDescription_PlatformVersion_Args {
        topology: *mut PJRT_TopologyDescription,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    args PJRT_TopologyDescription_GetDeviceDescriptions_Args {
        topology: *mut PJRT_TopologyDescription,
        descriptions: *const *mut PJRT_DeviceDescription,
        num_descriptions: usize,
    }
    args PJRT_TopologyDescription_Serialize_Args {
        topology: *mut PJRT_TopologyDescription,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_topology: *mut PJRT_SerializedTopology,
        serialized_topology_deleter: Option<PJRT_SerializedTopology_Deleter>,
    }
    args PJRT_TopologyDescription_Deserialize_Args {
        serialized_topology: *const c_char,
        serialized_topology_size: usize,
        topology: *mut PJRT_TopologyDescription,
    }
    args PJRT_TopologyDescription_Attributes_Args {
        topology: *mut PJRT_TopologyDescription,
        attributes: *const PJRT_NamedValue,
        num_attributes: usize,
    }
    args PJRT_TopologyDescription_Fingerprint_Args {
        topology: *mut PJRT_TopologyDescription,
        fingerprint: u64,
    }
}
