//! What the runtime keeps with a value: its buffer once there is one, or what prevented it.

use crate::fault::Fault;
use crate::memory::Memory;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tpu_pjrt::Buffer;

/// Filled once, by the executor or an upload.
pub struct Slot {
    bytes: u64,
    memory: Arc<Memory>,
    result: OnceLock<Result<Buffer, Arc<Fault>>>,
    /// Whether a result took the buffer over.
    given: AtomicBool,
}

impl Slot {
    /// A slot to be filled; its bytes are promised from now on.
    pub(crate) fn pending(bytes: u64, memory: &Arc<Memory>) -> Slot {
        memory.promise(bytes);
        Slot { bytes, memory: memory.clone(), result: OnceLock::new(), given: AtomicBool::new(false) }
    }

    /// Fills it. A second filling is ignored.
    pub(crate) fn fill(&self, result: Result<Buffer, Arc<Fault>>) {
        let made = result.is_ok();
        if self.result.set(result).is_ok() && made {
            self.memory.add(self.bytes);
        }
    }

    /// A plan's result took the buffer over (donation).
    pub(crate) fn give(&self) {
        if !self.given.swap(true, Relaxed) {
            self.memory.sub(self.bytes);
        }
    }

    /// The buffer or fault, once known.
    pub(crate) fn get(&self) -> Option<&Result<Buffer, Arc<Fault>>> {
        self.result.get()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.memory.release(self.bytes);
        if !*self.given.get_mut() && matches!(self.result.get(), Some(Ok(_))) {
            self.memory.sub(self.bytes);
        }
    }
}
