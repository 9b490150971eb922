//! From random bits to numbers of each distribution: the only place where bits become reals.

use crate::cx::Cx;
use tpu_base::DType;
use tpu_hlo::V;

/// Random bits, none where none are wanted.
fn bits<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64]) -> V<'b> {
    if dims.contains(&0) { cx.b.zeros(dtype, dims) } else { cx.random_bits(dtype, dims) }
}

/// An integer of as many random bits as `dtype` (float32 or float64) has in its significand, less `spare`; as a signed
/// integer value and its number of bits.
fn significand<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64], spare: i64) -> (V<'b>, i64) {
    high_bits(bits(cx, word(dtype), dims), spare)
}

/// The dtype of random words that make a `dtype`.
fn word(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::U64 } else { DType::U32 }
}

fn high_bits(bits: V<'_>, spare: i64) -> (V<'_>, i64) {
    if bits.dtype() == DType::U64 {
        let n = 53 - spare;
        (bits.shr_logical(64 - n).convert(DType::I64), n)
    } else {
        let n = 24 - spare;
        (bits.shr_logical(32 - n).convert(DType::I32), n)
    }
}

/// A stream of random numbers that goes on as it is drawn from: see [`Cx::random_stream`].
pub(super) struct Stream<'b> {
    state: V<'b>,
}

impl<'b> Stream<'b> {
    /// The stream from `state` on.
    pub(super) fn new(state: V<'b>) -> Stream<'b> {
        Stream { state }
    }
    /// Where it stands.
    pub(super) fn state(&self) -> V<'b> {
        self.state
    }
    fn draw(&mut self, dtype: DType, dims: &[i64]) -> V<'b> {
        let (state, bits) = self.state.builder().threefry(self.state, word(dtype), dims);
        self.state = state;
        bits
    }
    /// Another stream of the same call: by one key further.
    pub(super) fn other(self) -> Stream<'b> {
        let step = self.state.builder().table(DType::U64, &[2], &[1, 0]);
        Stream { state: self.state + step }
    }
    /// As [`open_unit`].
    pub(super) fn open_unit(&mut self, dtype: DType, dims: &[i64]) -> V<'b> {
        between(high_bits(self.draw(dtype, dims), 1), dtype)
    }
    /// As [`standard_normal`].
    pub(super) fn standard_normal(&mut self, dtype: DType, dims: &[i64]) -> V<'b> {
        bell(high_bits(self.draw(dtype, dims), 0), dtype)
    }
}

/// Uniform in [0, 1): k / 2ⁿ with every bit of the significand random. `dtype` is float32 or float64.
pub(super) fn unit<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64]) -> V<'b> {
    let (k, n) = significand(cx, dtype, dims, 0);
    k.convert(dtype) * 2f64.powi(-n as i32)
}

/// Uniform in (0, 1), symmetric about ½: (k + ½) / 2ⁿ, exact, so that neither end is ever reached.
pub(super) fn open_unit<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64]) -> V<'b> {
    between(significand(cx, dtype, dims, 1), dtype)
}

fn between((k, n): (V<'_>, i64), dtype: DType) -> V<'_> {
    ((k + k) + 1i64).convert(dtype) * 2f64.powi(-(n as i32) - 1)
}

/// Standard normal: √2 · erf⁻¹ of a uniform in (−1, 1) that is odd multiples of 2⁻²⁴ (2⁻⁵³), so that the tails are
/// symmetric and 0 and ±1 never occur. The inverse is chlo's: M. Giles, "Approximating the erfinv function", 2010.
pub(super) fn standard_normal<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64]) -> V<'b> {
    bell(significand(cx, dtype, dims, 0), dtype)
}

fn bell((k, n): (V<'_>, i64), dtype: DType) -> V<'_> {
    let odd = (k + k) - ((1i64 << n) - 1);
    (odd.convert(dtype) * 2f64.powi(-(n as i32))).erf_inv() * std::f64::consts::SQRT_2
}

/// Exponential with rate 1, never 0.
pub(super) fn standard_exponential<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64]) -> V<'b> {
    open_unit(cx, dtype, dims).log().neg()
}

/// Uniform in [from, to) as `dtype` (for complex numbers each part): a value that rounding would lift to `to` becomes the one below it. Halves get as many
/// random bits as they can hold, as PyTorch draws them.
pub(super) fn uniform<'b>(cx: &Cx<'b>, dtype: DType, dims: &[i64], from: V<'b>, to: V<'b>) -> V<'b> {
    if dtype.is_complex() {
        let parts = uniform(cx, dtype.real(), &[&[2], dims].concat(), from.real(), to.real());
        let part = |i| parts.slice_dim(0, i, i + 1).reshape(dims);
        return part(0).complex(part(1));
    }
    let work = dtype.opmath();
    let digits = match dtype {
        DType::BF16 => 8,
        DType::F16 => 11,
        _ => 24,
    };
    let u = unit(cx, work, dims);
    let u = if digits < 24 { (u * 2f64.powi(digits)).floor() * 2f64.powi(-digits) } else { u };
    let x = (u * (to - from) + from).convert(dtype);
    let (from, to) = (from.convert(dtype), to.convert(dtype));
    let below = to.next_after(from);
    x.ge(to).select(below, x)
}

/// Integers from `low` on, `range` of them (0: all of 2⁶⁴), as int64. The remainder's bias is below range / 2³².
pub(super) fn integers<'b>(cx: &Cx<'b>, dims: &[i64], low: i64, range: u64) -> V<'b> {
    let wide = range == 0 || range > 1 << 32;
    let raw = bits(cx, if wide { DType::U64 } else { DType::U32 }, dims);
    let raw = match range {
        0 => raw,
        // every 32-bit word is wanted
        4_294_967_296 => raw,
        r => raw.rem(r as i64),
    };
    // bits above int64's largest value wrap to its negative ones
    (if wide { raw.bitcast(DType::I64) } else { raw.convert(DType::I64) }) + low
}
