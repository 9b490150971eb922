//! Reductions, windows, sorting and control flow: the operations with regions.

use crate::build::{Builder, V};
use crate::ir::{Attr, Type};
use tpu_base::DType;

/// A sliding window over every dimension.
#[derive(Clone, Debug)]
pub struct Window {
    /// Window sizes.
    pub size: Vec<i64>,
    /// Steps.
    pub stride: Vec<i64>,
    /// (low, high) padding.
    pub pad: Vec<(i64, i64)>,
    /// Spacing of the elements inside the window.
    pub dilation: Vec<i64>,
    /// Spacing of the operand's elements (holes are never read).
    pub base_dilation: Vec<i64>,
}

impl Window {
    /// The window that touches each element alone.
    pub fn unit(rank: usize) -> Window {
        Window {
            size: vec![1; rank],
            stride: vec![1; rank],
            pad: vec![(0, 0); rank],
            dilation: vec![1; rank],
            base_dilation: vec![1; rank],
        }
    }

    /// Sizes of the result over an operand of `dims`.
    pub fn output(&self, dims: &[i64]) -> Vec<i64> {
        (0..dims.len())
            .map(|i| {
                let base = if dims[i] == 0 { 0 } else { (dims[i] - 1) * self.base_dilation[i] + 1 };
                let padded = base + self.pad[i].0 + self.pad[i].1;
                let window = (self.size[i] - 1) * self.dilation[i] + 1;
                if padded < window { 0 } else { (padded - window) / self.stride[i] + 1 }
            })
            .collect()
    }

    pub(crate) fn padding(&self) -> Attr {
        Attr::Matrix(self.pad.len(), 2, self.pad.iter().flat_map(|&(l, h)| [l, h]).collect())
    }
}

impl Builder {
    /// Reduces several values of one shape together over `dims`. `f(accumulators, elements)` gives the new accumulators;
    /// all of them 0-d. The order is the compiler's: `f` must be associative.
    pub fn reduce_many<'b>(
        &'b self,
        values: &[V<'b>],
        inits: &[V<'b>],
        dims: &[usize],
        f: impl FnOnce(&[V<'b>], &[V<'b>]) -> Vec<V<'b>>,
    ) -> Vec<V<'b>> {
        let n = values.len();
        let elems: Vec<Type> = values.iter().map(|v| Type::scalar(v.dtype())).collect();
        let args: Vec<Type> = elems.iter().chain(&elems).cloned().collect();
        let body = self.region(&args, |a| f(&a[..n], &a[n..]));
        let results = values
            .iter()
            .map(|v| {
                let kept =
                    v.dims().iter().enumerate().filter(|(i, _)| !dims.contains(i)).map(|(_, &d)| d).collect::<Vec<_>>();
                Type::new(v.dtype(), kept)
            })
            .collect();
        let operands: Vec<V<'b>> = values.iter().chain(inits).copied().collect();
        let attr = Attr::Ints(dims.iter().map(|&d| d as i64).collect());
        self.op("stablehlo.reduce", &operands, results, vec![("dimensions", attr)], vec![body])
    }

    /// Windowed reduction of several values; `f` as in [`Builder::reduce_many`].
    pub fn reduce_window_many<'b>(
        &'b self,
        values: &[V<'b>],
        inits: &[V<'b>],
        w: &Window,
        f: impl FnOnce(&[V<'b>], &[V<'b>]) -> Vec<V<'b>>,
    ) -> Vec<V<'b>> {
        let n = values.len();
        let elems: Vec<Type> = values.iter().map(|v| Type::scalar(v.dtype())).collect();
        let args: Vec<Type> = elems.iter().chain(&elems).cloned().collect();
        let body = self.region(&args, |a| f(&a[..n], &a[n..]));
        let results = values.iter().map(|v| Type::new(v.dtype(), w.output(&v.dims()))).collect();
        let operands: Vec<V<'b>> = values.iter().chain(inits).copied().collect();
        let attrs = vec![
            ("window_dimensions", Attr::Ints(w.size.clone())),
            ("window_strides", Attr::Ints(w.stride.clone())),
            ("base_dilations", Attr::Ints(w.base_dilation.clone())),
            ("window_dilations", Attr::Ints(w.dilation.clone())),
            ("padding", w.padding()),
        ];
        self.op("stablehlo.reduce_window", &operands, results, attrs, vec![body])
    }

    /// Sorts several values of one shape together along `dim`; `less(a, b)` compares one element of each (a\[k\] and b\[k\]
    /// belong to value k) and gives a 0-d bool.
    pub fn sort<'b>(
        &'b self,
        values: &[V<'b>],
        dim: usize,
        stable: bool,
        less: impl FnOnce(&[V<'b>], &[V<'b>]) -> V<'b>,
    ) -> Vec<V<'b>> {
        let args: Vec<Type> = values.iter().flat_map(|v| [Type::scalar(v.dtype()), Type::scalar(v.dtype())]).collect();
        let body = self.region(&args, |x| {
            let a: Vec<V<'b>> = x.iter().step_by(2).copied().collect();
            let b: Vec<V<'b>> = x.iter().skip(1).step_by(2).copied().collect();
            vec![less(&a, &b)]
        });
        let results = values.iter().map(|v| v.ty()).collect();
        let attrs = vec![("dimension", Attr::Int(dim as i64)), ("is_stable", Attr::Bool(stable))];
        self.op("stablehlo.sort", values, results, attrs, vec![body])
    }

    /// While `cond(state)` (0-d bool) replaces the state by `body(state)`.
    pub fn while_loop<'b>(
        &'b self,
        init: &[V<'b>],
        cond: impl FnOnce(&[V<'b>]) -> V<'b>,
        body: impl FnOnce(&[V<'b>]) -> Vec<V<'b>>,
    ) -> Vec<V<'b>> {
        let types: Vec<Type> = init.iter().map(|v| v.ty()).collect();
        let c = self.region(&types, |s| vec![cond(s)]);
        let b = self.region(&types, body);
        self.op("stablehlo.while", init, types, vec![], vec![c, b])
    }

    /// `pred` (0-d bool) decides which branch runs; both give the same types.
    pub fn if_else<'b>(
        &'b self,
        pred: V<'b>,
        types: Vec<Type>,
        yes: impl FnOnce() -> Vec<V<'b>>,
        no: impl FnOnce() -> Vec<V<'b>>,
    ) -> Vec<V<'b>> {
        let y = self.region(&[], |_| yes());
        let n = self.region(&[], |_| no());
        self.op("stablehlo.if", &[pred], types, vec![], vec![y, n])
    }
}

impl<'b> V<'b> {
    /// The `k` largest along the last dimension, in descending order of their bits' value, and their positions (int32): CHLO
    /// `top_k`.
    pub fn top_k(self, k: i64) -> (V<'b>, V<'b>) {
        let mut dims = self.dims();
        match dims.last_mut() {
            Some(n) if k <= *n => *n = k,
            _ => self.b.fail("chlo.top_k", format!("{k} of {}", self.ty())),
        }
        let results = vec![Type::new(self.dtype(), dims.clone()), Type::new(DType::I32, dims)];
        let r = self.b.op("chlo.top_k", &[self], results, vec![("k", Attr::Int(k))], vec![]);
        (r[0], r[1])
    }

    /// Reduces `dims` away with an associative `f`, starting from `init` (0-d).
    pub fn reduce(self, init: V<'b>, dims: &[usize], f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
        if dims.is_empty() {
            return self;
        }
        self.b.reduce_many(&[self], &[init], dims, |a, x| vec![f(a[0], x[0])])[0]
    }

    /// Sum over `dims`, in this dtype.
    pub fn sum(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.lit(0.0), dims, |a, x| a + x)
    }

    /// Product over `dims`, in this dtype.
    pub fn prod(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.lit(1.0), dims, |a, x| a * x)
    }

    /// Largest over `dims`; NaN wins.
    pub fn max_over(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.lowest(), dims, |a, x| a.max(x))
    }

    /// Smallest over `dims`; NaN wins.
    pub fn min_over(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.highest(), dims, |a, x| a.min(x))
    }

    /// Whether all hold (bool).
    pub fn all(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.lit(true), dims, |a, x| a & x)
    }

    /// Whether any holds (bool).
    pub fn any(self, dims: &[usize]) -> V<'b> {
        self.reduce(self.lit(false), dims, |a, x| a | x)
    }

    /// The identity of `max`: −∞ or the smallest integer, 0-d.
    pub fn lowest(self) -> V<'b> {
        match self.dtype() {
            d if d.is_float() => self.lit(f64::NEG_INFINITY),
            d if d.is_unsigned() => self.lit(0i64),
            d => self.lit(int_min(d)),
        }
    }

    /// The identity of `min`: ∞ or the largest integer, 0-d.
    pub fn highest(self) -> V<'b> {
        match self.dtype() {
            d if d.is_float() => self.lit(f64::INFINITY),
            DType::Bool => self.lit(true),
            d if d.is_unsigned() => self.lit(-1i64),
            d => self.lit(!int_min(d)),
        }
    }

    /// Windowed reduction with an associative `f` from `init` (0-d).
    pub fn reduce_window(self, init: V<'b>, w: &Window, f: impl FnOnce(V<'b>, V<'b>) -> V<'b>) -> V<'b> {
        self.b.reduce_window_many(&[self], &[init], w, |a, x| vec![f(a[0], x[0])])[0]
    }

    /// Scatters `source` (one element a window) back to the element each window selects by `pick(a, b)` (true: keep a),
    /// adding where windows meet. Result has this value's shape.
    pub fn select_and_scatter(
        self,
        source: V<'b>,
        init: V<'b>,
        w: &Window,
        pick: impl FnOnce(V<'b>, V<'b>) -> V<'b>,
    ) -> V<'b> {
        let s = Type::scalar(self.dtype());
        let select = self.b.region(&[s.clone(), s.clone()], |x| vec![pick(x[0], x[1])]);
        let scatter = self.b.region(&[s.clone(), s], |x| vec![x[0] + x[1]]);
        let attrs = vec![
            ("window_dimensions", Attr::Ints(w.size.clone())),
            ("window_strides", Attr::Ints(w.stride.clone())),
            ("padding", w.padding()),
        ];
        self.b.op("stablehlo.select_and_scatter", &[self, source, init], vec![self.ty()], attrs, vec![select, scatter])
            [0]
    }
}

fn int_min(d: DType) -> i64 {
    match d.size() {
        1 => i8::MIN as i64,
        2 => i16::MIN as i64,
        4 => i32::MIN as i64,
        _ => i64::MIN,
    }
}
