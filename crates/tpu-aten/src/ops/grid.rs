//! Sampling an image at the points of a grid: each point reads a few neighbours (*taps*) in every dimension; a tap is a row of
//! all channels, so that a gather moves whole rows. The gradient scatters the same rows.

use crate::cx::Cx;
use crate::def::{OpDef, maybe, one};
use tpu_base::DType;
use tpu_hlo::{ScatterDims, V};

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        |cx| Sampler::new(cx, 2).forward(cx),
    )
    .eg(&[
        "f32[2,3,4,5] f32[2,3,2,2] 0 0 False",
        "f32[2,3,4,5] f32[2,3,7,2] 0 1 True",
        "f32[2,3,4,5] f32[2,3,7,2] 0 2 False",
        "f64[1,2,4,5] f64[1,3,7,2] 1 0 True",
        "f32[1,2,4,5] f32[1,3,7,2] 1 1 False",
        "f64[1,2,4,5] f64[1,3,7,2] 1 2 True",
        "f32[1,2,4,5] f32[1,3,7,2] 2 0 False",
        "f32[1,2,4,5] f32[1,3,7,2] 2 1 True",
        "f64[1,2,4,5] f64[1,3,7,2] 2 2 False",
        "f32[1,2,1,5] f32[1,3,2,2] 0 2 True",
        "f32[0,2,4,5] f32[0,3,2,2] 0 0 True",
        "f32[1,1,4,5] f32[1,1,19,2]! 0 0 False",
    ]),
    one(
        "grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        |cx| Sampler::new(cx, 3).forward(cx),
    )
    .eg(&[
        "f32[2,3,4,5,3] f32[2,3,2,2,3] 0 0 False",
        "f64[1,3,4,5,3] f64[1,3,2,2,3] 0 1 True",
        "f64[1,3,4,5,3] f64[1,3,2,2,3] 1 2 False",
    ]),
    maybe(
        "grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, \
         bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)",
        |cx| Sampler::new(cx, 2).backward(cx),
    )
    .eg(&[
        "f32[2,3,3,2] f32[2,3,4,5] f32[2,3,2,2] 0 0 False (True,True)",
        "f64[2,3,3,7] f64[2,3,4,5] f64[2,3,7,2] 0 1 True (True,True)",
        "f64[2,3,3,7] f64[2,3,4,5] f64[2,3,7,2] 0 2 False (False,True)",
        "f64[1,2,3,7] f64[1,2,4,5] f64[1,3,7,2] 1 2 False (True,True)",
        "f64[1,2,3,7] f64[1,2,4,5] f64[1,3,7,2] 2 0 False (True,True)",
        "f32[1,2,3,7] f32[1,2,4,5] f32[1,3,7,2] 2 2 True (True,True)",
        "f32[0,2,3,2] f32[0,2,4,5] f32[0,3,2,2] 0 0 True (True,True)",
    ]),
    maybe(
        "grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, \
         bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)",
        |cx| Sampler::new(cx, 3).backward(cx),
    )
    .eg(&[
        "f64[2,3,3,2,2] f64[2,3,4,5,3] f64[2,3,2,2,3] 0 0 False (True,True)",
        "f64[1,3,3,2,2] f64[1,3,4,5,3] f64[1,3,2,2,3] 0 2 True (True,True)",
        "f32[1,3,3,2,2] f32[1,3,4,5,3] f32[1,3,2,2,3] 1 0 True (True,True)",
    ]),
];

/// One neighbour in one dimension; every value is batch × points.
#[derive(Clone, Copy)]
struct Tap<'b> {
    /// Position, clamped into the image.
    at: V<'b>,
    /// Whether it lies in the image.
    inside: V<'b>,
    weight: V<'b>,
    /// What the weight changes by per unit of the grid's coordinate; `None`: it does not.
    slope: Option<V<'b>>,
}

struct Sampler<'b> {
    dims: Vec<i64>,
    /// Positions in an image, and points of the grid, of one batch element.
    plane: i64,
    points: i64,
    /// (batch · plane) × channels.
    rows: V<'b>,
    /// The taps of each spatial dimension, first to last.
    taps: Vec<Vec<Tap<'b>>>,
    dtype: DType,
}

/// Keys' cubic convolution (a = −¾) at distance x, and its slope.
fn cubic<'b>(x: V<'b>) -> (V<'b>, V<'b>) {
    const A: f64 = -0.75;
    let s = x.sign();
    let x = x.abs();
    let near = (x * (A + 2.0) - (A + 3.0)) * x * x + 1.0;
    let far = ((x * A - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let near_slope = (x * (3.0 * (A + 2.0)) - 2.0 * (A + 3.0)) * x;
    let far_slope = (x * (3.0 * A) - 10.0 * A) * x + 8.0 * A;
    let close = x.le(1.0);
    (close.select(near, far), close.select(near_slope, far_slope) * s)
}

/// A position folded into the image as `padding` says (0 zeros, 1 border, 2 reflection), and its slope.
fn folded<'b>(x: V<'b>, size: i64, padding: i64, align: bool) -> (V<'b>, V<'b>) {
    let last = (size - 1) as f64;
    let (one, zero) = (x.full_like(1.0), x.zeros_like());
    let clip = |x: V<'b>, slope: V<'b>| {
        let free = x.gt(0.0) & x.lt(last);
        let clipped = x.is_nan().select(zero, x.max(0.0).min(last));
        (clipped, free.select(slope, zero))
    };
    match padding {
        0 => (x, one),
        1 => clip(x, one),
        _ => {
            // mirrors stand at the outer elements or half an element beyond them
            let (low, span) = if align { (0.0, last) } else { (-0.5, size as f64) };
            if span == 0.0 {
                return (zero, zero);
            }
            let from = x - low;
            let far = from.abs();
            let flips = (far / span).floor();
            let extra = far - flips * span;
            let even = (flips * 0.5).floor().eq(flips * 0.5);
            let side = from.lt(0.0).select(one.neg(), one);
            clip(even.select(extra + low, extra.neg() + span + low), even.select(side, side.neg()))
        }
    }
}

impl<'b> Sampler<'b> {
    fn new(cx: &Cx<'b>, n: usize) -> Sampler<'b> {
        let dtype = cx.t("input").dtype().opmath();
        let (x, grid) = (cx.t_as("input", dtype), cx.t_as("grid", dtype));
        let dims = x.dims();
        let (batch, channels, space) = (dims[0], dims[1], &dims[2..]);
        let plane: i64 = space.iter().product();
        let points: i64 = grid.dims()[1..=n].iter().product();
        let rows = x.reshape(&[batch, channels, plane]).swap(1, 2).reshape(&[batch * plane, channels]);
        let grid = grid.reshape(&[batch, points, n as i64]);
        let (padding, align) = (cx.int("padding_mode"), cx.flag("align_corners"));
        let taps = (0..n)
            .map(|d| {
                // the grid's last coordinate is the first dimension
                let k = (n - 1 - d) as i64;
                let at = grid.slice_dim(2, k, k + 1).reshape(&[batch, points]);
                let half = (if align { space[d] - 1 } else { space[d] }) as f64 / 2.0;
                let at = (at + 1.0) * half;
                let at = if align { at } else { at - 0.5 };
                taps(at, half, space[d], cx.int("interpolation_mode"), padding, align)
            })
            .collect();
        Sampler { plane, points, rows, taps, dtype, dims }
    }

    /// Every combination of one tap a dimension.
    fn corners(&self) -> Vec<Vec<Tap<'b>>> {
        let mut all: Vec<Vec<Tap<'b>>> = vec![vec![]];
        for taps in &self.taps {
            all = all.iter().flat_map(|c| taps.iter().map(move |&t| [c.clone(), vec![t]].concat())).collect();
        }
        all
    }

    /// Row number of a corner, and whether all of it is in the image.
    fn place(&self, corner: &[Tap<'b>]) -> (V<'b>, V<'b>) {
        let b = self.rows.builder();
        let base = b.iota(DType::I32, &[self.dims[0], self.points], 0) * self.plane;
        let mut at = corner[0].at;
        let mut inside = corner[0].inside;
        for (d, t) in corner.iter().enumerate().skip(1) {
            at = at * self.dims[d + 2] + t.at;
            inside = inside & t.inside;
        }
        (at + base, inside)
    }

    /// The channels at a corner: batch × points × channels, zero outside.
    fn read(&self, at: V<'b>, inside: V<'b>) -> V<'b> {
        let rows = self.rows.take(at, 0);
        inside.unsqueeze(2).select(rows, rows.zeros_like())
    }

    fn empty(&self) -> bool {
        self.rows.numel() == 0 || self.points == 0
    }

    fn forward(&self, cx: &Cx<'b>) -> V<'b> {
        let out = cx.out(0);
        if self.empty() {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        let each = self.corners().into_iter().map(|corner| {
            let (at, inside) = self.place(&corner);
            self.read(at, inside) * product(&corner, None).unsqueeze(2)
        });
        let sum = each.reduce(|a, b| a + b).unwrap_or(self.rows);
        sum.swap(1, 2).reshape(&out.dims)
    }

    fn backward(&self, cx: &Cx<'b>) -> Vec<Option<V<'b>>> {
        let grid = cx.t("grid");
        if self.empty() {
            let image = cx.b.zeros(self.dtype, &self.dims);
            return vec![cx.wants(0).then_some(image), Some(grid.zeros_like())];
        }
        let (batch, channels, n) = (self.dims[0], self.dims[1], self.taps.len());
        let g = cx.t_as("grad_output", self.dtype).reshape(&[batch, channels, self.points]).swap(1, 2);
        let mut image = self.rows.zeros_like();
        let mut slopes: Vec<Option<V<'b>>> = vec![None; n];
        let add = |sum: Option<V<'b>>, x: V<'b>| Some(sum.map_or(x, |s| s + x));
        for corner in self.corners() {
            let (at, inside) = self.place(&corner);
            if cx.wants(0) {
                let rows = (g * product(&corner, None).unsqueeze(2)).reshape(&[batch * self.points, channels]);
                // positions outside are skipped
                let to = inside.select(at, at.full_like(-1.0)).reshape(&[batch * self.points]);
                let d = ScatterDims {
                    update_window_dims: vec![1],
                    inserted: vec![0],
                    scatter_dims: vec![0],
                    index_vector_dim: 1,
                };
                image = image.scatter(to, rows, &d, false, |a, b| a + b);
            }
            if corner.iter().all(|t| t.slope.is_some()) {
                let match_ = (self.read(at, inside) * g).sum(&[2]);
                for (d, slope) in slopes.iter_mut().enumerate() {
                    *slope = add(*slope, match_ * product(&corner, Some(d)));
                }
            }
        }
        let image = image.reshape(&[batch, self.plane, channels]).swap(1, 2).reshape(&self.dims);
        let columns: Option<Vec<V<'b>>> = slopes.into_iter().rev().map(|s| s.map(|s| s.unsqueeze(2))).collect();
        let grad_grid = match columns {
            Some(c) => cx.b.concat(&c, 2).reshape(&grid.dims()),
            None => grid.zeros_like(),
        };
        vec![cx.wants(0).then_some(image), Some(grad_grid)]
    }
}

/// The product of a corner's weights; of dimension `slope` its slope instead.
fn product<'b>(corner: &[Tap<'b>], slope: Option<usize>) -> V<'b> {
    let factor = |d: usize| match (slope == Some(d), corner[d].slope) {
        (true, Some(s)) => s,
        _ => corner[d].weight,
    };
    (1..corner.len()).fold(factor(0), |p, d| p * factor(d))
}

fn taps<'b>(x: V<'b>, half: f64, size: i64, mode: i64, padding: i64, align: bool) -> Vec<Tap<'b>> {
    let tap = |at: V<'b>, weight: V<'b>, slope: Option<V<'b>>| {
        let inside = at.ge(0.0) & at.le((size - 1) as f64);
        let at = inside.select(at, at.zeros_like()).convert(DType::I32);
        Tap { at, inside, weight, slope }
    };
    let one = x.full_like(1.0);
    if mode == 2 {
        let low = x.floor();
        let t = x - low;
        return (-1..=2)
            .map(|k| {
                let (weight, slope) = cubic(t - k as f64);
                // each neighbour is folded by itself
                tap(folded(low + k as f64, size, padding, align).0, weight, Some(slope * half))
            })
            .collect();
    }
    let (x, slope) = folded(x, size, padding, align);
    if mode == 1 {
        return vec![tap(x.round_even(), one, None)];
    }
    let low = x.floor();
    let (t, slope) = (x - low, slope * half);
    vec![tap(low, one - t, Some(slope.neg())), tap(low + 1.0, t, Some(slope))]
}
