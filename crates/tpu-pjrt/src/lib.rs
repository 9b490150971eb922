//! Safe PJRT: plugins, clients, devices, buffers, executables, events, topologies and FFI handlers.
//!
//! Every call into a plugin goes through one door ([`api`]), which knows whether the plugin has the
//! function at all and turns its errors into [`Error`]. Nothing here knows ATen or the graph.
//!
//! All handles are `Send + Sync`: the PJRT C API asks plugins to be thread-safe. Handles keep what
//! they depend on alive (buffer → client → plugin), so they may be dropped in any order. A plugin's
//! library is never unloaded, because its threads may outlive every handle.

mod api;
mod buffer;
mod client;
mod device;
mod element;
mod error;
mod event;
mod executable;
mod execute;
pub mod ffi;
mod held;
mod host;
mod optimized;
mod options;
mod plugin;
mod topology;
mod transfer;
mod trips;
mod value;
mod work;

pub use buffer::{Buffer, HostSemantics};
pub use client::Client;
pub use device::{Device, DeviceDescription, Memory, MemoryStats};
pub use element::ElementType;
pub use error::{Code, Error, Kind, Result};
pub use event::Event;
pub use executable::{CompiledMemoryStats, Executable, LoadedExecutable, OutputSpec};
pub use execute::ExecArgs;
pub use held::Held;
pub use host::HostMemory;
pub use optimized::{Instruction, instructions};
pub use options::{CompileOptions, Override};
pub use plugin::{MINIMUM_MINOR, Plugin};
pub use topology::Topology;
pub use transfer::AsyncTransfer;
pub use value::Value;
