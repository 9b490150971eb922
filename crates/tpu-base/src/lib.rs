//! Dtypes, scalars and error kinds shared by every crate.
#![forbid(unsafe_code)]

mod dtype;
mod scalar;

pub use dtype::{Category, DType};
pub use scalar::Scalar;

/// What kind of fault an error is; decides the Python exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The user's mistake: `RuntimeError`, in PyTorch's words.
    User,
    /// A wrong value: `ValueError`.
    Value,
    /// A wrong type: `TypeError`.
    Type,
    /// An index out of range: `IndexError`.
    Index,
    /// A factorization that does not exist: `torch.linalg.LinAlgError`.
    LinAlg,
    /// Nothing here can do this: `NotImplementedError`.
    Unsupported,
    /// The memory limit or the device's memory was reached: `torch.OutOfMemoryError`.
    OutOfMemory,
    /// The device or its plugin failed: `RuntimeError`.
    Device,
    /// A fault of this library: `RuntimeError`, asks for a report.
    Bug,
}
