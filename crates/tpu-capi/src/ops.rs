//! The op table as the shim reads it at load.

use crate::guard::guard;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use tpu_runtime::Form;

static FORMS: RwLock<Vec<Arc<Form>>> = RwLock::new(vec![]);

/// The form with this id.
pub fn form(id: u32) -> Option<Arc<Form>> {
    FORMS.read().unwrap_or_else(PoisonError::into_inner).get(id as usize).cloned()
}

/// The form called `name`.
pub fn form_named(name: &str) -> Option<Arc<Form>> {
    let forms = FORMS.read().unwrap_or_else(PoisonError::into_inner);
    forms.iter().find(|f| f.name == name).cloned()
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_op_count() -> u32 {
    guard(0, || tpu_aten::table().len() as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_op_schema(op: u32) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    guard(std::ptr::null(), || {
        let texts = TEXTS.get_or_init(|| {
            tpu_aten::table().iter().map(|e| CString::new(e.schema.text).unwrap_or_default()).collect()
        });
        texts.get(op as usize).map_or(std::ptr::null(), |t| t.as_ptr())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tpu_op_facts(op: u32) -> u32 {
    let facts = |d: &tpu_aten::OpDef| d.random as u32 | (d.counted.is_some() as u32) << 1 | (d.late_shape as u32) << 2;
    guard(0, || tpu_aten::table().get(op as usize).map_or(0, |e| facts(e.def)))
}

/// # Safety
/// `full_name` is a C string; `writes` is readable for `n_writes` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpu_register_form(
    op: u32,
    full_name: *const c_char,
    writes: *const i32,
    n_writes: u32,
) -> u32 {
    guard(u32::MAX, || {
        // SAFETY: the caller's promises.
        let (name, writes) = unsafe { (CStr::from_ptr(full_name), crate::args::slice(writes, n_writes as usize)) };
        let writes = writes.iter().map(|&w| usize::try_from(w).ok()).collect();
        let Some(form) = Form::new(op as usize, name.to_string_lossy().into_owned(), writes) else {
            return u32::MAX;
        };
        let mut forms = FORMS.write().unwrap_or_else(PoisonError::into_inner);
        forms.push(Arc::new(form));
        (forms.len() - 1) as u32
    })
}

/// PyTorch's ops of the table with facts and examples, as JSON.
pub fn table_json() -> String {
    let ops: Vec<_> = tpu_aten::table()
        .iter()
        .filter(|e| !e.schema.name.starts_with("tpu::"))
        .map(|e| {
            serde_json::json!({
                "name": e.schema.name,
                "schema": e.schema.text,
                "examples": e.def.examples,
                "consts": e.def.consts,
                "operands": e.def.operands,
                "updates": e.def.updates,
                "random": e.def.random,
                "counted": e.def.counted.is_some(),
            })
        })
        .collect();
    serde_json::Value::Array(ops).to_string()
}
