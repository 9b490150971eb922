//! PJRT C API layouts.
