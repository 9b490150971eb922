//! The one door into a plugin.

use std::ffi::c_char;

use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::error::{Code, Error, Result};

/// Our own copy of a plugin's function table. The copy is as large as *our* layout and zero where
/// the plugin's table ends, so "too old" and "left empty" look the same and need no size check later.
pub(crate) struct Api {
    pub(crate) table: sys::PJRT_Api,
}

// SAFETY: a table of functions and pointers to immutable plugin data; PJRT is thread-safe.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// `call!(api, PJRT_Client_Create { num_options: 2, … })` fills a zeroed argument struct, calls the
/// function and gives the struct back with its outputs. Must stand in an `unsafe` block whose reason
/// says why the handles and pointers among the fields are valid.
macro_rules! call {
    ($api:expr, $function:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let api: &$crate::api::Api = $api;
        api.call(stringify!($function), api.table.$function, |_args| { $(_args.$field = $value;)* })
    }};
}
pub(crate) use call;

impl Api {
    /// Copies the part of the plugin's table that both sides know.
    ///
    /// # Safety
    /// `raw` points to a table whose first `struct_size` bytes are valid.
    pub(crate) unsafe fn new(raw: *const sys::PJRT_Api) -> Self {
        let mut table = sys::PJRT_Api::new();
        // SAFETY: the first field is the size by contract; we read no further than it says.
        unsafe {
            let theirs = (*raw).struct_size.min(size_of::<sys::PJRT_Api>());
            std::ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut table).cast::<u8>(), theirs);
        }
        Self { table }
    }

    pub(crate) fn version(&self) -> (i32, i32) {
        let version = &self.table.pjrt_api_version;
        (version.major_version, version.minor_version)
    }

    #[cold]
    pub(crate) fn missing(&self, function: &'static str) -> Error {
        let (major, minor) = self.version();
        Error::Missing { function, major, minor }
    }

    /// Use [`call!`].
    ///
    /// # Safety
    /// What `fill` writes must be what the function asks for: live handles of this plugin, pointers
    /// valid for the lengths beside them.
    #[inline]
    pub(crate) unsafe fn call<A: CStruct>(
        &self,
        name: &'static str,
        function: sys::Call<A>,
        fill: impl FnOnce(&mut A),
    ) -> Result<A> {
        let Some(function) = function else {
            return Err(self.missing(name));
        };
        let mut args = A::new();
        fill(&mut args);
        // SAFETY: the caller's promise.
        let error = unsafe { function(&mut args) };
        if error.is_null() {
            return Ok(args);
        }
        // SAFETY: a non-null answer is an error that we own.
        Err(unsafe { self.take_error(name, error) })
    }

    /// Reads and destroys an error.
    ///
    /// # Safety
    /// `error` is a live error of this plugin; it is gone afterwards.
    #[cold]
    pub(crate) unsafe fn take_error(&self, function: &'static str, error: *mut sys::PJRT_Error) -> Error {
        let mut message = String::from("the plugin gave no message");
        if let Some(get) = self.table.PJRT_Error_Message {
            let mut args = sys::PJRT_Error_Message_Args { error, ..CStruct::new() };
            // SAFETY: a live error; the text lives as long as it does, and is copied.
            unsafe {
                get(&mut args);
                message = text(args.message, args.message_size);
            }
        }
        let mut code = Code::Unknown;
        if let Some(get) = self.table.PJRT_Error_GetCode {
            let mut args = sys::PJRT_Error_GetCode_Args { error, ..CStruct::new() };
            // SAFETY: a live error.
            if unsafe { get(&mut args) }.is_null() {
                code = Code::from_raw(args.code);
            }
        }
        if let Some(destroy) = self.table.PJRT_Error_Destroy {
            // SAFETY: owned by us, used no more.
            unsafe { destroy(&mut sys::PJRT_Error_Destroy_Args { error, ..CStruct::new() }) };
        }
        Error::Plugin { function, code, message }
    }
}

/// A string that a plugin lends us, copied.
///
/// # Safety
/// `data` is null or valid for `len` bytes.
pub(crate) unsafe fn text(data: *const c_char, len: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { bytes(data, len) }).into_owned()
}

/// Bytes that a plugin lends us.
///
/// # Safety
/// `data` is null or valid for `len` bytes for all of `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { items(data.cast(), len) }
}

/// An array that a plugin lends us; null counts as empty.
///
/// # Safety
/// `data` is null or valid for `len` items for all of `'a`.
pub(crate) unsafe fn items<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}
