"""Programs held against the real TPU compiler, without a TPU. See docs/tpu-check.md."""
