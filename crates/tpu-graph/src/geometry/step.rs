//! Array steps, and the trail that collects them in their shortest form.

use smallvec::SmallVec;
use tpu_base::DType;

use super::{Base, Dims};

/// One array operation on one operand. Each has a direct StableHLO counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Same elements in row-major order, other sizes.
    Reshape(Dims),
    /// Elements `start, start + step, …` below `limit`, in each dimension.
    Slice {
        /// First index.
        start: Dims,
        /// One past the last index: exactly so, never further.
        limit: Dims,
        /// Distance between indices, at least 1.
        step: Dims,
    },
    /// Result dimension `i` is operand dimension `perm[i]`.
    Transpose(Dims),
    /// `broadcast_in_dim`: operand dimension `i`, equal in size or 1, becomes result dimension
    /// `map[i]`. The map rises.
    Broadcast {
        /// Sizes of the result.
        sizes: Dims,
        /// Result dimension of each operand dimension.
        map: Dims,
    },
    /// `bitcast_convert` of storage bytes, little-endian: to narrower elements adds a trailing
    /// dimension of the ratio, to wider ones consumes it, to equally wide ones keeps the sizes.
    /// Neither type is complex. A boolean is one byte here, one bit in StableHLO: go through `u8`.
    Bitcast {
        /// Type of the result.
        dtype: DType,
        /// Sizes of the result.
        dims: Dims,
    },
    /// Complex numbers to (real, imaginary) in a new trailing dimension of 2.
    ComplexToReal {
        /// Type of the result.
        dtype: DType,
    },
    /// A trailing dimension of 2 to complex numbers.
    RealToComplex {
        /// Type of the result.
        dtype: DType,
    },
    /// Zeros before, after and (`interior` many) between the elements.
    Pad {
        /// Before the first.
        low: Dims,
        /// After the last.
        high: Dims,
        /// Between two.
        interior: Dims,
    },
    /// From a 1-d operand the elements at `offset + Σ index·stride`. Dimensions of size 1 have
    /// stride 0; one of stride 1 may be taken as the gather's window.
    Gather {
        /// Sizes of the result.
        sizes: Dims,
        /// Strides in elements.
        strides: Dims,
        /// Place of the first element.
        offset: i64,
    },
    /// No elements: the operand is not read.
    Empty {
        /// Type of the result.
        dtype: DType,
        /// Sizes of the result, one of them 0.
        sizes: Dims,
    },
}

/// Steps in the order in which they are taken.
pub type Steps = SmallVec<[Step; 4]>;

impl Step {
    /// Type and sizes of the result on an operand of this type and these sizes, which are taken
    /// to fit the step.
    pub fn result(&self, dtype: DType, dims: &[i64]) -> (DType, Dims) {
        let kept = || dims.iter().copied();
        match self {
            Step::Reshape(dims) => (dtype, dims.clone()),
            Step::Slice { start, limit, step } => {
                let count = |i: usize| (limit[i] - start[i] + step[i] - 1) / step[i];
                (dtype, (0..dims.len()).map(count).collect())
            }
            Step::Transpose(perm) => (dtype, perm.iter().map(|&p| dims[p as usize]).collect()),
            Step::Broadcast { sizes, .. } | Step::Gather { sizes, .. } => (dtype, sizes.clone()),
            Step::Bitcast { dtype, dims } => (*dtype, dims.clone()),
            Step::ComplexToReal { dtype } => (*dtype, kept().chain([2]).collect()),
            Step::RealToComplex { dtype } => (*dtype, kept().take(dims.len().saturating_sub(1)).collect()),
            Step::Pad { low, high, interior } => {
                let count = |(i, n): (usize, i64)| low[i] + high[i] + n + (n - 1).max(0) * interior[i];
                (dtype, kept().enumerate().map(count).collect())
            }
            Step::Empty { dtype, sizes } => (*dtype, sizes.clone()),
        }
    }
}

/// A path under construction. Steps that change nothing are dropped and neighbours that can be
/// one step become one, so the deriving code may be straightforward.
#[derive(Clone, Debug)]
pub(super) struct Trail {
    pub(super) dtype: DType,
    pub(super) dims: Dims,
    pub(super) steps: Steps,
    /// Type and sizes before each step.
    before: SmallVec<[(DType, Dims); 4]>,
}

impl Trail {
    pub(super) fn new(dtype: DType, dims: Dims) -> Trail {
        Trail { dtype, dims, steps: Steps::new(), before: SmallVec::new() }
    }

    pub(super) fn from(base: &Base) -> Trail {
        Trail::new(base.dtype, base.dims.clone())
    }

    /// Takes a step as it is.
    pub(super) fn push(&mut self, step: Step) {
        let (dtype, dims) = step.result(self.dtype, &self.dims);
        let before = (self.dtype, std::mem::replace(&mut self.dims, dims));
        self.dtype = dtype;
        self.before.push(before);
        self.steps.push(step);
    }

    /// Takes the last step back.
    fn pop(&mut self) {
        if let (Some(_), Some((dtype, dims))) = (self.steps.pop(), self.before.pop()) {
            self.dtype = dtype;
            self.dims = dims;
        }
    }

    pub(super) fn reshape(&mut self, dims: Dims) {
        if matches!(self.steps.last(), Some(Step::Reshape(_))) {
            self.pop();
        }
        if dims != self.dims {
            self.push(Step::Reshape(dims));
        }
    }

    pub(super) fn slice(&mut self, mut start: Dims, mut limit: Dims, mut step: Dims) {
        let whole = |i: usize| start[i] == 0 && limit[i] == self.dims[i] && step[i] == 1;
        if (0..self.dims.len()).all(whole) {
            return;
        }
        if let Some(Step::Slice { start: outer, step: stride, .. }) = self.steps.last() {
            for i in 0..start.len() {
                // The limit stays exact: one past the last element taken.
                let last = start[i] + (limit[i] - 1 - start[i]) / step[i] * step[i];
                start[i] = outer[i] + start[i] * stride[i];
                limit[i] = outer[i] + last * stride[i] + 1;
                step[i] *= stride[i];
            }
            self.pop();
        }
        self.push(Step::Slice { start, limit, step });
    }

    pub(super) fn transpose(&mut self, perm: Dims) {
        let sized = |&&p: &&i64| self.dims[p as usize] != 1;
        if perm.iter().filter(sized).is_sorted() {
            let dims = perm.iter().map(|&p| self.dims[p as usize]).collect();
            return self.reshape(dims);
        }
        self.push(Step::Transpose(perm));
    }

    /// Zeros around the elements of each dimension.
    pub(super) fn pad(&mut self, low: Dims, high: Dims) {
        if low.iter().chain(&high).any(|&n| n != 0) {
            let interior = Dims::from_elem(0, low.len());
            self.push(Step::Pad { low, high, interior });
        }
    }

    pub(super) fn broadcast(&mut self, sizes: Dims, map: Dims) {
        if sizes.iter().product::<i64>() == self.dims.iter().product::<i64>() {
            return self.reshape(sizes);
        }
        // A reshape that only drops ones is not needed where the ones can be repeated instead.
        if matches!(self.steps.last(), Some(Step::Reshape(_))) {
            let folded = self.before.last().and_then(|(_, dims)| spread(dims, &self.dims, &sizes, &map));
            if let Some(map) = folded {
                self.pop();
                return self.push(Step::Broadcast { sizes, map });
            }
        }
        self.push(Step::Broadcast { sizes, map });
    }

    /// The way back, for a trail of reshapes, paddings and conversions. (No other step loses
    /// nothing; a trail that has one gives back what it can.)
    pub(super) fn back(&self, onto: &mut Trail) {
        for (step, (dtype, dims)) in self.steps.iter().zip(&self.before).rev() {
            match step {
                Step::Bitcast { .. } => onto.push(Step::Bitcast { dtype: *dtype, dims: dims.clone() }),
                Step::ComplexToReal { .. } => onto.push(Step::RealToComplex { dtype: *dtype }),
                Step::RealToComplex { .. } => onto.push(Step::ComplexToReal { dtype: *dtype }),
                Step::Pad { low, .. } => {
                    let limit = low.iter().zip(dims).map(|(low, n)| low + n).collect();
                    onto.slice(low.clone(), limit, Dims::from_elem(1, dims.len()));
                }
                _ => onto.reshape(dims.clone()),
            }
        }
    }
}

/// The broadcast map for `with`, which is `without` and some ones more, if the ones find result
/// dimensions between those that `map` gives to `without`.
fn spread(with: &[i64], without: &[i64], sizes: &[i64], map: &[i64]) -> Option<Dims> {
    let mut result = Dims::new();
    let mut next = 0;
    let mut rest = 0;
    for &n in with {
        let place = if n != 1 {
            while without.get(rest) == Some(&1) {
                rest += 1;
            }
            if without.get(rest) != Some(&n) {
                return None;
            }
            rest += 1;
            map[rest - 1]
        } else {
            next
        };
        if place < next || place >= sizes.len() as i64 {
            return None;
        }
        result.push(place);
        next = place + 1;
    }
    without[rest..].iter().all(|&n| n == 1).then_some(result)
}
