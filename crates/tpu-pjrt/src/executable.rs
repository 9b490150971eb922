//! Executables: what a compilation gives, and what it says about itself.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::{bytes, call, items, text};
use crate::client::Client;
use crate::device::Device;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::plugin::Plugin;
use crate::value::{self, Value};

/// A compiled program that need not be loaded onto any device.
pub struct Executable {
    plugin: Arc<Plugin>,
    raw: NonNull<sys::PJRT_Executable>,
    num_outputs: usize,
}

// SAFETY: PJRT executables are immutable and thread-safe.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// The type of one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// `None` for an element type that this version does not know.
    pub element_type: Option<ElementType>,
    /// The dimensions.
    pub dims: Vec<i64>,
}

/// What the compiler says about memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CompiledMemoryStats {
    pub generated_code: i64,
    pub arguments: i64,
    pub outputs: i64,
    pub aliased: i64,
    pub temporaries: i64,
    pub peak: i64,
    pub host_generated_code: i64,
    pub host_arguments: i64,
    pub host_outputs: i64,
    pub host_aliased: i64,
    pub host_temporaries: i64,
}

impl Executable {
    /// Takes ownership.
    ///
    /// # Safety
    /// `raw` is null or a live executable of `plugin` that nobody else owns.
    pub(crate) unsafe fn from_raw(plugin: &Arc<Plugin>, raw: *mut sys::PJRT_Executable) -> Result<Self> {
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::argument("the plugin made no executable and gave no reason"))?;
        let mut this = Self { plugin: Arc::clone(plugin), raw, num_outputs: 0 };
        // SAFETY: a live executable, which `this` destroys should this fail.
        this.num_outputs =
            unsafe { call!(&plugin.api, PJRT_Executable_NumOutputs { executable: this.raw() })?.num_outputs };
        Ok(this)
    }

    fn raw(&self) -> *mut sys::PJRT_Executable {
        self.raw.as_ptr()
    }

    /// How many buffers an execution gives per device.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// The name of the module.
    pub fn name(&self) -> Result<String> {
        // SAFETY: a live executable; the text is copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_Executable_Name { executable: self.raw() })?;
            Ok(text(a.executable_name, a.executable_name_size))
        }
    }

    /// Element types and dimensions of the outputs.
    pub fn output_types(&self) -> Result<Vec<OutputSpec>> {
        // SAFETY: a live executable; the arrays live as long as it does and are copied.
        unsafe {
            let api = &self.plugin.api;
            let types = call!(api, PJRT_Executable_OutputElementTypes { executable: self.raw() })?;
            let shapes = call!(api, PJRT_Executable_OutputDimensions { executable: self.raw() })?;
            let types = items(types.output_types.cast_const(), types.num_output_types);
            let sizes = items(shapes.dim_sizes, shapes.num_outputs);
            let all = items(shapes.dims, sizes.iter().sum());
            let mut rest = all;
            let mut outputs = Vec::with_capacity(types.len());
            for (&element, &rank) in types.iter().zip(sizes) {
                let (dims, tail) = rest.split_at(rank.min(rest.len()));
                rest = tail;
                outputs.push(OutputSpec { element_type: ElementType::from_raw(element), dims: dims.to_vec() });
            }
            Ok(outputs)
        }
    }

    /// Bytes that [`Client::deserialize`] reads, in this process or another.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        // SAFETY: a live executable; the bytes are copied before their deleter runs.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_Executable_Serialize { executable: self.raw() })?;
            let copy = bytes(a.serialized_bytes, a.serialized_bytes_size).to_vec();
            if let Some(delete) = a.serialized_executable_deleter {
                delete(a.serialized_executable);
            }
            Ok(copy)
        }
    }

    /// Identifies program, options and compiler; `Unsupported` where the plugin makes none.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        // SAFETY: a live executable; the bytes are copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_Executable_Fingerprint { executable: self.raw() })?;
            Ok(bytes(a.executable_fingerprint, a.executable_fingerprint_size).to_vec())
        }
    }

    /// Size of the machine code in bytes.
    pub fn code_size(&self) -> Result<i64> {
        // SAFETY: a live executable.
        let args =
            unsafe { call!(&self.plugin.api, PJRT_Executable_SizeOfGeneratedCodeInBytes { executable: self.raw() })? };
        Ok(args.size_in_bytes)
    }

    /// Flops, bytes accessed and so on; `Unsupported` on CPU plugins.
    pub fn cost_analysis(&self) -> Result<Vec<(String, Value)>> {
        // SAFETY: a live executable; the values live as long as it does and are copied.
        unsafe {
            let a = call!(&self.plugin.api, PJRT_Executable_GetCostAnalysis { executable: self.raw() })?;
            Ok(value::from_raw(a.properties, a.num_properties))
        }
    }

    /// What the compiler says about memory.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        // SAFETY: a live executable.
        let a = unsafe { call!(&self.plugin.api, PJRT_Executable_GetCompiledMemoryStats { executable: self.raw() })? };
        Ok(CompiledMemoryStats {
            generated_code: a.generated_code_size_in_bytes,
            arguments: a.argument_size_in_bytes,
            outputs: a.output_size_in_bytes,
            aliased: a.alias_size_in_bytes,
            temporaries: a.temp_size_in_bytes,
            peak: a.peak_memory_in_bytes,
            host_generated_code: a.host_generated_code_size_in_bytes,
            host_arguments: a.host_argument_size_in_bytes,
            host_outputs: a.host_output_size_in_bytes,
            host_aliased: a.host_alias_size_in_bytes,
            host_temporaries: a.host_temp_size_in_bytes,
        })
    }

    /// The program after optimization, with the name of its format (`hlo`, `hlo_with_config`).
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>)> {
        let mut program = sys::PJRT_Program::new();
        // Asked twice: the first call says how much room the second needs.
        for _ in 0..2 {
            let mut code = vec![0_u8; program.code_size];
            program.code = if code.is_empty() { std::ptr::null_mut() } else { code.as_mut_ptr().cast() };
            // SAFETY: a live executable; `program` has room for `code_size` bytes or asks for the size.
            unsafe {
                call!(
                    &self.plugin.api,
                    PJRT_Executable_OptimizedProgram { executable: self.raw(), program: &raw mut program }
                )?
            };
            if !code.is_empty() {
                // SAFETY: the name lives as long as the plugin and is copied.
                return Ok((unsafe { text(program.format, program.format_size) }, code));
            }
        }
        Err(Error::argument("the plugin gave no optimized program"))
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: ours, used no more. Nothing can be done about a failure here.
        let _ = unsafe { call!(&self.plugin.api, PJRT_Executable_Destroy { executable: self.raw() }) };
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({})", self.name().unwrap_or_default())
    }
}

/// A compiled program on the devices of a client; see [`LoadedExecutable::execute`].
pub struct LoadedExecutable {
    client: Client,
    raw: NonNull<sys::PJRT_LoadedExecutable>,
    executable: Executable,
}

// SAFETY: PJRT executables are thread-safe.
unsafe impl Send for LoadedExecutable {}
// SAFETY: as above.
unsafe impl Sync for LoadedExecutable {}

impl LoadedExecutable {
    /// Takes ownership.
    ///
    /// # Safety
    /// `raw` is null or a live executable of `client` that nobody else owns.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_LoadedExecutable) -> Result<Self> {
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::argument("the plugin made no executable and gave no reason"))?;
        // SAFETY: live; we own what it answers. Should it fail, `raw` is destroyed here.
        let executable = unsafe {
            call!(client.api(), PJRT_LoadedExecutable_GetExecutable { loaded_executable: raw.as_ptr() })
                .and_then(|args| Executable::from_raw(client.plugin(), args.executable))
                .inspect_err(|_| destroy(client, raw))?
        };
        Ok(Self { client: client.clone(), raw, executable })
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::PJRT_LoadedExecutable {
        self.raw.as_ptr()
    }

    /// The client it is loaded on.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The devices of this process that it runs on, in the order of inputs and outputs.
    pub fn addressable_devices(&self) -> Result<Vec<Device>> {
        // SAFETY: a live executable; the devices live as long as the client.
        unsafe {
            let args = call!(self.client.api(), PJRT_LoadedExecutable_AddressableDevices { executable: self.raw() })?;
            let list = items(args.addressable_devices, args.num_addressable_devices).iter();
            Ok(list.filter_map(|&raw| Device::from_raw(&self.client, raw)).collect())
        }
    }

    /// Gives its device memory back now; every later execution fails.
    pub fn delete(&self) -> Result<()> {
        // SAFETY: a live executable.
        unsafe { call!(self.client.api(), PJRT_LoadedExecutable_Delete { executable: self.raw() })? };
        Ok(())
    }
}

/// # Safety
/// `raw` is a live executable of `client`, used no more.
unsafe fn destroy(client: &Client, raw: NonNull<sys::PJRT_LoadedExecutable>) {
    // SAFETY: the caller's promise. Nothing can be done about a failure here.
    let _ = unsafe { call!(client.api(), PJRT_LoadedExecutable_Destroy { executable: raw.as_ptr() }) };
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        // SAFETY: ours, used no more.
        unsafe { destroy(&self.client, self.raw) };
    }
}

impl Deref for LoadedExecutable {
    type Target = Executable;

    fn deref(&self) -> &Executable {
        &self.executable
    }
}

impl fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loaded{:?}", self.executable)
    }
}
