//! Fake quantization: values rounded to a grid of integers and back, beside which of them the grid holds.

use crate::cx::Cx;
use crate::def::{OpDef, Sig, SigArg, many};
use tpu_base::DType;
use tpu_hlo::{Type, V};

pub(crate) static DEFS: &[OpDef] = &[
    many(
        "fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        |cx| {
            let b = cx.b;
            Grid::new(cx, b.scalar(DType::F32, cx.float("scale")), b.scalar(DType::F32, cx.int("zero_point"))).fake()
        },
    )
    .shapes(masked)
    .eg(&["f32[2,3] 0.1 2 -5 9", "f32[19]! 0.25 0 0 255", "bf16[5] 0.1 0 -128 127", "f64[5] 0.1 0 -8 7"]),
    many(
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        |cx| {
            let (y, mask) = Grid::new(cx, first(cx, "scale"), first(cx, "zero_point")).cast();
            let on = first(cx, "fake_quant_enabled").ne(0.0);
            vec![on.select(y, cx.t_as("self", DType::F32)), mask | on.not()]
        },
    )
    .shapes(masked)
    .eg(&["f32[2,3] f32[1]+ i32[1] u8[1]! -5 9", "f32[2,3] f32[1]+ i32[1]%3 u8[1]%1 -5 9"]),
    many(
        "fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        |cx| {
            let (scale, zero) = (channel(cx, "scale"), channel(cx, "zero_point"));
            Grid::new(cx, scale, zero).whole(!cx.t("zero_point").dtype().is_float()).fake()
        },
    )
    .shapes(masked)
    .eg(&["f32[2,3] f32[3]+ i32[3]%4 1 0 15", "f32[2,3] f32[2]+ f32[2] 0 -8 7", "bf16[2,3] f32[3]+ i32[3]%4 1 0 15"]),
    many(
        "_fake_quantize_learnable_per_tensor_affine(Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor=1.) -> Tensor",
        |cx| vec![Grid::learnt(cx, first(cx, "scale"), first(cx, "zero_point")).cast().0],
    )
    .shapes(|sig| Some(vec![tensor(sig, "self")?]))
    .eg(&["f32[2,3] f32[1]+ f32[1] -5 9"]),
    many(
        "_fake_quantize_learnable_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.) -> Tensor",
        |cx| vec![Grid::learnt(cx, channel(cx, "scale"), channel(cx, "zero_point")).cast().0],
    )
    .shapes(|sig| Some(vec![tensor(sig, "self")?]))
    .eg(&["f32[2,3] f32[3]+ f32[3] 1 -5 9"]),
    many(
        "_fake_quantize_learnable_per_tensor_affine_backward(Tensor grad, Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor=1.) -> (Tensor, Tensor, Tensor)",
        |cx| Grid::learnt(cx, first(cx, "scale"), first(cx, "zero_point")).backward(None),
    )
    .shapes(slopes)
    .eg(&["f32[2,3] f32[2,3] f32[1]+ f32[1] -1 2", "f32[40] f32[40] f32[1]+ f32[1] -3 2 0.5"]),
    many(
        "_fake_quantize_learnable_per_channel_affine_backward(Tensor grad, Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.) -> (Tensor, Tensor, Tensor)",
        |cx| {
            let axis = cx.dim("axis", cx.t("self").rank());
            Grid::learnt(cx, channel(cx, "scale"), channel(cx, "zero_point")).backward(Some(axis))
        },
    )
    .shapes(slopes)
    .eg(&["f32[20,3] f32[20,3] f32[3]+ f32[3] 1 -1 2 0.5"]),
    many(
        "_fused_moving_avg_obs_fq_helper(Tensor self, Tensor observer_on, Tensor fake_quant_on, Tensor running_min, Tensor running_max, Tensor scale, Tensor zero_point, float averaging_const, int quant_min, int quant_max, int ch_axis, bool per_row_fake_quant=False, bool symmetric_quant=False) -> (Tensor output, Tensor mask)",
        observed,
    )
    .updates(&["running_min", "running_max", "scale", "zero_point"])
    .eg(&[
        "f32[2,3] u8[1]! u8[1]! f32[1]+ f32[1]+ f32[1]+ i32[1] 0.1 0 255 0",
        "f32[2,3] u8[1]! u8[1]! f32[1]+ f32[1]+ f32[1]+ i32[1] 0.1 -128 127 0 False True",
        "f32[2,3] u8[1]! i64[1]%1 f32[1]+ f32[1]+ f32[1]+ i32[1] 0.1 0 255 0",
        "f32[2,3] i64[1]%1 u8[1]! f32[1]+ f32[1]+ f32[1]+ i32[1] 0.1 0 255 0",
        "f32[2,3] u8[1]! u8[1]! f32[2]+ f32[2]+ f32[2]+ i32[2] 0.1 -128 127 0 True True",
    ]),
];

fn tensor(sig: &Sig<'_>, name: &str) -> Option<Type> {
    if let SigArg::Tensor { dtype, dims, .. } = sig.arg(name) { Some(Type::new(*dtype, dims.clone())) } else { None }
}

/// The result, and which elements the grid holds.
fn masked(sig: &Sig<'_>) -> Option<Vec<Type>> {
    let own = tensor(sig, "self")?;
    Some(vec![own.clone(), Type::new(DType::Bool, own.dims)])
}

fn slopes(sig: &Sig<'_>) -> Option<Vec<Type>> {
    Some(vec![tensor(sig, "self")?, tensor(sig, "scale")?, tensor(sig, "scale")?])
}

/// The only element of `name`, 0-d, float32.
fn first<'b>(cx: &Cx<'b>, name: &str) -> V<'b> {
    cx.t_as(name, DType::F32).reshape(&[])
}

/// `v`, one element a channel, along `axis` of something of this rank.
fn along(v: V<'_>, rank: usize, axis: usize) -> V<'_> {
    let mut dims = vec![1; rank];
    dims[axis] = v.numel();
    v.reshape(&dims)
}

fn channel<'b>(cx: &Cx<'b>, name: &str) -> V<'b> {
    let rank = cx.t("self").rank();
    along(cx.t_as(name, DType::F32), rank, cx.dim("axis", rank))
}

/// Integers `low..=high` stand for `scale · (n − zero)`.
struct Grid<'a, 'b> {
    cx: &'a Cx<'b>,
    scale: V<'b>,
    zero: V<'b>,
    /// `zero` is an integer, which is added after rounding.
    whole: bool,
}

impl<'a, 'b> Grid<'a, 'b> {
    fn new(cx: &'a Cx<'b>, scale: V<'b>, zero: V<'b>) -> Grid<'a, 'b> {
        Grid { cx, scale, zero, whole: true }
    }

    fn whole(self, whole: bool) -> Grid<'a, 'b> {
        Grid { whole, ..self }
    }

    /// A learnt zero is a float that stands for the nearest integer of the grid.
    fn learnt(cx: &'a Cx<'b>, scale: V<'b>, zero: V<'b>) -> Grid<'a, 'b> {
        let grid = Grid::new(cx, scale, zero);
        let zero = grid.clamp(zero.round_even());
        Grid { zero, ..grid }
    }

    fn bounds(&self) -> (f64, f64) {
        (self.cx.int("quant_min") as f64, self.cx.int("quant_max") as f64)
    }

    fn clamp(&self, n: V<'b>) -> V<'b> {
        let (low, high) = self.bounds();
        n.clamp(n.lit(low), n.lit(high))
    }

    /// The integer nearest to each element, within the grid or not.
    fn nearest(&self) -> V<'b> {
        let x = self.cx.t_as("self", DType::F32) * (self.scale.full_like(1.0) / self.scale);
        let n = if self.whole { x.round_even() + self.zero } else { (x + self.zero).round_even() };
        // NaN ends at the low end, outside of the grid
        n.is_nan().select(n.full_like(f64::NEG_INFINITY), n)
    }

    fn holds(&self, n: V<'b>) -> V<'b> {
        let (low, high) = self.bounds();
        n.ge(low) & n.le(high)
    }

    fn cast(&self) -> (V<'b>, V<'b>) {
        let n = self.nearest();
        ((self.clamp(n) - self.zero) * self.scale, self.holds(n))
    }

    fn fake(&self) -> Vec<V<'b>> {
        let (y, mask) = self.cast();
        vec![y, mask]
    }

    /// Gradients of elements, scale and zero (Esser et al., "Learned step size quantization", 2020; Jain et al., 2019).
    fn backward(&self, axis: Option<usize>) -> Vec<V<'b>> {
        let (x, grad) = (self.cx.t_as("self", DType::F32), self.cx.t_as("grad", DType::F32));
        let (n, factor) = (self.nearest(), self.cx.float("grad_factor"));
        let (y, inside) = self.cast();
        let end = self.clamp(n) - self.zero;
        let to_scale = inside.select((y - x) / self.scale, end) * grad * factor;
        let to_zero = inside.select(grad.zeros_like(), grad * self.scale.neg() * factor);
        let over: Vec<usize> = (0..x.rank()).filter(|&d| Some(d) != axis).collect();
        let total = |k: usize, v: V<'b>| v.sum(&over).reshape(&self.cx.out(k).dims);
        vec![inside.select(grad, grad.zeros_like()), total(1, to_scale), total(2, to_zero)]
    }
}

/// Watches the range of what passes, moves scale and zero with it, and fake-quantizes.
fn observed<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let x = cx.t_as("self", DType::F32);
    let axis = cx.flag("per_row_fake_quant").then(|| cx.dim("ch_axis", x.rank()));
    let over: Vec<usize> = (0..x.rank()).filter(|&d| Some(d) != axis).collect();
    let shape = cx.t("running_min").dims();
    let on = |name: &str| first(cx, name).ne(0.0);
    let follow = |name: &str, now: V<'b>| {
        let (old, now) = (cx.t_as(name, DType::F32), now.reshape(&shape));
        let unset = old.abs().eq(f64::INFINITY);
        let moved = unset.select(now, old + (now - old) * cx.float("averaging_const"));
        on("observer_on").select(moved, old)
    };
    let (least, most) = (follow("running_min", x.min_over(&over)), follow("running_max", x.max_over(&over)));
    let (scale, zero) = range_to_grid(cx, least, most);
    let own = |name: &str, v: V<'b>| {
        let old = cx.t(name);
        on("fake_quant_on").select(v.convert(old.dtype()).reshape(&old.dims()), old)
    };
    let (scale, zero) = (own("scale", scale), own("zero_point", zero));
    let lay = |v: V<'b>| {
        let v = v.convert(DType::F32);
        axis.map_or_else(|| v.reshape(&[]), |a| along(v, x.rank(), a))
    };
    let (y, mask) = Grid::new(cx, lay(scale), lay(zero)).cast();
    let fake = on("fake_quant_on");
    vec![fake.select(y, x), mask | fake.not(), least, most, scale, zero]
}

/// Scale and zero of the grid that covers `least..=most` and has zero on it, in float64 as PyTorch counts them.
fn range_to_grid<'b>(cx: &Cx<'b>, least: V<'b>, most: V<'b>) -> (V<'b>, V<'b>) {
    let (low, high) = (cx.int("quant_min"), cx.int("quant_max"));
    let steps = (high - low) as f64;
    let (mut least, mut most) = (least.convert(DType::F64), most.convert(DType::F64));
    let both = least.lt(0.0) & most.gt(0.0);
    let symmetric = cx.flag("symmetric_quant");
    if symmetric {
        let (down, up) = (-((high - low) / 2 + 1) as f64, ((high - low) / 2) as f64);
        let widest = (least / down).abs().max((most / up).abs());
        let single = |v: V<'b>| v.convert(DType::F32).convert(DType::F64);
        least = both.select(single(widest * down), least);
        most = both.select(single(widest * up), most);
    }
    (least, most) = (least.min(0.0), most.max(0.0));
    let scale = (most - least) / steps;
    let single = scale.convert(DType::F32);
    let none = single.eq(0.0) | (single.full_like(1.0) / single).abs().eq(f64::INFINITY);
    let scale = none.select(scale.full_like(0.1), scale);
    // scales too small for float16 are lifted, and the range with them
    let smallest = 6.1e-5f32 as f64;
    let small = scale.lt(smallest);
    let grown = |v: V<'b>, other: V<'b>, whole: f64| {
        let alone = other.eq(0.0).select(v.full_like(whole), v * (scale.full_like(smallest) / scale));
        small.select(v.eq(0.0).select(v, alone), v)
    };
    let (least, most) = (grown(least, most, -smallest * steps), grown(most, least, smallest * steps));
    let scale = small.select(scale.full_like(smallest), scale);
    let (low, high) = (low as f64, high as f64);
    let (from_low, from_high) = ((least / scale).neg() + low, (most / scale).neg() + high);
    let (low_error, high_error) = ((least / scale).abs().neg() + low.abs(), (most / scale).abs().neg() + high.abs());
    let mut zero = low_error.lt(high_error).select(from_low, from_high);
    if symmetric {
        zero = both.select(zero.full_like((low + high) / 2.0), zero);
    }
    (scale, zero.clamp(zero.lit(low), zero.lit(high)).round_even())
}
