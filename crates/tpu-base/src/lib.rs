//! Dtypes, shapes, scalars and error kinds shared by every crate.
