//! Devices and memories of a client, and descriptions of devices one may not hold.

use std::fmt;
use std::ptr::NonNull;

use tpu_pjrt_sys as sys;

use crate::api::{Api, call, items, text};
use crate::client::Client;
use crate::error::Result;
use crate::value::{self, Value};

/// A device of a client.
#[derive(Clone)]
pub struct Device {
    client: Client,
    raw: NonNull<sys::PJRT_Device>,
}

// SAFETY: PJRT devices are immutable and thread-safe.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What is known about a device, whether or not one holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// The global id.
    pub id: i32,
    /// The process that drives it.
    pub process_index: i32,
    /// For instance `TPU v6 lite` or `cpu`.
    pub kind: String,
    /// Long form.
    pub debug_string: String,
    /// Short form.
    pub display: String,
    /// Coordinates, memory limits and so on.
    pub attributes: Vec<(String, Value)>,
}

/// Allocator statistics; what the plugin does not keep is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct MemoryStats {
    pub bytes_in_use: i64,
    pub peak_bytes_in_use: Option<i64>,
    pub num_allocs: Option<i64>,
    pub largest_alloc_size: Option<i64>,
    pub bytes_limit: Option<i64>,
    pub bytes_reserved: Option<i64>,
    pub peak_bytes_reserved: Option<i64>,
    pub bytes_reservable_limit: Option<i64>,
    pub largest_free_block_bytes: Option<i64>,
    pub pool_bytes: Option<i64>,
    pub peak_pool_bytes: Option<i64>,
}

impl Device {
    /// # Safety
    /// `raw` is a device of `client`.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_Device) -> Option<Self> {
        Some(Self { client: client.clone(), raw: NonNull::new(raw)? })
    }

    pub(crate) fn raw(&self) -> *mut sys::PJRT_Device {
        self.raw.as_ptr()
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Everything its description says.
    pub fn description(&self) -> Result<DeviceDescription> {
        // SAFETY: the device lives as long as its client; so does the description.
        unsafe {
            let args = call!(self.client.api(), PJRT_Device_GetDescription { device: self.raw() })?;
            DeviceDescription::read(self.client.api(), args.device_description)
        }
    }

    /// The global id.
    pub fn id(&self) -> Result<i32> {
        // SAFETY: as in `description`.
        unsafe {
            let api = self.client.api();
            let args = call!(api, PJRT_Device_GetDescription { device: self.raw() })?;
            let raw = args.device_description;
            Ok(call!(api, PJRT_DeviceDescription_Id { device_description: raw })?.id)
        }
    }

    /// The kind, for instance `TPU v6 lite`.
    pub fn kind(&self) -> Result<String> {
        Ok(self.description()?.kind)
    }

    /// The long form of its name.
    pub fn debug_string(&self) -> Result<String> {
        Ok(self.description()?.debug_string)
    }

    /// Coordinates, memory limits and so on.
    pub fn attributes(&self) -> Result<Vec<(String, Value)>> {
        Ok(self.description()?.attributes)
    }

    /// Whether this process can use it.
    pub fn is_addressable(&self) -> Result<bool> {
        // SAFETY: the device lives as long as its client.
        let args = unsafe { call!(self.client.api(), PJRT_Device_IsAddressable { device: self.raw() })? };
        Ok(args.is_addressable)
    }

    /// Its index among the process's devices.
    pub fn local_hardware_id(&self) -> Result<i32> {
        // SAFETY: the device lives as long as its client.
        let args = unsafe { call!(self.client.api(), PJRT_Device_LocalHardwareId { device: self.raw() })? };
        Ok(args.local_hardware_id)
    }

    /// The memories it can use.
    pub fn memories(&self) -> Result<Vec<Memory>> {
        // SAFETY: the device, its memories and the list live as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_Device_AddressableMemories { device: self.raw() })?;
            let list = items(args.memories, args.num_memories).iter();
            Ok(list.filter_map(|&raw| Memory::from_raw(&self.client, raw)).collect())
        }
    }

    /// The memory that buffers go to unless told otherwise.
    pub fn default_memory(&self) -> Result<Option<Memory>> {
        // SAFETY: the device and its memories live as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_Device_DefaultMemory { device: self.raw() })?;
            Ok(Memory::from_raw(&self.client, args.memory))
        }
    }

    /// Allocator statistics; `Unsupported` where the plugin keeps none (CPU plugins).
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        // SAFETY: the device lives as long as its client.
        let a = unsafe { call!(self.client.api(), PJRT_Device_MemoryStats { device: self.raw() })? };
        Ok(MemoryStats {
            bytes_in_use: a.bytes_in_use,
            peak_bytes_in_use: a.peak_bytes_in_use_is_set.then_some(a.peak_bytes_in_use),
            num_allocs: a.num_allocs_is_set.then_some(a.num_allocs),
            largest_alloc_size: a.largest_alloc_size_is_set.then_some(a.largest_alloc_size),
            bytes_limit: a.bytes_limit_is_set.then_some(a.bytes_limit),
            bytes_reserved: a.bytes_reserved_is_set.then_some(a.bytes_reserved),
            peak_bytes_reserved: a.peak_bytes_reserved_is_set.then_some(a.peak_bytes_reserved),
            bytes_reservable_limit: a.bytes_reservable_limit_is_set.then_some(a.bytes_reservable_limit),
            largest_free_block_bytes: a.largest_free_block_bytes_is_set.then_some(a.largest_free_block_bytes),
            pool_bytes: a.pool_bytes_is_set.then_some(a.pool_bytes),
            peak_pool_bytes: a.peak_pool_bytes_is_set.then_some(a.peak_pool_bytes),
        })
    }

    /// Starts the peaks anew, where the plugin can.
    pub fn clear_memory_stats(&self) -> Result<()> {
        // SAFETY: the device lives as long as its client.
        unsafe { call!(self.client.api(), PJRT_Device_ClearMemoryStats { device: self.raw() })? };
        Ok(())
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.description() {
            Ok(description) => write!(f, "Device({})", description.display),
            Err(error) => write!(f, "Device({error})"),
        }
    }
}

impl DeviceDescription {
    /// # Safety
    /// `raw` is a live description of `api`'s plugin.
    pub(crate) unsafe fn read(api: &Api, raw: *mut sys::PJRT_DeviceDescription) -> Result<Self> {
        // SAFETY: the caller's promise; all strings are copied.
        unsafe {
            let id = call!(api, PJRT_DeviceDescription_Id { device_description: raw })?.id;
            let process = call!(api, PJRT_DeviceDescription_ProcessIndex { device_description: raw })?;
            let kind = call!(api, PJRT_DeviceDescription_Kind { device_description: raw })?;
            let long = call!(api, PJRT_DeviceDescription_DebugString { device_description: raw })?;
            let short = call!(api, PJRT_DeviceDescription_ToString { device_description: raw })?;
            let attributes = call!(api, PJRT_DeviceDescription_Attributes { device_description: raw })?;
            Ok(Self {
                id,
                process_index: process.process_index,
                kind: text(kind.device_kind, kind.device_kind_size),
                debug_string: text(long.debug_string, long.debug_string_size),
                display: text(short.to_string, short.to_string_size),
                attributes: value::from_raw(attributes.attributes, attributes.num_attributes),
            })
        }
    }

    /// One attribute.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// A memory space of a client, such as device memory or pinned host memory.
#[derive(Clone)]
pub struct Memory {
    client: Client,
    raw: NonNull<sys::PJRT_Memory>,
}

// SAFETY: PJRT memories are immutable and thread-safe.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `raw` is null or a memory of `client`.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_Memory) -> Option<Self> {
        Some(Self { client: client.clone(), raw: NonNull::new(raw)? })
    }

    pub(crate) fn raw(&self) -> *mut sys::PJRT_Memory {
        self.raw.as_ptr()
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The id.
    pub fn id(&self) -> Result<i32> {
        // SAFETY: the memory lives as long as its client.
        Ok(unsafe { call!(self.client.api(), PJRT_Memory_Id { memory: self.raw() })? }.id)
    }

    /// For instance `device`, `pinned_host`, `unpinned_host`.
    pub fn kind(&self) -> Result<String> {
        // SAFETY: the memory and the text live as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_Memory_Kind { memory: self.raw() })?;
            Ok(text(args.kind, args.kind_size))
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({})", self.kind().unwrap_or_default())
    }
}
