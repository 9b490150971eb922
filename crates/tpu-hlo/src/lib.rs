//! StableHLO as data: types, operations, a builder that infers types as it goes, and one generic writer.
//!
//! [`Builder`] makes one module with one `main`. Values are [`V`]: copyable handles with methods, so that a lowering
//! reads like arithmetic. A mistake (shapes that don't fit, mixed dtypes) is kept as the builder's first error and
//! reported by [`Builder::finish`]; until then methods go on with a value of the most plausible type.
//! Source of names and rules: the StableHLO specification, section "Ops"; `chlo` for functions StableHLO lacks.
#![forbid(unsafe_code)]

mod build;
mod constant;
mod elementwise;
mod float8;
mod index;
mod ir;
mod linalg;
mod reduce;
mod shape;
mod text;

pub use build::{Builder, V};
pub use constant::{Lit, element_bytes};
pub use elementwise::broadcast_dims;
pub use index::{GatherDims, ScatterDims};
pub use ir::{Attr, Block, Error, Func, Module, Op, Type, ValueId};
pub use linalg::{Conv, DotDims, Precision};
pub use reduce::Window;

/// A shape, outermost dimension first.
pub type Dims = Vec<i64>;
