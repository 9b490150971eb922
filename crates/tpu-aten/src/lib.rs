//! The op table: one [`OpDef`] per functional ATen overload.
//!
//! A definition is const data: the exact upstream schema, how to lower it, which numbers stay constants, and examples
//! that the test-suite holds against PyTorch's Meta and CPU kernels. In-place, `out=` and foreach forms are derived from
//! the schema's alias information by the shim and are never declared here.
#![forbid(unsafe_code)]

mod body;
mod cx;
mod def;
pub mod ops;
mod schema;
mod table;

pub use body::{Body, body, publish};
pub use cx::{Arg, Check, Cx, Host, HostParams, Settings};
pub use def::{Counted, Extent, Lower, OpDef, Refusal, Sig, SigArg};
pub use schema::{ArgType, Schema, SchemaArg};
pub use table::{Entry, lower, table};
