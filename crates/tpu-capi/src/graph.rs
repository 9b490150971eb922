//! Graphs of torch.compile: recorded once for each geometry of their inputs, run as one plan.

use crate::abi::{ERROR, NEED_META, OK, TpuOut, TpuResult, TpuTensor};
use crate::args::{slice, tensor_arg};
use crate::device::device;
use crate::guard::{fail, guard, say};
use crate::storage::boxed;
use std::cell::RefCell;
use std::sync::Arc;
use tpu_base::ErrorKind;
use tpu_runtime::{Captured, Fault, Graph, GraphOutcome, Owner, Slot, Storage, TensorArg};

/// A graph as the shim holds it.
pub struct TpuGraph(pub(crate) Graph);

thread_local! {
    /// The last call's results. What they point into belongs to the graph.
    static RESULTS: RefCell<Vec<TpuOut>> = const { RefCell::new(Vec::new()) };
}

/// # Safety
/// `p` describes `n` valid tensors that stay as they are for `'a`.
pub(crate) unsafe fn tensors<'a>(p: *const TpuTensor, n: u32) -> Result<Vec<TensorArg<'a, Slot>>, Arc<Fault>> {
    // SAFETY: the caller's promise.
    let list = unsafe { slice(p, n as usize) };
    // SAFETY: the caller's promise.
    let all: Option<_> = list.iter().map(|t| unsafe { tensor_arg(t) }).collect();
    let what = "an input or result of a graph has a dtype that no device buffer can hold";
    all.ok_or_else(|| Arc::new(Fault::new(ErrorKind::Unsupported, what)))
}

/// An output without geometry: only its storage.
fn bare(storage: Storage) -> Result<TpuOut, Fault> {
    let mut out = TpuOut { nbytes: storage.nbytes, ..TpuOut::default() };
    out.storage = boxed(storage)?;
    // SAFETY: just boxed.
    out.address = unsafe { (*out.storage).address as *mut _ };
    Ok(out)
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_graph_new() -> *mut TpuGraph {
    guard(std::ptr::null_mut(), || Box::into_raw(Box::new(TpuGraph(Graph::default()))))
}

/// # Safety
/// `graph` came from here and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_free(graph: *mut TpuGraph) {
    if graph.is_null() || crate::device::forked() {
        return;
    }
    // SAFETY: the caller's promise.
    guard((), || drop(unsafe { Box::from_raw(graph) }));
}

/// # Safety
/// `inputs` describes `n` valid tensors; `stands` is writable for `n`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_record(inputs: *const TpuTensor, n: u32, filled: i32, stands: *mut TpuOut) -> i32 {
    guard(ERROR, || {
        let recorded = device().map_err(Arc::new).and_then(|d| {
            // SAFETY: the caller's promises.
            let inputs = unsafe { tensors(inputs, n)? };
            for (k, storage) in d.capture(&inputs, filled != 0)?.into_iter().enumerate() {
                // SAFETY: the caller's promises.
                unsafe { *stands.add(k) = bare(storage).map_err(Arc::new)? };
            }
            Ok(())
        });
        recorded.map_or_else(|f: Arc<Fault>| fail(&f), |()| OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_graph_abandon() {
    guard((), || {
        if let Ok(d) = device() {
            d.abandon_capture();
        }
    });
}

/// # Safety
/// `graph` is live; `stands` and `outs` describe valid tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_finish(
    graph: *const TpuGraph,
    stands: *const TpuTensor,
    n: u32,
    outs: *const TpuTensor,
    n_outs: u32,
    offset_before: u64,
    offset_after: u64,
) -> i32 {
    guard(ERROR, || {
        let done = device().map_err(Arc::new).and_then(|d| {
            // SAFETY: the caller's promises.
            let (graph, stands, outs) = unsafe { (&*graph, tensors(stands, n)?, tensors(outs, n_outs)?) };
            d.end_capture(&graph.0, &stands, &outs, (offset_before, offset_after))
        });
        done.map_or_else(|f| fail(&f), |()| OK)
    })
}

/// # Safety
/// `graph` is live; `inputs` describes `n` valid tensors; `state` holds two words; `result` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_graph_call(
    graph: *const TpuGraph,
    inputs: *const TpuTensor,
    n: u32,
    state: *const i64,
    result: *mut TpuResult,
) -> i32 {
    guard(ERROR, || {
        let called = device().map_err(Arc::new).and_then(|d| {
            // SAFETY: the caller's promises.
            let (graph, inputs, state) = unsafe { (&*graph, tensors(inputs, n)?, slice(state, 2)) };
            d.call_graph(&graph.0, &inputs, (state[0] as u64, state[1] as u64))
        });
        match called {
            Ok(GraphOutcome::Called(program, storages)) => {
                // SAFETY: the caller's promise.
                hand_over(&program, storages, unsafe { &mut *result })
            }
            Ok(GraphOutcome::Unknown) => {
                say(ErrorKind::Bug, "a graph was called with inputs it was not recorded for");
                NEED_META
            }
            Err(f) => fail(&f),
        }
    })
}

fn hand_over(program: &Captured, storages: Vec<Option<Storage>>, result: &mut TpuResult) -> i32 {
    let mut list = Vec::with_capacity(storages.len());
    for (o, storage) in program.outs.iter().zip(storages) {
        let mut out = match storage.map(bare) {
            Some(Ok(out)) => out,
            Some(Err(f)) => return fail(&f),
            None => TpuOut::default(),
        };
        out.owner = match o.owner {
            Owner::New => -1,
            Owner::Argument(k) => k as i32,
            Owner::Earlier(k) => -2 - k as i32,
        };
        (out.sizes, out.strides, out.ndim) = (o.sizes.as_ptr(), o.strides.as_ptr(), o.sizes.len() as u32);
        (out.offset, out.dtype) = (o.offset, o.dtype as u8);
        list.push(out);
    }
    result.n_outs = list.len() as u32;
    result.rng_increment = program.rng_increment;
    RESULTS.with_borrow_mut(|results| {
        *results = list;
        result.more = results.as_ptr();
    });
    OK
}
