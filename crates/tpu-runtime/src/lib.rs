//! Joins graph and PJRT: one device with its recorder, plan cache, executor, transfers and accounting.
//!
//! The way of a call: [`Device::call`] sees it (one hash), pushes it onto the open segment, and under strict eager cuts at
//! once; the cut's plan comes from memory, disk or the compiler ([`plan`]); the executor thread runs plans in order and
//! fills the values' slots. Whoever reads waits on a slot; nobody else waits.
#![forbid(unsafe_code)]

mod aot;
mod capture;
mod compile;
mod config;
mod device;
mod disk;
mod elements;
mod executor;
mod explain;
mod fault;
mod info;
mod mark;
mod memory;
mod plan;
mod policy;
mod progress;
mod signatures;
mod slot;
mod topology;
mod transfer;

pub use capture::{Captured, CapturedOut, Graph, GraphOutcome, Owner};
pub use config::Config;
pub use device::{Called, Device, Mode, Outcome};
pub use fault::Fault;
pub use mark::Mark;
pub use memory::MemoryStats;
pub use slot::Slot;
pub use topology::topology;
pub use tpu_graph::{CallArg, Form, HostValue, MetaOut, Sig, Target, TensorArg, Way, geometry};

/// What a storage holds.
pub type Value = tpu_graph::Value<Slot>;
/// The cell behind a `c10::Storage`.
pub type Storage = tpu_graph::Storage<Slot>;
