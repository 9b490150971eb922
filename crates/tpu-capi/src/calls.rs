//! One call: the hot entry.

use crate::abi::{ABSENT, ERROR, FALLBACK, MAX_OUTS, NEED_META, OK, PENDING, TpuArg, TpuOut, TpuResult, TpuTensor};
use crate::args::{args, slice};
use crate::device::device;
use crate::guard::{fail, guard, say};
use crate::ops::form;
use crate::storage::boxed;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use tpu_base::{DType, ErrorKind};
use tpu_runtime::{Called, Fault, Form, MetaOut, Outcome, Sig, Target, Way};

thread_local! {
    /// Keeps what the last result points into.
    static KEPT: RefCell<(Option<Arc<Sig>>, Vec<TpuOut>)> = const { RefCell::new((None, Vec::new())) };
}

const NO_DTYPE: &str = "an argument has a dtype that no device buffer can hold";

fn known(id: u32) -> Result<Arc<Form>, Fault> {
    form(id).ok_or_else(|| Fault::new(ErrorKind::Bug, format!("no op form {id}")))
}

/// # Safety
/// `arguments` describes `n` valid arguments; `result` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_call(id: u32, arguments: *const TpuArg, n: u32, result: *mut TpuResult) -> i32 {
    guard(ERROR, || {
        let (d, form) = match device().and_then(|d| Ok((d, known(id)?))) {
            Ok(x) => x,
            Err(f) => return fail(&f),
        };
        // SAFETY: the caller's promise.
        let Some(args) = (unsafe { args(arguments, n) }) else {
            say(ErrorKind::Unsupported, NO_DTYPE);
            return FALLBACK;
        };
        match d.call(&form, &args) {
            Ok(Outcome::NeedMeta) => NEED_META,
            Ok(Outcome::Fallback(why)) => {
                say(ErrorKind::Unsupported, &why);
                FALLBACK
            }
            Ok(Outcome::Called(c)) => {
                let pending = matches!(c.sig.way, Way::Count);
                // SAFETY: the caller's promise.
                match unsafe { hand_over(c, &mut *result) } {
                    OK if pending => PENDING,
                    status => status,
                }
            }
            Err(f) => fail(&f),
        }
    })
}

fn hand_over(c: Called, result: &mut TpuResult) -> i32 {
    let Called { sig, storages } = c;
    let visible = sig.outs.len() - sig.form.entry.def.updates.len();
    result.n_outs = visible as u32;
    result.rng_increment = sig.rng_increment;
    result.more = std::ptr::null();
    let mut failed = OK;
    let mut make = |k: usize, storage: Option<tpu_runtime::Storage>| {
        let o = &sig.outs[k];
        let mut out = TpuOut {
            nbytes: o.nbytes,
            sizes: o.sizes.as_ptr(),
            strides: o.strides.as_ptr(),
            ndim: o.sizes.len() as u32,
            dtype: o.dtype as u8,
            absent: (o.target == Target::Absent) as u8,
            ..TpuOut::default()
        };
        if let Some(s) = storage {
            match boxed(s) {
                Ok(p) => {
                    out.storage = p;
                    // SAFETY: just boxed.
                    out.address = unsafe { (*p).address as *mut _ };
                }
                Err(f) => failed = fail(&f),
            }
        }
        out
    };
    let mut list = Vec::new();
    for (k, s) in storages.into_iter().enumerate().take(visible) {
        let out = make(k, s);
        if visible <= MAX_OUTS {
            result.outs[k] = out;
        } else {
            list.push(out);
        }
    }
    KEPT.with_borrow_mut(|kept| {
        kept.0 = Some(sig);
        kept.1 = list;
        if visible > MAX_OUTS {
            result.more = kept.1.as_ptr();
        }
    });
    failed
}

/// # Safety
/// `arguments` and `outs` describe valid arguments and tensors; `site` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_define(
    id: u32,
    arguments: *const TpuArg,
    n: u32,
    outs: *const TpuTensor,
    n_outs: u32,
    site: *const c_char,
) -> i32 {
    guard(ERROR, || {
        let (d, form) = match device().and_then(|d| Ok((d, known(id)?))) {
            Ok(x) => x,
            Err(f) => return fail(&f),
        };
        // SAFETY: the caller's promises.
        let (args, outs) = unsafe { (args(arguments, n), slice(outs, n_outs as usize)) };
        let metas: Option<Vec<Option<MetaOut>>> = outs
            .iter()
            .map(|t| {
                if t.flags & ABSENT != 0 {
                    return Some(None);
                }
                let n = t.ndim as usize;
                // SAFETY: the caller's promises.
                let (sizes, strides) = unsafe { (slice(t.sizes, n), slice(t.strides, n)) };
                let dtype = DType::from_code(t.dtype)?;
                Some(Some(MetaOut { dtype, sizes: sizes.into(), strides: strides.into() }))
            })
            .collect();
        let (Some(args), Some(metas)) = (args, metas) else {
            say(ErrorKind::Unsupported, NO_DTYPE);
            return FALLBACK;
        };
        let site = if site.is_null() {
            String::new()
        } else {
            // SAFETY: the caller's promise.
            unsafe { CStr::from_ptr(site) }.to_string_lossy().into_owned()
        };
        d.define(&form, &args, &metas, &site);
        OK
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_hold() {
    guard((), || {
        if let Ok(d) = device() {
            d.hold();
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_release() {
    guard((), || {
        if let Ok(d) = device() {
            d.release();
        }
    });
}
