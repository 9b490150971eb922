//! Host code inside compiled programs: XLA FFI handlers.
//!
//! A handler is a type, not a closure, because the C API gives a handler no user data. A program
//! calls it with `stablehlo.custom_call @name(…) {api_version = 4 : i32}`.

use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::{bytes, items};
use crate::element::ElementType;
use crate::error::Result;
use crate::plugin::Plugin;

/// The code behind a custom call.
pub trait Handler: 'static {
    /// Reads the inputs and fills the outputs. An error fails the execution.
    fn call(call: &mut Call<'_>) -> std::result::Result<(), String>;
}

/// One call: its inputs, outputs and attributes.
pub struct Call<'a> {
    frame: &'a sys::XLA_FFI_CallFrame,
    exclusive: PhantomData<&'a mut u8>,
}

/// An input: dense, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// `None` for a type that this version does not know; `data` is then empty.
    pub element_type: Option<ElementType>,
    /// The dimensions.
    pub dims: &'a [i64],
    /// The contents.
    pub data: &'a [u8],
}

/// An output to fill.
#[derive(Debug)]
pub struct Output<'a> {
    /// `None` for a type that this version does not know; `data` is then empty.
    pub element_type: Option<ElementType>,
    /// The dimensions.
    pub dims: &'a [i64],
    /// Arbitrary contents, to be overwritten.
    pub data: &'a mut [u8],
}

impl Plugin {
    /// Makes `H` the code behind `custom_call @name` on `platform` (`Host` for CPU plugins). Must
    /// happen before a program that uses it is compiled; a name can be taken only once.
    pub fn register_ffi<H: Handler>(&self, name: &str, platform: &str) -> Result<()> {
        // SAFETY: the layout of this extension.
        let extension = unsafe { self.extension::<sys::PJRT_FFI_Extension>(sys::PJRT_Extension_Type_FFI) };
        let register = extension.and_then(|extension| extension.register_handler);
        let handler: sys::XLA_FFI_Handler = trampoline::<H>;
        // SAFETY: name and platform outlive the call; the handler is a function of this program.
        unsafe {
            self.api.call("PJRT_FFI_Register_Handler", register, |args| {
                args.target_name = name.as_ptr().cast();
                args.target_name_size = name.len();
                args.handler = handler as *const c_void;
                args.platform_name = platform.as_ptr().cast();
                args.platform_name_size = platform.len();
            })?
        };
        Ok(())
    }
}

unsafe extern "C" fn trampoline<H: Handler>(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: XLA calls with a valid frame.
    let frame = unsafe { &*frame };
    // A handler that does not answer the version probe is dropped without a word.
    if answer_probe(frame) || frame.stage != sys::XLA_FFI_ExecutionStage_EXECUTE {
        return null_mut();
    }
    let mut call = Call { frame, exclusive: PhantomData };
    // A panic must not unwind into C.
    let message = match catch_unwind(AssertUnwindSafe(|| H::call(&mut call))) {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(message)) => message,
        Err(_) => format!("{} panicked", std::any::type_name::<H>()),
    };
    fail(frame, &message)
}

fn answer_probe(frame: &sys::XLA_FFI_CallFrame) -> bool {
    let mut next = frame.extension_start;
    // SAFETY: a null-terminated chain of extensions; the metadata one carries a struct to fill.
    unsafe {
        while let Some(base) = next.as_ref() {
            if base.type_ == sys::XLA_FFI_Extension_Metadata {
                let metadata = (*next.cast::<sys::XLA_FFI_Metadata_Extension>()).metadata;
                (*metadata).api_version.major_version = sys::XLA_FFI_API_MAJOR;
                (*metadata).api_version.minor_version = sys::XLA_FFI_API_MINOR;
                (*metadata).traits = 0;
                return true;
            }
            next = base.next;
        }
    }
    false
}

/// The error that fails the execution.
fn fail(frame: &sys::XLA_FFI_CallFrame, message: &str) -> *mut sys::XLA_FFI_Error {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let mut args = sys::XLA_FFI_Error_Create_Args {
        message: message.as_ptr(),
        errc: sys::PJRT_Error_Code_INTERNAL,
        ..CStruct::new()
    };
    // SAFETY: the frame carries XLA's table; the message is copied during the call.
    unsafe { (*frame.api).XLA_FFI_Error_Create.map_or(null_mut(), |create| create(&mut args)) }
}

impl Call<'_> {
    /// How many inputs there are.
    pub fn num_inputs(&self) -> usize {
        self.frame.args.size as usize
    }

    /// How many outputs there are.
    pub fn num_outputs(&self) -> usize {
        self.frame.rets.size as usize
    }

    /// An input.
    pub fn input(&self, index: usize) -> Option<Input<'_>> {
        // SAFETY: an array of `size` buffers; contents are valid and unchanged during the call.
        unsafe {
            let pointers = items(self.frame.args.args.cast_const(), self.num_inputs());
            let (element_type, dims, data, len) = view(*pointers.get(index)?)?;
            Some(Input { element_type, dims, data: items(data.cast_const(), len) })
        }
    }

    /// An output. One at a time, because a program may alias them.
    pub fn output(&mut self, index: usize) -> Option<Output<'_>> {
        // SAFETY: an array of `size` buffers; XLA gives outputs to this call alone, and `&mut self`
        // lends one of them at a time.
        unsafe {
            let pointers = items(self.frame.rets.rets.cast_const(), self.num_outputs());
            let (element_type, dims, data, len) = view(*pointers.get(index)?)?;
            let data = if len == 0 { &mut [] } else { std::slice::from_raw_parts_mut(data, len) };
            Some(Output { element_type, dims, data })
        }
    }

    /// An integer attribute of the custom call's `backend_config` dictionary.
    pub fn int_attribute(&self, name: &str) -> Option<i64> {
        let attrs = &self.frame.attrs;
        let len = attrs.size as usize;
        // SAFETY: three parallel arrays of `size` items; a scalar's type says how to read it.
        unsafe {
            let names = items(attrs.names.cast_const(), len);
            let index = names.iter().position(|&span| bytes((*span).ptr, (*span).len) == name.as_bytes())?;
            if *items(attrs.types.cast_const(), len).get(index)? != sys::XLA_FFI_AttrType_SCALAR {
                return None;
            }
            let value = *items(attrs.attrs.cast_const(), len).get(index)?;
            let scalar = &*value.cast::<sys::XLA_FFI_Scalar>();
            match scalar.dtype {
                sys::XLA_FFI_DataType_S64 => Some(*scalar.value.cast::<i64>()),
                sys::XLA_FFI_DataType_S32 => Some(i64::from(*scalar.value.cast::<i32>())),
                _ => None,
            }
        }
    }
}

type View<'a> = (Option<ElementType>, &'a [i64], *mut u8, usize);

/// # Safety
/// `buffer` is null or an `XLA_FFI_Buffer` valid for `'a`.
unsafe fn view<'a>(buffer: *mut c_void) -> Option<View<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        let buffer = buffer.cast::<sys::XLA_FFI_Buffer>().as_ref()?;
        let dims = items(buffer.dims.cast_const(), usize::try_from(buffer.rank).ok()?);
        let element_type = element_type(buffer.dtype);
        let len = element_type.and_then(|element| element.host_bytes(dims)).unwrap_or(0);
        Some((element_type, dims, buffer.data.cast(), len))
    }
}

fn element_type(raw: sys::XLA_FFI_DataType) -> Option<ElementType> {
    Some(match raw {
        sys::XLA_FFI_DataType_PRED => ElementType::Pred,
        sys::XLA_FFI_DataType_S8 => ElementType::S8,
        sys::XLA_FFI_DataType_S16 => ElementType::S16,
        sys::XLA_FFI_DataType_S32 => ElementType::S32,
        sys::XLA_FFI_DataType_S64 => ElementType::S64,
        sys::XLA_FFI_DataType_U8 => ElementType::U8,
        sys::XLA_FFI_DataType_U16 => ElementType::U16,
        sys::XLA_FFI_DataType_U32 => ElementType::U32,
        sys::XLA_FFI_DataType_U64 => ElementType::U64,
        sys::XLA_FFI_DataType_F16 => ElementType::F16,
        sys::XLA_FFI_DataType_F32 => ElementType::F32,
        sys::XLA_FFI_DataType_F64 => ElementType::F64,
        sys::XLA_FFI_DataType_BF16 => ElementType::Bf16,
        sys::XLA_FFI_DataType_C64 => ElementType::C64,
        sys::XLA_FFI_DataType_C128 => ElementType::C128,
        sys::XLA_FFI_DataType_F8E5M2 => ElementType::F8E5M2,
        sys::XLA_FFI_DataType_F8E4M3FN => ElementType::F8E4M3Fn,
        _ => return None,
    })
}
