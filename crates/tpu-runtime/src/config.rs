//! What the Python side says when it starts the device.

use serde::Deserialize;
use std::path::PathBuf;

/// The start configuration (JSON).
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// The plugin's shared library.
    pub plugin: PathBuf,
    /// `cpu`, `tpu` or `gpu`.
    pub kind: String,
    /// Where plans are kept; `None`: nowhere.
    #[serde(default)]
    pub cache_dir: Option<PathBuf>,
    /// Most bytes to keep there; 0: nothing.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Most bytes of live values; `None`: the device's own limit.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// The running torch's version: its shape rules are remembered.
    #[serde(default)]
    pub torch: String,
    /// Most ops of a fused segment.
    #[serde(default = "segment_ops")]
    pub segment_ops: usize,
    /// Most bytes that the results in a fused segment take.
    #[serde(default = "segment_bytes")]
    pub segment_bytes: u64,
    /// Most plans that wait for the device.
    #[serde(default = "queue")]
    pub queue: usize,
    /// Client create options.
    #[serde(default)]
    pub options: serde_json::Map<String, serde_json::Value>,
}

fn segment_ops() -> usize {
    64
}

fn segment_bytes() -> u64 {
    1 << 30
}

/// Enough to keep the device busy while Python thinks, few enough to bound what they pin.
fn queue() -> usize {
    2048
}
