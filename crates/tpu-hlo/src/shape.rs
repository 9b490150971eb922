//! Operations that move elements without computing.

use crate::build::{Builder, V};
use crate::ir::{Attr, Type};

impl Builder {
    /// Joins values along `dim`.
    pub fn concat<'b>(&'b self, values: &[V<'b>], dim: usize) -> V<'b> {
        if values.len() == 1 {
            return values[0];
        }
        let mut ty = match values.first() {
            Some(v) => v.ty(),
            None => {
                self.fail("stablehlo.concatenate", "no operands");
                Type::scalar(tpu_base::DType::F32)
            }
        };
        ty.dims[dim] = values.iter().map(|v| v.dim(dim)).sum();
        for v in values {
            let d = v.ty();
            let fits = d.dtype == ty.dtype
                && d.dims.len() == ty.dims.len()
                && (0..ty.dims.len()).all(|i| i == dim || d.dims[i] == ty.dims[i]);
            if !fits {
                self.fail("stablehlo.concatenate", format!("{d} beside {}", values[0].ty()));
            }
        }
        self.op1("stablehlo.concatenate", values, ty, vec![("dimension", Attr::Int(dim as i64))])
    }
}

impl<'b> V<'b> {
    /// The same elements in row-major order under another shape.
    pub fn reshape(self, dims: &[i64]) -> V<'b> {
        if self.dims() == dims {
            return self;
        }
        let ty = Type::new(self.dtype(), dims);
        if ty.numel() != self.numel() {
            self.b.fail("stablehlo.reshape", format!("{} to {dims:?}", self.ty()));
        }
        self.b.op1("stablehlo.reshape", &[self], ty, vec![])
    }

    /// Result dimension i is operand dimension `perm[i]`.
    pub fn transpose(self, perm: &[usize]) -> V<'b> {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return self;
        }
        let d = self.dims();
        if perm.len() != d.len() {
            self.b.fail("stablehlo.transpose", format!("{} by {perm:?}", self.ty()));
            return self;
        }
        let dims: Vec<i64> = perm.iter().map(|&p| d[p]).collect();
        let p = perm.iter().map(|&p| p as i64).collect();
        self.b.op1("stablehlo.transpose", &[self], Type::new(self.dtype(), dims), vec![("permutation", Attr::Ints(p))])
    }

    /// Swaps two dimensions.
    pub fn swap(self, a: usize, b: usize) -> V<'b> {
        let mut perm: Vec<usize> = (0..self.rank()).collect();
        perm.swap(a, b);
        self.transpose(&perm)
    }

    /// Moves dimension `from` to position `to`.
    pub fn move_dim(self, from: usize, to: usize) -> V<'b> {
        let mut perm: Vec<usize> = (0..self.rank()).collect();
        let d = perm.remove(from);
        perm.insert(to, d);
        self.transpose(&perm)
    }

    /// StableHLO `broadcast_in_dim`: operand dimension i becomes result dimension `map[i]`.
    pub fn broadcast_in_dim(self, dims: &[i64], map: &[usize]) -> V<'b> {
        if self.dims() == dims {
            return self;
        }
        let d = self.dims();
        if map.len() != d.len() || map.iter().zip(&d).any(|(&m, &n)| m >= dims.len() || (n != 1 && dims[m] != n)) {
            self.b.fail("stablehlo.broadcast_in_dim", format!("{} to {dims:?} by {map:?}", self.ty()));
            return self;
        }
        let m = map.iter().map(|&p| p as i64).collect();
        self.b.op1(
            "stablehlo.broadcast_in_dim",
            &[self],
            Type::new(self.dtype(), dims),
            vec![("broadcast_dimensions", Attr::Ints(m))],
        )
    }

    /// PyTorch's `expand`: right-aligned.
    pub fn broadcast_to(self, dims: &[i64]) -> V<'b> {
        let r = self.rank();
        if r > dims.len() {
            self.b.fail("broadcast_to", format!("{} to {dims:?}", self.ty()));
            return self;
        }
        let map: Vec<usize> = (0..r).map(|i| i + dims.len() - r).collect();
        self.broadcast_in_dim(dims, &map)
    }

    /// Adds a dimension of size 1 at `dim`.
    pub fn unsqueeze(self, dim: usize) -> V<'b> {
        let mut d = self.dims();
        d.insert(dim, 1);
        self.reshape(&d)
    }

    /// Drops dimensions `drop` (each of size 1).
    pub fn squeeze(self, drop: &[usize]) -> V<'b> {
        let d: Vec<i64> = self.dims().iter().enumerate().filter(|(i, _)| !drop.contains(i)).map(|(_, &n)| n).collect();
        self.reshape(&d)
    }

    /// Elements `start..limit` by `step` in every dimension.
    pub fn slice(self, start: &[i64], limit: &[i64], step: &[i64]) -> V<'b> {
        let d = self.dims();
        let n = d.len();
        let bad = start.len() != n
            || limit.len() != n
            || step.len() != n
            || (0..n).any(|i| start[i] < 0 || start[i] > limit[i] || limit[i] > d[i] || step[i] < 1);
        if bad {
            self.b.fail("stablehlo.slice", format!("{} [{start:?}:{limit:?}:{step:?}]", self.ty()));
            return self;
        }
        let dims: Vec<i64> = (0..n).map(|i| (limit[i] - start[i] + step[i] - 1) / step[i]).collect();
        if dims == d {
            return self;
        }
        let attrs = vec![
            ("start_indices", Attr::Ints(start.to_vec())),
            ("limit_indices", Attr::Ints(limit.to_vec())),
            ("strides", Attr::Ints(step.to_vec())),
        ];
        self.b.op1("stablehlo.slice", &[self], Type::new(self.dtype(), dims), attrs)
    }

    /// Elements `start..limit` of one dimension.
    pub fn slice_dim(self, dim: usize, start: i64, limit: i64) -> V<'b> {
        let mut s = vec![0; self.rank()];
        let mut l = self.dims();
        let step = vec![1; self.rank()];
        s[dim] = start;
        l[dim] = limit;
        self.slice(&s, &l, &step)
    }

    /// Pads with `value` (0-d, same dtype); negative amounts cut.
    pub fn pad(self, value: V<'b>, low: &[i64], high: &[i64], interior: &[i64]) -> V<'b> {
        let d = self.dims();
        if low.len() != d.len() || high.len() != d.len() || interior.len() != d.len() || value.rank() != 0 {
            self.b.fail("stablehlo.pad", format!("{} by {low:?} {high:?} {interior:?}", self.ty()));
            return self;
        }
        let dims: Vec<i64> = (0..d.len()).map(|i| d[i] + low[i] + high[i] + (d[i] - 1).max(0) * interior[i]).collect();
        if dims.iter().any(|&n| n < 0) {
            self.b.fail("stablehlo.pad", format!("{} to {dims:?}", self.ty()));
            return self;
        }
        let attrs = vec![
            ("edge_padding_low", Attr::Ints(low.to_vec())),
            ("edge_padding_high", Attr::Ints(high.to_vec())),
            ("interior_padding", Attr::Ints(interior.to_vec())),
        ];
        self.b.op1("stablehlo.pad", &[self, value], Type::new(self.dtype(), dims), attrs)
    }

    /// Reverses `dims`.
    pub fn reverse(self, dims: &[usize]) -> V<'b> {
        if dims.is_empty() {
            return self;
        }
        let d = dims.iter().map(|&d| d as i64).collect();
        self.b.op1("stablehlo.reverse", &[self], self.ty(), vec![("dimensions", Attr::Ints(d))])
    }
}
