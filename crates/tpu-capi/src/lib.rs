//! The only `extern "C"`: opaque handles, error codes, no unwinding. Declared for the shim in `include/capi.h`.
//!
//! Nothing is decided here: arguments are checked, turned into the runtime's borrowed types, and results back.

mod abi;
mod address;
mod aot;
mod args;
mod calls;
mod device;
mod graph;
mod guard;
mod ops;
mod storage;

use pyo3_ffi::PyObject;

unsafe extern "C" {
    fn tpu_shim_init_module() -> *mut std::ffi::c_void;
}

/// Python's entry into the extension module; the shim builds the module object.
///
/// # Safety
/// Called by the interpreter with the GIL held.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the interpreter's name for it")]
pub unsafe extern "C" fn PyInit__C() -> *mut PyObject {
    // SAFETY: same contract as ours.
    unsafe { tpu_shim_init_module().cast() }
}
