//! C arguments as the runtime's borrowed ones.

use crate::abi::{ABSENT, CONJ, HOST, NEG, TpuArg, TpuTensor, WRAPPED, dtype};
use smallvec::SmallVec;
use tpu_base::Scalar;
use tpu_runtime::{CallArg, Slot, TensorArg};

/// The arguments of one call.
pub type Args<'a> = SmallVec<[CallArg<'a, Slot>; 10]>;

/// `n` elements at `p`; empty for none.
///
/// # Safety
/// `p` is readable for `n` elements that stay as they are for `'a`.
pub unsafe fn slice<'a, T>(p: *const T, n: usize) -> &'a [T] {
    if n == 0 || p.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(p, n) }
}

/// A tensor description; `None` for an absent one or a dtype no device holds.
///
/// # Safety
/// The description is valid and its storage live for `'a`.
pub unsafe fn tensor_arg(t: &TpuTensor) -> Option<TensorArg<'_, Slot>> {
    if t.flags & ABSENT != 0 {
        return None;
    }
    let host = t.flags & HOST != 0;
    let n = t.ndim as usize;
    // SAFETY: the caller's promise.
    unsafe {
        Some(TensorArg {
            storage: if host { None } else { Some(&t.storage.as_ref()?.inner) },
            dtype: dtype(t.dtype)?,
            sizes: slice(t.sizes, n),
            strides: slice(t.strides, n),
            offset: t.offset,
            wrapped: t.flags & WRAPPED != 0,
            conj: t.flags & CONJ != 0,
            neg: t.flags & NEG != 0,
            host: if host { t.host.get() } else { Scalar::Int(0) },
        })
    }
}

/// All arguments of a call; `None` if one has a dtype no device holds.
///
/// # Safety
/// `args` describes `n` valid arguments that stay as they are for `'a`.
pub unsafe fn args<'a>(args: *const TpuArg, n: u32) -> Option<Args<'a>> {
    // SAFETY: the caller's promise.
    let list = unsafe { slice(args, n as usize) };
    list.iter()
        // SAFETY: the caller's promise in each arm, where `kind` says which member is set.
        .map(|a| unsafe {
            let n = a.n as usize;
            Some(match a.kind {
                1 => CallArg::Tensor(tensor_arg(&*a.value.tensors)?),
                2 => {
                    let l = slice(a.value.tensors, n);
                    let l = l.iter().map(|t| (t.flags & ABSENT == 0).then(|| tensor_arg(t)));
                    CallArg::Tensors(
                        l.map(|t| match t {
                            None => Some(None),
                            Some(Some(t)) => Some(Some(t)),
                            Some(None) => None,
                        })
                        .collect::<Option<Vec<_>>>()?,
                    )
                }
                3 => CallArg::Scalar(a.value.scalar.get()),
                4 => CallArg::Scalars(slice(a.value.scalars, n).iter().map(|s| s.get()).collect()),
                5 => CallArg::Int(a.value.i),
                6 => CallArg::Ints(slice(a.value.ints, n)),
                7 => CallArg::Bool(a.value.i != 0),
                8 => CallArg::Float(a.value.d),
                9 => CallArg::Floats(slice(a.value.doubles, n)),
                10 => CallArg::Str(std::str::from_utf8(slice(a.value.str, n)).ok()?),
                11 => CallArg::Device,
                12 => {
                    let state = slice(a.value.ints, 2);
                    CallArg::Generator(state[0] as u64, state[1] as u64)
                }
                _ => CallArg::None,
            })
        })
        .collect()
}
