//! QR factorization by Householder reflections, with LAPACK's signs and packing.

use super::linalg_parts::{
    Triangle, block, cols, corner, eye_like, flat, grown, h, masked, mm, panel_width, repeat, rows, with_block,
};
use crate::def::{OpDef, many, one};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    many("linalg_qr(Tensor A, str mode=\"reduced\") -> (Tensor Q, Tensor R)", |cx| {
        let (q, r) = (cx.out(0), cx.out(1));
        let qr = Reflections::of(flat(cx.t("A")));
        let upper = corner(qr.packed, *r.dims.iter().rev().nth(1).unwrap_or(&0), qr.packed.dim(2));
        let upper = masked(rows(upper).le(cols(upper)), upper);
        let wanted = q.numel() != 0;
        let q = if wanted { qr.q(q.dims[q.dims.len() - 1]).reshape(&q.dims) } else { cx.b.zeros(q.dtype, &q.dims) };
        vec![q, upper.reshape(&r.dims)]
    })
    .eg(&[
        "f32[3,3]",
        "f32[5,3]",
        "f64[2,3,5]",
        "c64[4,3]",
        "c128[3,4] 'complete'",
        "f32[5,3] 'complete'",
        "f32[5,3] 'r'",
        "f64[75,70]",
        "f32[0,3]",
        "f32[3,0] 'complete'",
        "f32[0,3,3]",
    ]),
    one("linalg_householder_product(Tensor input, Tensor tau) -> Tensor", |cx| {
        let x = cx.t("input");
        Reflections::packed(x, cx.t("tau")).q(x.dim(x.rank() - 1)).reshape(&x.dims())
    })
    .eg(&["f32[5,3] f32[3]", "f64[2,4,4] f64[2,2]", "c64[4,3] c64[3]", "f32[4,0] f32[0]", "f32[0,4,2] f32[0,2]"]),
    one("ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor", |cx| {
        let c = cx.t("input3");
        let (q, x) = (Reflections::packed(cx.t("self"), cx.t("input2")), flat(c));
        let adjoint = cx.flag("transpose");
        let y = if cx.flag("left") { q.apply(x, adjoint) } else { h(q.apply(h(x), !adjoint)) };
        y.reshape(&c.dims())
    })
    .eg(&[
        "f32[5,3] f32[3] f32[5,2]",
        "f64[2,5,3] f64[2,3] f64[2,5,2] True True",
        "c64[5,3] c64[3] c64[2,5] False",
        "c64[5,3] c64[3] c64[2,5] False True",
        "f32[4,0] f32[0] f32[4,2]",
    ]),
];

/// So many reflections at most are applied one after the other, which errs less than all at once.
const FEW: i64 = 8;

/// Q = H₁·H₂·…, Hₖ = I − τₖ·vₖ·vₖʰ, with vₖ below the diagonal of column k (its ones are not stored) and R above.
pub(super) struct Reflections<'b> {
    /// (batch, rows, columns).
    packed: V<'b>,
    /// (batch, 1, reflections).
    tau: V<'b>,
}

impl<'b> Reflections<'b> {
    /// Factors `a` (batch, rows, columns), by panels (Golub & Van Loan, "Matrix Computations", 5.2).
    pub(super) fn of(a: V<'b>) -> Reflections<'b> {
        let (batch, m, n) = (a.dim(0), a.dim(1), a.dim(2));
        let steps = m.min(n);
        let width = panel_width(steps).max(1);
        let panels = if a.numel() == 0 { 0 } else { (steps + width - 1) / width };
        let more = (panels * width - steps).max(0);
        let tau = a.builder().zeros(a.dtype(), &[batch, 1, steps + more]);
        let state = [grown(a, m + more, n + more), tau];
        let end = repeat(a.builder(), panels, &state, |p, s| panel_step(s, p * width, width));
        Reflections { packed: corner(end[0], m, n), tau: end[1].slice_dim(2, 0, steps) }
    }

    fn packed(packed: V<'b>, tau: V<'b>) -> Reflections<'b> {
        let packed = flat(packed);
        let k = tau.dim(tau.rank() - 1);
        Reflections { packed, tau: tau.reshape(&[packed.dim(0), 1, k]) }
    }

    /// R, as many rows as columns.
    pub(super) fn r(&self) -> V<'b> {
        let r = corner(self.packed, self.packed.dim(2), self.packed.dim(2));
        masked(rows(r).le(cols(r)), r)
    }

    /// The first `n` columns of Q.
    pub(super) fn q(&self, n: i64) -> V<'b> {
        let x = self.packed;
        self.apply(eye_like(x.builder().zeros(x.dtype(), &[x.dim(0), x.dim(1), n])), false)
    }

    /// Q·c, or Qʰ·c (`adjoint`).
    pub(super) fn apply(&self, c: V<'b>, adjoint: bool) -> V<'b> {
        let v = corner(self.packed, self.packed.dim(1), self.tau.dim(2));
        if v.numel() == 0 || c.numel() == 0 {
            return c;
        }
        let v = rows(v).gt(cols(v)).select(v, eye_like(v));
        let k = self.tau.dim(2);
        if k > FEW {
            return reflected(v, self.tau, c, adjoint);
        }
        (0..k).fold(c, |c, i| {
            let j = if adjoint { i } else { k - 1 - i };
            let (v, tau) = (v.slice_dim(2, j, j + 1), self.tau.slice_dim(2, j, j + 1));
            c - mm(v, if adjoint { tau.conj() } else { tau } * mm(h(v), c))
        })
    }
}

/// (I − V·T·Vʰ)·c or its adjoint's product, with T = (I + D·S)⁻¹·D for D = diag(τ) and S the strict upper triangle of Vʰ·V
/// (Puglisi, "Modification of the Householder method based on the compact WY representation", 1992; this form allows τ = 0).
fn reflected<'b>(v: V<'b>, tau: V<'b>, c: V<'b>, adjoint: bool) -> V<'b> {
    let gram = mm(h(v), v);
    let s = masked(rows(gram).lt(cols(gram)), gram);
    let d = tau.swap(1, 2);
    let w = mm(h(v), c);
    let a = Triangle { a: d * s, lower: false, unit: true };
    let w = if adjoint {
        d.conj() * Triangle { a: h(s) * tau.conj(), lower: true, unit: true }.solve(w)
    } else {
        a.solve(d * w)
    };
    c - mm(v, w)
}

/// One panel from column `at` on; `state` is the matrix and τ.
fn panel_step<'b>(state: &[V<'b>], at: V<'b>, width: i64) -> Vec<V<'b>> {
    let (a, zero) = (state[0], at.lit(0));
    let (batch, m, n) = (a.dim(0), a.dim(1), a.dim(2));
    let start = [block(a, zero, at, m, width), a.builder().zeros(a.dtype(), &[batch, 1, width])];
    let end = repeat(a.builder(), width, &start, |k, s| {
        let (j, panel) = (at + k, s[0]);
        let column = block(panel, zero, k, m, 1);
        let r = rows(column);
        let (below, head) = (masked(r.gt(j), column), block(column, j, zero, 1, 1));
        let (tail, beta) = lengths(below, head);
        let real = head.real();
        let beta = real.lt(0.0).select(beta, beta.neg());
        // nothing to do away with: H = I
        let idle = tail.eq(0.0) & head.imag().eq(0.0);
        let beta = idle.select(real, beta);
        let full = beta.convert(a.dtype());
        let one = head.full_like(1.0);
        let tau = masked(!idle, (full - head) / idle.select(one, full));
        let v = r.eq(j).select(one, below / idle.select(one, head - full));
        let later = cols(panel).gt(k);
        let rest = panel - tau.conj() * v * masked(cols(tau.broadcast_to(&[batch, 1, width])).gt(k), mm(h(v), panel));
        let packed = r.gt(j).select(v, r.eq(j).select(full, column));
        let panel = later.select(rest, cols(panel).eq(k).select(packed, panel));
        vec![panel, cols(s[1]).eq(k).select(tau, s[1])]
    });
    let tau = with_block(state[1], end[1], zero, at);
    if n == width {
        return vec![end[0], tau];
    }
    let c = cols(end[0]) + at;
    let v = rows(end[0]).gt(c).select(end[0], rows(end[0]).eq(c).convert(a.dtype()));
    let a = with_block(a, end[0], zero, at);
    let turned = reflected(v, end[1], a, true);
    vec![cols(a).ge(at + width).select(turned, a), tau]
}

/// ‖below‖ and ‖(head, below)‖, (batch, 1, 1), without overflow in between.
fn lengths<'b>(below: V<'b>, head: V<'b>) -> (V<'b>, V<'b>) {
    let size = |x: V<'b>| x.real().abs().max(x.imag().abs());
    let most = size(below).max_over(&[1]).unsqueeze(1).max(size(head));
    let unit = most.gt(0.0).select(most, most.full_like(1.0));
    let square = |x: V<'b>| (x.real() / unit).square() + (x.imag() / unit).square();
    let tail = square(below).sum(&[1]).unsqueeze(1);
    (tail.sqrt() * unit, (tail + square(head)).sqrt() * unit)
}
