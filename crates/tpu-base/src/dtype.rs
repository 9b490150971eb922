//! Element types, numbered as `c10::ScalarType`.

/// An element type. The discriminants are `c10::ScalarType`'s, so that the shim passes codes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// `torch.uint8`
    U8 = 0,
    /// `torch.int8`
    I8 = 1,
    /// `torch.int16`
    I16 = 2,
    /// `torch.int32`
    I32 = 3,
    /// `torch.int64`
    I64 = 4,
    /// `torch.float16`
    F16 = 5,
    /// `torch.float32`
    F32 = 6,
    /// `torch.float64`
    F64 = 7,
    /// `torch.complex64`
    C64 = 9,
    /// `torch.complex128`
    C128 = 10,
    /// `torch.bool`
    Bool = 11,
    /// `torch.bfloat16`
    BF16 = 15,
    /// `torch.float8_e5m2`
    F8E5M2 = 23,
    /// `torch.float8_e4m3fn`
    F8E4M3FN = 24,
    /// `torch.float8_e5m2fnuz`
    F8E5M2FNUZ = 25,
    /// `torch.float8_e4m3fnuz`
    F8E4M3FNUZ = 26,
    /// `torch.float8_e8m0fnu`: a power of two
    F8E8M0FNU = 44,
    /// `torch.uint16`
    U16 = 27,
    /// `torch.uint32`
    U32 = 28,
    /// `torch.uint64`
    U64 = 29,
}

/// Type promotion's categories, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// `bool`
    Bool,
    /// signed and unsigned integers
    Int,
    /// real floating point
    Float,
    /// complex
    Complex,
}

use DType::*;

impl DType {
    /// Every dtype there is.
    pub const ALL: [DType; 20] = [
        U8, I8, I16, I32, I64, F16, F32, F64, C64, C128, Bool, BF16, F8E5M2, F8E4M3FN, F8E5M2FNUZ, F8E4M3FNUZ,
        F8E8M0FNU, U16, U32, U64,
    ];

    /// The dtype of a `c10::ScalarType` code; `None` for those no device buffer can hold.
    pub fn from_code(code: u8) -> Option<DType> {
        Self::ALL.into_iter().find(|d| *d as u8 == code)
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            U8 | I8 | Bool | F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ | F8E8M0FNU => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 | C64 => 8,
            C128 => 16,
        }
    }

    /// StableHLO's name of the element type (spec, "Types").
    pub const fn mlir(self) -> &'static str {
        match self {
            U8 => "ui8",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            F16 => "f16",
            F32 => "f32",
            F64 => "f64",
            C64 => "complex<f32>",
            C128 => "complex<f64>",
            Bool => "i1",
            BF16 => "bf16",
            F8E5M2 => "f8E5M2",
            F8E4M3FN => "f8E4M3FN",
            F8E5M2FNUZ => "f8E5M2FNUZ",
            F8E4M3FNUZ => "f8E4M3FNUZ",
            F8E8M0FNU => "f8E8M0FNU",
            U16 => "ui16",
            U32 => "ui32",
            U64 => "ui64",
        }
    }

    /// PyTorch's name without `torch.`.
    pub const fn name(self) -> &'static str {
        match self {
            U8 => "uint8",
            I8 => "int8",
            I16 => "int16",
            I32 => "int32",
            I64 => "int64",
            F16 => "float16",
            F32 => "float32",
            F64 => "float64",
            C64 => "complex64",
            C128 => "complex128",
            Bool => "bool",
            BF16 => "bfloat16",
            F8E5M2 => "float8_e5m2",
            F8E4M3FN => "float8_e4m3fn",
            F8E5M2FNUZ => "float8_e5m2fnuz",
            F8E4M3FNUZ => "float8_e4m3fnuz",
            F8E8M0FNU => "float8_e8m0fnu",
            U16 => "uint16",
            U32 => "uint32",
            U64 => "uint64",
        }
    }

    /// The promotion category.
    pub const fn category(self) -> Category {
        match self {
            Bool => Category::Bool,
            U8 | I8 | I16 | I32 | I64 | U16 | U32 | U64 => Category::Int,
            C64 | C128 => Category::Complex,
            _ => Category::Float,
        }
    }

    /// A float of eight bits.
    pub const fn is_float8(self) -> bool {
        matches!(self, F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ | F8E8M0FNU)
    }

    /// Real floating point.
    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    /// Complex.
    pub const fn is_complex(self) -> bool {
        matches!(self.category(), Category::Complex)
    }

    /// Integer, not bool.
    pub const fn is_int(self) -> bool {
        matches!(self.category(), Category::Int)
    }

    /// Bool or unsigned.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Bool | U8 | U16 | U32 | U64)
    }

    /// The real dtype of a complex one; itself otherwise.
    pub const fn real(self) -> DType {
        match self {
            C64 => F32,
            C128 => F64,
            d => d,
        }
    }

    /// The complex dtype whose parts are this one (half precision widens to complex64).
    pub const fn complex(self) -> DType {
        match self {
            F64 | C128 => C128,
            _ => C64,
        }
    }

    /// The dtype PyTorch's kernels compute in (`at::opmath_type`): reduced-precision floats widen to float32.
    pub const fn opmath(self) -> DType {
        match self {
            F16 | BF16 | F8E5M2 | F8E4M3FN | F8E5M2FNUZ | F8E4M3FNUZ | F8E8M0FNU => F32,
            d => d,
        }
    }

    /// Mantissa-and-exponent facts: the largest finite value of a float, or the integer maximum, as f64.
    pub fn max_value(self) -> f64 {
        match self {
            U8 => u8::MAX as f64,
            I8 => i8::MAX as f64,
            I16 => i16::MAX as f64,
            I32 => i32::MAX as f64,
            I64 => i64::MAX as f64,
            U16 => u16::MAX as f64,
            U32 => u32::MAX as f64,
            U64 => u64::MAX as f64,
            Bool => 1.0,
            F16 => 65504.0,
            BF16 => 3.389_531_389_251_535_5e38,
            F32 | C64 => f32::MAX as f64,
            F64 | C128 => f64::MAX,
            F8E5M2 | F8E5M2FNUZ => 57344.0,
            F8E4M3FN => 448.0,
            F8E4M3FNUZ => 240.0,
            F8E8M0FNU => 2f64.powi(127),
        }
    }

    /// `torch.promote_types`, for dtypes promotion is defined on.
    pub fn promote(self, other: DType) -> DType {
        if self == other {
            return self;
        }
        let (a, b) = (self, other);
        match (a.category(), b.category()) {
            (Category::Bool, _) => b,
            (_, Category::Bool) => a,
            (Category::Complex, _) | (_, Category::Complex) => {
                if a == C128 || b == C128 || a == F64 || b == F64 {
                    C128
                } else {
                    C64
                }
            }
            (Category::Float, Category::Int) => a,
            (Category::Int, Category::Float) => b,
            (Category::Float, _) => {
                if a.size() == b.size() {
                    F32 // float16 with bfloat16
                } else if a.size() > b.size() {
                    a
                } else {
                    b
                }
            }
            _ => promote_ints(a, b),
        }
    }
}

fn promote_ints(a: DType, b: DType) -> DType {
    match (a.is_unsigned(), b.is_unsigned()) {
        (true, true) | (false, false) => {
            if a.size() >= b.size() {
                a
            } else {
                b
            }
        }
        (true, false) => promote_ints(b, a),
        (false, true) => {
            if a.size() > b.size() {
                return a;
            }
            match b.size() {
                1 => I16,
                2 => I32,
                _ => I64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_follows_torch() {
        assert_eq!(U8.promote(I8), I16);
        assert_eq!(I64.promote(F16), F16);
        assert_eq!(F16.promote(BF16), F32);
        assert_eq!(C64.promote(F64), C128);
        assert_eq!(Bool.promote(U8), U8);
        assert_eq!(I32.promote(U8), I32);
    }

    #[test]
    fn codes_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_code(d as u8), Some(d));
        }
        assert_eq!(DType::from_code(8), None);
    }
}
