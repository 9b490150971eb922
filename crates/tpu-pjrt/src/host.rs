//! Host memory that is given to plugins, and kept for the next time.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

/// What XLA's CPU plugins ask for before they use memory in place.
const ALIGNMENT: usize = 64;
/// Blocks from this size on are kept when they come back: fresh pages cost the system more than the copy itself.
const KEPT_FROM: usize = 1 << 20;
/// Most bytes kept.
const KEPT: usize = 512 << 20;

/// Host memory of our own, aligned so that a plugin on the same memory can use it in place.
pub struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an owned allocation.
unsafe impl Send for HostMemory {}

/// Blocks that came back, oldest first.
static POOL: Mutex<Vec<HostMemory>> = Mutex::new(Vec::new());

impl HostMemory {
    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<HostMemory> {
        let memory = Self::take(bytes.len())?;
        // SAFETY: the block has at least this size and nobody else's address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.start.as_ptr(), bytes.len()) };
        Ok(memory)
    }

    fn take(len: usize) -> Result<HostMemory> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT)
            .map_err(|e| Error::argument(format!("{len} bytes of host memory: {e}")))?;
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = pool.iter().position(|m| m.layout == layout) {
            return Ok(pool.remove(i));
        }
        drop(pool);
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) });
        let start = start.ok_or_else(|| Error::argument(format!("no host memory for {len} bytes")))?;
        Ok(HostMemory { start, layout })
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Gives it back: kept for the next of its size, within bounds.
    pub(crate) fn give_back(self) {
        if self.len() < KEPT_FROM {
            return;
        }
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.push(self);
        while pool.iter().map(HostMemory::len).sum::<usize>() > KEPT {
            pool.remove(0);
        }
    }

    /// Frees what is kept.
    pub fn free_kept() {
        POOL.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}
