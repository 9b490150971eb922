//! A PJRT plugin in this process that compiles nothing: an execution checks the number of its
//! inputs and gives zeros, or the input that `main` returns unchanged. For tests of everything
//! around a plan, and of failures that real plugins do not offer.
//!
//! Faults are create options of a client, so that tests in one process do not meet each other's:
//!
//! | option | effect |
//! |---|---|
//! | `devices` (int) | that many devices; default 1 |
//! | `fail_compile` (bool) | compiling is an internal error |
//! | `compile_ms` (int) | compiling takes that long |
//! | `bytes_limit` (int) | live buffers together may not exceed it |
//! | `fail_execute` (bool) | execution is refused |
//! | `poison_outputs` (bool) | execution succeeds, its outputs fail |

mod program;
mod table;

use std::sync::Arc;

use tpu_pjrt::{Plugin, Result};
use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

/// How the plugin's table differs from a complete, current one.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The minor version it claims.
    pub minor: i32,
    /// How much of the table it claims to have.
    pub struct_size: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self { minor: sys::PJRT_API_MINOR, struct_size: sys::PJRT_Api::STRUCT_SIZE }
    }
}

/// The complete plugin.
pub fn plugin() -> Result<Arc<Plugin>> {
    plugin_with(Shape::default(), |_| {})
}

/// A plugin of another shape; `change` may take functions away.
pub fn plugin_with(shape: Shape, change: impl FnOnce(&mut sys::PJRT_Api)) -> Result<Arc<Plugin>> {
    let mut api = table::api();
    api.struct_size = shape.struct_size;
    api.pjrt_api_version.minor_version = shape.minor;
    change(&mut api);
    // SAFETY: a table of functions that keep to the C API, leaked so that it is valid forever.
    unsafe { Plugin::from_api(Box::leak(Box::new(api)), "null") }
}
