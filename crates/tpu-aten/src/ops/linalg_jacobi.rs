//! One-sided Jacobi: rotations that make vectors orthogonal, the core of singular values and of eigenvalues (Demmel & Veselić,
//! "Jacobi's method is more accurate than QR", 1992). Half of all vectors meet the other half at once, in the rounds of a
//! tournament, so that a step is a few operations over everything.

use super::linalg_parts::{eye_like, h, mm, repeat, take_rows};
use tpu_base::DType;
use tpu_hlo::V;

/// Sweeps at most: convergence is quadratic, some ten suffice.
const SWEEPS: i64 = 30;

/// Whole runs: each rotation rounds, and hundreds of them an element show in the last digits. A second run starts from what
/// the first one found and turns little.
pub(super) const RUNS: i64 = 2;

/// The vectors (batch, vectors, elements), rotated among each other until their first `m` elements are orthogonal.
pub(super) fn orthogonal<'b>(x: V<'b>, m: i64) -> V<'b> {
    let (b, n) = (x.builder(), x.dim(1));
    if x.numel() == 0 || n == 1 {
        return x;
    }
    let half = (n + 1) / 2;
    let x = if n % 2 == 0 { x } else { x.pad(x.lit(0.0), &[0, 0, 0], &[0, 1, 0], &[0, 0, 0]) };
    let moved = b.scalar(DType::Bool, true);
    let state = [x.slice_dim(1, 0, half), x.slice_dim(1, half, 2 * half), moved, b.scalar(DType::I32, 0)];
    let end = b.while_loop(
        &state,
        |s| s[2] & s[3].lt(SWEEPS),
        |s| {
            let start = [s[0], s[1], b.scalar(DType::Bool, false)];
            let mut end = repeat(b, 2 * half - 1, &start, |_, s| {
                let (x, y, moved) = rotated(s[0], s[1], m);
                let (x, y) = next_round(x, y, half);
                vec![x, y, s[2] | moved]
            });
            end.push(s[3] + 1i64);
            end
        },
    );
    b.concat(&[end[0], end[1]], 1).slice_dim(1, 0, n)
}

/// Each x made orthogonal to its y, and whether any was not.
fn rotated<'b>(x: V<'b>, y: V<'b>, m: i64) -> (V<'b>, V<'b>, V<'b>) {
    let over = |v: V<'b>| v.sum(&[2]).unsqueeze(2);
    let (p, q) = (x.slice_dim(2, 0, m), y.slice_dim(2, 0, m));
    let square =
        |v: V<'b>| over(if v.dtype().is_complex() { v.real().square() + v.imag().square() } else { v.square() });
    let (a, c) = (square(p), square(q));
    let inner = over(p.conj() * q);
    let size = inner.abs();
    let tiny = if size.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 };
    let turn = size.gt(a.sqrt() * c.sqrt() * tiny);
    // the smaller of the two angles whose tangent t solves t² + 2ζt = 1
    let one = size.full_like(1.0);
    let size = turn.select(size, one);
    let zeta = (c - a) / (size * 2.0);
    let t = zeta.lt(0.0).select(one.neg(), one) / (zeta.abs() + (zeta.square() + 1.0).sqrt());
    let cosine = turn.select(one / (t.square() + 1.0).sqrt(), one);
    let sine = turn.select(t * cosine, one.zeros_like());
    let d = x.dtype();
    let phase = turn.select(inner.conj() / size.convert(d), inner.full_like(1.0));
    let (cosine, sine, y) = (cosine.convert(d), sine.convert(d), y * phase);
    (cosine * x - sine * y, sine * x + cosine * y, turn.any(&[0, 1, 2]))
}

/// The first x stays, the others go round: after one round less than there are vectors each has met each.
fn next_round<'b>(x: V<'b>, y: V<'b>, half: i64) -> (V<'b>, V<'b>) {
    if half == 1 {
        return (x, y);
    }
    let b = x.builder();
    let (first, last) = (x.slice_dim(1, 0, 1), x.slice_dim(1, half - 1, half));
    let up = b.concat(&[first, y.slice_dim(1, 0, 1), x.slice_dim(1, 1, half - 1)], 1);
    (up, b.concat(&[y.slice_dim(1, 1, half), last], 1))
}

/// Lengths of the vectors' first `m` elements (batch, vectors).
pub(super) fn lengths<'b>(x: V<'b>, m: i64) -> V<'b> {
    let x = x.slice_dim(2, 0, m);
    (x.real().square() + x.imag().square()).sum(&[2]).sqrt()
}

/// `keys` (batch, n) in ascending order, and the vectors that belong to them.
pub(super) fn sorted<'b>(keys: V<'b>, x: V<'b>) -> (V<'b>, V<'b>) {
    let b = keys.builder();
    let at = b.iota(DType::I32, &keys.dims(), 1);
    let s = b.sort(&[keys, at], 1, true, |a, b| a[0].lt(b[0]));
    (s[0], take_rows(x, s[1]))
}

/// The largest absolute row sum of each matrix (batch, 1, 1), 1 for zeros: a bound of its norm, and a scale that keeps squares
/// in range.
pub(super) fn scale(x: V<'_>) -> V<'_> {
    let most = (x.real().abs() + x.imag().abs()).sum(&[2]).max_over(&[1]);
    most.eq(0.0).select(most.full_like(1.0), most).unsqueeze(1).unsqueeze(2)
}

/// Nearly unitary to unitary: a step of Newton and Schulz.
pub(super) fn unitary(w: V<'_>) -> V<'_> {
    let one = eye_like(w);
    mm(w, one * 1.5 - mm(h(w), w) * 0.5)
}
