//! Geometry paths as StableHLO.

use crate::geometry::{Base, Step, View, WriteKind, WritePath, moved, read_path, write_path};
use crate::sig::TensorSpec;
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

/// Reads and writes of a view that begins at `offset`, a 0-d integer, wherever that is.
pub(crate) struct Walk<'b, 's> {
    pub(crate) spec: &'s TensorSpec,
    pub(crate) flat: bool,
    pub(crate) offset: V<'b>,
}

impl<'b> Walk<'b, '_> {
    /// The view's value; `None` if it is not of the kind that can move.
    pub(crate) fn read(&self, base: V<'b>) -> Option<V<'b>> {
        if self.flat {
            let (row, view) = self.row();
            return Some(steps(self.cut(base, &row), &read_path(&row, &view).ok()?.steps));
        }
        let path = moved(&self.spec.base, &self.spec.view, false)?.read;
        let at = path.iter().position(|s| !matches!(s, Step::Reshape(_)))?;
        let whole = steps(base, &path[..at]);
        let Step::Slice { limit, step, .. } = &path[at] else { return None };
        let part = whole.dynamic_slice(&self.starts(&whole.dims(), limit), limit);
        Some(steps(part.slice(&vec![0; limit.len()], limit, step), &path[at + 1..]))
    }

    /// The base with `value` at the view.
    pub(crate) fn write(&self, base: V<'b>, value: V<'b>) -> Option<V<'b>> {
        if self.flat {
            let (row, view) = self.row();
            let row = write(&write_path(&row, &view).ok()?, value, || self.cut(base, &row));
            return Some(base.reshape(&[base.numel()]).dynamic_update_slice(row, &[self.offset]).reshape(&base.dims()));
        }
        let path = moved(&self.spec.base, &self.spec.view, true)?.write?;
        let work = steps(base, &path.to_work);
        let update = steps(value, &path.value_steps);
        let starts = self.starts(&work.dims(), &update.dims());
        Some(steps(work.dynamic_update_slice(update, &starts), &path.from_work))
    }

    /// The storage from the view's first element to its last, as a base, and the view of that.
    fn row(&self) -> (Base, View) {
        let view = View { offset: 0, ..self.spec.view.clone() };
        (Base::new(self.spec.base.dtype, [view.extent()].as_slice()), view)
    }

    fn cut(&self, base: V<'b>, row: &Base) -> V<'b> {
        base.reshape(&[base.numel()]).dynamic_slice(&[self.offset], &row.dims)
    }

    /// The indices at which the offset lies in an array of `dims`; 0 where all of a dimension is taken.
    fn starts(&self, dims: &[i64], taken: &[i64]) -> Vec<V<'b>> {
        let mut rest = self.offset;
        let mut starts: Vec<V<'b>> = vec![self.offset.lit(0); dims.len()];
        for d in (0..dims.len()).rev() {
            let outermost = dims[..d].iter().all(|&n| n == 1);
            if taken[d] != dims[d] {
                starts[d] = if outermost { rest } else { rest.rem(dims[d]) };
            }
            if dims[d] > 1 && !outermost {
                rest = rest.over(dims[d]);
            }
        }
        starts
    }
}
