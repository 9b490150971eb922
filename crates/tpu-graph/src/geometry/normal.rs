//! A view's geometry in normal form, and how it falls onto the dimensions of a base.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Dims, View};

/// A dimension with more than one element, each at a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) size: i64,
    pub(super) stride: i64,
}

impl Axis {
    /// Distance from the first to the last element.
    fn reach(self) -> i64 {
        (self.size - 1) * self.stride
    }
}

/// Axes by falling stride.
pub(super) type Axes = SmallVec<[Axis; 6]>;

/// Distance from the first to the last element of all axes together.
pub(super) fn reach(axes: &[Axis]) -> i64 {
    axes.iter().map(|axis| axis.reach()).sum()
}

/// A view without what is not geometry of memory: dimensions of 1 and repeating ones are left
/// out, the others stand in memory order, and runs that lie back to back are one axis.
#[derive(Clone, Debug)]
pub(super) struct Normal {
    /// The view dimensions with more than one place, by falling stride.
    pub(super) order: SmallVec<[usize; 6]>,
    /// The same, runs merged.
    pub(super) axes: Axes,
    /// Whether elements may share places: some axis steps less than the ones inside it reach.
    pub(super) overlaps: bool,
}

impl Normal {
    /// Normal form of a checked view with at least one element.
    pub(super) fn of(view: &View) -> Normal {
        let spans = |&i: &usize| view.sizes[i] > 1 && view.strides[i] > 0;
        let mut order: SmallVec<[usize; 6]> = (0..view.sizes.len()).filter(spans).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(view.strides[i]));
        let mut overlaps = false;
        let mut inner = 0;
        let mut axes = Axes::new();
        for &i in order.iter().rev() {
            let axis = Axis { size: view.sizes[i], stride: view.strides[i] };
            overlaps |= axis.stride <= inner;
            inner += axis.reach();
            match axes.last_mut() {
                Some(run) if run.size * run.stride == axis.stride => run.size *= axis.size,
                _ => axes.push(axis),
            }
        }
        axes.reverse();
        Normal { order, axes, overlaps }
    }

    /// Sizes of the view dimensions in memory order.
    pub(super) fn sizes(&self, view: &View) -> Dims {
        self.order.iter().map(|&i| view.sizes[i]).collect()
    }
}

/// A run of neighbouring base dimensions that must be seen as one for the view to have axes there.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The base dimensions.
    pub(super) dims: Range<usize>,
    /// Their number of elements.
    pub(super) width: i64,
    /// Where the view begins, in elements of this group.
    pub(super) start: i64,
    /// The view's axes here; strides in elements of this group.
    pub(super) axes: Axes,
}

/// Lays axes that do not overlap onto base dimensions. Two neighbouring dimensions stay apart if
/// the view never carries from one into the other; an axis that runs over whole inner dimensions
/// is split there, so that flattened views still see the base's own dimensions.
pub(super) fn groups(dims: &[i64], mut axes: Axes, offset: i64) -> SmallVec<[Group; 6]> {
    // Elements inside each dimension's step, outermost dimension first, then 1.
    let mut inner = Dims::from_elem(1, dims.len() + 1);
    for i in (0..dims.len()).rev() {
        inner[i] = inner[i + 1] * dims[i];
    }
    let mut groups = SmallVec::<[Group; 6]>::new();
    let mut first = 0;
    for end in 1..=dims.len() {
        let cut = inner[end];
        if !separates(&axes, offset, cut) {
            match split(&axes, cut) {
                Some(parts) if separates(&parts, offset, cut) => axes = parts,
                _ => continue,
            }
        }
        let outer = axes.iter().take_while(|axis| axis.stride >= cut).count();
        let mut own: Axes = axes.drain(..outer).collect();
        own.iter_mut().for_each(|axis| axis.stride /= cut);
        groups.push(Group {
            dims: first..end,
            width: inner[first] / cut,
            start: offset % inner[first] / cut,
            axes: own,
        });
        first = end;
    }
    groups
}

/// Whether blocks of `cut` elements hold the view's inner axes whole, its outer axes stepping from
/// block to block.
fn separates(axes: &[Axis], offset: i64, cut: i64) -> bool {
    let outer = axes.iter().take_while(|axis| axis.stride >= cut).count();
    axes[..outer].iter().all(|axis| axis.stride % cut == 0) && offset % cut + reach(&axes[outer..]) < cut
}

/// The axes with the one that runs over blocks of `cut` elements split into blocks and inside.
fn split(axes: &Axes, cut: i64) -> Option<Axes> {
    let i = axes.iter().position(|axis| axis.stride < cut)?;
    let Axis { size, stride } = axes[i];
    let inside = cut / stride;
    if cut % stride != 0 || size <= inside || size % inside != 0 {
        return None;
    }
    let mut parts = axes.clone();
    parts[i].size = inside;
    let blocks = Axis { size: size / inside, stride: cut };
    parts.insert(i, blocks);
    Some(parts)
}
