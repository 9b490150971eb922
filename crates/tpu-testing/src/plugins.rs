//! Where tests find real plugins.

use std::path::{Path, PathBuf};

/// Names the plugins to test with, separated by colons.
pub const VARIABLE: &str = "TPU_TEST_PLUGINS";

/// The CPU plugins that a checkout's virtual environment holds.
const INSTALLED: &[&str] = &["fastatomstruct_xla_cpu/libpjrt_cpu.so", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"];

/// The real plugins to test with: those of [`VARIABLE`], or else those of `.venv`. Each path may be
/// of a file that is absent: a test says so rather than passing without it.
pub fn real() -> Vec<PathBuf> {
    if let Some(paths) = std::env::var_os(VARIABLE) {
        return std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    let mut site = root.join("python3/site-packages");
    for entry in std::fs::read_dir(&root).into_iter().flatten().flatten() {
        let candidate = entry.path().join("site-packages");
        if candidate.is_dir() {
            site = candidate;
        }
    }
    INSTALLED.iter().map(|name| site.join(name)).collect()
}
