//! What the runtime keeps with a value: its buffer once there is one, or what prevented it.

use crate::fault::Fault;
use crate::memory::Memory;
use std::sync::{Arc, OnceLock};
use tpu_pjrt::Buffer;

/// Filled once, by the executor or an upload.
pub struct Slot {
    bytes: u64,
    memory: Arc<Memory>,
    result: OnceLock<Result<Buffer, Arc<Fault>>>,
}

impl Slot {
    /// A slot to be filled; its bytes count from now on.
    pub(crate) fn pending(bytes: u64, memory: &Arc<Memory>) -> Slot {
        memory.add(bytes);
        Slot { bytes, memory: memory.clone(), result: OnceLock::new() }
    }

    /// Fills it. A second filling is ignored.
    pub(crate) fn fill(&self, result: Result<Buffer, Arc<Fault>>) {
        drop(self.result.set(result));
    }

    /// The buffer or fault, once known.
    pub(crate) fn get(&self) -> Option<&Result<Buffer, Arc<Fault>>> {
        self.result.get()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.memory.sub(self.bytes);
    }
}
