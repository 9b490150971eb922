//! What factorizations are made of. Matrices are (batch, rows, columns): one batch dimension, which every step covers at
//! once. A factorization is a loop over columns or over panels of columns, of one shape from the first step to the last, so
//! that a program is as small for a thousand columns as for three.

use crate::def::{Refusal, Sig, SigArg};
use tpu_base::DType;
use tpu_hlo::{Builder, Precision, V};

/// One batch dimension.
pub(super) fn flat(x: V<'_>) -> V<'_> {
    let d = x.dims();
    let r = d.len();
    x.reshape(&[d[..r - 2].iter().product(), d[r - 2], d[r - 1]])
}

/// Batched product, exact in float32 whatever the user allows elsewhere: errors would grow from step to step.
pub(super) fn mm<'b>(a: V<'b>, b: V<'b>) -> V<'b> {
    a.matmul(b, a.dtype(), Precision::Highest)
}

/// Transpose of the last two dimensions.
pub(super) fn t(x: V<'_>) -> V<'_> {
    x.swap(x.rank() - 2, x.rank() - 1)
}

/// Conjugate transpose of the last two dimensions.
pub(super) fn h(x: V<'_>) -> V<'_> {
    t(x).conj()
}

/// The row index of each element.
pub(super) fn rows(x: V<'_>) -> V<'_> {
    x.builder().iota(DType::I32, &x.dims(), x.rank() - 2)
}

/// The column index of each element.
pub(super) fn cols(x: V<'_>) -> V<'_> {
    x.builder().iota(DType::I32, &x.dims(), x.rank() - 1)
}

/// `x` where `keep`, zero elsewhere.
pub(super) fn masked<'b>(keep: V<'b>, x: V<'b>) -> V<'b> {
    keep.select(x, x.zeros_like())
}

/// The identity in the shape and dtype of `x` (rectangles too).
pub(super) fn eye_like(x: V<'_>) -> V<'_> {
    rows(x).eq(cols(x)).convert(x.dtype())
}

/// The diagonal, a row shorter.
pub(super) fn diagonal(x: V<'_>) -> V<'_> {
    let k = x.dim(x.rank() - 2).min(x.dim(x.rank() - 1));
    let x = corner(x, k, k);
    masked(rows(x).eq(cols(x)), x).sum(&[x.rank() - 2])
}

/// The first `m` rows and `n` columns.
pub(super) fn corner(x: V<'_>, m: i64, n: i64) -> V<'_> {
    x.slice_dim(x.rank() - 2, 0, m).slice_dim(x.rank() - 1, 0, n)
}

/// Zeros appended to `m` rows and `n` columns.
pub(super) fn grown(x: V<'_>, m: i64, n: i64) -> V<'_> {
    let r = x.rank();
    let mut high = vec![0; r];
    (high[r - 2], high[r - 1]) = (m - x.dim(r - 2), n - x.dim(r - 1));
    if high.iter().all(|&p| p == 0) { x } else { x.pad(x.lit(0.0), &vec![0; r], &high, &vec![0; r]) }
}

/// A block of `sizes` of a (batch, rows, columns) array from row `i` and column `j` on.
pub(super) fn block<'b>(x: V<'b>, i: V<'b>, j: V<'b>, m: i64, n: i64) -> V<'b> {
    x.dynamic_slice(&[i.lit(0), i, j], &[x.dim(0), m, n])
}

/// `x` with `part` written from row `i` and column `j` on.
pub(super) fn with_block<'b>(x: V<'b>, part: V<'b>, i: V<'b>, j: V<'b>) -> V<'b> {
    if x.dims() == part.dims() { part } else { x.dynamic_update_slice(part, &[i.lit(0), i, j]) }
}

/// `body(k, state)` for k = 0 … n − 1 (k is 0-d int32).
pub(super) fn repeat<'b>(
    b: &'b Builder,
    n: i64,
    init: &[V<'b>],
    body: impl FnOnce(V<'b>, &[V<'b>]) -> Vec<V<'b>>,
) -> Vec<V<'b>> {
    let zero = b.scalar(DType::I32, 0);
    if n <= 1 {
        return if n == 1 { body(zero, init) } else { init.to_vec() };
    }
    let state: Vec<V<'b>> = std::iter::once(zero).chain(init.iter().copied()).collect();
    let end = b.while_loop(
        &state,
        |s| s[0].lt(s[0].lit(n)),
        |s| std::iter::once(s[0] + 1i64).chain(body(s[0], &s[1..])).collect(),
    );
    end[1..].to_vec()
}

/// Columns in a panel for `n` of them: all while a panel's own steps, which sweep it once a column, stay cheap.
pub(super) fn panel_width(n: i64) -> i64 {
    if n <= 64 { n } else { 32 }
}

/// Rows of each matrix in the order `at` (batch, rows).
pub(super) fn take_rows<'b>(x: V<'b>, at: V<'b>) -> V<'b> {
    let d = x.dims();
    let (batch, m, n) = (d[0], d[1], d[2]);
    let first = at.builder().iota(at.dtype(), &at.dims(), 0) * m;
    x.reshape(&[batch * m, n]).take((at + first).reshape(&[batch * at.dim(1)]), 0).reshape(&[batch, at.dim(1), n])
}

/// Both matrices at their common batch shape.
pub(super) fn batched<'b>(a: V<'b>, b: V<'b>) -> (V<'b>, V<'b>) {
    let (da, db) = (a.dims(), b.dims());
    let rank = da.len().max(db.len());
    let size = |d: &[i64], i: usize| if i + d.len() >= rank { d[i + d.len() - rank] } else { 1 };
    let batch: Vec<i64> = (0..rank - 2)
        .map(|i| {
            let (x, y) = (size(&da, i), size(&db, i));
            if x == 1 { y } else { x }
        })
        .collect();
    let whole = |v: V<'b>, d: &[i64]| v.broadcast_to(&[&batch[..], &d[d.len() - 2..]].concat());
    (whole(a, &da), whole(b, &db))
}

/// `check_errors=True` raises a `LinAlgError` in the call itself.
pub(super) fn checks_errors(sig: &Sig<'_>) -> Option<Refusal> {
    (*sig.arg("check_errors") == SigArg::Bool(true)).then_some("check_errors=True waits for the result on the host")
}

/// A triangular matrix to solve with; only its own triangle is read.
#[derive(Clone, Copy)]
pub(super) struct Triangle<'b> {
    /// (…, n, n).
    pub(super) a: V<'b>,
    /// Which triangle.
    pub(super) lower: bool,
    /// The diagonal counts as ones.
    pub(super) unit: bool,
}

impl<'b> Triangle<'b> {
    /// Conjugate transpose.
    pub(super) fn h(self) -> Triangle<'b> {
        Triangle { a: h(self.a), lower: !self.lower, unit: self.unit }
    }

    /// Transpose.
    pub(super) fn t(self) -> Triangle<'b> {
        Triangle { a: t(self.a), lower: !self.lower, unit: self.unit }
    }

    /// x with A·x = `rhs`, both of one batch shape. Substitution by panels: the compiler's own `triangular_solve` unrolls into
    /// programs that take seconds to compile.
    pub(super) fn solve(self, rhs: V<'b>) -> V<'b> {
        if rhs.numel() == 0 {
            return rhs;
        }
        let (dims, b, a) = (rhs.dims(), rhs.builder(), flat(self.a));
        let (n, m) = (a.dim(1), rhs.dim(rhs.rank() - 1));
        let width = panel_width(n);
        let panels = (n + width - 1) / width;
        let whole = panels * width;
        let (r, c) = (rows(a), cols(a));
        let a = if panels == 1 { a } else { masked(if self.lower { r.ge(c) } else { r.le(c) }, a) };
        let (a, rhs) = (grown(a, whole, whole), grown(flat(rhs), whole, m));
        let a = if panels == 1 { a } else { (rows(a).eq(cols(a)) & rows(a).ge(n)).select(a.full_like(1.0), a) };
        // upwards through an upper triangle
        let place = |k: V<'b>, n: i64| if self.lower { k } else { k.lit(n - 1) - k };
        let end = repeat(b, panels, &[rhs.zeros_like()], |p, x| {
            let at = place(p, panels) * width;
            let zero = at.lit(0);
            let own = block(a, at, at, width, width);
            let part = block(rhs, at, zero, width, m);
            let part = if panels == 1 { part } else { part - mm(block(a, at, zero, width, whole), x[0]) };
            let end = repeat(b, width, &[part], |k, x| {
                let k = place(k, width);
                let column = block(own, zero, k, width, 1);
                let row = block(x[0], k, zero, 1, m);
                let row = if self.unit { row } else { row / block(column, k, zero, 1, 1) };
                let r = rows(column);
                let rest = x[0] - masked(if self.lower { r.gt(k) } else { r.lt(k) }, column) * row;
                vec![rows(rest).eq(k).select(row, rest)]
            });
            vec![with_block(x[0], end[0], at, zero)]
        });
        end[0].slice_dim(1, 0, n).reshape(&dims)
    }
}
