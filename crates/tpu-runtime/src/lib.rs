//! Joins graph and PJRT: executor, plan cache, transfers, accounting.
