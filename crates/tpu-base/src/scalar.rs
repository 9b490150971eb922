//! A Python number, as `at::Scalar` holds it.

use crate::{Category, DType};

/// One number with its kind. Equality and hashing are by bits, so that NaN equals itself.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `float`
    Double(f64),
    /// `complex`
    Complex(f64, f64),
}

impl Scalar {
    /// The category for type promotion.
    pub fn category(self) -> Category {
        match self {
            Scalar::Bool(_) => Category::Bool,
            Scalar::Int(_) => Category::Int,
            Scalar::Double(_) => Category::Float,
            Scalar::Complex(..) => Category::Complex,
        }
    }

    /// The value as a real double (the real part of a complex one).
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Double(d) | Scalar::Complex(d, _) => d,
        }
    }

    /// The value as an integer (floats truncate).
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Double(d) | Scalar::Complex(d, _) => d as i64,
        }
    }

    /// The imaginary part.
    pub fn imag(self) -> f64 {
        if let Scalar::Complex(_, i) = self { i } else { 0.0 }
    }

    /// Truth, as Python's `bool()`.
    pub fn truthy(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Double(d) => d != 0.0,
            Scalar::Complex(r, i) => r != 0.0 || i != 0.0,
        }
    }

    /// Tag and two words that identify the value.
    pub fn bits(self) -> (u8, u64, u64) {
        match self {
            Scalar::Bool(b) => (0, b as u64, 0),
            Scalar::Int(i) => (1, i as u64, 0),
            Scalar::Double(d) => (2, d.to_bits(), 0),
            Scalar::Complex(r, i) => (3, r.to_bits(), i.to_bits()),
        }
    }

    /// The inverse of [`Scalar::bits`].
    pub fn from_bits(tag: u8, lo: u64, hi: u64) -> Option<Scalar> {
        Some(match tag {
            0 => Scalar::Bool(lo != 0),
            1 => Scalar::Int(lo as i64),
            2 => Scalar::Double(f64::from_bits(lo)),
            3 => Scalar::Complex(f64::from_bits(lo), f64::from_bits(hi)),
            _ => return None,
        })
    }

    /// The dtype a wrapped Python number has before promotion (`default` is `torch.get_default_dtype()`).
    pub fn dtype(self, default: DType) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Double(_) => default,
            Scalar::Complex(..) => default.complex(),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.bits() == other.bits()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state)
    }
}
