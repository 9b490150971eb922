//! Contractions, convolution and the few linear-algebra operations StableHLO has.

use crate::build::{Builder, V};
use crate::ir::{Attr, Type};
use crate::reduce::Window;
use std::fmt::Write;

/// How exactly float32 products are formed where the hardware has a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// float32 means float32.
    #[default]
    Highest,
    /// A few passes of bfloat16.
    High,
    /// The hardware's fastest.
    Default,
}

impl Precision {
    fn attr(self) -> Attr {
        let p = match self {
            Precision::Highest => "HIGHEST",
            Precision::High => "HIGH",
            Precision::Default => "DEFAULT",
        };
        Attr::Raw(format!("[#stablehlo<precision {p}>, #stablehlo<precision {p}>]"))
    }
}

/// Which dimensions of a contraction are batch and which are summed.
#[derive(Clone, Debug, Default)]
pub struct DotDims {
    /// Batch dimensions of the left side.
    pub lhs_batch: Vec<usize>,
    /// Batch dimensions of the right side.
    pub rhs_batch: Vec<usize>,
    /// Summed dimensions of the left side.
    pub lhs_contract: Vec<usize>,
    /// Summed dimensions of the right side.
    pub rhs_contract: Vec<usize>,
}

/// A convolution in PyTorch's layout: input N,C,spatial…; weight O,I/groups,spatial….
#[derive(Clone, Debug)]
pub struct Conv {
    /// The spatial window (rank = number of spatial dimensions; `size` is taken from the weight).
    pub window: Window,
    /// `feature_group_count`.
    pub groups: i64,
    /// `batch_group_count`.
    pub batch_groups: i64,
    /// Flip the weight's spatial dimensions (transposed convolution).
    pub reverse: bool,
    /// Layout letters: (input, weight, output), e.g. ("bf01", "oi01", "bf01"): b batch, f feature, o/i weight features,
    /// digits are spatial dimensions. `None`: PyTorch's layout.
    pub layout: Option<(String, String, String)>,
    /// Precision of float32 products.
    pub precision: Precision,
}

fn ints(v: &[usize]) -> String {
    v.iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

/// `b, f, 0, 1` from `bf01`.
fn letters(s: &str) -> String {
    s.chars().map(|c| c.to_string()).collect::<Vec<_>>().join(", ")
}

impl<'b> V<'b> {
    /// StableHLO `dot_general`; result dimensions: batch, left free, right free. `acc` is the result dtype.
    pub fn dot_general(self, rhs: V<'b>, d: &DotDims, acc: tpu_base::DType, precision: Precision) -> V<'b> {
        let (a, b) = (self.dims(), rhs.dims());
        let mut dims: Vec<i64> = d.lhs_batch.iter().map(|&i| a[i]).collect();
        dims.extend((0..a.len()).filter(|i| !d.lhs_batch.contains(i) && !d.lhs_contract.contains(i)).map(|i| a[i]));
        dims.extend((0..b.len()).filter(|i| !d.rhs_batch.contains(i) && !d.rhs_contract.contains(i)).map(|i| b[i]));
        let fits = d.lhs_batch.iter().zip(&d.rhs_batch).all(|(&i, &j)| a[i] == b[j])
            && d.lhs_contract.iter().zip(&d.rhs_contract).all(|(&i, &j)| a[i] == b[j])
            && self.dtype() == rhs.dtype();
        if !fits {
            self.b.fail("stablehlo.dot_general", format!("{} with {} by {d:?}", self.ty(), rhs.ty()));
        }
        let mut n = String::from("#stablehlo.dot<");
        let mut parts = vec![];
        if !d.lhs_batch.is_empty() {
            parts.push(format!(
                "lhs_batching_dimensions = [{}], rhs_batching_dimensions = [{}]",
                ints(&d.lhs_batch),
                ints(&d.rhs_batch)
            ));
        }
        parts.push(format!(
            "lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]",
            ints(&d.lhs_contract),
            ints(&d.rhs_contract)
        ));
        let _ = write!(n, "{}>", parts.join(", "));
        let attrs = vec![("dot_dimension_numbers", Attr::Raw(n)), ("precision_config", precision.attr())];
        self.b.op1("stablehlo.dot_general", &[self, rhs], Type::new(acc, dims), attrs)
    }

    /// Batched matrix product of (…, n, k) and (…, k, m): equal leading dimensions.
    pub fn matmul(self, rhs: V<'b>, acc: tpu_base::DType, precision: Precision) -> V<'b> {
        let r = self.rank();
        let batch: Vec<usize> = (0..r - 2).collect();
        let d = DotDims {
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            lhs_contract: vec![r - 1],
            rhs_contract: vec![rhs.rank() - 2],
        };
        self.dot_general(rhs, &d, acc, precision)
    }

    /// StableHLO `convolution`; `acc` is the result dtype.
    pub fn convolution(self, weight: V<'b>, c: &Conv, acc: tpu_base::DType) -> V<'b> {
        let n = c.window.stride.len();
        let spatial: String = (0..n).map(|i| char::from(b'0' + i as u8)).collect();
        let (li, lw, lo) = c
            .layout
            .clone()
            .unwrap_or_else(|| (format!("bf{spatial}"), format!("oi{spatial}"), format!("bf{spatial}")));
        let at = |l: &str, ch: char| l.find(ch).unwrap_or(0);
        let sp = |l: &str| (0..n).map(|i| at(l, char::from(b'0' + i as u8))).collect::<Vec<_>>();
        let (xd, wd) = (self.dims(), weight.dims());
        let mut w = c.window.clone();
        w.size = sp(&lw).iter().map(|&i| wd[i]).collect();
        let in_spatial: Vec<i64> = sp(&li).iter().map(|&i| xd[i]).collect();
        let out_spatial = w.output(&in_spatial);
        let mut dims = vec![0; n + 2];
        dims[at(&lo, 'b')] = xd[at(&li, 'b')] / c.batch_groups;
        dims[at(&lo, 'f')] = wd[at(&lw, 'o')];
        for (k, &i) in sp(&lo).iter().enumerate() {
            dims[i] = out_spatial[k];
        }
        if xd[at(&li, 'f')] != wd[at(&lw, 'i')] * c.groups || self.dtype() != weight.dtype() {
            self.b.fail("stablehlo.convolution", format!("{} with {} by {c:?}", self.ty(), weight.ty()));
        }
        let attrs = vec![
            ("window_strides", Attr::Ints(w.stride.clone())),
            ("padding", w.padding()),
            ("lhs_dilation", Attr::Ints(w.base_dilation.clone())),
            ("rhs_dilation", Attr::Ints(w.dilation.clone())),
            ("window_reversal", Attr::Bools(vec![c.reverse; n])),
            (
                "dimension_numbers",
                Attr::Raw(format!("#stablehlo.conv<[{}]x[{}]->[{}]>", letters(&li), letters(&lw), letters(&lo))),
            ),
            ("feature_group_count", Attr::Int(c.groups)),
            ("batch_group_count", Attr::Int(c.batch_groups)),
            ("precision_config", c.precision.attr()),
        ];
        self.b.op1("stablehlo.convolution", &[self, weight], Type::new(acc, dims), attrs)
    }

    /// Cholesky factor of the last two dimensions.
    pub fn cholesky(self, lower: bool) -> V<'b> {
        self.b.op1("stablehlo.cholesky", &[self], self.ty(), vec![("lower", Attr::Bool(lower))])
    }

    /// Solves `self · x = rhs` (left) or `x · self = rhs` for a triangular `self`; `adjoint` uses its conjugate transpose.
    pub fn triangular_solve(self, rhs: V<'b>, left: bool, lower: bool, unit_diagonal: bool, adjoint: bool) -> V<'b> {
        let t = if adjoint { "ADJOINT" } else { "NO_TRANSPOSE" };
        let attrs = vec![
            ("left_side", Attr::Bool(left)),
            ("lower", Attr::Bool(lower)),
            ("unit_diagonal", Attr::Bool(unit_diagonal)),
            ("transpose_a", Attr::Raw(format!("#stablehlo<transpose {t}>"))),
        ];
        self.b.op1("stablehlo.triangular_solve", &[self, rhs], rhs.ty(), attrs)
    }

    /// Discrete Fourier transform over the last `length.len()` dimensions; `kind` is FFT, IFFT, RFFT or IRFFT.
    pub fn fft(self, kind: &str, length: &[i64]) -> V<'b> {
        let mut dims = self.dims();
        let dtype = match kind {
            "RFFT" => self.dtype().complex(),
            "IRFFT" => self.dtype().real(),
            _ => self.dtype(),
        };
        if let (Some(last), Some(&n)) = (dims.last_mut(), length.last()) {
            match kind {
                "RFFT" => *last = n / 2 + 1,
                "IRFFT" => *last = n,
                _ => {}
            }
        }
        let attrs = vec![
            ("fft_type", Attr::Raw(format!("#stablehlo<fft_type {kind}>"))),
            ("fft_length", Attr::Ints(length.to_vec())),
        ];
        self.b.op1("stablehlo.fft", &[self], Type::new(dtype, dims), attrs)
    }
}

impl Builder {
    /// `out_features` × 2 words of state in, fresh state and random bits of `dtype` (unsigned) out: three-fry.
    pub fn threefry<'b>(&'b self, state: V<'b>, dtype: tpu_base::DType, dims: &[i64]) -> (V<'b>, V<'b>) {
        let r = self.op(
            "stablehlo.rng_bit_generator",
            &[state],
            vec![state.ty(), Type::new(dtype, dims)],
            vec![("rng_algorithm", Attr::Raw("#stablehlo<rng_algorithm THREE_FRY>".into()))],
            vec![],
        );
        (r[0], r[1])
    }
}
