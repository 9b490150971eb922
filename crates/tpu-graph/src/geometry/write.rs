//! From a view's new value to a new base.

use smallvec::SmallVec;

use super::convert::convert;
use super::normal::{Group, Normal, groups, reach};
use super::read::{places, repeats, with_ones};
use super::step::{Steps, Trail};
use super::{Base, Dims, GeometryError, View};

/// How a new value (the *update*) enters the old one (the *work* array).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// The view has no elements: the base stays as it is.
    Keep,
    /// The update is the new work array.
    Replace,
    /// The update overwrites a box of the work array (`dynamic_update_slice`).
    UpdateSlice {
        /// The box's first index.
        start: Dims,
    },
    /// The update, padded so, has the work array's sizes. Where ones padded alike are not zero it
    /// is selected, elsewhere the work array.
    PadSelect {
        /// Before the first element.
        low: Dims,
        /// After the last.
        high: Dims,
        /// Between two.
        interior: Dims,
    },
    /// Update element `index` goes to place `offset + Σ index·stride` of the work array, which is
    /// 1-d. The update has these sizes.
    Scatter {
        /// Sizes of the update.
        sizes: Dims,
        /// Strides in elements.
        strides: Dims,
        /// Place of the first element.
        offset: i64,
        /// Whether no two go to the same place. If not, which of them stays is open.
        unique: bool,
    },
}

/// The steps from an old base and a view's new value to a new base.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WritePath {
    /// Whether the old base is an operand at all.
    pub reads_base: bool,
    /// From the old base to the work array, whose type is the view's.
    pub to_work: Steps,
    /// From the view's value, of its type and sizes, to the update.
    pub value_steps: Steps,
    /// How the update enters the work array.
    pub kind: WriteKind,
    /// From the new work array to the new base.
    pub from_work: Steps,
}

/// Derives the steps that write a view's whole value through to a base. Where a dimension repeats
/// one place, the last value written there stays.
///
/// # Errors
/// [`GeometryError`] if the view is no valid view of this base.
pub fn write_path(base: &Base, view: &View) -> Result<WritePath, GeometryError> {
    view.check(base.nbytes())?;
    let mut work = Trail::from(base);
    let mut value = Trail::new(view.dtype, view.sizes.clone());
    if view.is_empty() {
        return Ok(finish(&work, value, WriteKind::Keep));
    }
    convert(&mut work, view.dtype);
    last_repeats(&mut value, view);
    let normal = Normal::of(view);
    let slots = if normal.overlaps {
        None
    } else {
        let groups = groups(&work.dims, normal.axes.clone(), view.offset);
        refine(&mut work, &groups)
    };
    let Some(slots) = slots else {
        let numel = work.dims.iter().product();
        work.reshape(Dims::from_slice(&[numel]));
        let (sizes, strides) = places(view);
        let kind = WriteKind::Scatter { sizes, strides, offset: view.offset, unique: !normal.overlaps };
        return Ok(finish(&work, value, kind));
    };
    let update: Dims = slots.iter().map(|slot| slot.count).collect();
    if !normal.order.is_sorted() {
        let (dims, places) = with_ones(&update, &normal, view);
        let from = |p| places.iter().position(|&place| place == p);
        let perm = (0..dims.len() as i64).filter_map(from);
        value.transpose(perm.map(|i| i as i64).collect());
    }
    value.reshape(update);
    Ok(finish(&work, value, kind(&slots)))
}

/// Of each repeating dimension only the last element.
fn last_repeats(value: &mut Trail, view: &View) {
    let first = |i| if repeats(view, i) { view.sizes[i] - 1 } else { 0 };
    value.slice((0..view.sizes.len()).map(first).collect(), view.sizes.clone(), Dims::from_elem(1, view.sizes.len()));
}

fn finish(work: &Trail, mut value: Trail, kind: WriteKind) -> WritePath {
    let mut path =
        WritePath { reads_base: true, to_work: Steps::new(), value_steps: Steps::new(), kind, from_work: Steps::new() };
    match path.kind {
        WriteKind::Keep => {}
        WriteKind::Replace => {
            path.reads_base = false;
            work.back(&mut value);
        }
        _ => {
            let mut back = Trail::new(work.dtype, work.dims.clone());
            work.back(&mut back);
            path.to_work = work.steps.clone();
            path.from_work = back.steps;
        }
    }
    path.value_steps = value.steps;
    path
}

/// What is written of one dimension of the work array.
struct Slot {
    width: i64,
    start: i64,
    count: i64,
    step: i64,
}

impl Slot {
    fn is_whole(&self) -> bool {
        self.count == self.width
    }

    /// One past the last element written.
    fn limit(&self) -> i64 {
        self.start + (self.count - 1) * self.step + 1
    }
}

fn kind(slots: &[Slot]) -> WriteKind {
    if slots.iter().all(Slot::is_whole) {
        WriteKind::Replace
    } else if slots.iter().all(|slot| slot.step == 1) {
        WriteKind::UpdateSlice { start: slots.iter().map(|slot| slot.start).collect() }
    } else {
        WriteKind::PadSelect {
            low: slots.iter().map(|slot| slot.start).collect(),
            high: slots.iter().map(|slot| slot.width - slot.limit()).collect(),
            interior: slots.iter().map(|slot| slot.step - 1).collect(),
        }
    }
}

/// Splits the groups into dimensions that hold one axis each. None, and the trail as it was, if
/// some axis's stride is no multiple of the next one's.
fn refine(work: &mut Trail, groups: &[Group]) -> Option<SmallVec<[Slot; 8]>> {
    let mut slots = SmallVec::<[Slot; 8]>::new();
    let (mut low, mut high) = (Dims::new(), Dims::new());
    for group in groups {
        let (before, after) = stack(group, &mut slots)?;
        low.push(before);
        high.push(after);
    }
    slots = factor(slots);
    work.reshape(groups.iter().map(|group| group.width).collect());
    work.pad(low, high);
    work.reshape(slots.iter().map(|slot| slot.width).collect());
    Some(slots)
}

/// Appends the dimensions of one group; gives the zeros wanted before and after it.
fn stack(group: &Group, slots: &mut SmallVec<[Slot; 8]>) -> Option<(i64, i64)> {
    let Some((last, blocks)) = group.axes.split_last() else {
        slots.push(Slot { width: group.width, start: group.start, count: 1, step: 1 });
        return Some((0, 0));
    };
    let (mut low, mut high) = (0, 0);
    let (mut width, mut start) = (group.width, group.start);
    if let Some(outer) = blocks.first() {
        if blocks.windows(2).any(|pair| pair[0].stride % pair[1].stride != 0) {
            return None;
        }
        let block = outer.stride;
        let carries = |i: usize| {
            let axis = blocks[i];
            start % axis.stride + reach(&group.axes[i + 1..]) >= axis.stride
        };
        if (0..blocks.len()).any(carries) {
            low = (block - start % block) % block;
        }
        start += low;
        width += low;
        high = (block - width % block) % block;
        width += high;
    }
    for axis in blocks {
        slots.push(Slot { width: width / axis.stride, start: start / axis.stride, count: axis.size, step: 1 });
        width = axis.stride;
        start %= axis.stride;
    }
    slots.push(Slot { width, start, count: last.size, step: last.stride });
    Some((low, high))
}

/// Makes steps dimensions of their own if each divides its width, so that a slice is enough. Not
/// if one is innermost: splitting there would move the whole array on devices that tile inner
/// dimensions, where padding and selecting does not.
fn factor(slots: SmallVec<[Slot; 8]>) -> SmallVec<[Slot; 8]> {
    let innermost = slots.iter().rposition(|slot| slot.width != 1);
    let stays = |(i, slot): (usize, &Slot)| slot.step != 1 && (Some(i) == innermost || slot.width % slot.step != 0);
    if slots.iter().enumerate().any(stays) {
        return slots;
    }
    let mut parts = SmallVec::new();
    for Slot { width, start, count, step } in slots {
        parts.push(Slot { width: width / step, start: start / step, count, step: 1 });
        if step != 1 {
            parts.push(Slot { width: step, start: start % step, count: 1, step: 1 });
        }
    }
    parts
}
