//! Constants and iota.

use crate::build::{Builder, V};
use crate::float8::float8_bits;
use crate::ir::{Attr, Type};
use tpu_base::{DType, Scalar};

/// One element's little-endian bytes; floats round to nearest even.
pub fn element_bytes(dtype: DType, s: Scalar) -> Vec<u8> {
    use DType::*;
    let (re, im) = (s.as_f64(), s.imag());
    match dtype {
        Bool => vec![s.truthy() as u8],
        U8 | I8 => vec![s.as_i64() as u8],
        I16 | U16 => (s.as_i64() as u16).to_le_bytes().to_vec(),
        I32 | U32 => (s.as_i64() as u32).to_le_bytes().to_vec(),
        I64 | U64 => s.as_i64().to_le_bytes().to_vec(),
        F32 => (re as f32).to_le_bytes().to_vec(),
        F64 => re.to_le_bytes().to_vec(),
        C64 => [(re as f32).to_le_bytes(), (im as f32).to_le_bytes()].concat(),
        C128 => [re.to_le_bytes(), im.to_le_bytes()].concat(),
        BF16 => bf16_bits(re as f32).to_le_bytes().to_vec(),
        F16 => f16_bits(re).to_le_bytes().to_vec(),
        F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ | F8E8M0FNU => float8_bits(dtype, re as f32).into_iter().collect(),
    }
}

fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) as u16) | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// IEEE binary16 by scaling to an integer mantissa and rounding half to even.
fn f16_bits(x: f64) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let a = x.abs();
    if a.is_nan() {
        return sign | 0x7e00;
    }
    if a >= 65520.0 {
        return sign | 0x7c00;
    }
    let exp = if a < 2f64.powi(-14) { -14 } else { a.log2().floor() as i32 };
    // log2 can be one off at a power of two
    let exp = if a < 2f64.powi(exp) && exp > -14 {
        exp - 1
    } else if a >= 2f64.powi(exp + 1) {
        exp + 1
    } else {
        exp
    };
    let mantissa = (a / 2f64.powi(exp - 10)).round_ties_even() as u32;
    // normal numbers carry the implicit 1024; a carry moves into the exponent by itself
    sign | (mantissa + (((exp + 14) as u32) << 10)) as u16
}

impl Builder {
    /// A constant of dense little-endian elements.
    pub fn constant_bytes(&self, ty: Type, bytes: Vec<u8>) -> V<'_> {
        self.op1("stablehlo.constant", &[], ty.clone(), vec![("value", Attr::Elements(ty, bytes))])
    }

    /// A 0-d constant.
    pub fn scalar(&self, dtype: DType, value: impl Into<Lit>) -> V<'_> {
        let value = value.into().0;
        let ty = Type::scalar(dtype);
        self.constant_bytes(ty, element_bytes(dtype, value))
    }

    /// `value` everywhere, shape `dims`.
    pub fn full(&self, dtype: DType, dims: &[i64], value: impl Into<Lit>) -> V<'_> {
        self.scalar(dtype, value).broadcast_to(dims)
    }

    /// Zeros of shape `dims`.
    pub fn zeros(&self, dtype: DType, dims: &[i64]) -> V<'_> {
        self.full(dtype, dims, 0.0)
    }

    /// A 1-d or n-d integer table.
    pub fn table(&self, dtype: DType, dims: &[i64], values: &[i64]) -> V<'_> {
        let bytes = values.iter().flat_map(|&v| element_bytes(dtype, Scalar::Int(v))).collect();
        self.constant_bytes(Type::new(dtype, dims), bytes)
    }

    /// A 1-d or n-d table of reals.
    pub fn table_f64(&self, dtype: DType, dims: &[i64], values: &[f64]) -> V<'_> {
        let bytes = values.iter().flat_map(|&v| element_bytes(dtype, Scalar::Double(v))).collect();
        self.constant_bytes(Type::new(dtype, dims), bytes)
    }

    /// The index along `dim`, as elements (not for bool; complex gets it as the real part).
    pub fn iota(&self, dtype: DType, dims: &[i64], dim: usize) -> V<'_> {
        self.op1("stablehlo.iota", &[], Type::new(dtype, dims), vec![("iota_dimension", Attr::Int(dim as i64))])
    }
}

/// A number literal for constants: from `f64`, `i64`, `i32`, `bool` or [`Scalar`].
#[derive(Clone, Copy, Debug)]
pub struct Lit(pub Scalar);

impl From<f64> for Lit {
    fn from(v: f64) -> Lit {
        Lit(Scalar::Double(v))
    }
}
impl From<i64> for Lit {
    fn from(v: i64) -> Lit {
        Lit(Scalar::Int(v))
    }
}
impl From<i32> for Lit {
    fn from(v: i32) -> Lit {
        Lit(Scalar::Int(v as i64))
    }
}
impl From<bool> for Lit {
    fn from(v: bool) -> Lit {
        Lit(Scalar::Bool(v))
    }
}
impl From<Scalar> for Lit {
    fn from(v: Scalar) -> Lit {
        Lit(v)
    }
}

impl<'b> V<'b> {
    /// `value` as a 0-d constant of this value's dtype.
    pub fn lit(self, value: impl Into<Lit>) -> V<'b> {
        self.b.scalar(self.dtype(), value)
    }

    /// `value` in this value's dtype and shape.
    pub fn full_like(self, value: impl Into<Lit>) -> V<'b> {
        self.lit(value).broadcast_to(&self.dims())
    }

    /// Zeros like this value.
    pub fn zeros_like(self) -> V<'b> {
        self.full_like(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_rounds_to_even() {
        for (x, bits) in [
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65520.0, 0x7c00),
            (6e-8, 0x0001),
            (2f64.powi(-14), 0x0400),
            (0.1, 0x2e66),
            (2049.0, 0x6800),
            (2051.0, 0x6802),
        ] {
            assert_eq!(f16_bits(x), bits, "{x}");
        }
        assert_eq!(bf16_bits(1.0), 0x3f80);
        assert_eq!(bf16_bits(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(bf16_bits(1.0 + 3.0 / 256.0), 0x3f82);
    }
}
