//! Element types of buffers.

use tpu_pjrt_sys as sys;

macro_rules! elements {
    ($($name:ident = $raw:ident, $bits:literal;)*) => {
        /// The element type of a buffer (StableHLO's names, in PJRT's numbering).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are the C API's")]
        #[non_exhaustive]
        pub enum ElementType { $($name,)* }

        impl ElementType {
            /// Every element type.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The number in the C API.
            pub fn to_raw(self) -> sys::PJRT_Buffer_Type {
                match self { $(Self::$name => sys::$raw,)* }
            }

            /// `None` for a number that this version does not know.
            pub fn from_raw(raw: sys::PJRT_Buffer_Type) -> Option<Self> {
                match raw { $(sys::$raw => Some(Self::$name),)* _ => None }
            }

            /// Bits of one element in its own right (packed).
            pub fn bits(self) -> usize {
                match self { $(Self::$name => $bits,)* }
            }
        }
    };
}
elements! {
    Pred = PJRT_Buffer_Type_PRED, 8;
    S2 = PJRT_Buffer_Type_S2, 2;
    S4 = PJRT_Buffer_Type_S4, 4;
    S8 = PJRT_Buffer_Type_S8, 8;
    S16 = PJRT_Buffer_Type_S16, 16;
    S32 = PJRT_Buffer_Type_S32, 32;
    S64 = PJRT_Buffer_Type_S64, 64;
    U2 = PJRT_Buffer_Type_U2, 2;
    U4 = PJRT_Buffer_Type_U4, 4;
    U8 = PJRT_Buffer_Type_U8, 8;
    U16 = PJRT_Buffer_Type_U16, 16;
    U32 = PJRT_Buffer_Type_U32, 32;
    U64 = PJRT_Buffer_Type_U64, 64;
    F16 = PJRT_Buffer_Type_F16, 16;
    F32 = PJRT_Buffer_Type_F32, 32;
    F64 = PJRT_Buffer_Type_F64, 64;
    Bf16 = PJRT_Buffer_Type_BF16, 16;
    C64 = PJRT_Buffer_Type_C64, 64;
    C128 = PJRT_Buffer_Type_C128, 128;
    F8E5M2 = PJRT_Buffer_Type_F8E5M2, 8;
    F8E4M3 = PJRT_Buffer_Type_F8E4M3, 8;
    F8E3M4 = PJRT_Buffer_Type_F8E3M4, 8;
    F8E4M3Fn = PJRT_Buffer_Type_F8E4M3FN, 8;
    F8E4M3B11Fnuz = PJRT_Buffer_Type_F8E4M3B11FNUZ, 8;
    F8E5M2Fnuz = PJRT_Buffer_Type_F8E5M2FNUZ, 8;
    F8E4M3Fnuz = PJRT_Buffer_Type_F8E4M3FNUZ, 8;
    F8E8M0Fnu = PJRT_Buffer_Type_F8E8M0FNU, 8;
    F4E2M1Fn = PJRT_Buffer_Type_F4E2M1FN, 4;
    Token = PJRT_Buffer_Type_TOKEN, 0;
}

impl ElementType {
    /// Bytes of one element in host memory, where sub-byte types take a byte each.
    pub fn host_size(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes of a dense host array; `None` when a dimension is negative or the product overflows.
    pub fn host_bytes(self, dims: &[i64]) -> Option<usize> {
        dims.iter().try_fold(self.host_size(), |bytes, &dim| bytes.checked_mul(usize::try_from(dim).ok()?))
    }
}
