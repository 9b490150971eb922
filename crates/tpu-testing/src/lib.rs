//! Test support: null PJRT plugin, fault injection.
