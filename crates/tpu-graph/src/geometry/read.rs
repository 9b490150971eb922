//! From a base to a view's value.

use smallvec::SmallVec;

use super::convert::convert;
use super::normal::{Axes, Axis, Group, Normal, groups, reach};
use super::step::{Step, Steps, Trail};
use super::{Base, Dims, GeometryError, View};

/// The steps from a base array to a view's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadPath {
    /// In order; none if the base is the value. The result has the view's type and sizes.
    pub steps: Steps,
}

/// Derives the steps from a base to a view's value.
///
/// Only views whose elements share places, such as overlapping windows, need a
/// [`Step::Gather`]; every other is reached by slicing, reshaping and transposing, with the base's
/// own dimensions kept wherever the view respects them.
///
/// # Errors
/// [`GeometryError`] if the view is no valid view of this base.
pub fn read_path(base: &Base, view: &View) -> Result<ReadPath, GeometryError> {
    view.check(base.nbytes())?;
    let mut trail = Trail::from(base);
    if view.is_empty() {
        trail.push(Step::Empty { dtype: view.dtype, sizes: view.sizes.clone() });
        return Ok(ReadPath { steps: trail.steps });
    }
    convert(&mut trail, view.dtype);
    let normal = Normal::of(view);
    if normal.overlaps {
        gather(&mut trail, view);
    } else {
        let groups = groups(&trail.dims, normal.axes.clone(), view.offset);
        carve(&mut trail, &groups);
        arrange(&mut trail, &normal, view);
    }
    Ok(ReadPath { steps: trail.steps })
}

/// Whether a view dimension repeats its elements.
pub(super) fn repeats(view: &View, i: usize) -> bool {
    view.sizes[i] > 1 && view.strides[i] == 0
}

/// The view's sizes and strides without repetition: those dimensions have size 1, and all of size
/// 1 stride 0.
pub(super) fn places(view: &View) -> (Dims, Dims) {
    let place = |(&size, &stride): (&i64, &i64)| if size == 1 || stride == 0 { (1, 0) } else { (size, stride) };
    view.sizes.iter().zip(&view.strides).map(place).unzip()
}

fn gather(trail: &mut Trail, view: &View) {
    let numel = trail.dims.iter().product();
    trail.reshape(Dims::from_slice(&[numel]));
    let (sizes, strides) = places(view);
    trail.push(Step::Gather { sizes, strides, offset: view.offset });
    trail.broadcast(view.sizes.clone(), (0..view.sizes.len() as i64).collect());
}

/// One dimension of the array while it is carved: the axes still to find in it, from `start` on.
#[derive(Clone)]
struct Item {
    width: i64,
    start: i64,
    axes: Axes,
}

/// A slice of one dimension.
struct Range {
    start: i64,
    limit: i64,
    step: i64,
}

impl Item {
    fn new(width: i64, start: i64, axes: &[Axis]) -> Item {
        Item { width, start, axes: Axes::from_slice(axes) }
    }

    fn whole(&self) -> Range {
        Range { start: 0, limit: self.width, step: 1 }
    }

    /// Takes the elements of the only axis, or the only element.
    fn finish(&mut self) -> Range {
        let range = Range {
            start: self.start,
            limit: self.start + reach(&self.axes) + 1,
            step: self.axes.first().map_or(1, |axis| axis.stride),
        };
        self.start = 0;
        self.width = self.axes.first().map_or(1, |axis| axis.size);
        self.axes.iter_mut().for_each(|axis| axis.stride = 1);
        range
    }

    /// Takes blocks of `size` elements from `first` to `last`, if the others are half or more.
    fn shed(&mut self, size: i64, first: i64, last: i64) -> Range {
        let kept = (last + 1 - first) * size;
        if kept * 2 > self.width {
            return self.whole();
        }
        self.width = kept;
        self.start -= first * size;
        Range { start: first * size, limit: (last + 1) * size, step: 1 }
    }
}

fn slice(trail: &mut Trail, ranges: impl Iterator<Item = Range>) {
    let (mut start, mut limit, mut step) = (Dims::new(), Dims::new(), Dims::new());
    for range in ranges {
        start.push(range.start);
        limit.push(range.limit);
        step.push(range.step);
    }
    trail.slice(start, limit, step);
}

/// Cuts the array down to the view's elements: afterwards it has a dimension for each axis, in
/// memory order, and dimensions of 1.
fn carve(trail: &mut Trail, groups: &[Group]) {
    let mut items: SmallVec<[Item; 6]> =
        groups.iter().map(|group| Item::new(group.width, group.start, &group.axes)).collect();
    let plain = |group: &Group| group.dims.len() == 1 && group.axes.len() < 2;
    if !groups.iter().all(plain) {
        // A reshape that merges or splits may move memory: leave behind what is not needed.
        let mut ranges = SmallVec::<[Range; 6]>::new();
        for (group, item) in groups.iter().zip(&mut items) {
            if plain(group) {
                let taken = item.axes.first().map_or(1, |axis| axis.size);
                ranges.push(if taken * 2 <= item.width { item.finish() } else { item.whole() });
                continue;
            }
            let outer = trail.dims[group.dims.start];
            let size = item.width / outer;
            let last = (item.start + reach(&item.axes)) / size;
            if group.dims.len() == 1 {
                ranges.push(item.whole());
                continue;
            }
            let rows = item.shed(size, item.start / size, last);
            ranges.push(Range { start: rows.start / size, limit: rows.limit / size, step: 1 });
            let inner = group.dims.start + 1..group.dims.end;
            ranges.extend(trail.dims[inner].iter().map(|&n| Range { start: 0, limit: n, step: 1 }));
        }
        slice(trail, ranges.into_iter());
        trail.reshape(items.iter().map(|item| item.width).collect());
    }
    while items.iter().any(|item| item.axes.len() > 1) {
        items = unstack(trail, items);
    }
    slice(trail, items.iter_mut().map(Item::finish));
}

/// Splits each dimension that holds several axes into one for its outermost axis and one for the
/// others.
fn unstack(trail: &mut Trail, mut items: SmallVec<[Item; 6]>) -> SmallVec<[Item; 6]> {
    let mut high = Dims::from_elem(0, items.len());
    let mut ranges = SmallVec::<[Range; 6]>::new();
    for (item, high) in items.iter_mut().zip(&mut high) {
        let [outer, inner @ ..] = item.axes.as_slice() else {
            ranges.push(item.whole());
            continue;
        };
        if inner.is_empty() {
            ranges.push(item.whole());
            continue;
        }
        let (block, count) = (outer.stride, outer.size);
        let first = item.start / block;
        let carries = item.start % block + reach(inner) >= block;
        if !carries && item.width % block == 0 {
            ranges.push(item.shed(block, first, first + count - 1));
            continue;
        }
        // Whole blocks from the first element on; from earlier if they would reach past the end
        // and that keeps each row in one block; past the end, onto zeros, otherwise.
        let kept = block * count;
        let mut start = item.start;
        if start + kept > item.width {
            let early = item.width - kept;
            if early >= 0 && start - early + reach(inner) < block {
                start = early;
            } else {
                *high = start + kept - item.width;
            }
        }
        item.start -= start;
        item.width = kept;
        ranges.push(Range { start, limit: start + kept, step: 1 });
    }
    trail.pad(Dims::from_elem(0, high.len()), high);
    slice(trail, ranges.into_iter());
    let mut parts = SmallVec::<[Item; 6]>::new();
    for item in items {
        match item.axes.as_slice() {
            [outer, inner @ ..] if !inner.is_empty() => {
                let block = outer.stride;
                let row = Axis { size: outer.size, stride: 1 };
                parts.push(Item::new(item.width / block, item.start / block, &[row]));
                parts.push(Item::new(block, item.start % block, inner));
            }
            _ => parts.push(item),
        }
    }
    trail.reshape(parts.iter().map(|item| item.width).collect());
    parts
}

/// From the view's elements in memory order to its sizes: splits, permutes, adds ones and repeats.
fn arrange(trail: &mut Trail, normal: &Normal, view: &View) {
    let sizes = normal.sizes(view);
    if (0..view.sizes.len()).any(|i| repeats(view, i)) {
        trail.reshape(sizes);
        let mut map: Dims = normal.order.iter().map(|&i| i as i64).collect();
        map.sort_unstable();
        let from = |i: &i64| normal.order.iter().position(|&o| o as i64 == *i);
        trail.transpose(map.iter().filter_map(from).map(|p| p as i64).collect());
        trail.broadcast(view.sizes.clone(), map);
    } else if normal.order.is_sorted() {
        trail.reshape(view.sizes.clone());
    } else {
        let (dims, places) = with_ones(&trail.dims, normal, view);
        trail.reshape(dims);
        trail.transpose(places);
    }
}

/// The view's dimensions in memory order, those of size 1 (or repeating) standing wherever
/// `near` has ones if it is otherwise alike, else first. With them, the place of each view
/// dimension there.
pub(super) fn with_ones(near: &[i64], normal: &Normal, view: &View) -> (Dims, Dims) {
    let sizes = normal.sizes(view);
    let ones = view.sizes.len() - sizes.len();
    let alike = near.len() == view.sizes.len() && near.iter().filter(|&&n| n != 1).eq(sizes.iter());
    let dims: Dims = if alike { Dims::from_slice(near) } else { std::iter::repeat_n(1, ones).chain(sizes).collect() };
    let (one, full): (Vec<usize>, Vec<usize>) = (0..dims.len()).partition(|&p| dims[p] == 1);
    let mut one = one.into_iter();
    let mut places = Dims::from_elem(0, dims.len());
    for (i, place) in places.iter_mut().enumerate() {
        let p = match normal.order.iter().position(|&o| o == i) {
            Some(rank) => full.get(rank).copied(),
            None => one.next(),
        };
        *place = p.map_or(0, |p| p as i64);
    }
    (dims, places)
}
