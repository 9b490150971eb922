//! Convolution and its gradients, one to three spatial dimensions. All are one StableHLO convolution each, but for the few that
//! are faster as something else: a transposed convolution is the input gradient of a convolution, and each gradient of one is a
//! form of the other.

use super::conv_depthwise as depthwise;
use super::conv_taps::by_taps;
use super::matmul::matmul;
use crate::cx::Cx;
use crate::def::{OpDef, maybe, one};
use tpu_base::DType;
use tpu_hlo::{Conv, V, Window};

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, \
         bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
        forward,
    )
    .eg(&[
        "f32[2,4,7,8] f32[6,4,3,3] f32[6] (1,1) (0,0) (1,1) False (0,0) 1",
        "f32[2,4,9,8] f32[6,2,3,2] - (2,1) (1,1) (2,2) False (0,0) 2",
        "f32[2,4,9] f32[4,1,3] f32[4] (2) (1) (1) False (0) 4",
        "bf16[2,3,7,6] bf16[6,1,3,2] - (1,2) (1,0) (2,1) False (0,0) 3",
        "f32[1,2,5,6,7] f32[3,2,2,3,2] f32[3] (1,2,1) (1,0,1) (1,1,2) False (0,0,0) 1",
        "bf16[2,4,7,8] bf16[6,4,3,3] bf16[6] (1,1) (1,1) (1,1) False (0,0) 1",
        "f64[2,4,7,8] f64[6,4,3,3] - (1,1) (1,1) (1,1) False (0,0) 1",
        "f32[2,4,5,6] f32[4,6,3,3] f32[6] (2,2) (1,1) (1,1) True (1,0) 1",
        "f32[2,4,5,6] f32[4,3,3,2] - (2,1) (1,0) (2,1) True (1,0) 2",
        "f32[2,4,5] f32[4,3,3] f32[3] (3) (0) (1) True (2) 1",
        "f32[2,3,5,4] f32[3,2,3,2] - (2,1) (1,0) (1,2) True (1,0) 3",
        "f32[1,4,3,4,3] f32[4,2,2,2,2] - (2,2,2) (0,0,0) (1,1,1) True (0,1,0) 1",
        "i64[2,4,7,5]%9 i64[6,2,3,2]%9 i64[6]%9 (2,1) (1,0) (1,2) False (0,0) 2",
        "i64[2,4,5]%9 i64[4,3,3]%9 - (3) (0) (1) True (2) 2",
        "f32[0,4,7,8] f32[6,4,3,3] f32[6] (1,1) (0,0) (1,1) False (0,0) 1",
        "f32[2,4,7,8] f32[6,4,1,1] f32[6] (1,1) (0,0) (1,1) False (0,0) 1",
        "bf16[2,4,7] bf16[6,4,1] bf16[6] (1) (0) (1) False (0) 1",
        "f32[0,4,7] f32[6,4,1] - (1) (0) (1) False (0) 1",
        "f32[2,4,7,8] f32[6,4,1,1] - (1,1) (1,0) (1,1) False (0,0) 1",
        "f64[2,4,7,8] f64[4,6,1,1] f64[6] (1,1) (0,0) (1,1) True (0,0) 1",
    ]),
    one(
        "_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, \
         bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, \
         bool allow_tf32) -> Tensor",
        forward,
    )
    .eg(&["f32[2,4,7,8] f32[6,4,3,3] f32[6] (1,1) (0,0) (1,1) False (0,0) 1 False False False False"]),
    maybe(
        "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, \
         SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) \
         -> (Tensor, Tensor, Tensor)",
        |cx| {
            let g = Geometry::of(cx);
            let (grad, x, w) = (cx.t("grad_output"), cx.t("input"), cx.t("weight"));
            let mask = cx.ints("output_mask");
            let wanted = |k: usize| mask.get(k).is_some_and(|&m| m != 0);
            let spatial = &x.dims()[2..];
            let kernel = &w.dims()[2..];
            let dx = wanted(0).then(|| {
                if g.transposed {
                    // the high padding is such that output_padding's rows are read exactly as far as the input needs
                    g.conv(cx, grad, w.conj(), Some(spatial))
                } else {
                    g.input_grad(cx, grad, w.conj(), spatial)
                }
            });
            let dw = wanted(1).then(|| {
                let (image, out) = if g.transposed { (grad, x.conj()) } else { (x.conj(), grad) };
                g.weight_grad(cx, image, out, kernel)
            });
            let db = wanted(2).then(|| {
                let over: Vec<usize> = (0..grad.rank()).filter(|&d| d != 1).collect();
                grad.convert(grad.dtype().opmath()).sum(&over)
            });
            vec![dx, dw, db]
        },
    )
    .eg(&[
        "f32[2,6,5,6] f32[2,4,7,8] f32[6,4,3,3] (6) (1,1) (0,0) (1,1) False (0,0) 1 (True,True,True)",
        "f32[2,6,4,8] f32[2,4,9,8] f32[6,2,3,2] - (2,1) (1,1) (2,2) False (0,0) 2 (True,True,False)",
        "f32[2,4,5] f32[2,4,9] f32[4,1,3] (4) (2) (1) (1) False (0) 4 (True,True,True)",
        "f32[2,4,4] f32[2,4,10] f32[4,1,3] (4) (2) (0) (1) False (0) 4 (True,True,True)",
        "f32[2,6,5,6] f32[2,4,7,8] f32[6,4,3,3] (6) (1,1) (0,0) (1,1) False (0,0) 1 (False,True,False)",
        "f32[1,3,6,2,7] f32[1,2,5,6,7] f32[3,2,2,3,2] (3) (1,2,1) (1,0,1) (1,1,2) False (0,0,0) 1 (True,True,True)",
        "f32[2,6,7,8] f32[2,4,7,8] f32[6,4,1,1] (6) (1,1) (0,0) (1,1) False (0,0) 1 (True,True,True)",
        "bf16[2,6,7] bf16[2,4,7] bf16[6,4,1] - (1) (0) (1) False (0) 1 (True,True,False)",
        "f32[2,6,1,1] f32[2,4,1,1] f32[6,4,1,1] - (1,1) (0,0) (1,1) False (0,0) 1 (True,True,False)",
        "f32[2,6,7,8] f32[2,4,7,8] f32[4,6,1,1] - (1,1) (0,0) (1,1) True (0,0) 1 (True,True,False)",
        "bf16[2,1,2,2] bf16[2,1,3,3] bf16[1,1,2,2] (1) (1,1) (0,0) (1,1) False (0,0) 1 (True,True,True)",
        "f32[2,6,3,5] f32[2,3,8,6] f32[6,1,3,2] - (2,1) (1,0) (2,1) False (0,0) 3 (True,True,False)",
        "f32[2,3,9,9] f32[2,3,5,4] f32[3,1,3,2] - (2,2) (1,0) (1,2) True (0,0) 3 (True,True,False)",
        "f32[2,6,10,11] f32[2,4,5,6] f32[4,6,3,3] (6) (2,2) (1,1) (1,1) True (1,0) 1 (True,True,True)",
        "f32[2,6,12,7] f32[2,4,5,6] f32[4,3,3,2] - (2,1) (1,0) (2,1) True (1,0) 2 (True,True,False)",
        "f32[2,3,17] f32[2,4,5] f32[4,3,3] (3) (3) (0) (1) True (2) 1 (True,True,True)",
        "f64[2,6,5,6] f64[2,4,7,8] f64[6,4,3,3] (6) (1,1) (0,0) (1,1) False (0,0) 1 (True,True,True)",
    ]),
];

fn forward<'b>(cx: &Cx<'b>) -> V<'b> {
    let g = Geometry::of(cx);
    let (x, w) = (cx.t("input"), cx.t("weight"));
    let y = if g.transposed { g.input_grad(cx, x, w, &cx.out(0).dims[2..]) } else { g.conv(cx, x, w, None) };
    match cx.opt_as("bias", y.dtype()) {
        Some(b) => {
            let mut d = vec![1; y.rank()];
            d[1] = b.numel();
            y + b.reshape(&d)
        }
        None => y,
    }
}

struct Geometry {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    transposed: bool,
    groups: i64,
}

impl Geometry {
    fn of(cx: &Cx<'_>) -> Geometry {
        let n = cx.t("input").rank() - 2;
        Geometry {
            stride: cx.ints_n("stride", n),
            padding: cx.ints_n("padding", n),
            dilation: cx.ints_n("dilation", n),
            transposed: cx.flag("transposed"),
            groups: cx.int("groups"),
        }
    }

    fn rank(&self) -> usize {
        self.stride.len()
    }

    /// `x` (N, C, …) with `w` (O, C/groups, …). With `out` the high padding is what gives exactly that many positions.
    fn conv<'b>(&self, cx: &Cx<'b>, x: V<'b>, w: V<'b>, out: Option<&[i64]>) -> V<'b> {
        let (xd, wd) = (x.dims(), w.dims());
        let pad = (0..self.rank())
            .map(|i| {
                let low = self.padding[i];
                let high = match out {
                    Some(o) => (o[i] - 1) * self.stride[i] + self.dilation[i] * (wd[i + 2] - 1) + 1 - xd[i + 2] - low,
                    None => low,
                };
                (low, high)
            })
            .collect();
        let window =
            Window { stride: self.stride.clone(), pad, dilation: self.dilation.clone(), ..Window::unit(self.rank()) };
        self.emit(cx, x, w, window, self.groups, 1, None)
    }

    /// What a convolution with `w` (O, C/groups, …) and output gradient `g` (N, O, …) gives back to its input of size `spatial`.
    fn input_grad<'b>(&self, cx: &Cx<'b>, g: V<'b>, w: V<'b>, spatial: &[i64]) -> V<'b> {
        let (gd, wd) = (g.dims(), w.dims());
        let pad = (0..self.rank())
            .map(|i| {
                let low = self.dilation[i] * (wd[i + 2] - 1) - self.padding[i];
                (low, spatial[i] - (gd[i + 2] - 1) * self.stride[i] - 1 + self.padding[i])
            })
            .collect();
        let window = Window {
            pad,
            dilation: self.dilation.clone(),
            base_dilation: self.stride.clone(),
            ..Window::unit(self.rank())
        };
        // within each group the weight's two feature dimensions change roles
        let (o, c, k) = (wd[0], wd[1], &wd[2..]);
        let groups = self.groups;
        let split = [&[groups, o / groups.max(1), c], k].concat();
        let joined = [&[o / groups.max(1), groups * c], k].concat();
        let flip: Vec<usize> = (2..wd.len()).collect();
        let w = w.reverse(&flip).reshape(&split).swap(0, 1).reshape(&joined);
        let s = digits(self.rank());
        let layout = (format!("bf{s}"), format!("io{s}"), format!("bf{s}"));
        self.emit(cx, g, w, window, groups, 1, Some(layout))
    }

    /// Gradient of a weight with spatial size `kernel`, from the input `x` (N, C, …) and output gradient `g` (N, O, …).
    fn weight_grad<'b>(&self, cx: &Cx<'b>, x: V<'b>, g: V<'b>, kernel: &[i64]) -> V<'b> {
        let (xd, gd) = (x.dims(), g.dims());
        let pad: Vec<(i64, i64)> = (0..self.rank())
            .map(|i| {
                let low = self.padding[i];
                let reach = (gd[i + 2] - 1) * self.stride[i] + 1;
                (low, self.dilation[i] * (kernel[i] - 1) + reach - xd[i + 2] - low)
            })
            .collect();
        if real(x) && depthwise::serves(self.groups, xd[1], kernel) {
            let (stride, dilation) = (self.stride.clone(), self.dilation.clone());
            let window = Window { stride, pad, dilation, ..Window::unit(self.rank()) };
            return depthwise::weight_grad(x, g, &window, kernel, x.dtype().opmath());
        }
        let window =
            Window { stride: self.dilation.clone(), pad, dilation: self.stride.clone(), ..Window::unit(self.rank()) };
        let s = digits(self.rank());
        let layout = (format!("fb{s}"), format!("io{s}"), format!("fb{s}"));
        self.emit(cx, x, g, window, 1, self.groups, Some(layout))
    }

    #[allow(clippy::too_many_arguments)]
    fn emit<'b>(
        &self,
        cx: &Cx<'b>,
        x: V<'b>,
        w: V<'b>,
        window: Window,
        groups: i64,
        batch_groups: i64,
        layout: Option<(String, String, String)>,
    ) -> V<'b> {
        if batch_groups == 1 && real(x) && depthwise::serves(groups, x.dim(1), &w.dims()[2..]) {
            // one input channel a group: both layouts hold O × taps
            let out = [&[w.numel() / w.dims()[2..].iter().product::<i64>(), 1], &w.dims()[2..]].concat();
            return depthwise::conv(x, w.reshape(&out), &window, x.dtype().opmath());
        }
        if x.dtype() == DType::I64 {
            return by_taps(cx, x, if layout.is_some() { w.swap(0, 1) } else { w }, &window, groups);
        }
        let images_first = layout.as_ref().is_none_or(|l| l.0.starts_with('b'));
        if groups == 1 && images_first && real(x) && pointwise(&window, &w.dims()[2..]) {
            return mixed(cx, x, if layout.is_some() { w.swap(0, 1) } else { w });
        }
        let c = Conv { window, groups, batch_groups, reverse: false, layout, precision: cx.precision() };
        x.convolution(w, &c, x.dtype().opmath())
    }
}

/// Whether each output position sees just the input's own position.
fn pointwise(w: &Window, kernel: &[i64]) -> bool {
    let ones = |v: &[i64]| v.iter().all(|&n| n == 1);
    ones(kernel) && ones(&w.stride) && ones(&w.base_dilation) && w.pad.iter().all(|&p| p == (0, 0))
}

/// `x` (N, C, …) with `w` (O, C, 1…) as a product of matrices for each image, which needs no other order of dimensions.
/// Measured for 8×32×56×56 and 64 channels: half the CPU plugin's time, two fifths of libtpu's estimate for v6e.
fn mixed<'b>(cx: &Cx<'b>, x: V<'b>, w: V<'b>) -> V<'b> {
    let (d, o) = (x.dims(), w.dim(0));
    let x = x.reshape(&[d[0], d[1], d[2..].iter().product()]);
    let w = w.reshape(&[1, o, d[1]]).broadcast_to(&[d[0], o, d[1]]);
    matmul(cx, w, x).reshape(&[&[d[0], o], &d[2..]].concat())
}

/// A product of complex numbers costs a convolution four; the taps gain less than they add.
fn real(x: V<'_>) -> bool {
    !x.dtype().is_complex()
}

/// The spatial letters of a layout.
fn digits(n: usize) -> String {
    (0..n).map(|i| char::from(b'0' + i as u8)).collect()
}
