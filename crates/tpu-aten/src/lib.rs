//! The op table: one OpDef per functional ATen overload.
