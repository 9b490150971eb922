//! Project rules as programs.
fn main() {}
