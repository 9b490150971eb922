//! The families. A family is a table of definitions, `DEFS`; its helpers stand below it.

mod binary;

use crate::def::OpDef;

/// All families.
pub(crate) static FAMILIES: &[&[OpDef]] = &[binary::DEFS];
