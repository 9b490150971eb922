//! How this crate declares C structs, and what it remembers about them for the layout test.

/// One field: name, offset, size.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The C name (a trailing `_` only dodges a Rust keyword).
    pub name: &'static str,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes the field takes.
    pub size: usize,
}

/// What the layout test compares with an independent table.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The C name of the struct.
    pub name: &'static str,
    /// `sizeof`, trailing padding included.
    pub size: usize,
    /// Fields in order.
    pub fields: &'static [Field],
}

/// End of the last field: what `struct_size` must say. Not `sizeof`: a later version may put a
/// small field into what is trailing padding today.
pub const fn end_of_last(fields: &[Field]) -> usize {
    let last = fields[fields.len() - 1];
    last.offset + last.size
}

/// A struct that starts with `struct_size` and is passed by pointer.
///
/// # Safety
/// `Self` must be `#[repr(C)]` and valid when every byte is zero.
pub unsafe trait CStruct: Copy {
    /// The value of `struct_size`.
    const STRUCT_SIZE: usize;

    /// All zero, `struct_size` set.
    fn new() -> Self;

    /// What the struct says of its size.
    fn struct_size(&self) -> usize;
}

/// Declares `#[repr(C)]` structs of three kinds: `args` (struct_size, extension_start, fields),
/// `sized` (struct_size, fields) and `plain` (fields only); lists them all in `LAYOUTS`.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $kind:ident $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {
        $($crate::layout::c_structs!(@$kind $(#[$meta])* $name { $($field: $ty,)* });)*
        /// Every struct of this module, for the layout test.
        pub const LAYOUTS: &[$crate::layout::Layout] = &[$($crate::layout::Layout {
            name: stringify!($name),
            size: core::mem::size_of::<$name>(),
            fields: $name::FIELDS,
        }),*];
    };
    (@args $(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty,)* }) => {
        $crate::layout::c_structs!(@sized $(#[$meta])* $name {
            extension_start: *mut $crate::PJRT_Extension_Base, $($field: $ty,)*
        });
    };
    (@sized $(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty,)* }) => {
        $crate::layout::c_structs!(@plain $(#[$meta])* $name { struct_size: usize, $($field: $ty,)* });
        // SAFETY: repr(C), made of integers, bools, raw pointers and optional functions.
        unsafe impl $crate::layout::CStruct for $name {
            const STRUCT_SIZE: usize = $crate::layout::end_of_last($name::FIELDS);
            #[inline]
            fn new() -> Self {
                // SAFETY: the trait's contract: all-zero is a valid value.
                let mut this: Self = unsafe { core::mem::zeroed() };
                this.struct_size = <Self as $crate::layout::CStruct>::STRUCT_SIZE;
                this
            }
            fn struct_size(&self) -> usize {
                self.struct_size
            }
        }
    };
    (@plain $(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $ty,)* }
        impl $name {
            /// Fields in order.
            pub const FIELDS: &'static [$crate::layout::Field] = &[$($crate::layout::Field {
                name: stringify!($field),
                offset: core::mem::offset_of!($name, $field),
                size: core::mem::size_of::<$ty>(),
            }),*];
        }
    };
}
pub(crate) use c_structs;
