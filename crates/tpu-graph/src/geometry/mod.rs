//! Where a view's elements lie in a storage, and the shortest way there and back.
//!
//! A storage is held as one dense *base* array: n-d, row-major in memory order, of one dtype.
//! A tensor is a [`View`] of it: dtype, sizes, strides and offset. [`read_path`] derives the
//! array steps that turn the base into the view's value, [`write_path`] those that put a new value
//! back. Both are plain data; whoever builds programs interprets them. Nothing here knows an
//! operation, a device or a value, so a path can be kept per geometry and shared.
//!
//! All sizes, strides and offsets count elements of the dtype beside them, never bytes.

mod base;
mod convert;
mod moving;
mod normal;
mod read;
mod step;
#[cfg(test)]
mod tests;
mod write;

pub use base::{base_for, is_whole, memory_order, reshaped};
pub use moving::{Moved, moved};
pub use read::{ReadPath, read_path};
pub use step::{Step, Steps};
pub use write::{WriteKind, WritePath, write_path};

use smallvec::SmallVec;
use tpu_base::{DType, ErrorKind};

/// Sizes, strides, starts or a permutation: one number for each dimension.
pub type Dims = SmallVec<[i64; 6]>;

/// Width of one element in bytes, in the type that geometry counts in.
const fn width(dtype: DType) -> i64 {
    dtype.size() as i64
}

/// The array that holds a storage: dense, row-major, in memory order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// Type of its elements.
    pub dtype: DType,
    /// Sizes, outermost in memory first.
    pub dims: Dims,
}

impl Base {
    /// A base of the given type and sizes.
    pub fn new(dtype: DType, dims: impl Into<Dims>) -> Base {
        Base { dtype, dims: dims.into() }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.dims.iter().product()
    }

    /// Size in bytes.
    pub fn nbytes(&self) -> i64 {
        self.numel() * width(self.dtype)
    }
}

/// A tensor's geometry over a storage. Conjugate and negative bits are not geometry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Type of its elements; may differ from the base's.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Dims,
    /// Strides, one for each size; 0 repeats.
    pub strides: Dims,
    /// Place of the first element.
    pub offset: i64,
}

impl View {
    /// A view of the given geometry. Nothing is checked until it meets a base.
    pub fn new(dtype: DType, sizes: impl Into<Dims>, strides: impl Into<Dims>, offset: i64) -> View {
        View { dtype, sizes: sizes.into(), strides: strides.into(), offset }
    }

    /// Whether it has no elements at all.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Whether its elements lie one after the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1;
        let mut dense = |(&n, &stride): (&i64, &i64)| {
            let fits = n == 1 || stride == next;
            next *= n;
            fits
        };
        self.is_empty() || self.sizes.iter().zip(&self.strides).rev().all(&mut dense)
    }

    /// Places from the first element to the last, both counted; none of an empty view.
    pub fn extent(&self) -> i64 {
        let last: i64 = self.sizes.iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride).sum();
        if self.is_empty() { 0 } else { last + 1 }
    }

    /// Dimensions whose elements share a place.
    pub fn shared(&self) -> Vec<usize> {
        (0..self.sizes.len()).filter(|&i| self.sizes[i] > 1 && self.strides[i] == 0).collect()
    }

    /// Checks the view against a storage of `nbytes` bytes. Everything derived afterwards may use
    /// plain arithmetic: what passes stays far from the ends of `i64`.
    ///
    /// # Errors
    /// [`GeometryError`] if the geometry is malformed or reaches past the end.
    pub fn check(&self, nbytes: i64) -> Result<(), GeometryError> {
        if self.sizes.len() != self.strides.len() {
            return Err(GeometryError::Rank { sizes: self.sizes.len(), strides: self.strides.len() });
        }
        if self.offset < 0 || self.sizes.iter().any(|&n| n < 0) {
            return Err(GeometryError::Negative { what: "sizes and storage offsets" });
        }
        if self.is_empty() {
            return Ok(());
        }
        let mut numel = width(self.dtype);
        let mut last = self.offset;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            numel = numel.checked_mul(size).ok_or(GeometryError::Overflow)?;
            if size > 1 {
                if stride < 0 {
                    return Err(GeometryError::Negative { what: "strides" });
                }
                let reach = stride.checked_mul(size - 1);
                last = reach.and_then(|reach| reach.checked_add(last)).ok_or(GeometryError::Overflow)?;
            }
        }
        let needed = last
            .checked_add(1)
            .and_then(|count| count.checked_mul(width(self.dtype)))
            .ok_or(GeometryError::Overflow)?;
        if needed > nbytes {
            return Err(GeometryError::OutOfBounds { view: Box::new(self.clone()), needed, nbytes });
        }
        Ok(())
    }
}

/// Why a geometry is no view of a storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The view reaches past the storage's end; worded as PyTorch words it.
    #[error(
        "setStorage: sizes {:?}, strides {:?}, storage offset {}, and itemsize {} requiring a \
         storage size of {needed} are out of bounds for storage of size {nbytes}",
        view.sizes, view.strides, view.offset, view.dtype.size()
    )]
    OutOfBounds {
        /// The view.
        view: Box<View>,
        /// Bytes it needs from the storage's start.
        needed: i64,
        /// Bytes the storage has.
        nbytes: i64,
    },
    /// As many strides as sizes are needed.
    #[error("mismatch in length of strides and shape: {strides} strides, {sizes} sizes")]
    Rank {
        /// Number of sizes.
        sizes: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A number that may not be negative is.
    #[error("as_strided: Negative {what} are not supported")]
    Negative {
        /// Which numbers.
        what: &'static str,
    },
    /// The geometry's numbers leave 64 bits.
    #[error("sizes, strides or storage offset too large: the number of bytes overflows")]
    Overflow,
}

impl GeometryError {
    /// Always the caller's: PyTorch raises `RuntimeError` for each.
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::User
    }
}
