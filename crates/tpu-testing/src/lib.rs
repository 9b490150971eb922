//! Test support: a PJRT plugin without a compiler ([`null`]), and where the real ones are
//! ([`plugins`]).

pub mod null;
pub mod plugins;
