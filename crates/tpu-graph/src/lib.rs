//! The deferred graph: storage versions, views, segments, plan keys.
//!
//! A call is *seen* ([`see`]: identity, operands, host values), *defined* the first time ([`define`]), *pushed* onto the
//! open [`Segment`], and *cut* from it together with its neighbours; [`lower`] turns a cut into a StableHLO program. No IO,
//! no threads, no device: what the runtime keeps with a value is the type parameter `P`.
#![forbid(unsafe_code)]

mod body;
mod define;
mod export;
pub mod geometry;
mod interpret;
mod key;
mod lower;
mod moving;
mod segment;
mod sig;
mod value;

pub use body::Body;
pub use define::{MetaOut, Sizes, define, define_count, promised};
pub use export::export;
pub use lower::{Param, Program, lower};
pub use moving::Family;
pub use segment::{Cut, Node, Operand, Segment};
pub use sig::{
    ArgSpec, CallArg, Form, HostValue, HostValues, Moving, Operands, OutSpec, Place, ScalarRule, Seen, Sig, Target,
    TensorArg, TensorSpec, Way, family, invalid, see, see_tensors,
};
pub use value::{Storage, Value, hash_base};
