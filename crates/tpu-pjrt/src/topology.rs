//! Topologies: compile for devices that are not here.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use tpu_pjrt_sys as sys;

use crate::api::{bytes, call, items, text};
use crate::client::with_program;
use crate::device::DeviceDescription;
use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::value::{self, Value};

/// A set of devices, described.
pub struct Topology {
    plugin: Arc<Plugin>,
    raw: NonNull<sys::PJRT_TopologyDescription>,
}

// SAFETY: PJRT topologies are immutable and thread-safe.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Topology {
    /// The topology that the plugin knows under `name` (for libtpu, `v6e:2x2`).
    pub fn create(plugin: &Arc<Plugin>, name: &str, options: &[(&str, Value)]) -> Result<Self> {
        let options = value::to_raw(options);
        // SAFETY: name and options outlive the call; we own the result.
        unsafe {
            let args = call!(
                &plugin.api,
                PJRT_TopologyDescription_Create {
                    topology_name: name.as_ptr().cast(),
                    topology_name_size: name.len(),
                    create_options: options.as_ptr(),
                    num_options: options.len(),
                }
            )?;
            Self::from_raw(plugin, args.topology)
        }
    }

    /// Reads what [`Topology::serialize`] wrote.
    pub fn deserialize(plugin: &Arc<Plugin>, serialized: &[u8]) -> Result<Self> {
        // SAFETY: the bytes outlive the call; we own the result.
        unsafe {
            let args = call!(
                &plugin.api,
                PJRT_TopologyDescription_Deserialize {
                    serialized_topology: serialized.as_ptr().cast(),
                    serialized_topology_size: serialized.len(),
                }
            )?;
            Self::from_raw(plugin, args.topology)
        }
    }

    /// # Safety
    /// `raw` is null or a live topology of `plugin` that nobody else owns.
    unsafe fn from_raw(plugin: &Arc<Plugin>, raw: *mut sys::PJRT_TopologyDescription) -> Result<Self> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { plugin: Arc::clone(plugin), raw }),
            None => Err(Error::argument("the plugin made no topology and gave no reason")),
        }
    }

    fn raw(&self) -> *mut sys::PJRT_TopologyDescription {
        self.raw.as_ptr()
    }

    /// For instance `tpu`.
    pub fn platform_name(&self) -> Result<String> {
        // SAFETY: a live topology; the text is copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_TopologyDescription_PlatformName { topology: self.raw() })?;
            Ok(text(a.platform_name, a.platform_name_size))
        }
    }

    /// The build of the platform.
    pub fn platform_version(&self) -> Result<String> {
        // SAFETY: a live topology; the text is copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_TopologyDescription_PlatformVersion { topology: self.raw() })?;
            Ok(text(a.platform_version, a.platform_version_size))
        }
    }

    /// Its devices, in the order of a default assignment.
    pub fn devices(&self) -> Result<Vec<DeviceDescription>> {
        // SAFETY: a live topology; the descriptions live as long as it does and are copied.
        unsafe {
            let api = &self.plugin.api;
            let args = call!(api, PJRT_TopologyDescription_GetDeviceDescriptions { topology: self.raw() })?;
            let list = items(args.descriptions, args.num_descriptions).iter();
            list.map(|&raw| DeviceDescription::read(api, raw)).collect()
        }
    }

    /// What the plugin says about it.
    pub fn attributes(&self) -> Result<Vec<(String, Value)>> {
        // SAFETY: a live topology; the values are copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_TopologyDescription_Attributes { topology: self.raw() })?;
            Ok(value::from_raw(a.attributes, a.num_attributes))
        }
    }

    /// Bytes that [`Topology::deserialize`] reads.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        // SAFETY: a live topology; the bytes are copied before their deleter runs.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_TopologyDescription_Serialize { topology: self.raw() })?;
            let copy = bytes(a.serialized_bytes, a.serialized_bytes_size).to_vec();
            if let Some(delete) = a.serialized_topology_deleter {
                delete(a.serialized_topology);
            }
            Ok(copy)
        }
    }

    /// Compiles a StableHLO module for these devices, without a client.
    pub fn compile(&self, program: impl AsRef<[u8]>, options: &CompileOptions) -> Result<Executable> {
        options.negotiate(&self.plugin, |options| {
            with_program(program.as_ref(), |program| {
                // SAFETY: a live topology; program and options outlive the call; we own the result.
                unsafe {
                    let args = call!(
                        &self.plugin.api,
                        PJRT_Compile {
                            topology: self.raw(),
                            program: program,
                            compile_options: options.as_ptr().cast(),
                            compile_options_size: options.len(),
                        }
                    )?;
                    Executable::from_raw(&self.plugin, args.executable)
                }
            })
        })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        // SAFETY: ours, used no more. Nothing can be done about a failure here.
        let _ = unsafe { call!(&self.plugin.api, PJRT_TopologyDescription_Destroy { topology: self.raw() }) };
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({})", self.platform_version().unwrap_or_default())
    }
}
