//! Random bases under random chains of view operations.

use proptest::prelude::*;
use tpu_base::DType;

use super::interpret::{Array, array, naive_read, naive_write, run_write};
use crate::geometry::{Base, Dims, View, WriteKind, base_for, is_whole, memory_order, read_path, reshaped};
use crate::geometry::{width, write_path};

const DTYPES: [DType; 8] =
    [DType::U8, DType::BF16, DType::F32, DType::I32, DType::F64, DType::C64, DType::C128, DType::I16];

fn whole(base: &Base) -> View {
    let mut strides = Dims::from_elem(1, base.dims.len());
    for i in (1..strides.len()).rev() {
        strides[i - 1] = strides[i] * base.dims[i].max(1);
    }
    View::new(base.dtype, base.dims.clone(), strides, 0)
}

/// One view operation, chosen and steered by four numbers; none if it does not apply.
fn operate(view: &mut View, nbytes: i64, [what, a, b, c]: [u8; 4]) {
    let (a, b, c) = (a as usize, b as i64, c as i64);
    let rank = view.sizes.len();
    if what % 12 == 0 || rank == 0 {
        let i = a % (rank + 1);
        view.sizes.insert(i, 1);
        return view.strides.insert(i, b);
    }
    let i = a % rank;
    let n = view.sizes[i];
    match what % 12 {
        1 if n > 0 => {
            view.offset += b % n * view.strides[i];
            view.sizes.remove(i);
            view.strides.remove(i);
        }
        2 => {
            let start = b % (n + 1);
            view.sizes[i] = c % (n - start + 1);
            view.offset += start * view.strides[i];
        }
        3 => {
            let (start, step) = (b % (n + 1), c % 4 + 1);
            view.sizes[i] = (n - start + step - 1) / step;
            view.offset += start * view.strides[i];
            view.strides[i] *= step;
        }
        4 | 5 => {
            let j = b as usize % rank;
            view.sizes.swap(i, j);
            view.strides.swap(i, j);
        }
        6 if n == 1 => {
            view.sizes[i] = b % 4;
            view.strides[i] = 0;
        }
        7 if rank > 1 => {
            let j = (i + 1) % rank;
            let (rows, columns) = (n, view.sizes[j]);
            let shift = b % (columns + 1);
            view.offset += shift * view.strides[j];
            view.sizes.push(rows.min(columns - shift).max(0));
            view.strides.push(view.strides[i] + view.strides[j]);
            for d in [i.max(j), i.min(j)] {
                view.sizes.remove(d);
                view.strides.remove(d);
            }
        }
        8 if n > 0 => {
            let (size, step) = (b % n + 1, c % 4 + 1);
            view.sizes.push(size);
            view.strides.push(view.strides[i]);
            view.sizes[i] = (n - size) / step + 1;
            view.strides[i] *= step;
        }
        9 => flatten(view, i),
        10 => {
            let factor = b % 4 + 1;
            if n % factor == 0 {
                view.sizes[i] = n / factor;
                view.sizes.insert(i + 1, factor);
                view.strides.insert(i + 1, view.strides[i]);
                view.strides[i] *= factor;
            }
        }
        11 => recast(view, DTYPES[a % DTYPES.len()], nbytes),
        _ => {}
    }
}

fn flatten(view: &mut View, i: usize) {
    if i + 1 < view.sizes.len() && view.strides[i] == view.strides[i + 1] * view.sizes[i + 1] {
        view.sizes[i] *= view.sizes.remove(i + 1);
        view.strides[i] = view.strides.remove(i + 1);
    }
}

/// `view(dtype)` where PyTorch allows it, else a flat view of the whole.
fn recast(view: &mut View, dtype: DType, nbytes: i64) {
    let (old, new) = (width(view.dtype), width(dtype));
    let rank = view.sizes.len();
    if old >= new && view.strides[rank - 1] == 1 {
        let ratio = old / new;
        view.sizes[rank - 1] *= ratio;
        view.strides.iter_mut().take(rank - 1).for_each(|stride| *stride *= ratio);
        view.offset *= ratio;
    } else {
        let ratio = (new / old).max(1);
        let divides = |n: &i64| n % ratio == 0;
        let outer = view.strides.iter().take(rank - 1).all(divides);
        if ratio > 1 && outer && view.strides[rank - 1] == 1 && divides(&view.sizes[rank - 1]) && divides(&view.offset)
        {
            view.sizes[rank - 1] /= ratio;
            view.strides.iter_mut().take(rank - 1).for_each(|stride| *stride /= ratio);
            view.offset /= ratio;
        } else {
            *view = View::new(dtype, [nbytes / new].as_slice(), [1].as_slice(), 0);
        }
    }
    view.dtype = dtype;
}

fn bases() -> impl Strategy<Value = Base> {
    let dims = prop::collection::vec(prop_oneof![1 => 0..2i64, 6 => 1..7i64], 0..5);
    (0..DTYPES.len(), dims).prop_map(|(dtype, dims)| Base::new(DTYPES[dtype], dims))
}

/// Flat memory with sizes up to a few hundred, for geometries without a base's structure.
fn flats() -> impl Strategy<Value = Base> {
    (0..DTYPES.len(), 0..300i64).prop_map(|(dtype, n)| Base::new(DTYPES[dtype], [n].as_slice()))
}

fn chained(bases: impl Strategy<Value = Base>) -> impl Strategy<Value = (Base, View)> {
    (bases, prop::collection::vec(any::<[u8; 4]>(), 0..7)).prop_map(|(base, ops)| {
        let mut view = whole(&base);
        let nbytes = base.nbytes();
        for op in ops {
            let before = view.clone();
            operate(&mut view, nbytes, op);
            if view.sizes.len() > 7 || view.sizes.iter().product::<i64>() > 3000 {
                view = before;
            }
        }
        (base, view)
    })
}

/// Raw `as_strided`: strides near those of the base, cut back until it fits.
fn strided(bases: impl Strategy<Value = Base>) -> impl Strategy<Value = (Base, View)> {
    let axis = (1..5i64, 0..9i64, 1..7i64);
    (bases, prop::collection::vec(axis, 0..4), 0..40i64, 0..DTYPES.len()).prop_map(|(base, axes, offset, dtype)| {
        let same = dtype % 2 == 0;
        let dtype = if same { base.dtype } else { DTYPES[dtype] };
        let sizes: Dims = axes.iter().map(|axis| axis.0).collect();
        let strides: Dims = axes.iter().map(|axis| axis.1 * axis.2).collect();
        let mut view = View::new(dtype, sizes, strides, offset);
        while view.check(base.nbytes()).is_err() && !view.is_empty() {
            match view.sizes.iter().position(|&n| n > 1) {
                Some(i) => view.sizes[i] -= 1,
                None if view.offset > 0 => view.offset /= 2,
                None => view = View::new(dtype, [0].as_slice(), [1].as_slice(), 0),
            }
        }
        (base, view)
    })
}

fn holds(base: &Base, view: &View) -> Result<(), TestCaseError> {
    prop_assert!(view.check(base.nbytes()).is_ok());
    let old = array(base, 0);
    let path = read_path(base, view).expect("a valid view");
    let value = old.clone().walk(&path.steps);
    prop_assert_eq!(&value, &naive_read(&old, view), "{:?}", path);

    let new = Array::counting(view.dtype, &view.sizes, 0x5a);
    let path = write_path(base, view).expect("a valid view");
    let open = matches!(path.kind, WriteKind::Scatter { unique: false, .. });
    prop_assert_eq!(run_write(&old, &new, &path), naive_write(&old, view, &new), "{:?}", path);
    if is_whole(base, view) {
        prop_assert!(view.is_empty() || !path.reads_base && !open, "{:?}", path);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_over_arrays((base, view) in chained(bases())) {
        holds(&base, &view)?;
    }

    #[test]
    fn chains_over_flat_memory((base, view) in chained(flats())) {
        holds(&base, &view)?;
    }

    #[test]
    fn strided_over_arrays((base, view) in strided(bases())) {
        holds(&base, &view)?;
    }

    #[test]
    fn strided_over_flat_memory((base, view) in strided(flats())) {
        holds(&base, &view)?;
    }

    #[test]
    fn a_base_chosen_for_a_dense_view_is_read_by_at_most_one_transpose((base, order) in (bases(), any::<[u8; 6]>())) {
        let mut view = whole(&base);
        for (i, j) in order.into_iter().enumerate() {
            if i < view.sizes.len() {
                let j = j as usize % view.sizes.len();
                view.sizes.swap(i, j);
                view.strides.swap(i, j);
            }
        }
        prop_assert!(memory_order(&view.sizes, &view.strides).is_some());
        let chosen = base_for(view.dtype, &view.sizes, &view.strides, 0, base.nbytes());
        prop_assert_eq!(chosen.nbytes(), base.nbytes());
        prop_assert!(is_whole(&chosen, &view));
        holds(&chosen, &view)?;
        let steps = read_path(&chosen, &view).expect("a valid view").steps;
        prop_assert!(view.is_empty() || steps.len() <= 1, "{:?} of {:?}: {:?}", view, chosen, steps);
    }

    #[test]
    fn resizing_keeps_what_fits((base, nbytes) in (bases(), 0..5000i64)) {
        let old = array(&base, 0);
        let (resized, steps) = reshaped(&base, nbytes);
        let new = old.clone().walk(&steps);
        prop_assert_eq!((new.dtype, &new.dims), (resized.dtype, &resized.dims));
        let kept = old.data.len().min(nbytes as usize);
        prop_assert_eq!(&new.data[..kept], &old.data[..kept]);
        prop_assert!(new.data.len() == nbytes as usize && new.data[kept..].iter().all(|&byte| byte == 0));
    }
}
