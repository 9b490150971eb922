//! Named values: create options, attributes, cost analysis.

use tpu_pjrt_sys as sys;
use tpu_pjrt_sys::CStruct;

use crate::api::{items, text};

/// The value of a named option or attribute.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value {
    Str(String),
    Int(i64),
    IntList(Vec<i64>),
    Float(f32),
    Bool(bool),
}

impl Value {
    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// Options as the C API wants them. The result points into `options`.
pub(crate) fn to_raw(options: &[(&str, Value)]) -> Vec<sys::PJRT_NamedValue> {
    let one = |(name, value): &(&str, Value)| {
        let mut raw = sys::PJRT_NamedValue::new();
        raw.name = name.as_ptr().cast();
        raw.name_size = name.len();
        raw.value_size = 1;
        match value {
            Value::Str(s) => {
                raw.type_ = sys::PJRT_NamedValue_kString;
                raw.value.string_value = s.as_ptr().cast();
                raw.value_size = s.len();
            }
            Value::Int(i) => {
                raw.type_ = sys::PJRT_NamedValue_kInt64;
                raw.value.int64_value = *i;
            }
            Value::IntList(list) => {
                raw.type_ = sys::PJRT_NamedValue_kInt64List;
                raw.value.int64_array_value = list.as_ptr();
                raw.value_size = list.len();
            }
            Value::Float(f) => {
                raw.type_ = sys::PJRT_NamedValue_kFloat;
                raw.value.float_value = *f;
            }
            Value::Bool(b) => {
                raw.type_ = sys::PJRT_NamedValue_kBool;
                raw.value.bool_value = *b;
            }
        }
        raw
    };
    options.iter().map(one).collect()
}

/// Copies named values that a plugin lends us. A type we do not know is left out.
///
/// # Safety
/// `data` is null or valid for `len` values, each valid in itself.
pub(crate) unsafe fn from_raw(data: *const sys::PJRT_NamedValue, len: usize) -> Vec<(String, Value)> {
    let mut out = Vec::with_capacity(len);
    for index in 0..len {
        if data.is_null() {
            break;
        }
        // SAFETY: within the array; the union's member is the one its type names.
        unsafe {
            let raw = &*data.add(index);
            let value = match raw.type_ {
                sys::PJRT_NamedValue_kString => Value::Str(text(raw.value.string_value, raw.value_size)),
                sys::PJRT_NamedValue_kInt64 => Value::Int(raw.value.int64_value),
                sys::PJRT_NamedValue_kInt64List => {
                    Value::IntList(items(raw.value.int64_array_value, raw.value_size).to_vec())
                }
                sys::PJRT_NamedValue_kFloat => Value::Float(raw.value.float_value),
                sys::PJRT_NamedValue_kBool => Value::Bool(raw.value.bool_value),
                _ => continue,
            };
            out.push((text(raw.name, raw.name_size), value));
        }
    }
    out
}
