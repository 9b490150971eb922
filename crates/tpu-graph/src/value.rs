//! Values and the storages that hold them.

use crate::geometry::Base;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One array a plan made or the host sent: what a storage holds between two writes.
pub struct Value<P> {
    /// Its dense shape.
    pub base: Base,
    /// Identifies `base` in signatures.
    pub base_hash: u64,
    /// Where the open segment knows it from (see [`Standing`]).
    place: AtomicU64,
    /// What the runtime keeps with it.
    pub payload: P,
}

/// Where a value stands relative to the open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The segment has not met it.
    Outside,
    /// Input `i` of the segment.
    Input(u32),
    /// Result `k` of node `n`.
    Node(u32, u32),
}

impl<P> Value<P> {
    /// A value of shape `base`.
    pub fn new(base: Base, payload: P) -> Arc<Value<P>> {
        let base_hash = hash_base(&base);
        Arc::new(Value { base, base_hash, place: AtomicU64::new(0), payload })
    }

    /// A value whose base's hash is known.
    pub fn with_hash(base: Base, base_hash: u64, payload: P) -> Arc<Value<P>> {
        Arc::new(Value { base, base_hash, place: AtomicU64::new(0), payload })
    }

    pub(crate) fn place(&self) -> Standing {
        match self.place.load(Ordering::Relaxed) {
            0 => Standing::Outside,
            p if p >> 63 == 1 => Standing::Input(p as u32),
            p => Standing::Node((p >> 24) as u32, (p & 0xff_ffff) as u32 - 1),
        }
    }

    pub(crate) fn set_place(&self, place: Standing) {
        let p = match place {
            Standing::Outside => 0,
            Standing::Input(i) => 1 << 63 | i as u64,
            Standing::Node(n, k) => (n as u64) << 24 | (k as u64 + 1),
        };
        self.place.store(p, Ordering::Relaxed);
    }

    /// Which result of which node of the open segment it is.
    pub fn node(&self) -> Option<(u32, u32)> {
        if let Standing::Node(n, k) = self.place() { Some((n, k)) } else { None }
    }

    /// Whether it is the result of a node not yet cut.
    pub fn is_deferred(&self) -> bool {
        matches!(self.place(), Standing::Node(..))
    }
}

/// Identifies a base in signatures.
pub fn hash_base(base: &Base) -> u64 {
    let mut bytes = Vec::with_capacity(8 * base.dims.len() + 1);
    bytes.push(base.dtype as u8);
    for d in &base.dims {
        bytes.extend_from_slice(&d.to_le_bytes());
    }
    xxhash_rust::xxh3::xxh3_64(&bytes) | 1 // 0 means: no value
}

/// The cell behind a `c10::Storage`: its size and current value. Empty until first written; reads of an empty storage
/// give zeros.
pub struct Storage<P> {
    /// Size in bytes.
    pub nbytes: u64,
    content: Mutex<Option<Arc<Value<P>>>>,
}

impl<P> Storage<P> {
    /// An empty storage.
    pub fn empty(nbytes: u64) -> Storage<P> {
        Storage { nbytes, content: Mutex::new(None) }
    }

    /// A storage that holds `value`.
    pub fn holding(nbytes: u64, value: Arc<Value<P>>) -> Storage<P> {
        Storage { nbytes, content: Mutex::new(Some(value)) }
    }

    /// The current value.
    pub fn value(&self) -> Option<Arc<Value<P>>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the value.
    pub fn set(&self, value: Option<Arc<Value<P>>>) {
        let old = std::mem::replace(&mut *self.content.lock().unwrap_or_else(PoisonError::into_inner), value);
        drop(old); // outside the lock
    }
}
