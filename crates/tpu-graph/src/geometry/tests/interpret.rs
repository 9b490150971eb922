//! Runs paths on bytes, checking each step's rules, and evaluates views by definition.

use tpu_base::DType;

use crate::geometry::{Base, Dims, Step, View, WriteKind, WritePath, width};

/// A dense row-major array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) dims: Dims,
    pub(super) data: Vec<u8>,
}

/// All indices below `dims`, last dimension fastest.
pub(super) fn indices(dims: &[i64]) -> impl Iterator<Item = Dims> {
    let dims = Dims::from_slice(dims);
    (0..dims.iter().product::<i64>()).map(move |mut flat| {
        let mut index = Dims::from_elem(0, dims.len());
        for (place, &n) in index.iter_mut().zip(&dims).rev() {
            *place = flat % n;
            flat /= n;
        }
        index
    })
}

impl Array {
    /// An array whose bytes differ from their neighbours'; `seed` tells arrays apart.
    pub(super) fn counting(dtype: DType, dims: &[i64], seed: u8) -> Array {
        let n = dims.iter().product::<i64>() * width(dtype);
        let byte = |i: i64| (i as u8) ^ ((i >> 8) as u8).wrapping_mul(31) ^ seed;
        Array { dtype, dims: Dims::from_slice(dims), data: (0..n).map(byte).collect() }
    }

    fn zeros(dtype: DType, dims: Dims) -> Array {
        let n = dims.iter().product::<i64>() * width(dtype);
        Array { dtype, dims, data: vec![0; n as usize] }
    }

    fn place(&self, index: &[i64]) -> std::ops::Range<usize> {
        let mut flat = 0;
        for (&i, &n) in index.iter().zip(&self.dims) {
            assert!((0..n).contains(&i), "index {index:?} in {:?}", self.dims);
            flat = flat * n + i;
        }
        let width = self.dtype.size();
        flat as usize * width..(flat as usize + 1) * width
    }

    fn get(&self, index: &[i64]) -> &[u8] {
        &self.data[self.place(index)]
    }

    fn set(&mut self, index: &[i64], element: &[u8]) {
        let place = self.place(index);
        self.data[place].copy_from_slice(element);
    }

    /// The same bytes under another type and other sizes.
    fn relabel(self, dtype: DType, dims: Dims) -> Array {
        let n = dims.iter().product::<i64>() * width(dtype);
        assert_eq!(n as usize, self.data.len(), "{:?} {:?} to {dtype:?} {dims:?}", self.dtype, self.dims);
        Array { dtype, dims, data: self.data }
    }

    /// An array whose element at each index is this one's at `from(index)`.
    fn pick(&self, dims: &Dims, from: impl Fn(&Dims) -> Dims) -> Array {
        let mut result = Array::zeros(self.dtype, dims.clone());
        for index in indices(dims) {
            result.set(&index, self.get(&from(&index)));
        }
        result
    }

    fn pad(&self, low: &Dims, interior: &Dims, dims: Dims) -> Array {
        let mut result = Array::zeros(self.dtype, dims);
        for index in indices(&self.dims) {
            let place = |i: usize| low[i] + index[i] * (interior[i] + 1);
            result.set(&(0..index.len()).map(place).collect::<Dims>(), self.get(&index));
        }
        result
    }

    fn step(self, step: &Step) -> Array {
        let (dtype, dims) = step.result(self.dtype, &self.dims);
        let rank = self.dims.len();
        match step {
            Step::Reshape(_) => self.relabel(dtype, dims),
            Step::Slice { start, limit, step } => {
                for i in 0..rank {
                    assert!(step[i] >= 1 && (0..limit[i]).contains(&start[i]) && limit[i] <= self.dims[i]);
                    assert_eq!((limit[i] - 1 - start[i]) % step[i], 0, "inexact limit");
                }
                self.pick(&dims, |index| (0..rank).map(|i| start[i] + index[i] * step[i]).collect())
            }
            Step::Transpose(perm) => {
                let at = |i: usize| perm.iter().position(|&p| p as usize == i).expect("a permutation");
                assert_eq!(perm.len(), rank);
                self.pick(&dims, |index| (0..rank).map(|i| index[at(i)]).collect())
            }
            Step::Broadcast { sizes, map } => {
                assert_eq!(map.len(), rank);
                assert!(map.windows(2).all(|pair| pair[0] < pair[1]));
                let fits = |i: usize| self.dims[i] == 1 || self.dims[i] == sizes[map[i] as usize];
                assert!((0..rank).all(fits));
                let at = |i: usize, index: &Dims| if self.dims[i] == 1 { 0 } else { index[map[i] as usize] };
                self.pick(&dims, |index| (0..rank).map(|i| at(i, index)).collect())
            }
            Step::Bitcast { .. } => {
                assert!(!self.dtype.is_complex() && !dtype.is_complex());
                let (old, new) = (width(self.dtype), width(dtype));
                if old > new {
                    assert_eq!(dims.split_last(), Some((&(old / new), &self.dims[..])));
                } else if old < new {
                    assert_eq!(self.dims.split_last(), Some((&(new / old), &dims[..])));
                } else {
                    assert_eq!(dims, self.dims);
                }
                self.relabel(dtype, dims)
            }
            Step::ComplexToReal { .. } => {
                assert!(self.dtype.is_complex() && dtype == self.dtype.real());
                self.relabel(dtype, dims)
            }
            Step::RealToComplex { .. } => {
                assert!(dtype.is_complex() && self.dtype == dtype.real() && self.dims.last() == Some(&2));
                self.relabel(dtype, dims)
            }
            Step::Pad { low, interior, .. } => self.pad(low, interior, dims),
            Step::Gather { strides, offset, .. } => {
                assert_eq!(rank, 1);
                self.pick(&dims, |index| Dims::from_slice(&[flat(index, strides, *offset)]))
            }
            Step::Empty { .. } => Array::zeros(dtype, dims),
        }
    }

    pub(super) fn walk(self, steps: &[Step]) -> Array {
        steps.iter().fold(self, Array::step)
    }
}

fn flat(index: &[i64], strides: &[i64], offset: i64) -> i64 {
    offset + index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<i64>()
}

/// The new base by the path.
pub(super) fn run_write(base: &Array, value: &Array, path: &WritePath) -> Array {
    let update = value.clone().walk(&path.value_steps);
    let work = base.clone().walk(&path.to_work);
    let new = match &path.kind {
        WriteKind::Keep => work,
        WriteKind::Replace => {
            assert!(!path.reads_base && path.to_work.is_empty());
            update
        }
        WriteKind::UpdateSlice { start } => {
            let mut work = work;
            for index in indices(&update.dims) {
                let place: Dims = index.iter().zip(start).map(|(i, start)| i + start).collect();
                work.set(&place, update.get(&index));
            }
            work
        }
        WriteKind::PadSelect { low, high, interior } => {
            let step = Step::Pad { low: low.clone(), high: high.clone(), interior: interior.clone() };
            let ones = Array { data: vec![1; update.data.len()], ..update.clone() }.step(&step);
            let padded = update.step(&step);
            assert_eq!(padded.dims, work.dims);
            let select = |i: usize| if ones.data[i] == 1 { padded.data[i] } else { work.data[i] };
            Array { data: (0..work.data.len()).map(select).collect(), ..work }
        }
        WriteKind::Scatter { sizes, strides, offset, .. } => {
            assert_eq!((work.dims.len(), &update.dims), (1, sizes));
            let mut work = work;
            for index in indices(sizes) {
                work.set(&[flat(&index, strides, *offset)], update.get(&index));
            }
            work
        }
    };
    new.walk(&path.from_work)
}

/// The view's value by definition.
pub(super) fn naive_read(base: &Array, view: &View) -> Array {
    let mut value = Array::zeros(view.dtype, view.sizes.clone());
    let width = view.dtype.size();
    for index in indices(&view.sizes) {
        let from = flat(&index, &view.strides, view.offset) as usize * width;
        value.set(&index, &base.data[from..from + width]);
    }
    value
}

/// The base by definition after writing the value element by element.
pub(super) fn naive_write(base: &Array, view: &View, value: &Array) -> Array {
    let mut result = base.clone();
    let width = view.dtype.size();
    for index in indices(&view.sizes) {
        let to = flat(&index, &view.strides, view.offset) as usize * width;
        result.data[to..to + width].copy_from_slice(value.get(&index));
    }
    result
}

/// A base's array.
pub(super) fn array(base: &Base, seed: u8) -> Array {
    Array::counting(base.dtype, &base.dims, seed)
}
