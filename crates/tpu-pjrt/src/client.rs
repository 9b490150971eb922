//! Clients: a plugin's devices, brought up.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use tpu_pjrt_sys as sys;

use crate::api::{Api, call, items, text};
use crate::device::{Device, Memory};
use crate::error::{Error, Result};
use crate::executable::LoadedExecutable;
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::value::{self, Value};

/// The format of the programs we compile: MLIR, as text or bytecode.
const FORMAT: &str = "mlir";

/// A client; clones are the same client. The last handle that depends on it destroys it.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    plugin: Arc<Plugin>,
    raw: NonNull<sys::PJRT_Client>,
    platform_name: String,
    platform_version: String,
}

// SAFETY: PJRT clients are thread-safe.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Client {
    /// Brings up the plugin's devices. Options are the plugin's own.
    pub fn create(plugin: &Arc<Plugin>, options: &[(&str, Value)]) -> Result<Self> {
        let options = value::to_raw(options);
        // SAFETY: the options outlive the call.
        let args = unsafe {
            call!(&plugin.api, PJRT_Client_Create { create_options: options.as_ptr(), num_options: options.len() })?
        };
        let raw =
            NonNull::new(args.client).ok_or_else(|| Error::argument("the plugin made no client and gave no reason"))?;
        let mut inner =
            Inner { plugin: Arc::clone(plugin), raw, platform_name: String::new(), platform_version: String::new() };
        // SAFETY: a live client, which `inner` destroys should this fail; the texts are copied.
        unsafe {
            let api = &plugin.api;
            let name = call!(api, PJRT_Client_PlatformName { client: raw.as_ptr() })?;
            inner.platform_name = text(name.platform_name, name.platform_name_size);
            let version = call!(api, PJRT_Client_PlatformVersion { client: raw.as_ptr() })?;
            inner.platform_version = text(version.platform_version, version.platform_version_size);
        }
        Ok(Self(Arc::new(inner)))
    }

    #[inline]
    pub(crate) fn api(&self) -> &Api {
        &self.0.plugin.api
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::PJRT_Client {
        self.0.raw.as_ptr()
    }

    /// A handle of another client may be a wild pointer to this one's plugin.
    pub(crate) fn check(&self, other: &Self) -> Result<()> {
        if self != other {
            return Err(Error::argument("the device or memory belongs to another client"));
        }
        Ok(())
    }

    /// The plugin it came from.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.0.plugin
    }

    /// For instance `cpu` or `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The build of the platform; part of a plan's identity on disk.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// This process among those that share the platform.
    pub fn process_index(&self) -> Result<i32> {
        // SAFETY: a live client.
        let args = unsafe { call!(self.api(), PJRT_Client_ProcessIndex { client: self.raw() })? };
        Ok(args.process_index)
    }

    /// All devices, of all processes.
    pub fn devices(&self) -> Result<Vec<Device>> {
        // SAFETY: a live client; the list and the devices live as long as it does.
        unsafe {
            let args = call!(self.api(), PJRT_Client_Devices { client: self.raw() })?;
            let list = items(args.devices, args.num_devices).iter();
            Ok(list.filter_map(|&raw| Device::from_raw(self, raw)).collect())
        }
    }

    /// The devices of this process.
    pub fn addressable_devices(&self) -> Result<Vec<Device>> {
        // SAFETY: as in `devices`.
        unsafe {
            let args = call!(self.api(), PJRT_Client_AddressableDevices { client: self.raw() })?;
            let list = items(args.addressable_devices, args.num_addressable_devices).iter();
            Ok(list.filter_map(|&raw| Device::from_raw(self, raw)).collect())
        }
    }

    /// The memories of this process's devices.
    pub fn addressable_memories(&self) -> Result<Vec<Memory>> {
        // SAFETY: as in `devices`.
        unsafe {
            let args = call!(self.api(), PJRT_Client_AddressableMemories { client: self.raw() })?;
            let list = items(args.addressable_memories, args.num_addressable_memories).iter();
            Ok(list.filter_map(|&raw| Memory::from_raw(self, raw)).collect())
        }
    }

    /// The device ids the plugin would pick, row by replica, column by partition.
    pub fn default_device_assignment(&self, replicas: i32, partitions: i32) -> Result<Vec<i32>> {
        let size = usize::try_from(replicas)
            .ok()
            .zip(usize::try_from(partitions).ok())
            .and_then(|(r, p)| r.checked_mul(p))
            .ok_or_else(|| Error::argument("a device assignment needs positive counts"))?;
        let mut assignment = vec![0_i32; size];
        // SAFETY: a live client and an array of the size given beside it.
        unsafe {
            call!(
                self.api(),
                PJRT_Client_DefaultDeviceAssignment {
                    client: self.raw(),
                    num_replicas: replicas,
                    num_partitions: partitions,
                    default_assignment_size: size,
                    default_assignment: assignment.as_mut_ptr(),
                }
            )?
        };
        Ok(assignment)
    }

    /// Compiles a StableHLO module (text or bytecode) for this client's devices.
    pub fn compile(&self, program: impl AsRef<[u8]>, options: &CompileOptions) -> Result<LoadedExecutable> {
        options.negotiate(self.plugin(), |encoded| self.compile_encoded(program.as_ref(), encoded))
    }

    /// As [`Client::compile`], with options encoded beforehand.
    pub fn compile_encoded(&self, program: &[u8], options: &[u8]) -> Result<LoadedExecutable> {
        with_program(program, |program| {
            // SAFETY: a live client; program and options outlive the call; we own the result.
            unsafe {
                let args = call!(
                    self.api(),
                    PJRT_Client_Compile {
                        client: self.raw(),
                        program: program,
                        compile_options: options.as_ptr().cast(),
                        compile_options_size: options.len(),
                    }
                )?;
                LoadedExecutable::from_raw(self, args.executable)
            }
        })
    }

    /// Loads an executable that [`crate::Executable::serialize`] wrote. `options` replace those it
    /// was compiled with (for instance, to put it on another device).
    pub fn deserialize(&self, serialized: &[u8], options: Option<&CompileOptions>) -> Result<LoadedExecutable> {
        let options = options.map(CompileOptions::encode).unwrap_or_default();
        let options_ptr = if options.is_empty() { std::ptr::null() } else { options.as_ptr().cast() };
        // SAFETY: a live client; both arrays outlive the call; we own the result.
        unsafe {
            let args = call!(
                self.api(),
                PJRT_Executable_DeserializeAndLoad {
                    client: self.raw(),
                    serialized_executable: serialized.as_ptr().cast(),
                    serialized_executable_size: serialized.len(),
                    overridden_serialized_compile_options: options_ptr,
                    overridden_serialized_compile_options_size: options.len(),
                }
            )?;
            LoadedExecutable::from_raw(self, args.loaded_executable)
        }
    }
}

/// Lends `code` in the C API's form.
pub(crate) fn with_program<T>(code: &[u8], body: impl FnOnce(&sys::PJRT_Program) -> T) -> T {
    let mut program = <sys::PJRT_Program as sys::CStruct>::new();
    // The field is mutable only because the same struct also carries programs out of a plugin.
    program.code = code.as_ptr().cast_mut().cast();
    program.code_size = code.len();
    program.format = FORMAT.as_ptr().cast();
    program.format_size = FORMAT.len();
    body(&program)
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: ours, and everything that depends on it is gone. A failure leaves a leak.
        let _ = unsafe { call!(&self.plugin.api, PJRT_Client_Destroy { client: self.raw.as_ptr() }) };
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {})", self.0.platform_name, self.0.platform_version)
    }
}
