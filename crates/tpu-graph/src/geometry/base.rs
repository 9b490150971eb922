//! Which base suits a storage.

use tpu_base::DType;

use super::convert::convert;
use super::step::{Step, Steps, Trail};
use super::{Base, Dims, View, width};

/// The permutation that puts dimensions into memory order (`perm[i]` is the dimension that comes
/// `i`-th, outermost first), if each place of a dense block belongs to exactly one element. The
/// identity for contiguous geometry, also where dimensions of 1 have stray strides, and for
/// geometry without elements. None too if the lengths differ or the product overflows.
pub fn memory_order(sizes: &[i64], strides: &[i64]) -> Option<Dims> {
    if sizes.len() != strides.len() {
        return None;
    }
    let identity = (0..sizes.len() as i64).collect::<Dims>();
    if sizes.contains(&0) || is_dense(sizes, strides, &identity) {
        return Some(identity);
    }
    let mut perm = identity;
    perm.sort_by_key(|&i| std::cmp::Reverse((strides[i as usize], sizes[i as usize])));
    is_dense(sizes, strides, &perm).then_some(perm)
}

/// Whether dimensions in this order lie back to back, those of 1 anywhere.
fn is_dense(sizes: &[i64], strides: &[i64], perm: &[i64]) -> bool {
    let mut run = 1i64;
    for &i in perm.iter().rev() {
        let (size, stride) = (sizes[i as usize], strides[i as usize]);
        if size != 1 && stride != run {
            return false;
        }
        let Some(next) = run.checked_mul(size) else {
            return false;
        };
        run = next;
    }
    true
}

/// The base for a fresh storage of `nbytes` bytes first used through this geometry: its
/// dimensions in memory order if it fills the storage densely, else flat. Flat bytes if the
/// elements do not divide the storage.
pub fn base_for(dtype: DType, sizes: &[i64], strides: &[i64], offset: i64, nbytes: i64) -> Base {
    if offset == 0
        && bytes(dtype, sizes) == Some(nbytes)
        && let Some(perm) = memory_order(sizes, strides)
    {
        let dims = perm.iter().map(|&i| sizes[i as usize]);
        return Base::new(dtype, dims.collect::<Dims>());
    }
    flat(dtype, nbytes)
}

/// Bytes of a dense array, if they can be counted.
fn bytes(dtype: DType, sizes: &[i64]) -> Option<i64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(width(dtype), |bytes, &size| bytes.checked_mul(size))
}

fn flat(dtype: DType, nbytes: i64) -> Base {
    if nbytes % width(dtype) == 0 {
        Base::new(dtype, [nbytes / width(dtype)].as_slice())
    } else {
        Base::new(DType::U8, [nbytes].as_slice())
    }
}

/// Whether the view has each byte of the base exactly once, in whatever order and type.
pub fn is_whole(base: &Base, view: &View) -> bool {
    (view.offset == 0 || view.is_empty())
        && bytes(view.dtype, &view.sizes) == Some(base.nbytes())
        && memory_order(&view.sizes, &view.strides).is_some()
}

/// The base of a storage resized to `nbytes` bytes, flat, with the steps that carry the old
/// content over: what no longer fits is cut off, what is new is zero.
pub fn reshaped(base: &Base, nbytes: i64) -> (Base, Steps) {
    let wanted = flat(base.dtype, nbytes);
    let mut trail = Trail::from(base);
    if nbytes == 0 {
        trail.push(Step::Empty { dtype: wanted.dtype, sizes: wanted.dims.clone() });
        return (wanted, trail.steps);
    }
    convert(&mut trail, wanted.dtype);
    let (old, new) = (trail.dims.iter().product::<i64>(), wanted.dims[0]);
    trail.reshape(Dims::from_slice(&[old]));
    let one = |n: i64| Dims::from_slice(&[n]);
    if new < old {
        trail.slice(one(0), one(new), one(1));
    } else {
        trail.pad(one(0), one(new - old));
    }
    (wanted, trail.steps)
}
