//! Views that differ in their offsets only.

use super::{Base, Dims, Step, Steps, View, WriteKind, WritePath, read_path, write_path};

/// The paths of a view, less the place where it begins: views of one base for which this is equal are read and written by
/// the same steps but for the start of one slice, which is where the offset lies among the array's indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moved {
    /// From the base to the value. The first step that is no reshape is a slice, which starts at 0.
    pub read: Steps,
    /// If it is written: the way back, which updates a slice that starts at 0.
    pub write: Option<WritePath>,
}

/// [`Moved`] of a view, which is also written if `written`; `None` if where it begins shows in its paths in another way.
pub fn moved(base: &Base, view: &View, written: bool) -> Option<Moved> {
    let mut read = read_path(base, view).ok()?.steps;
    let (dims, at) = reshaped(base, &read);
    let Some(Step::Slice { start, limit, .. }) = read.get_mut(at) else { return None };
    if *start != starts(&dims, view.offset) {
        return None;
    }
    limit.iter_mut().zip(start.iter()).for_each(|(limit, start)| *limit -= start);
    start.fill(0);
    if !written {
        return Some(Moved { read, write: None });
    }
    let mut write = write_path(base, view).ok()?;
    let (dims, at) = reshaped(base, &write.to_work);
    match &mut write.kind {
        WriteKind::UpdateSlice { start } if at == write.to_work.len() && *start == starts(&dims, view.offset) => {
            start.fill(0)
        }
        _ => return None,
    }
    Some(Moved { read, write: Some(write) })
}

/// The sizes after the reshapes at the front of `steps`, and how many these are.
fn reshaped(base: &Base, steps: &[Step]) -> (Dims, usize) {
    let mut dims = base.dims.clone();
    let mut count = 0;
    while let Some(Step::Reshape(to)) = steps.get(count) {
        dims = to.clone();
        count += 1;
    }
    (dims, count)
}

/// The indices of element `offset` of a row-major array of `dims`.
fn starts(dims: &[i64], offset: i64) -> Dims {
    let mut rest = offset;
    let mut starts = Dims::from_elem(0, dims.len());
    for (start, &n) in starts.iter_mut().zip(dims).rev() {
        *start = rest % n.max(1);
        rest /= n.max(1);
    }
    starts
}
