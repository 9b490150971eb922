//! Storage cells as the shim holds them.

use crate::abi::{ERROR, OK, PENDING, TpuTensor};
use crate::args::tensor_arg;
use crate::device::{device, forked};
use crate::guard::{fail, guard};
use crate::{address, args};
use std::ffi::c_void;
use std::time::Duration;
use tpu_base::ErrorKind;
use tpu_runtime::{Device, Fault, Storage};

/// A storage with its address.
pub struct TpuStorage {
    pub inner: Storage,
    pub address: usize,
}

impl Drop for TpuStorage {
    fn drop(&mut self) {
        address::give(self.address, self.inner.nbytes);
    }
}

/// Boxes a storage under a fresh address.
pub fn boxed(inner: Storage) -> Result<*mut TpuStorage, Fault> {
    let address = address::take(inner.nbytes).ok_or_else(|| {
        Fault::new(ErrorKind::OutOfMemory, format!("no address space for a storage of {} bytes", inner.nbytes))
    })?;
    let cell = Box::into_raw(Box::new(TpuStorage { inner, address }));
    address::own(address, cell as usize);
    Ok(cell)
}

fn hand_over(s: Result<Storage, Fault>, at: *mut *mut c_void) -> *mut TpuStorage {
    match s.and_then(boxed) {
        Ok(p) => {
            // SAFETY: `p` is a live box; `at` is writable by the callers' contract.
            unsafe { *at = (*p).address as *mut c_void };
            p
        }
        Err(f) => {
            fail(&f);
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `at` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_storage_new(nbytes: u64, at: *mut *mut c_void) -> *mut TpuStorage {
    guard(std::ptr::null_mut(), || hand_over(device().map(|_| Storage::empty(nbytes)), at))
}

/// # Safety
/// `storage` came from here and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_storage_free(storage: *mut TpuStorage) {
    if storage.is_null() || forked() {
        return; // in a forked child the buffers belong to the parent's client
    }
    guard((), || {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(storage) });
    });
}

/// # Safety
/// `old` is live, `at` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_storage_resized(
    old: *const TpuStorage,
    nbytes: u64,
    at: *mut *mut c_void,
) -> *mut TpuStorage {
    guard(std::ptr::null_mut(), || {
        let new = device().and_then(|d| {
            // SAFETY: the caller's promise.
            let old = unsafe { &(*old).inner };
            d.resized(old, nbytes).map_err(|f| (*f).clone())
        });
        hand_over(new, at)
    })
}

/// # Safety
/// `storage` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_storage_nbytes(storage: *const TpuStorage) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (*storage).inner.nbytes }
}

/// # Safety
/// `dst` is a valid tensor description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_is_whole(dst: *const TpuTensor) -> i32 {
    // SAFETY: the caller's promise.
    guard(0, || unsafe { tensor_arg(&*dst) }.is_some_and(|t| Device::is_whole(&t)) as i32)
}

/// # Safety
/// `dst` is a valid tensor description; `src` is readable for `nbytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_upload(dst: *const TpuTensor, src: *const c_void, nbytes: u64) -> i32 {
    guard(ERROR, || {
        // SAFETY: the caller's promises; a null `src` only comes with no bytes.
        let (t, bytes) = unsafe { (tensor_arg(&*dst), args::slice(src.cast::<u8>(), nbytes as usize)) };
        let r = device().and_then(|d| match t {
            Some(t) if Device::is_whole(&t) => d.upload(&t, bytes),
            Some(t) => match crate::ops::form_named("aten::copy_") {
                Some(form) => d.upload_part(&form, &t, bytes).map_err(|f| (*f).clone()),
                None => Err(Fault::new(ErrorKind::Bug, "copy_ is not registered")),
            },
            None => Err(Fault::new(ErrorKind::Bug, "upload to nothing")),
        });
        r.map_or_else(|f| fail(&f), |()| OK)
    })
}

/// The live storage at exactly this address, or null.
#[unsafe(no_mangle)]
pub extern "C" fn tpu_storage_find(at: *const c_void) -> *mut TpuStorage {
    guard(std::ptr::null_mut(), || address::owner(at as usize).unwrap_or(0) as *mut TpuStorage)
}

pub fn timeout(ms: i32) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// # Safety
/// `storage` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_wait(storage: *const TpuStorage, timeout_ms: i32) -> i32 {
    guard(ERROR, || {
        let d = match device() {
            Ok(d) => d,
            Err(f) => return fail(&f),
        };
        // SAFETY: the caller's promise.
        match d.wait_storage(unsafe { &(*storage).inner }, timeout(timeout_ms)) {
            Ok(true) => OK,
            Ok(false) => PENDING,
            Err(f) => fail(&f),
        }
    })
}

/// # Safety
/// `storage` is live; `dst` is writable for `nbytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_download(storage: *const TpuStorage, offset: u64, nbytes: u64, dst: *mut c_void) -> i32 {
    guard(ERROR, || {
        if nbytes == 0 {
            return OK;
        }
        // SAFETY: the caller's promises.
        let (s, dst) =
            unsafe { (&(*storage).inner, std::slice::from_raw_parts_mut(dst.cast::<u8>(), nbytes as usize)) };
        let r = device().and_then(|d| d.download(s, offset, dst).map_err(|f| (*f).clone()));
        r.map_or_else(|f| fail(&f), |()| OK)
    })
}
