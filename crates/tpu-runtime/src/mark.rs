//! Points in the device's queue: events, fences.

use std::sync::OnceLock;
use std::time::Instant;

/// A point in the queue, reached when everything recorded before it has run.
#[derive(Default)]
pub struct Mark {
    reached: OnceLock<Instant>,
    /// How many jobs stand before it in the queue, from the start on.
    ordinal: OnceLock<u64>,
}

impl Mark {
    pub(crate) fn number(&self, ordinal: u64) {
        let _ = self.ordinal.set(ordinal); // numbered once
    }

    pub(crate) fn ordinal(&self) -> u64 {
        self.ordinal.get().copied().unwrap_or(0)
    }

    pub(crate) fn reach(&self) {
        let _ = self.reached.set(Instant::now()); // a second time changes nothing
    }

    /// Whether it was reached.
    pub fn is_reached(&self) -> bool {
        self.reached.get().is_some()
    }

    /// Milliseconds from this mark to `end`; 0 if either was not reached.
    pub fn elapsed_ms(&self, end: &Mark) -> f64 {
        match (self.reached.get(), end.reached.get()) {
            (Some(a), Some(b)) => {
                let (sign, d) = if b >= a { (1.0, *b - *a) } else { (-1.0, *a - *b) };
                sign * d.as_secs_f64() * 1e3
            }
            _ => 0.0,
        }
    }
}
