//! Orthogonal polynomials by their three-term recurrences, degrees element by element (one loop up to the highest), and
//! Chebyshev's inside (−1, 1) by angles for high degrees, where the recurrence would lose digits.

use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

const EG: &[&str] = &[
    "f32[2,30] f32[2,1]",
    "f64[4,9]~ f64[9]%9",
    "f32[2,9]~ i64[9]%40",
    "f32[19]! f32[19]!",
    "i32[4] i32[4]",
    "f32[9] f32[]",
    "f32[0] f32[1]",
];

macro_rules! family {
    ($($name:literal = $f:expr;)*) => { &[ $(
        one(concat!("special_", $name, "(Tensor x, Tensor n) -> Tensor"), |cx| evaluate(cx, $f)).eg(EG),
    )* ] };
}

pub(crate) static DEFS: &[OpDef] = family! {
    "chebyshev_polynomial_t" = Family::Chebyshev(Kind::T, 6);
    "chebyshev_polynomial_u" = Family::Chebyshev(Kind::U, 8);
    "chebyshev_polynomial_v" = Family::Chebyshev(Kind::V, 8);
    "chebyshev_polynomial_w" = Family::Chebyshev(Kind::W, 8);
    "shifted_chebyshev_polynomial_t" = Family::Shifted(Kind::T, 6);
    "shifted_chebyshev_polynomial_u" = Family::Shifted(Kind::U, 6);
    "shifted_chebyshev_polynomial_v" = Family::Shifted(Kind::V, 6);
    "shifted_chebyshev_polynomial_w" = Family::Shifted(Kind::W, 4);
    "hermite_polynomial_h" = Family::Hermite(2.0);
    "hermite_polynomial_he" = Family::Hermite(1.0);
    "laguerre_polynomial_l" = Family::Laguerre;
    "legendre_polynomial_p" = Family::Legendre;
};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    T,
    U,
    V,
    W,
}

#[derive(Clone, Copy)]
enum Family {
    /// Kind, and the degree above which angles serve.
    Chebyshev(Kind, i64),
    /// The same of 2x − 1.
    Shifted(Kind, i64),
    /// The physicists' (2) or the probabilists' (1).
    Hermite(f64),
    Laguerre,
    Legendre,
}

fn evaluate<'b>(cx: &Cx<'b>, family: Family) -> V<'b> {
    let d = cx.out_dtype().opmath();
    let (x, n) = cx.t_as("x", d).broadcast_with(cx.t_as("n", d));
    // degrees that no integer holds count as negative ones
    let whole = n.abs().lt(2f64.powi(31));
    let n = whole.select(n, n.full_like(-1.0)).convert(DType::I32);
    let one = x.full_like(1.0);
    let (x, kind) = match family {
        Family::Chebyshev(kind, above) => (x, Some((kind, above))),
        Family::Shifted(kind, above) => (x + x - 1.0, Some((kind, above))),
        _ => (x, None),
    };
    let first = match family {
        Family::Hermite(c) => x * c,
        Family::Laguerre => one - x,
        Family::Legendre => x,
        Family::Chebyshev(kind, _) | Family::Shifted(kind, _) => match kind {
            Kind::T => x,
            Kind::U => x + x,
            Kind::V => x + x - 1.0,
            Kind::W => x + x + 1.0,
        },
    };
    let inside = x.abs().lt(1.0);
    let by_angle = kind.map(|(_, above)| inside & n.gt(above));
    let limit = if d == DType::F64 { 512 } else { 128 };
    let steps = match family {
        Family::Hermite(_) => n.gt(limit).select(n.zeros_like(), n),
        _ => by_angle.map_or(n, |a| a.select(n.zeros_like(), n)),
    };
    let value = recurrence(family, x, one, first, steps);
    let value = match family {
        Family::Hermite(_) => n.gt(limit).select(x.full_like(f64::NAN), value),
        Family::Laguerre => x.eq(0.0).select(one, value),
        Family::Legendre => at_ends(x, n, one, one, value),
        Family::Chebyshev(kind, _) | Family::Shifted(kind, _) => {
            let value = by_angle.map_or(value, |a| a.select(angular(kind, x, n), value));
            let f = n.convert(d);
            let (right, left) = match kind {
                Kind::T => (one, one),
                Kind::U => (f + 1.0, f + 1.0),
                Kind::V => (one, f + f + 1.0),
                Kind::W => (f + f + 1.0, one),
            };
            at_ends(x, n, right, left, value)
        }
    };
    n.lt(0i64).select(x.zeros_like(), value)
}

/// At ±1 the value is known; its sign alternates on the left.
fn at_ends<'b>(x: V<'b>, n: V<'b>, right: V<'b>, left: V<'b>, value: V<'b>) -> V<'b> {
    let odd = (n & 1i64).ne(0i64);
    let value = x.eq(1.0).select(right, value);
    x.eq(-1.0).select(odd.select(left.neg(), left), value)
}

/// By x = cos θ.
fn angular<'b>(kind: Kind, x: V<'b>, n: V<'b>) -> V<'b> {
    let theta = x.acos();
    let n = n.convert(x.dtype());
    match kind {
        Kind::T => (n * theta).cos(),
        Kind::U => ((n + 1.0) * theta).sin() / theta.sin(),
        Kind::V => ((n + 0.5) * theta).cos() / (theta * 0.5).cos(),
        Kind::W => ((n + 0.5) * theta).sin() / (theta * 0.5).sin(),
    }
}

/// p₀ = 1 (`zeroth`), p₁ = `first`, and on to each element's degree; what is no number stays so.
fn recurrence<'b>(family: Family, x: V<'b>, zeroth: V<'b>, first: V<'b>, n: V<'b>) -> V<'b> {
    let all: Vec<usize> = (0..n.rank()).collect();
    let start = [n.lit(1i64), zeroth, first];
    let more = |k: V<'b>, q: V<'b>| n.gt(k) & !q.is_nan();
    let end = x.builder().while_loop(
        &start,
        |s| more(s[0], s[2]).convert(DType::I32).max_over(&all).ne(0i64),
        |s| {
            let (k, p, q) = (s[0], s[1], s[2]);
            let go = more(k, q);
            let f = k.convert(x.dtype());
            let next = match family {
                Family::Chebyshev(..) | Family::Shifted(..) => (x + x) * q - p,
                Family::Hermite(c) => (x * q - f * p) * c,
                Family::Laguerre => ((f + f + 1.0 - x) * q - f * p) / (f + 1.0),
                Family::Legendre => ((f + f + 1.0) * x * q - f * p) / (f + 1.0),
            };
            vec![k + 1i64, go.select(q, p), go.select(next, q)]
        },
    );
    n.eq(0i64).select(zeroth, end[2])
}
