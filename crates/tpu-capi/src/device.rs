//! The process's device: start, stop, settings, waiting, accounts.

use crate::abi::{ERROR, OK, PENDING, TpuMemoryStats};
use crate::args::slice;
use crate::guard::{fail, guard, hand_out};
use crate::storage::timeout;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::Precision;
use tpu_runtime::{Config, Device, Fault, Mark, Mode};

static DEVICE: OnceLock<Device> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);
static MODE: AtomicI32 = AtomicI32::new(0);
static PRECISION: AtomicI32 = AtomicI32::new(0);
static DEFAULT_DTYPE: AtomicU8 = AtomicU8::new(DType::F32 as u8);

/// The started device.
pub fn device() -> Result<&'static Device, Fault> {
    if FORKED.load(SeqCst) {
        return Err(Fault::new(
            ErrorKind::User,
            "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must use the 'spawn' \
             start method",
        ));
    }
    DEVICE.get().ok_or_else(|| Fault::new(ErrorKind::Device, "the tpu device is not started"))
}

/// Whether this process was forked from one with a device.
pub fn forked() -> bool {
    FORKED.load(SeqCst)
}

fn mode(code: i32) -> Mode {
    match code {
        1 => Mode::Fused,
        2 => Mode::Debug,
        _ => Mode::Strict,
    }
}

fn precision(code: i32) -> Precision {
    match code {
        1 => Precision::High,
        2 => Precision::Default,
        _ => Precision::Highest,
    }
}

/// # Safety
/// `config` is readable for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_start(config: *const c_char, n: usize) -> i32 {
    guard(ERROR, || {
        if forked() {
            return device().map_or_else(|f| fail(&f), |_| OK);
        }
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if DEVICE.get().is_some() {
            return OK;
        }
        // SAFETY: the caller's promise.
        let text = unsafe { slice(config.cast::<u8>(), n) };
        let config: Config = match serde_json::from_slice(text) {
            Ok(c) => c,
            Err(e) => return fail(&Fault::new(ErrorKind::Bug, format!("start configuration: {e}"))),
        };
        match Device::start(config) {
            Ok(d) => {
                d.set_mode(mode(MODE.load(SeqCst)));
                d.set_precision(precision(PRECISION.load(SeqCst)));
                if let Some(dtype) = DType::from_code(DEFAULT_DTYPE.load(SeqCst)) {
                    d.set_default_dtype(dtype);
                }
                drop(DEVICE.set(d));
                OK
            }
            Err(f) => fail(&f),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_is_started() -> i32 {
    DEVICE.get().is_some() as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_mark_forked() {
    if DEVICE.get().is_some() {
        FORKED.store(true, SeqCst);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_shutdown() {
    guard((), || {
        if !STOPPED.swap(true, SeqCst)
            && let Ok(d) = device()
        {
            d.shutdown();
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_synchronize(timeout_ms: i32) -> i32 {
    guard(ERROR, || match device() {
        Ok(d) if d.synchronize(timeout(timeout_ms)) => OK,
        Ok(_) => PENDING,
        Err(f) => fail(&f),
    })
}

/// A handle to a mark.
pub struct TpuEvent(Arc<Mark>);

#[unsafe(no_mangle)]
pub extern "C" fn tpu_event_record() -> *mut TpuEvent {
    guard(std::ptr::null_mut(), || match device() {
        Ok(d) => Box::into_raw(Box::new(TpuEvent(d.mark()))),
        Err(f) => {
            fail(&f);
            std::ptr::null_mut()
        }
    })
}

/// # Safety
/// `event` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_event_query(event: *const TpuEvent) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { (*event).0.is_reached() as i32 }
}

/// # Safety
/// `event` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_event_wait(event: *const TpuEvent, timeout_ms: i32) -> i32 {
    guard(ERROR, || {
        // SAFETY: the caller's promise.
        let mark = unsafe { &(*event).0 };
        match device() {
            Ok(d) if d.wait_mark(mark, timeout(timeout_ms)) => OK,
            Ok(_) => PENDING,
            Err(f) => fail(&f),
        }
    })
}

/// # Safety
/// Both are live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_event_elapsed_ms(start: *const TpuEvent, end: *const TpuEvent) -> f64 {
    // SAFETY: the caller's promise.
    unsafe { (*start).0.elapsed_ms(&(*end).0) }
}

/// # Safety
/// `event` is null, or came from `tpu_event_record` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_event_free(event: *mut TpuEvent) {
    if !event.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(event) });
    }
}

/// The device of this process; a forked child has none, and the parent's threads, which the figures wait for, are not in it.
fn own() -> Option<&'static Device> {
    DEVICE.get().filter(|_| !forked())
}

/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_memory_stats(out: *mut TpuMemoryStats) {
    let s = own().map(Device::memory_stats).unwrap_or_default();
    let stats = TpuMemoryStats {
        current: s.current,
        peak: s.peak,
        limit: s.limit,
        allocated_total: s.allocated_total,
        freed_total: s.freed_total,
        active_count: s.active_count,
        allocation_count: s.allocation_count,
        oom_count: s.oom_count,
        retry_count: s.retry_count,
    };
    // SAFETY: the caller's promise.
    unsafe { *out = stats };
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_memory_reset_peak() {
    if let Some(d) = own() {
        d.reset_peak();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_memory_reset_accumulated() {
    if let Some(d) = own() {
        d.reset_accumulated();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_empty_cache() {
    if let Some(d) = DEVICE.get() {
        d.empty_cache();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_set_eager_mode(code: i32) {
    guard((), || {
        MODE.store(code, SeqCst);
        if let Ok(d) = device() {
            d.set_mode(mode(code));
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_get_eager_mode() -> i32 {
    MODE.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_set_matmul_precision(code: i32) {
    PRECISION.store(code, SeqCst);
    if let Ok(d) = device() {
        d.set_precision(precision(code));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_set_default_dtype(code: u8) {
    DEFAULT_DTYPE.store(code, SeqCst);
    if let (Ok(d), Some(dtype)) = (device(), DType::from_code(code)) {
        d.set_default_dtype(dtype);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_compile_count() -> u64 {
    DEVICE.get().map_or(0, Device::compile_count)
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_clear_plan_cache() {
    if let Some(d) = DEVICE.get() {
        d.clear_plans();
    }
}

/// # Safety
/// `topic` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_info(topic: *const c_char) -> *const c_char {
    guard(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        let topic = unsafe { CStr::from_ptr(topic) }.to_string_lossy();
        match (&*topic, DEVICE.get()) {
            (t, _) if t.starts_with("topology:") => {
                hand_out(&tpu_runtime::topology(&t["topology:".len()..]).to_string())
            }
            ("ops", _) => hand_out(&crate::ops::table_json()),
            (_, Some(d)) => hand_out(&d.info(&topic)),
            _ => hand_out("null"),
        }
    })
}
