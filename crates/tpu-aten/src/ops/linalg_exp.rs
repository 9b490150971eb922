//! The matrix exponential.

use super::linalg_parts::{eye_like, flat, mm};
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[one("linalg_matrix_exp(Tensor self) -> Tensor", |cx| {
    let a = cx.t("self");
    if a.numel() == 0 { a } else { exponential(flat(a.convert(a.dtype().opmath()))).reshape(&a.dims()) }
})
.eg(&["f32[3,3]", "f64[2,3,3]", "c64[3,3]", "f64[5,5]+", "f32[1,1]", "f32[0,0]"])];

/// Terms of the series: enough for float64 at norms up to 1.
const DEGREE: usize = 18;
/// Powers of the matrix that are formed; the rest is Horner's rule in the highest (Paterson & Stockmeyer, 1973).
const POWERS: usize = 4;

/// exp(A) = exp(A / 2ˢ)^(2ˢ), where s brings the norm below 1 (Higham, "Functions of Matrices", 10.3).
fn exponential<'b>(a: V<'b>) -> V<'b> {
    let b = a.builder();
    let norm = a.abs().sum(&[1]).max_over(&[1]);
    let most = norm.full_like(2000.0);
    let halvings = norm.gt(1.0).select((norm.log() * std::f64::consts::LOG2_E).ceil().min(most), norm.zeros_like());
    let halvings = halvings.convert(DType::I32);
    let most = halvings.max_over(&[0]);
    // s steps of f for each matrix, with its own s
    let steps = |x: V<'b>, f: fn(V<'b>) -> V<'b>| {
        let init = [most.zeros_like(), x];
        b.while_loop(
            &init,
            |s| s[0].lt(most),
            |s| {
                let more = s[0].broadcast_to(&halvings.dims()).lt(halvings).unsqueeze(1).unsqueeze(2);
                vec![s[0] + 1i64, more.select(f(s[1]), s[1])]
            },
        )[1]
    };
    steps(series(steps(a, |x| x * 0.5)), |x| mm(x, x))
}

/// The exponential's series.
fn series(a: V<'_>) -> V<'_> {
    let mut powers = vec![eye_like(a), a];
    for k in 2..=POWERS {
        powers.push(mm(powers[k - 1], a));
    }
    let coefficient = |k: usize| (1..=k).fold(1.0, |c, i| c / i as f64);
    // coefficients block·POWERS and on, as many as there are
    let part = |block: usize| {
        (1..POWERS)
            .filter(|i| block * POWERS + i <= DEGREE)
            .fold(powers[0] * coefficient(block * POWERS), |sum, i| sum + powers[i] * coefficient(block * POWERS + i))
    };
    (0..DEGREE / POWERS).rev().fold(part(DEGREE / POWERS), |sum, block| mm(sum, powers[POWERS]) + part(block))
}
