//! Events: something that will be ready, or will have failed.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use tpu_pjrt_sys as sys;

use crate::api::call;
use crate::client::Client;
use crate::error::Result;

/// A completion that a plugin reports. Dropping it does not cancel anything.
pub struct Event {
    client: Client,
    raw: NonNull<sys::PJRT_Event>,
}

// SAFETY: PJRT events are thread-safe.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

struct Pending {
    client: Client,
    callback: Callback,
}

impl Event {
    /// Takes ownership; `None` for null.
    ///
    /// # Safety
    /// `raw` is null or a live event of `client`'s plugin that nobody else owns.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_Event) -> Option<Self> {
        Some(Self { client: client.clone(), raw: NonNull::new(raw)? })
    }

    /// Whether it has happened (well or badly).
    pub fn is_ready(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        let args = unsafe { call!(self.client.api(), PJRT_Event_IsReady { event: self.raw.as_ptr() })? };
        Ok(args.is_ready)
    }

    /// Blocks until it has happened.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { call!(self.client.api(), PJRT_Event_Await { event: self.raw.as_ptr() })? };
        Ok(())
    }

    /// Calls back once it has happened, on this thread if it has already, otherwise on a thread of
    /// the plugin, which must not be blocked and on which the last handle of a client must not be
    /// dropped. A panic in the callback is swallowed.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let pending = Pending { client: self.client.clone(), callback: Box::new(callback) };
        let user_arg = Box::into_raw(Box::new(pending)).cast::<c_void>();
        // SAFETY: the event is alive; `ready` takes the box back exactly once.
        let registered = unsafe {
            call!(
                self.client.api(),
                PJRT_Event_OnReady { event: self.raw.as_ptr(), callback: Some(ready), user_arg: user_arg }
            )
        };
        if let Err(error) = registered {
            // SAFETY: a failed registration does not call back, so the box is still ours.
            drop(unsafe { Box::from_raw(user_arg.cast::<Pending>()) });
            return Err(error);
        }
        Ok(())
    }
}

unsafe extern "C" fn ready(error: *mut sys::PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: the box that `on_ready` made, given back once.
    let Pending { client, callback } = *unsafe { Box::from_raw(user_arg.cast::<Pending>()) };
    let result = if error.is_null() {
        Ok(())
    } else {
        // SAFETY: the callback owns its error.
        Err(unsafe { client.api().take_error("PJRT_Event_OnReady", error) })
    };
    // A panic must not unwind into C.
    drop(catch_unwind(AssertUnwindSafe(move || callback(result))));
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: ours, used no more. Nothing can be done about a failure here.
        let destroyed = unsafe { call!(self.client.api(), PJRT_Event_Destroy { event: self.raw.as_ptr() }) };
        debug_assert!(destroyed.is_ok(), "{destroyed:?}", destroyed = destroyed.err());
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("ready", &self.is_ready().ok()).finish()
    }
}
