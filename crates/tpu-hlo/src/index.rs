//! Operations whose positions are values: gather, scatter, dynamic slices.

use crate::build::V;
use crate::ir::{Attr, Type};

/// `gather`'s dimension numbers (StableHLO spec, "gather"), without batching dimensions.
#[derive(Clone, Debug, Default)]
pub struct GatherDims {
    /// Result dimensions that come from the slice.
    pub offset_dims: Vec<usize>,
    /// Slice dimensions dropped from the result (their slice size is 1).
    pub collapsed: Vec<usize>,
    /// Operand dimension each index component addresses.
    pub start_index_map: Vec<usize>,
    /// Dimension of `indices` that holds the components (its rank: each element is a component by itself).
    pub index_vector_dim: usize,
}

/// `scatter`'s dimension numbers (StableHLO spec, "scatter"), without batching dimensions.
#[derive(Clone, Debug, Default)]
pub struct ScatterDims {
    /// Dimensions of `updates` that are part of a window.
    pub update_window_dims: Vec<usize>,
    /// Operand dimensions absent from the window.
    pub inserted: Vec<usize>,
    /// Operand dimension each index component addresses.
    pub scatter_dims: Vec<usize>,
    /// Dimension of `indices` that holds the components.
    pub index_vector_dim: usize,
}

fn list(v: &[usize]) -> String {
    v.iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

impl<'b> V<'b> {
    /// StableHLO `gather`: indices are clamped so that slices stay inside.
    pub fn gather(self, indices: V<'b>, d: &GatherDims, slice_sizes: &[i64]) -> V<'b> {
        let idx = indices.dims();
        let batch: Vec<i64> =
            idx.iter().enumerate().filter(|(i, _)| *i != d.index_vector_dim).map(|(_, &n)| n).collect();
        let offsets: Vec<i64> =
            slice_sizes.iter().enumerate().filter(|(i, _)| !d.collapsed.contains(i)).map(|(_, &n)| n).collect();
        if offsets.len() != d.offset_dims.len() || slice_sizes.len() != self.rank() {
            self.b.fail("stablehlo.gather", format!("{} by {d:?}, slices {slice_sizes:?}", self.ty()));
            return self;
        }
        let rank = batch.len() + offsets.len();
        let (mut b, mut o) = (batch.into_iter(), offsets.into_iter());
        let dims: Vec<i64> =
            (0..rank).filter_map(|i| if d.offset_dims.contains(&i) { o.next() } else { b.next() }).collect();
        let text = format!(
            "#stablehlo.gather<offset_dims = [{}], collapsed_slice_dims = [{}], start_index_map = [{}], index_vector_dim = {}>",
            list(&d.offset_dims),
            list(&d.collapsed),
            list(&d.start_index_map),
            d.index_vector_dim
        );
        let attrs = vec![
            ("dimension_numbers", Attr::Raw(text)),
            ("slice_sizes", Attr::Ints(slice_sizes.to_vec())),
            ("indices_are_sorted", Attr::Bool(false)),
        ];
        self.b.op1("stablehlo.gather", &[self, indices], Type::new(self.dtype(), dims), attrs)
    }

    /// Rows of dimension `dim` at `indices` (any shape): PyTorch's `index_select` for n-d indices. Result dimensions: those
    /// before `dim`, the indices', those after. Indices are clamped.
    pub fn take(self, indices: V<'b>, dim: usize) -> V<'b> {
        let r = indices.rank();
        let mut sizes = self.dims();
        sizes[dim] = 1;
        let offset_dims = (0..dim).chain(dim + r..self.rank() - 1 + r).collect();
        let d = GatherDims { offset_dims, collapsed: vec![dim], start_index_map: vec![dim], index_vector_dim: r };
        self.gather(indices, &d, &sizes)
    }

    /// StableHLO `scatter` of one value: `f(old, update)` combines where an index lands; positions outside are skipped.
    pub fn scatter(
        self,
        indices: V<'b>,
        updates: V<'b>,
        d: &ScatterDims,
        unique: bool,
        f: impl FnOnce(V<'b>, V<'b>) -> V<'b>,
    ) -> V<'b> {
        if updates.dtype() != self.dtype() {
            self.b.fail("stablehlo.scatter", format!("{} into {}", updates.ty(), self.ty()));
        }
        let s = Type::scalar(self.dtype());
        let body = self.b.region(&[s.clone(), s], |x| vec![f(x[0], x[1])]);
        let text = format!(
            "#stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [{}], scatter_dims_to_operand_dims = [{}], index_vector_dim = {}>",
            list(&d.update_window_dims),
            list(&d.inserted),
            list(&d.scatter_dims),
            d.index_vector_dim
        );
        let attrs = vec![
            ("scatter_dimension_numbers", Attr::Raw(text)),
            ("indices_are_sorted", Attr::Bool(false)),
            ("unique_indices", Attr::Bool(unique)),
        ];
        self.b.op("stablehlo.scatter", &[self, indices, updates], vec![self.ty()], attrs, vec![body])[0]
    }

    /// A slice of `sizes` at runtime positions (0-d integers, one a dimension), clamped to stay inside.
    pub fn dynamic_slice(self, starts: &[V<'b>], sizes: &[i64]) -> V<'b> {
        let mut operands = vec![self];
        operands.extend_from_slice(starts);
        self.b.op1(
            "stablehlo.dynamic_slice",
            &operands,
            Type::new(self.dtype(), sizes),
            vec![("slice_sizes", Attr::Ints(sizes.to_vec()))],
        )
    }

    /// This value with `update` written at runtime positions, clamped to stay inside.
    pub fn dynamic_update_slice(self, update: V<'b>, starts: &[V<'b>]) -> V<'b> {
        if update.dtype() != self.dtype() || update.rank() != self.rank() || starts.len() != self.rank() {
            self.b.fail("stablehlo.dynamic_update_slice", format!("{} into {}", update.ty(), self.ty()));
        }
        let mut operands = vec![self, update];
        operands.extend_from_slice(starts);
        self.b.op1("stablehlo.dynamic_update_slice", &operands, self.ty(), vec![])
    }

    /// This value with `update` written at constant positions.
    pub fn update_slice(self, update: V<'b>, starts: &[i64]) -> V<'b> {
        if update.dims() == self.dims() {
            return update;
        }
        let s: Vec<V<'b>> = starts.iter().map(|&i| self.b.scalar(tpu_base::DType::I32, i)).collect();
        self.dynamic_update_slice(update, &s)
    }
}
