//! The C ABI between the PyTorch shim and the runtime.
