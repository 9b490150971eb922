//! Paths against the definition of a view: element by element over the storage's bytes.

mod golden;
mod interpret;
mod random;
