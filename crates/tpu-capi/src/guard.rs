//! What every entry does: no unwinding, errors into thread-local text.

use crate::abi::{ERROR, kind_code};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tpu_base::ErrorKind;
use tpu_runtime::Fault;

struct Last {
    text: CString,
    kind: i32,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), kind: 0 });
    /// Text handed out by `tpu_info`.
    static TEXT: RefCell<CString> = RefCell::default();
}

fn c_string(s: &str) -> CString {
    CString::new(s.replace('\0', " ")).unwrap_or_default()
}

/// Keeps a text for `tpu_last_error`.
pub fn say(kind: ErrorKind, text: &str) {
    LAST.with_borrow_mut(|l| *l = Last { text: c_string(text), kind: kind_code(kind) });
}

/// Keeps a fault and gives its status.
pub fn fail(f: &Fault) -> i32 {
    let mut text = f.to_string();
    if f.kind == ErrorKind::Bug {
        text.push_str("\nThis is a fault of torch_tpu, not of your program: please report it.");
    }
    say(f.kind, &text);
    ERROR
}

/// Runs `f`; a panic becomes `otherwise` and an error text.
pub fn guard<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(v) => v,
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            fail(&Fault::new(ErrorKind::Bug, format!("internal error: {what}")));
            otherwise
        }
    }
}

/// A text valid until this thread's next.
pub fn hand_out(text: &str) -> *const c_char {
    TEXT.with_borrow_mut(|t| {
        *t = c_string(text);
        t.as_ptr()
    })
}

/// # Safety
/// `kind` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_last_error(kind: *mut i32) -> *const c_char {
    LAST.with_borrow(|l| {
        if !kind.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *kind = l.kind };
        }
        l.text.as_ptr()
    })
}
