//! The exact steps of everyday views, and the reports of wrong ones.

use smallvec::smallvec;
use tpu_base::DType::{self, C64, C128, F32, F64, I32, U8};

use super::interpret::{Array, array, naive_read, naive_write, run_write};
use crate::geometry::{Base, Dims, GeometryError, Step, View, WriteKind, base_for, memory_order, read_path};
use crate::geometry::{reshaped, write_path};

fn base(dims: &[i64]) -> Base {
    Base::new(F32, dims)
}

fn view(sizes: &[i64], strides: &[i64], offset: i64) -> View {
    View::new(F32, sizes, strides, offset)
}

fn d(dims: &[i64]) -> Dims {
    Dims::from_slice(dims)
}

fn reshape(dims: &[i64]) -> Step {
    Step::Reshape(d(dims))
}

fn slice(start: &[i64], limit: &[i64], step: &[i64]) -> Step {
    Step::Slice { start: d(start), limit: d(limit), step: d(step) }
}

fn transpose(perm: &[i64]) -> Step {
    Step::Transpose(d(perm))
}

fn broadcast(sizes: &[i64], map: &[i64]) -> Step {
    Step::Broadcast { sizes: d(sizes), map: d(map) }
}

#[track_caller]
fn reads(base: &Base, view: &View, steps: &[Step]) {
    let path = read_path(base, view).expect("a valid view");
    assert_eq!(path.steps.as_slice(), steps);
    let array = array(base, 0);
    assert_eq!(array.clone().walk(&path.steps), naive_read(&array, view));
}

#[track_caller]
fn writes(base: &Base, view: &View, kind: WriteKind, counts: [usize; 3]) {
    let path = write_path(base, view).expect("a valid view");
    assert_eq!(path.kind, kind, "{path:?}");
    assert_eq!(path.reads_base, kind != WriteKind::Replace);
    assert_eq!([path.to_work.len(), path.value_steps.len(), path.from_work.len()], counts, "{path:?}");
    let (old, new) = (array(base, 0), Array::counting(view.dtype, &view.sizes, 0x5a));
    assert_eq!(run_write(&old, &new, &path), naive_write(&old, view, &new));
}

#[test]
fn the_base_itself_takes_no_step() {
    reads(&base(&[4, 6]), &view(&[4, 6], &[6, 1], 0), &[]);
    reads(&base(&[]), &view(&[], &[], 0), &[]);
    reads(&base(&[1, 4, 1]), &view(&[1, 4, 1], &[9, 1, 7], 0), &[]);
    writes(&base(&[4, 6]), &view(&[4, 6], &[6, 1], 0), WriteKind::Replace, [0, 0, 0]);
}

#[test]
fn permutations_are_one_transpose() {
    reads(&base(&[4, 6]), &view(&[6, 4], &[1, 6], 0), &[transpose(&[1, 0])]);
    reads(&base(&[4, 4]), &view(&[4, 4], &[1, 4], 0), &[transpose(&[1, 0])]);
    reads(&base(&[2, 3, 4]), &view(&[4, 2, 3], &[1, 12, 4], 0), &[transpose(&[2, 0, 1])]);
    reads(&base(&[2, 1, 4]), &view(&[4, 1, 2], &[1, 4, 4], 0), &[transpose(&[2, 1, 0])]);
    writes(&base(&[2, 3, 4]), &view(&[4, 2, 3], &[1, 12, 4], 0), WriteKind::Replace, [0, 1, 0]);
}

#[test]
fn selections_and_slices() {
    let x = base(&[4, 6]);
    reads(&x, &view(&[6], &[1], 6), &[slice(&[1, 0], &[2, 6], &[1, 1]), reshape(&[6])]);
    reads(&x, &view(&[4], &[6], 2), &[slice(&[0, 2], &[4, 3], &[1, 1]), reshape(&[4])]);
    reads(&x, &view(&[], &[], 8), &[slice(&[1, 2], &[2, 3], &[1, 1]), reshape(&[])]);
    reads(&x, &view(&[2, 6], &[12, 1], 0), &[slice(&[0, 0], &[3, 6], &[2, 1])]);
    reads(&x, &view(&[2, 2], &[12, 3], 1), &[slice(&[0, 1], &[3, 5], &[2, 3])]);
    reads(&x, &view(&[3, 2], &[1, 6], 7), &[slice(&[1, 1], &[3, 4], &[1, 1]), transpose(&[1, 0])]);
    reads(&base(&[100]), &view(&[3, 4], &[4, 1], 7), &[slice(&[7], &[19], &[1]), reshape(&[3, 4])]);
    let start = |start: &[i64]| WriteKind::UpdateSlice { start: d(start) };
    writes(&x, &view(&[6], &[1], 6), start(&[1, 0]), [0, 1, 0]);
    writes(&x, &view(&[4], &[6], 2), start(&[0, 2]), [0, 1, 0]);
    writes(&x, &view(&[2, 6], &[6, 1], 12), start(&[2, 0]), [0, 0, 0]);
    writes(&x, &view(&[3, 2], &[1, 6], 7), start(&[1, 1]), [0, 1, 0]);
    writes(&base(&[100]), &view(&[3, 4], &[4, 1], 7), start(&[7]), [0, 1, 0]);
}

#[test]
fn strided_writes_slice_outer_steps_and_select_inner_ones() {
    let x = base(&[4, 6]);
    writes(&x, &view(&[2, 6], &[12, 1], 6), WriteKind::UpdateSlice { start: d(&[0, 1, 0]) }, [1, 1, 1]);
    let inner = WriteKind::PadSelect { low: d(&[0, 1]), high: d(&[0, 1]), interior: d(&[0, 2]) };
    writes(&x, &view(&[4, 2], &[6, 3], 1), inner, [0, 0, 0]);
    let both = WriteKind::PadSelect { low: d(&[0, 0]), high: d(&[1, 1]), interior: d(&[1, 1]) };
    writes(&x, &view(&[2, 3], &[12, 2], 0), both, [0, 0, 0]);
    let odd = WriteKind::PadSelect { low: d(&[0, 0]), high: d(&[0, 0]), interior: d(&[2, 0]) };
    writes(&x, &view(&[2, 6], &[18, 1], 0), odd, [0, 0, 0]);
}

#[test]
fn repeats_are_one_broadcast() {
    reads(&base(&[1, 4]), &view(&[3, 4], &[0, 1], 0), &[broadcast(&[3, 4], &[0, 1])]);
    reads(&base(&[4]), &view(&[3, 4], &[0, 1], 0), &[broadcast(&[3, 4], &[1])]);
    reads(&base(&[4, 1]), &view(&[4, 3], &[1, 0], 0), &[broadcast(&[4, 3], &[0, 1])]);
    reads(&base(&[]), &view(&[2, 3], &[0, 0], 0), &[broadcast(&[2, 3], &[])]);
    let row = slice(&[1, 0], &[2, 6], &[1, 1]);
    reads(&base(&[4, 6]), &view(&[3, 6], &[0, 1], 6), &[row, broadcast(&[3, 6], &[0, 1])]);
    writes(&base(&[4]), &view(&[3, 4], &[0, 1], 0), WriteKind::Replace, [0, 2, 0]);
}

#[test]
fn merging_splitting_and_ones_are_one_reshape() {
    let x = base(&[4, 6]);
    reads(&x, &view(&[24], &[1], 0), &[reshape(&[24])]);
    reads(&x, &view(&[3, 8], &[8, 1], 0), &[reshape(&[3, 8])]);
    reads(&x, &view(&[2, 2, 1, 6], &[12, 6, 6, 1], 0), &[reshape(&[2, 2, 1, 6])]);
    reads(&x, &view(&[12], &[1], 6), &[slice(&[1, 0], &[3, 6], &[1, 1]), reshape(&[12])]);
    reads(&x, &view(&[4, 3, 2], &[6, 1, 3], 0), &[reshape(&[4, 2, 3]), transpose(&[0, 2, 1])]);
    writes(&x, &view(&[12], &[1], 6), WriteKind::UpdateSlice { start: d(&[1, 0]) }, [0, 1, 0]);
    writes(&x, &view(&[3, 8], &[8, 1], 0), WriteKind::Replace, [0, 1, 0]);
}

#[test]
fn diagonals_are_flat_strided_slices() {
    reads(&base(&[4, 4]), &view(&[4], &[5], 0), &[reshape(&[16]), slice(&[0], &[16], &[5])]);
    let batched = [reshape(&[2, 16]), slice(&[0, 1], &[2, 12], &[1, 5])];
    reads(&base(&[2, 4, 4]), &view(&[2, 3], &[16, 5], 1), &batched);
    let kind = WriteKind::PadSelect { low: d(&[0]), high: d(&[0]), interior: d(&[4]) };
    writes(&base(&[4, 4]), &view(&[4], &[5], 0), kind, [1, 0, 1]);
}

#[test]
fn windows_gather_only_where_they_overlap() {
    let x = base(&[12]);
    reads(&x, &view(&[3, 4], &[4, 1], 0), &[reshape(&[3, 4])]);
    reads(&x, &view(&[3, 3], &[4, 1], 0), &[reshape(&[3, 4]), slice(&[0, 0], &[3, 3], &[1, 1])]);
    let windows = Step::Gather { sizes: d(&[5, 3]), strides: d(&[2, 1]), offset: 1 };
    reads(&x, &view(&[5, 3], &[2, 1], 1), &[windows]);
    let kind = WriteKind::Scatter { sizes: d(&[5, 3]), strides: d(&[2, 1]), offset: 1, unique: false };
    writes(&x, &view(&[5, 3], &[2, 1], 1), kind, [0, 0, 0]);
}

#[test]
fn other_dtypes_keep_the_dimensions() {
    let cast = |dtype: DType, dims: &[i64]| Step::Bitcast { dtype, dims: d(dims) };
    let x = base(&[4, 6]);
    reads(&x, &View::new(I32, x.dims.clone(), d(&[6, 1]), 0), &[cast(I32, &[4, 6])]);
    reads(&x, &View::new(U8, d(&[4, 24]), d(&[24, 1]), 0), &[cast(U8, &[4, 6, 4]), reshape(&[4, 24])]);
    reads(&x, &View::new(F64, d(&[4, 3]), d(&[3, 1]), 0), &[reshape(&[4, 3, 2]), cast(F64, &[4, 3])]);
    let complex = Base::new(C64, d(&[4, 6]));
    let pairs = View::new(F32, d(&[4, 6, 2]), d(&[12, 2, 1]), 0);
    reads(&complex, &pairs, &[Step::ComplexToReal { dtype: F32 }]);
    reads(&Base::new(F32, d(&[4, 2])), &View::new(C64, d(&[4]), d(&[1]), 0), &[Step::RealToComplex { dtype: C64 }]);
    let bytes = [Step::ComplexToReal { dtype: F32 }, cast(U8, &[4, 6, 2, 4]), reshape(&[192])];
    reads(&complex, &View::new(U8, d(&[192]), d(&[1]), 0), &bytes);
    let wider =
        [Step::ComplexToReal { dtype: F32 }, cast(F64, &[2]), Step::RealToComplex { dtype: C128 }, reshape(&[1])];
    reads(&Base::new(C64, d(&[2])), &View::new(C128, d(&[1]), d(&[1]), 0), &wider);
    writes(&complex, &pairs, WriteKind::Replace, [0, 1, 0]);
    let odd = Base::new(U8, d(&[10]));
    writes(&odd, &View::new(F32, d(&[1]), d(&[1]), 1), WriteKind::UpdateSlice { start: d(&[1]) }, [3, 0, 3]);
}

#[test]
fn empty_views_read_and_write_nothing() {
    let empty = view(&[0, 5], &[5, 1], 99);
    reads(&base(&[4]), &empty, &[Step::Empty { dtype: F32, sizes: d(&[0, 5]) }]);
    writes(&base(&[4]), &empty, WriteKind::Keep, [0, 0, 0]);
}

#[test]
fn the_part_in_use_is_cut_out_before_memory_is_rearranged() {
    let expected = [slice(&[20_000], &[32_000], &[1]), reshape(&[4, 3_000]), slice(&[0, 0], &[4, 2_999], &[1, 1])];
    reads(&base(&[1_200_000]), &view(&[4, 2_999], &[3_000, 1], 20_000), &expected);
}

#[test]
fn wrong_views_are_reported_in_the_words_of_pytorch() {
    let fails = |view: &View| {
        let read = read_path(&base(&[4]), view).expect_err("no valid view");
        assert_eq!(Err(&read), write_path(&base(&[4]), view).as_ref());
        read
    };
    assert_eq!(
        fails(&view(&[2, 3], &[3, 1], 1)).to_string(),
        "setStorage: sizes [2, 3], strides [3, 1], storage offset 1, and itemsize 4 requiring a storage size of 28 \
         are out of bounds for storage of size 16"
    );
    assert!(matches!(fails(&view(&[2], &[-1], 1)), GeometryError::Negative { .. }));
    assert!(matches!(fails(&view(&[2], &[1, 1], 0)), GeometryError::Rank { .. }));
    assert!(matches!(fails(&view(&[i64::MAX, 2], &[0, 1], 0)), GeometryError::Overflow));
    assert!(matches!(fails(&view(&[2, 2], &[i64::MAX, 1], 0)), GeometryError::Overflow));
    assert!(read_path(&base(&[0]), &view(&[], &[], 0)).is_err());
}

#[test]
fn bases_follow_memory_order() {
    assert_eq!(memory_order(&[2, 3, 4, 5], &[60, 1, 15, 3]), Some(smallvec![0, 2, 3, 1]));
    assert_eq!(memory_order(&[2, 1, 4, 4], &[16, 1, 4, 1]), Some(smallvec![0, 1, 2, 3]));
    assert_eq!(memory_order(&[3, 2], &[0, 1]), None);
    assert_eq!(memory_order(&[3, 2], &[4, 1]), None);
    assert_eq!(base_for(F32, &[6, 4], &[1, 6], 0, 96), base(&[4, 6]));
    assert_eq!(base_for(F32, &[6, 4], &[1, 6], 0, 100), base(&[25]));
    assert_eq!(base_for(F32, &[6, 4], &[1, 6], 1, 100), base(&[25]));
    assert_eq!(base_for(F32, &[2], &[1], 0, 10), Base::new(U8, d(&[10])));
    let (longer, steps) = reshaped(&base(&[2, 3]), 32);
    assert_eq!((longer, steps.len()), (base(&[8]), 2));
}
