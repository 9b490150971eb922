//! Programs that leave the process.

use crate::abi::{ERROR, OK, TpuTensor};
use crate::args::slice;
use crate::device::device;
use crate::graph::{TpuGraph, tensors};
use crate::guard::{fail, guard, hand_out};
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

thread_local! {
    /// The last executable handed out.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// # Safety
/// `stands` and `outs` describe valid tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_export(
    stands: *const TpuTensor,
    n: u32,
    outs: *const TpuTensor,
    n_outs: u32,
    offset_before: u64,
    offset_after: u64,
    body: i32,
) -> *const c_char {
    guard(std::ptr::null(), || {
        let text = device().map_err(Arc::new).and_then(|d| {
            // SAFETY: the caller's promises.
            let (stands, outs) = unsafe { (tensors(stands, n)?, tensors(outs, n_outs)?) };
            let offsets = (offset_before, offset_after);
            if body != 0 { d.end_body(&stands, &outs, offsets) } else { d.export_capture(&stands, &outs, offsets) }
        });
        match text {
            Ok(text) => hand_out(&text),
            Err(f) => {
                fail(&f);
                std::ptr::null()
            }
        }
    })
}

/// # Safety
/// `graph` is live; `program` is a C string; `executable` is readable for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_load(
    graph: *const TpuGraph,
    program: *const c_char,
    executable: *const u8,
    n: usize,
) -> i32 {
    guard(ERROR, || {
        let done = device().map_err(Arc::new).and_then(|d| {
            // SAFETY: the caller's promises.
            let (graph, program) = unsafe { (&*graph, CStr::from_ptr(program)) };
            // SAFETY: the caller's promise.
            let executable = (n > 0).then(|| unsafe { slice(executable, n) });
            d.load_graph(&graph.0, &program.to_string_lossy(), executable)
        });
        done.map_or_else(|f| fail(&f), |()| OK)
    })
}

/// # Safety
/// `program` is a C string; `n` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_program_compile(program: *const c_char, n: *mut usize) -> *const u8 {
    guard(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let program = unsafe { CStr::from_ptr(program) }.to_string_lossy();
        match device().and_then(|d| d.executable(&program)) {
            Ok(bytes) => BYTES.with_borrow_mut(|kept| {
                *kept = bytes;
                // SAFETY: the caller's promise.
                unsafe { *n = kept.len() };
                kept.as_ptr()
            }),
            Err(f) => {
                fail(&f);
                std::ptr::null()
            }
        }
    })
}
