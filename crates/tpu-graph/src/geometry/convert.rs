//! From one dtype to another over the same bytes.

use tpu_base::DType;

use super::step::{Step, Trail};
use super::{Dims, width};

/// Takes the trail's array to elements of `to` over the same bytes, row-major as before. The sizes
/// stay as near to the old ones as the widths allow; where the bytes fill no whole number of wider
/// elements, zeros follow them. Widths are powers of two, so that one always divides the other.
pub(super) fn convert(trail: &mut Trail, to: DType) {
    if trail.dtype == to {
        return;
    }
    if trail.dtype.is_complex() {
        let dtype = trail.dtype.real();
        trail.push(Step::ComplexToReal { dtype });
    }
    let real = to.real();
    if trail.dtype != real {
        let (old, new) = (width(trail.dtype), width(real));
        if new > old {
            expose(trail, new / old);
        }
        let mut dims = trail.dims.clone();
        if new > old {
            dims.pop();
        } else if new < old {
            dims.push(old / new);
        }
        trail.push(Step::Bitcast { dtype: real, dims });
    }
    if to.is_complex() {
        expose(trail, 2);
        trail.push(Step::RealToComplex { dtype: to });
    }
}

/// Gives the array a trailing dimension of exactly `ratio`.
fn expose(trail: &mut Trail, ratio: i64) {
    let last = trail.dims.last().copied().unwrap_or(1);
    if last == ratio {
        return;
    }
    let mut dims = trail.dims.clone();
    if last % ratio == 0 {
        dims.pop();
        dims.extend([last / ratio, ratio]);
    } else {
        let numel: i64 = trail.dims.iter().product();
        let lack = (ratio - numel % ratio) % ratio;
        if lack != 0 {
            trail.reshape(Dims::from_slice(&[numel]));
            trail.pad(Dims::from_slice(&[0]), Dims::from_slice(&[lack]));
        }
        dims = Dims::from_slice(&[(numel + lack) / ratio, ratio]);
    }
    trail.reshape(dims);
}
