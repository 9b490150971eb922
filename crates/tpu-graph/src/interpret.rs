//! Geometry paths as StableHLO.

use crate::geometry::{Step, WriteKind, WritePath};
use tpu_base::DType;
use tpu_hlo::{Builder, ScatterDims, Type, V};

/// Takes `steps` from `v`.
pub(crate) fn steps<'b>(v: V<'b>, steps: &[Step]) -> V<'b> {
    steps.iter().fold(v, step)
}

fn step<'b>(v: V<'b>, s: &Step) -> V<'b> {
    let b = v.builder();
    match s {
        Step::Reshape(d) => v.reshape(d),
        Step::Slice { start, limit, step } => v.slice(start, limit, step),
        Step::Transpose(p) => v.transpose(&p.iter().map(|&i| i as usize).collect::<Vec<_>>()),
        Step::Broadcast { sizes, map } => {
            v.broadcast_in_dim(sizes, &map.iter().map(|&i| i as usize).collect::<Vec<_>>())
        }
        Step::Bitcast { dtype, dims } => {
            // a bool is one bit in StableHLO and one byte in a storage
            let v = if v.dtype() == DType::Bool { v.convert(DType::U8) } else { v };
            match dtype {
                DType::Bool => {
                    let bytes =
                        if v.dtype() == DType::U8 { v } else { v.bitcast_to(Type::new(DType::U8, dims.to_vec())) };
                    bytes.convert(DType::Bool)
                }
                d if v.dtype() == *d => v,
                d => v.bitcast_to(Type::new(*d, dims.to_vec())),
            }
        }
        Step::ComplexToReal { .. } => {
            let last = v.rank();
            b.concat(&[v.real().unsqueeze(last), v.imag().unsqueeze(last)], last)
        }
        Step::RealToComplex { .. } => {
            let last = v.rank() - 1;
            let part = |i: i64| v.slice_dim(last, i, i + 1).squeeze(&[last]);
            part(0).complex(part(1))
        }
        Step::Pad { low, high, interior } => v.pad(v.lit(0.0), low, high, interior),
        Step::Gather { sizes, strides, offset } => {
            let flat = places(b, v.numel(), sizes, strides, *offset);
            v.take(flat, 0)
        }
        Step::Empty { dtype, sizes } => b.zeros(*dtype, sizes),
    }
}

/// `offset + Σ index·stride` for each index of an array of `sizes`.
fn places<'b>(b: &'b Builder, reach: i64, sizes: &[i64], strides: &[i64], offset: i64) -> V<'b> {
    let dtype = if reach < i32::MAX as i64 { DType::I32 } else { DType::I64 };
    let mut flat = b.full(dtype, sizes, offset);
    for (d, &stride) in strides.iter().enumerate() {
        if sizes[d] > 1 && stride != 0 {
            flat = flat + b.iota(dtype, sizes, d) * stride;
        }
    }
    flat
}

/// `value` as it reads back from a view in which elements share a place along `dims`: of each group the last that differs from
/// what was there `before`, for an op may write only some of them.
pub(crate) fn settled<'b>(value: V<'b>, before: V<'b>, dims: &[usize]) -> V<'b> {
    let (b, shape) = (value.builder(), value.dims());
    let changed = value.ne(before) & (value.ne(value) & before.ne(before)).not();
    let settle = |(value, changed): (V<'b>, V<'b>), &d: &usize| {
        let at = b.iota(DType::I32, &shape, d);
        let last = changed.select(at, at.full_like(-1i64)).max_over(&[d]).unsqueeze(d).broadcast_to(&shape);
        let one = at.eq(last).select(value, value.zeros_like()).sum(&[d]).unsqueeze(d).broadcast_to(&shape);
        let any = last.ge(0i64);
        (any.select(one, value), any)
    };
    dims.iter().fold((value, changed), settle).0
}

/// The base after `value` was written by `path`; `old` gives the base before and is asked only if needed.
pub(crate) fn write<'b>(path: &WritePath, value: V<'b>, old: impl FnOnce() -> V<'b>) -> V<'b> {
    let update = steps(value, &path.value_steps);
    let work = match &path.kind {
        WriteKind::Keep => return old(),
        WriteKind::Replace => update,
        WriteKind::UpdateSlice { start } => steps(old(), &path.to_work).update_slice(update, start),
        WriteKind::PadSelect { low, high, interior } => {
            let b = value.builder();
            let ones = b.full(DType::Bool, &update.dims(), true);
            let mask = ones.pad(b.scalar(DType::Bool, false), low, high, interior);
            let spread = update.pad(update.lit(0.0), low, high, interior);
            mask.select(spread, steps(old(), &path.to_work))
        }
        WriteKind::Scatter { sizes, strides, offset, unique } => {
            let work = steps(old(), &path.to_work);
            let n = update.numel();
            let at = places(value.builder(), work.numel(), sizes, strides, *offset).reshape(&[n, 1]);
            let d = ScatterDims { inserted: vec![0], scatter_dims: vec![0], index_vector_dim: 1, ..Default::default() };
            work.scatter(at, update.reshape(&[n]), &d, *unique, |_, new| new)
        }
    };
    steps(work, &path.from_work)
}
