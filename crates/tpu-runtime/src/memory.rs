//! Our own account of device memory. Two figures: bytes *used* by buffers, in the order in which plans run, where a result that
//! takes over an operand's buffer adds nothing; and bytes *promised* to values when they are recorded, which a limit is held
//! against, so that the call which asks for too much is the one that raises.

use crate::fault::Fault;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tpu_base::ErrorKind;

/// Bytes and counts, as atomics.
#[derive(Debug, Default)]
pub struct Memory {
    promised: AtomicU64,
    current: AtomicU64,
    peak: AtomicU64,
    allocated: AtomicU64,
    freed: AtomicU64,
    active: AtomicU64,
    allocations: AtomicU64,
    ooms: AtomicU64,
    retries: AtomicU64,
    /// 0: none.
    limit: u64,
    /// What to report as the device's size when there is no limit.
    total: u64,
}

/// A reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of buffers.
    pub current: u64,
    /// Most there ever were (since the last reset).
    pub peak: u64,
    /// The limit, or the device's size; 0: unknown.
    pub limit: u64,
    /// Bytes ever allocated.
    pub allocated_total: u64,
    /// Bytes ever freed.
    pub freed_total: u64,
    /// Buffers.
    pub active_count: u64,
    /// Buffers ever.
    pub allocation_count: u64,
    /// Allocations refused.
    pub oom_count: u64,
    /// Allocations that had to wait for frees.
    pub retry_count: u64,
}

impl Memory {
    pub(crate) fn new(limit: Option<u64>, total: u64) -> Memory {
        Memory { limit: limit.unwrap_or(0), total, ..Memory::default() }
    }

    /// A value of this size was recorded. Nobody is asked.
    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.fetch_add(bytes, Relaxed);
    }

    /// It is gone.
    pub(crate) fn release(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Relaxed);
    }

    /// A buffer was made.
    pub(crate) fn add(&self, bytes: u64) {
        let now = self.current.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
        self.allocated.fetch_add(bytes, Relaxed);
        self.active.fetch_add(1, Relaxed);
        self.allocations.fetch_add(1, Relaxed);
    }

    /// A buffer was freed, or became that of a result.
    pub(crate) fn sub(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Relaxed);
        self.freed.fetch_add(bytes, Relaxed);
        self.active.fetch_sub(1, Relaxed);
    }

    /// Whether `bytes` more fit under the limit.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.limit == 0 || self.promised.load(Relaxed).saturating_add(bytes) <= self.limit
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// The error for `bytes` that don't fit.
    pub(crate) fn refuse(&self, bytes: u64) -> Fault {
        self.ooms.fetch_add(1, Relaxed);
        let s = self.stats();
        Fault::new(
            ErrorKind::OutOfMemory,
            format!(
                "TPU out of memory. Tried to allocate {}. The device has a limit of {}, of which {} are in use by PyTorch. \
                 Free tensors you no longer need, or raise TORCH_TPU_MEMORY_LIMIT if it is set.",
                human(bytes),
                human(s.limit),
                human(self.promised.load(Relaxed))
            ),
        )
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        MemoryStats {
            current: self.current.load(Relaxed),
            peak: self.peak.load(Relaxed),
            limit: if self.limit > 0 { self.limit } else { self.total },
            allocated_total: self.allocated.load(Relaxed),
            freed_total: self.freed.load(Relaxed),
            active_count: self.active.load(Relaxed),
            allocation_count: self.allocations.load(Relaxed),
            oom_count: self.ooms.load(Relaxed),
            retry_count: self.retries.load(Relaxed),
        }
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.current.load(Relaxed), Relaxed);
    }

    pub(crate) fn reset_accumulated(&self) {
        for a in [&self.allocated, &self.freed, &self.allocations, &self.ooms, &self.retries] {
            a.store(0, Relaxed);
        }
    }
}

/// `1.50 GiB`
fn human(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.2} KiB", b / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.2} MiB", b / 1_048_576.0),
        _ => format!("{:.2} GiB", b / 1_073_741_824.0),
    }
}
