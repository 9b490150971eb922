//! Lets readers sleep until the executor or a buffer got further.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A condition everybody who waits for the device shares.
#[derive(Default)]
pub(crate) struct Progress {
    lock: Mutex<()>,
    changed: Condvar,
    waiters: AtomicUsize,
}

impl Progress {
    /// Wakes whoever waits. Costs one load when nobody does.
    pub(crate) fn notify(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock();
            self.changed.notify_all();
        }
    }

    /// Waits until `done()`, at most `timeout`; whether it was done in time. A short spin first: most waits are short.
    pub(crate) fn wait(&self, timeout: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        for _ in 0..200 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        let until = timeout.map(|t| Instant::now() + t);
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        let result = loop {
            if done() {
                break true;
            }
            // notifications can be missed only between two tests: a tick bounds the delay
            let mut tick = Duration::from_millis(2);
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break false;
                }
                tick = tick.min(left);
            }
            self.changed.wait_for(&mut guard, tick);
        };
        drop(guard);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
