//! Elementwise operations. Binary ones broadcast like PyTorch (right-aligned); dtypes must agree.

use crate::build::{Builder, V};
use crate::constant::Lit;
use crate::ir::{Attr, Type};
use tpu_base::DType;

impl Builder {
    /// Fails where an elementwise operation isn't defined for a dtype: the compiler would say so much later, and the CPU
    /// may do it or has better words.
    fn takes(&self, op: &'static str, d: DType) {
        let whole = d.is_int() || d == DType::Bool;
        let fine = match op.split_once('.').map_or(op, |(_, name)| name) {
            "and" | "or" | "xor" | "not" => whole,
            "popcnt" | "count_leading_zeros" => d.is_int(),
            "shift_left" | "shift_right_arithmetic" | "shift_right_logical" => d.is_int(),
            "negate" => d != DType::Bool,
            "exponential"
            | "exponential_minus_one"
            | "log"
            | "log_plus_one"
            | "logistic"
            | "sqrt"
            | "rsqrt"
            | "cbrt"
            | "sine"
            | "cosine"
            | "tan"
            | "tanh" => !whole,
            "ceil" | "floor" | "round_nearest_afz" | "round_nearest_even" => d.is_float(),
            _ => true,
        };
        if !fine {
            self.fail(op, format!("it isn't defined for {d:?}"));
        }
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => { #[allow(clippy::should_implement_trait)] impl<'b> V<'b> { $(
        $(#[$doc])*
        pub fn $name(self) -> V<'b> {
            self.b.takes($op, self.dtype());
            self.b.op1($op, &[self], self.ty(), vec![])
        }
    )* } };
}

unary! {
    /// Absolute value (not for complex: see [`V::abs`]).
    abs_real = "stablehlo.abs";
    /// Cube root.
    cbrt = "stablehlo.cbrt";
    /// Round up.
    ceil = "stablehlo.ceil";
    /// Leading zero bits.
    clz = "stablehlo.count_leading_zeros";
    /// Cosine.
    cos = "stablehlo.cosine";
    /// e^x.
    exp = "stablehlo.exponential";
    /// e^x − 1.
    expm1 = "stablehlo.exponential_minus_one";
    /// Round down.
    floor = "stablehlo.floor";
    /// Natural logarithm.
    log = "stablehlo.log";
    /// ln(1 + x).
    log1p = "stablehlo.log_plus_one";
    /// 1 / (1 + e^−x).
    logistic = "stablehlo.logistic";
    /// Negation.
    neg = "stablehlo.negate";
    /// Bitwise or logical not.
    not = "stablehlo.not";
    /// Set bits.
    popcnt = "stablehlo.popcnt";
    /// Round half away from zero.
    round_away = "stablehlo.round_nearest_afz";
    /// Round half to even.
    round_even = "stablehlo.round_nearest_even";
    /// 1 / √x.
    rsqrt = "stablehlo.rsqrt";
    /// Sign (x/|x| for complex; NaN stays).
    sign = "stablehlo.sign";
    /// Sine.
    sin = "stablehlo.sine";
    /// Square root.
    sqrt = "stablehlo.sqrt";
    /// Tangent.
    tan = "stablehlo.tan";
    /// Hyperbolic tangent.
    tanh = "stablehlo.tanh";
    /// Inverse cosine.
    acos = "chlo.acos";
    /// Inverse hyperbolic cosine.
    acosh = "chlo.acosh";
    /// Inverse sine.
    asin = "chlo.asin";
    /// Inverse hyperbolic sine.
    asinh = "chlo.asinh";
    /// Inverse tangent.
    atan = "chlo.atan";
    /// Inverse hyperbolic tangent.
    atanh = "chlo.atanh";
    /// Exponentially scaled modified Bessel function of the first kind, order 1.
    bessel_i1e = "chlo.bessel_i1e";
    /// Complex conjugate.
    conj_chlo = "chlo.conj";
    /// Hyperbolic cosine.
    cosh = "chlo.cosh";
    /// Digamma.
    digamma = "chlo.digamma";
    /// Error function.
    erf = "chlo.erf";
    /// Complementary error function.
    erfc = "chlo.erfc";
    /// Inverse error function.
    erf_inv = "chlo.erf_inv";
    /// ln|Γ(x)|.
    lgamma = "chlo.lgamma";
    /// Hyperbolic sine.
    sinh = "chlo.sinh";
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => { #[allow(clippy::should_implement_trait)] impl<'b> V<'b> { $(
        $(#[$doc])*
        pub fn $name(self, other: impl Operand<'b>) -> V<'b> { self.binary($op, other.operand(self)) }
    )* } };
}

binary! {
    /// Sum.
    plus = "stablehlo.add";
    /// Difference.
    minus = "stablehlo.subtract";
    /// Product.
    times = "stablehlo.multiply";
    /// Quotient (integers truncate).
    over = "stablehlo.divide";
    /// Remainder with the dividend's sign.
    rem = "stablehlo.remainder";
    /// Power.
    pow = "stablehlo.power";
    /// Larger; NaN wins.
    max = "stablehlo.maximum";
    /// Smaller; NaN wins.
    min = "stablehlo.minimum";
    /// Angle of (other, self).
    atan2 = "stablehlo.atan2";
    /// Bitwise or logical and.
    and = "stablehlo.and";
    /// Bitwise or logical or.
    or = "stablehlo.or";
    /// Bitwise or logical exclusive or.
    xor = "stablehlo.xor";
    /// Shift left.
    shl = "stablehlo.shift_left";
    /// Shift right, keeping the sign.
    shr = "stablehlo.shift_right_arithmetic";
    /// Shift right, filling zeros.
    shr_logical = "stablehlo.shift_right_logical";
    /// Next representable value towards `other`.
    next_after = "chlo.next_after";
    /// ψ⁽ⁿ⁾.
    polygamma = "chlo.polygamma";
    /// Hurwitz zeta.
    zeta = "chlo.zeta";
}

/// What the right-hand side of a binary operation may be: a value, or a number in the left side's dtype.
pub trait Operand<'b> {
    /// As a value beside `like`.
    fn operand(self, like: V<'b>) -> V<'b>;
}
impl<'b> Operand<'b> for V<'b> {
    fn operand(self, _: V<'b>) -> V<'b> {
        self
    }
}
impl<'b> Operand<'b> for f64 {
    fn operand(self, like: V<'b>) -> V<'b> {
        like.lit(self)
    }
}
impl<'b> Operand<'b> for i64 {
    fn operand(self, like: V<'b>) -> V<'b> {
        like.lit(self)
    }
}
impl<'b> Operand<'b> for bool {
    fn operand(self, like: V<'b>) -> V<'b> {
        like.lit(self)
    }
}
impl<'b> Operand<'b> for Lit {
    fn operand(self, like: V<'b>) -> V<'b> {
        like.lit(self.0)
    }
}

macro_rules! operator {
    ($($tr:ident $f:ident $m:ident;)*) => { $(
        impl<'b, R: Operand<'b>> std::ops::$tr<R> for V<'b> {
            type Output = V<'b>;
            fn $f(self, r: R) -> V<'b> { self.$m(r) }
        }
    )* };
}
operator! { Add add plus; Sub sub minus; Mul mul times; Div div over; BitAnd bitand and; BitOr bitor or; BitXor bitxor xor; }
impl<'b> std::ops::Neg for V<'b> {
    type Output = V<'b>;
    fn neg(self) -> V<'b> {
        V::neg(self)
    }
}
impl<'b> std::ops::Not for V<'b> {
    type Output = V<'b>;
    fn not(self) -> V<'b> {
        V::not(self)
    }
}

/// The shape two shapes broadcast to, right-aligned; `None` if they don't.
pub fn broadcast_dims(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let n = a.len().max(b.len());
    (0..n)
        .map(|i| {
            let x = if i + a.len() >= n { a[i + a.len() - n] } else { 1 };
            let y = if i + b.len() >= n { b[i + b.len() - n] } else { 1 };
            match (x, y) {
                _ if x == y => Some(x),
                (1, _) => Some(y),
                (_, 1) => Some(x),
                _ => None,
            }
        })
        .collect()
}

impl<'b> V<'b> {
    /// Both sides at their common shape.
    pub fn broadcast_with(self, other: V<'b>) -> (V<'b>, V<'b>) {
        let (a, b) = (self.dims(), other.dims());
        match broadcast_dims(&a, &b) {
            Some(d) => (self.broadcast_to(&d), other.broadcast_to(&d)),
            None => {
                self.b.fail("broadcast", format!("shapes {a:?} and {b:?}"));
                (self, self)
            }
        }
    }

    fn same_dtype(self, op: &'static str, other: V<'b>) {
        if self.dtype() != other.dtype() {
            self.b.fail(op, format!("dtypes {} and {}", self.dtype().name(), other.dtype().name()));
        }
    }

    fn binary(self, op: &'static str, other: V<'b>) -> V<'b> {
        self.same_dtype(op, other);
        self.b.takes(op, self.dtype());
        let (a, b) = self.broadcast_with(other);
        self.b.op1(op, &[a, b], a.ty(), vec![])
    }

    fn compare(self, direction: &'static str, other: V<'b>) -> V<'b> {
        self.same_dtype("stablehlo.compare", other);
        let (a, b) = self.broadcast_with(other);
        let kind = match a.dtype() {
            d if d.is_float() || d.is_complex() => "FLOAT",
            d if d.is_unsigned() => "UNSIGNED",
            _ => "SIGNED",
        };
        let attrs = vec![
            ("comparison_direction", Attr::Raw(format!("#stablehlo<comparison_direction {direction}>"))),
            ("compare_type", Attr::Raw(format!("#stablehlo<comparison_type {kind}>"))),
        ];
        self.b.op1("stablehlo.compare", &[a, b], Type::new(DType::Bool, a.dims()), attrs)
    }

    /// Equal, as bool.
    pub fn eq(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("EQ", other.operand(self))
    }
    /// Not equal, as bool.
    pub fn ne(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("NE", other.operand(self))
    }
    /// Less, as bool.
    pub fn lt(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("LT", other.operand(self))
    }
    /// Less or equal, as bool.
    pub fn le(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("LE", other.operand(self))
    }
    /// Greater, as bool.
    pub fn gt(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("GT", other.operand(self))
    }
    /// Greater or equal, as bool.
    pub fn ge(self, other: impl Operand<'b>) -> V<'b> {
        self.compare("GE", other.operand(self))
    }

    /// Where `self` (bool) holds `yes`, else `no`; all three broadcast.
    pub fn select(self, yes: V<'b>, no: V<'b>) -> V<'b> {
        yes.same_dtype("stablehlo.select", no);
        if self.dtype() != DType::Bool {
            self.b.fail("stablehlo.select", format!("predicate of {}", self.dtype().name()));
        }
        let (yes, no) = yes.broadcast_with(no);
        let (p, yes) = self.broadcast_with(yes);
        let no = no.broadcast_to(&yes.dims());
        self.b.op1("stablehlo.select", &[p, yes, no], yes.ty(), vec![])
    }

    /// To another dtype: StableHLO `convert`, except that bool comes from `!= 0` and complex→real drops the imaginary part.
    pub fn convert(self, dtype: DType) -> V<'b> {
        let from = self.dtype();
        if from == dtype {
            return self;
        }
        if dtype == DType::Bool {
            return self.ne(self.lit(0.0));
        }
        if from.is_complex() && !dtype.is_complex() {
            return self.real().convert(dtype);
        }
        if dtype.is_float8() {
            let single = self.convert(DType::F32);
            return single.to_float8(dtype);
        }
        let from_float = from.is_float();
        // C's float → narrow int wraps through a wide one; XLA saturates. PyTorch's CPU goes through int64/int32 alike.
        if from_float && dtype.is_int() && dtype.size() < 4 {
            return self.convert(DType::I32).convert(dtype);
        }
        self.b.op1("stablehlo.convert", &[self], Type::new(dtype, self.dims()), vec![])
    }

    /// Real part (itself if real).
    pub fn real(self) -> V<'b> {
        if !self.dtype().is_complex() {
            return self;
        }
        self.b.op1("stablehlo.real", &[self], Type::new(self.dtype().real(), self.dims()), vec![])
    }

    /// Imaginary part (zeros if real).
    pub fn imag(self) -> V<'b> {
        if !self.dtype().is_complex() {
            return self.zeros_like();
        }
        self.b.op1("stablehlo.imag", &[self], Type::new(self.dtype().real(), self.dims()), vec![])
    }

    /// `self + i·imag`.
    pub fn complex(self, imag: V<'b>) -> V<'b> {
        let (re, im) = self.broadcast_with(imag);
        self.b.op1("stablehlo.complex", &[re, im], Type::new(re.dtype().complex(), re.dims()), vec![])
    }

    /// Complex conjugate (itself if real).
    pub fn conj(self) -> V<'b> {
        if self.dtype().is_complex() { self.real().complex(self.imag().neg()) } else { self }
    }

    /// Magnitude; real result for complex values, itself for unsigned ones.
    pub fn abs(self) -> V<'b> {
        match self.dtype() {
            d if d.is_unsigned() => self,
            d => self.b.op1("stablehlo.abs", &[self], Type::new(d.real(), self.dims()), vec![]),
        }
    }

    /// Finite, as bool.
    pub fn is_finite(self) -> V<'b> {
        self.b.op1("stablehlo.is_finite", &[self], Type::new(DType::Bool, self.dims()), vec![])
    }

    /// NaN, as bool.
    pub fn is_nan(self) -> V<'b> {
        self.ne(self)
    }

    /// Between `lo` and `hi` (NaN stays).
    pub fn clamp(self, lo: V<'b>, hi: V<'b>) -> V<'b> {
        self.max(lo).min(hi)
    }

    /// x².
    pub fn square(self) -> V<'b> {
        self.times(self)
    }

    /// Towards zero.
    pub fn trunc(self) -> V<'b> {
        self.lt(0.0).select(self.ceil(), self.floor())
    }

    /// The same bits in a dtype of the same width.
    pub fn bitcast(self, dtype: DType) -> V<'b> {
        self.b.op1("stablehlo.bitcast_convert", &[self], Type::new(dtype, self.dims()), vec![])
    }

    /// The same bits in a dtype of any width, with StableHLO's shape rule: narrower adds a trailing dimension, wider
    /// consumes one.
    pub fn bitcast_to(self, ty: Type) -> V<'b> {
        self.b.op1("stablehlo.bitcast_convert", &[self], ty, vec![])
    }
}
