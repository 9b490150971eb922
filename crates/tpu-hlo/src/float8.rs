//! Eight-bit floats as PyTorch's CPU rounds to them: in one step, e4m3fn without infinities by clamping, NaN with its sign.
//! Plugins differ in each of these (and some in underflow), so the code is made from the bits of the float32.

use crate::build::V;
use tpu_base::DType;

/// Where the fields of an eight-bit float are, and what stands for what it can't hold.
#[derive(Clone, Copy)]
struct Format {
    mantissa: i64,
    bias: i64,
    /// Code of the largest finite number.
    largest: i64,
    over: i64,
    nan: i64,
    /// There is no negative zero: its code is NaN's.
    unsigned_zero: bool,
}

fn format(d: DType) -> Option<Format> {
    let f =
        |mantissa, bias, largest, over, nan| Format { mantissa, bias, largest, over, nan, unsigned_zero: nan == 0x80 };
    match d {
        DType::F8E4M3FN => Some(f(3, 7, 0x7e, 0x7e, 0x7f)),
        DType::F8E5M2 => Some(f(2, 15, 0x7b, 0x7c, 0x7f)),
        DType::F8E4M3FNUZ => Some(f(3, 8, 0x7f, 0x80, 0x80)),
        DType::F8E5M2FNUZ => Some(f(2, 16, 0x7f, 0x80, 0x80)),
        _ => None,
    }
}

/// The byte that stands for `x`; `None` if `dtype` is no eight-bit float.
pub fn float8_bits(dtype: DType, x: f32) -> Option<u8> {
    let bits = x.to_bits() as i64;
    if dtype == DType::F8E8M0FNU {
        let (exponent, rest) = ((bits >> 23) & 0xff, bits & 0x7f_ffff);
        let up = rest > 0x40_0000 || (rest == 0x40_0000 && exponent > 0);
        return Some(if exponent == 0xff { 0xff } else { exponent as u8 + up as u8 });
    }
    let f = format(dtype)?;
    let exponent = (((bits >> 23) & 0xff) - 127).max(1 - f.bias);
    let q = (x.abs() as f64 * 2f64.powi((f.mantissa - exponent) as i32)).round_ties_even() as i64;
    let code = match ((exponent + f.bias - 1) << f.mantissa) + q {
        _ if x.is_nan() => f.nan,
        code if code > f.largest => f.over,
        0 if f.unsigned_zero => return Some(0),
        code => code,
    };
    Some((code | bits >> 31 << 7) as u8)
}

impl<'b> V<'b> {
    /// This float32 value in `dtype`, an eight-bit float.
    pub(crate) fn to_float8(self, dtype: DType) -> V<'b> {
        let bits = self.bitcast(DType::I32);
        let exponent = bits.shr_logical(23i64) & 0xffi64;
        let number = |n: i64| bits.full_like(n);
        let Some(f) = format(dtype) else {
            let rest = bits & 0x7f_ffffi64;
            let up = rest.gt(0x40_0000i64) | (rest.eq(0x40_0000i64) & exponent.gt(0i64));
            let code = exponent.eq(0xffi64).select(number(0xff), exponent + up.convert(DType::I32));
            return code.convert(DType::U8).bitcast(dtype);
        };
        let exponent = (exponent - 127i64).max(1 - f.bias);
        // as many units of the last place as there are: exact but for the rounding
        let unit = (exponent.neg() + (f.mantissa + 127)).shl(23i64).bitcast(DType::F32);
        let magnitude = bits & 0x7fff_ffffi64;
        let q = (magnitude.bitcast(DType::F32) * unit).round_even().convert(DType::I32);
        let code = (exponent + (f.bias - 1)).shl(f.mantissa) + q;
        let huge = code.gt(f.largest) | magnitude.eq(0x7f80_0000i64);
        let code = huge.select(number(f.over), code);
        let code = magnitude.gt(0x7f80_0000i64).select(number(f.nan), code);
        let signed = code | bits.shr_logical(31i64).shl(7i64);
        let signed = if f.unsigned_zero { code.eq(0i64).select(code, signed) } else { signed };
        signed.convert(DType::U8).bitcast(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_pytorch_s() {
        let code = |d, x| float8_bits(d, x).unwrap();
        for (x, fn_, e5m2) in [
            (1.0, 0x38, 0x3c),
            (-448.0, 0xfe, 0xdf),
            (1e9, 0x7e, 0x7c),
            (f32::NAN, 0x7f, 0x7f),
            (-0.0, 0x80, 0x80),
            (2f32.powi(-9), 0x01, 0x18),
            (0.117_159_18, 0x1f, 47),
        ] {
            assert_eq!((code(DType::F8E4M3FN, x), code(DType::F8E5M2, x)), (fn_, e5m2), "{x}");
        }
        assert_eq!((code(DType::F8E4M3FNUZ, -1e-9), code(DType::F8E4M3FNUZ, 1e9)), (0, 0x80));
        assert_eq!(
            (code(DType::F8E8M0FNU, 3.0), code(DType::F8E8M0FNU, 1.4), code(DType::F8E8M0FNU, 0.0)),
            (129, 127, 0)
        );
    }
}
