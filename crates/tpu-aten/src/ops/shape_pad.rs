//! Padding, its gradients, and sliding blocks (im2col).

use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor", |cx| {
        let x = cx.t("self");
        let pad = cx.ints("pad");
        let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
        for (i, p) in pad.chunks(2).enumerate() {
            let d = x.rank() - 1 - i;
            (low[d], high[d]) = (p[0], p[1]);
        }
        x.pad(cx.scalar("value", x.dtype()), &low, &high, &vec![0; x.rank()])
    })
    .eg(&[
        "f32[2,3] (1,2)",
        "f32[2,3] (1,0,0,2) 1.5",
        "f32[4,5] (-1,2,1,-2) value=7",
        "i64[3] (2,2) 9",
        "bool[2] (1,1) True",
        "bf16[0,2] (1,1,1,1)",
        "f32[2] ()",
    ]),
    one("reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor", |cx| padded(cx, mirror)).eg(&[
        "f32[2,3,5] (2,1)",
        "f32[3,5] (0,4)",
        "bf16[2,3,5] (1,1)",
        "i64[3,5] (1,2)",
    ]),
    one("reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor", |cx| padded(cx, mirror))
        .eg(&["f32[2,3,5,4] (2,1,3,0)", "f32[3,5,4] (1,1,1,1)"]),
    one("reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor", |cx| padded(cx, mirror))
        .eg(&["f32[2,3,3,5,4] (2,1,3,0,1,2)", "f32[3,3,5,4] (1,1,1,1,1,1)"]),
    one("replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor", |cx| padded(cx, edge))
        .eg(&["f32[2,3,5] (2,1)", "f32[3,5] (0,7)", "bf16[2,3,5] (1,1)", "f32[2,3,5] (-1,2)"]),
    one("replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor", |cx| padded(cx, edge))
        .eg(&["f32[2,3,5,4] (2,1,3,0)", "f32[3,5,4] (1,1,9,1)", "f32[2,3,4,4] (-4,5,2,-4)"]),
    one("replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor", |cx| padded(cx, edge))
        .eg(&["f32[2,3,3,5,4] (2,1,3,0,1,2)"]),
    one("reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor", |cx| {
        padded_backward(cx, mirror_back)
    })
    .eg(&["f32[2,3,8] f32[2,3,5] (2,1)", "f32[3,9] f32[3,5] (0,4)"]),
    one("reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor", |cx| {
        padded_backward(cx, mirror_back)
    })
    .eg(&["f32[2,3,8,7] f32[2,3,5,4] (2,1,3,0)"]),
    one("reflection_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor", |cx| {
        padded_backward(cx, mirror_back)
    })
    .eg(&["f32[2,3,6,8,7] f32[2,3,3,5,4] (2,1,3,0,1,2)"]),
    one("replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor", |cx| {
        padded_backward(cx, edge_back)
    })
    .eg(&["f32[2,3,8] f32[2,3,5] (2,1)", "f32[3,12] f32[3,5] (0,7)"]),
    one("replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor", |cx| {
        padded_backward(cx, edge_back)
    })
    .eg(&["f32[2,3,8,7] f32[2,3,5,4] (2,1,3,0)", "f64[3,7,6] f64[3,5,4] (1,1,1,1)", "f32[2,3,2,5] f32[2,3,4,4] (-4,5,2,-4)"]),
    one("replication_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor", |cx| {
        padded_backward(cx, edge_back)
    })
    .eg(&["f32[2,3,6,8,7] f32[2,3,3,5,4] (2,1,3,0,1,2)"]),
    one(
        "im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
        |cx| {
            let (x, out, g) = (cx.t("self"), cx.out(0), Blocks::of(cx));
            let lead = x.rank() - 2;
            let size = [x.dim(lead), x.dim(lead + 1)];
            let n = g.counts(size);
            let mut low = vec![0; x.rank()];
            (low[lead], low[lead + 1]) = (g.padding[0], g.padding[1]);
            let x = x.pad(x.lit(0.0), &low, &low, &vec![0; x.rank()]);
            let blocks: Vec<V<'_>> = g
                .offsets()
                .map(|o| {
                    let (mut from, mut to, mut by) = (vec![0; x.rank()], x.dims(), vec![1; x.rank()]);
                    for k in 0..2 {
                        from[lead + k] = o[k];
                        to[lead + k] = o[k] + (n[k] - 1) * g.stride[k] + 1;
                        by[lead + k] = g.stride[k];
                    }
                    x.slice(&from, &to, &by).unsqueeze(lead)
                })
                .collect();
            // (…, C, kernel, rows, columns)
            cx.b.concat(&blocks, lead).reshape(&out.dims)
        },
    )
    .eg(&["f32[2,3,5,6] (2,3) (1,1) (0,0) (1,1)", "f32[3,7,6] (2,2) (2,1) (1,1) (2,1)", "bf16[1,2,4,4] (2,2) (1,1) (0,0) (2,2)"]),
    one(
        "col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) \
         -> Tensor",
        |cx| {
            let (out, g) = (cx.out(0), Blocks::of(cx));
            let x = cx.t_as("self", out.dtype.opmath());
            let lead = out.dims.len() - 2;
            let size = [out.dims[lead], out.dims[lead + 1]];
            let n = g.counts(size);
            let kernel = g.kernel[0] * g.kernel[1];
            let x = x.reshape(&[&out.dims[..lead], &[kernel, n[0], n[1]]].concat());
            let mut sum: Option<V<'_>> = None;
            for (k, o) in g.offsets().enumerate() {
                let part = x.slice_dim(lead, k as i64, k as i64 + 1).squeeze(&[lead]);
                let (mut low, mut high, mut hole) = (vec![0; part.rank()], vec![0; part.rank()], vec![0; part.rank()]);
                for i in 0..2 {
                    low[lead + i] = o[i] - g.padding[i];
                    high[lead + i] = size[i] - low[lead + i] - (n[i] - 1) * g.stride[i] - 1;
                    hole[lead + i] = g.stride[i] - 1;
                }
                let placed = part.pad(part.lit(0.0), &low, &high, &hole);
                sum = Some(sum.map_or(placed, |s| s + placed));
            }
            sum.unwrap_or(x)
        },
    )
    .eg(&["f32[2,18,16] (5,6) (2,3) (1,1) (0,0) (1,1)", "f32[12,28] (7,6) (2,2) (2,1) (1,1) (2,1)"]),
];

/// Pads each of the last dimensions by `f(x, dim, low, high)`; amounts below zero are cut after that.
fn padded<'b>(cx: &Cx<'b>, f: fn(V<'b>, usize, i64, i64) -> V<'b>) -> V<'b> {
    let x = cx.t("self");
    cx.ints("padding").chunks(2).enumerate().fold(x, |x, (i, p)| {
        let d = x.rank() - 1 - i;
        let y = f(x, d, p[0].max(0), p[1].max(0));
        y.slice_dim(d, (-p[0]).max(0), y.dim(d) - (-p[1]).max(0))
    })
}

/// Undoes [`padded`] for a gradient: `f(grad, dim, low, high)` folds the padding back.
fn padded_backward<'b>(cx: &Cx<'b>, f: fn(V<'b>, usize, i64, i64) -> V<'b>) -> V<'b> {
    let g = cx.t_as("grad_output", cx.out_dtype().opmath());
    cx.ints("padding").chunks(2).enumerate().fold(g, |g, (i, p)| {
        let d = g.rank() - 1 - i;
        f(at(g, d, (-p[0]).max(0), (-p[1]).max(0)), d, p[0].max(0), p[1].max(0))
    })
}

/// Zeros around dimension `d`.
fn at<'b>(x: V<'b>, d: usize, before: i64, after: i64) -> V<'b> {
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    (low[d], high[d]) = (before, after);
    if before == 0 && after == 0 { x } else { x.pad(x.lit(0.0), &low, &high, &vec![0; x.rank()]) }
}

/// Reflected without repeating the edge.
fn mirror<'b>(x: V<'b>, d: usize, low: i64, high: i64) -> V<'b> {
    let n = x.dim(d);
    let before = x.slice_dim(d, 1, 1 + low).reverse(&[d]);
    let after = x.slice_dim(d, n - 1 - high, n - 1).reverse(&[d]);
    x.builder().concat(&[before, x, after], d)
}

fn mirror_back<'b>(g: V<'b>, d: usize, low: i64, high: i64) -> V<'b> {
    let n = g.dim(d) - low - high;
    let middle = g.slice_dim(d, low, low + n);
    let before = g.slice_dim(d, 0, low).reverse(&[d]);
    let after = g.slice_dim(d, low + n, low + n + high).reverse(&[d]);
    middle + at(before, d, 1, n - 1 - low) + at(after, d, n - 1 - high, 1)
}

/// The edge repeated.
fn edge<'b>(x: V<'b>, d: usize, low: i64, high: i64) -> V<'b> {
    let n = x.dim(d);
    let repeat = |v: V<'b>, count: i64| {
        let mut dims = v.dims();
        dims[d] = count;
        v.broadcast_to(&dims)
    };
    let (first, last) = (x.slice_dim(d, 0, 1), x.slice_dim(d, n - 1, n));
    x.builder().concat(&[repeat(first, low), x, repeat(last, high)], d)
}

fn edge_back<'b>(g: V<'b>, d: usize, low: i64, high: i64) -> V<'b> {
    let n = g.dim(d) - low - high;
    let middle = g.slice_dim(d, low, low + n);
    let before = g.slice_dim(d, 0, low).sum(&[d]).unsqueeze(d);
    let after = g.slice_dim(d, low + n, low + n + high).sum(&[d]).unsqueeze(d);
    middle + at(before, d, 0, n - 1) + at(after, d, n - 1, 0)
}

/// The geometry of sliding blocks over two dimensions.
struct Blocks {
    kernel: Vec<i64>,
    dilation: Vec<i64>,
    padding: Vec<i64>,
    stride: Vec<i64>,
}

impl Blocks {
    fn of(cx: &Cx<'_>) -> Blocks {
        let two = |name| cx.ints_n(name, 2);
        Blocks { kernel: two("kernel_size"), dilation: two("dilation"), padding: two("padding"), stride: two("stride") }
    }

    /// Blocks along each dimension of an image of `size`.
    fn counts(&self, size: [i64; 2]) -> [i64; 2] {
        [0, 1]
            .map(|i| (size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) / self.stride[i] + 1)
    }

    /// Where each kernel element reads, from the padded image's corner.
    fn offsets(&self) -> impl Iterator<Item = [i64; 2]> + '_ {
        (0..self.kernel[0])
            .flat_map(move |i| (0..self.kernel[1]).map(move |j| [i * self.dilation[0], j * self.dilation[1]]))
    }
}
