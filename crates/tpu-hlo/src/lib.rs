//! StableHLO as data: types, values, a builder with type inference, one generic writer.
