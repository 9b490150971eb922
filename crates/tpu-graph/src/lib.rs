//! The deferred graph: storage versions, views, segments, plan keys.
