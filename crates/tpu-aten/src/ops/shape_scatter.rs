//! Writing a slice, a diagonal or a window back where it was taken: gradients of views and the `*_scatter` ops.

use crate::cx::Cx;
use crate::def::{OpDef, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor", |cx| {
        let (g, sizes) = (cx.t("grad_output"), cx.ints("input_sizes"));
        let d = cx.dim("dim", sizes.len());
        let i = wrapped(cx.int("index"), sizes[d]);
        padded(g.unsqueeze(d), d, i, sizes[d] - i - 1, 1)
    })
    .eg(&["f32[3] (2,3) 0 1", "f32[2] (2,3) -1 -1", "bf16[] (4) 0 2"]),
    one(
        "slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor",
        |cx| {
            let (g, sizes) = (cx.t("grad_output"), cx.ints("input_sizes"));
            let d = cx.dim("dim", sizes.len());
            let start = clipped(cx.int("start"), sizes[d]);
            place(g, d, sizes[d], start, cx.int("step"))
        },
    )
    .eg(&["f32[2,2] (2,5) 1 1 3 1", "f32[2,2] (2,5) -1 0 9223372036854775807 3", "f32[2,0] (2,5) 1 3 3 1", "f32[1,5] (4,5) 0 -2 -1 1"]),
    one("diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) -> Tensor", |cx| {
        let g = cx.t("grad_output");
        on_diagonal(cx, cx.b.zeros(g.dtype(), &cx.ints("input_sizes")), g)
    })
    .eg(&["f32[3] (3,4) 0 0 1", "f32[2,3] (4,3,2) 0 1 0", "f32[2,2] (2,3,4) -1 1 2", "f32[3] (3,4) 1 0 1"]),
    one("unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor", |cx| {
        let (g, sizes) = (cx.t_as("grad_in", cx.out_dtype().opmath()), cx.ints("input_sizes"));
        if sizes.is_empty() {
            return g.reshape(&[]);
        }
        let (d, size, step) = (cx.dim("dim", sizes.len()), cx.int("size"), cx.int("step"));
        let last = g.rank() - 1;
        let mut sum = cx.b.zeros(g.dtype(), &sizes);
        for k in 0..size {
            sum = sum + place(g.slice_dim(last, k, k + 1).squeeze(&[last]), d, sizes[d], k, step);
        }
        sum
    })
    .eg(&["f32[3,2] (6) 0 2 2", "f32[2,4,3] (2,6) 1 3 1", "f32[2,2,2] (5,2) 0 2 3", "bf16[3,2] (4) 0 2 1"]),
    one("select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor", |cx| {
        let x = cx.t("self");
        let d = cx.dim("dim", x.rank());
        let i = wrapped(cx.int("index"), x.dim(d));
        put(x, cx.t_as("src", x.dtype()).unsqueeze(d), d, i, 1)
    })
    .eg(&["f32[2,3] f32[3] 0 1", "f32[2,3] f64[2] -1 -1", "i64[4] i64[] 0 2", "bool[2,3] bool[3] 0 0"]),
    one(
        "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
        |cx| {
            let x = cx.t("self");
            let d = cx.dim("dim", x.rank());
            let start = clipped(cx.opt_int("start").unwrap_or(0), x.dim(d));
            put(x, cx.t_as("src", x.dtype()), d, start, cx.int("step"))
        },
    )
    .eg(&[
        "f32[2,5] f32[2,2] 1 1 3",
        "f32[5] f32[3] 0 - - 2",
        "f32[5] f32[2] 0 -2",
        "f32[2,5] f32[2,5] 1",
        "bf16[2,5] bf16[2,2] -1 0 9223372036854775807 3",
        "bool[5] bool[3] 0 - - 2",
        "f32[2,5] f32[2,0] 1 3 3",
    ]),
    one("diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor", |cx| {
        let x = cx.t("self");
        on_diagonal(cx, x, cx.t_as("src", x.dtype()))
    })
    .eg(&["f32[3,4] f32[3]", "f32[4,3,2] f32[2,3] 0 1 0", "f32[2,3,4] f32[2,2] -1 1 2", "i64[3,4] i64[3] 1", "bool[2,2] bool[2]"]),
];

fn wrapped(i: i64, n: i64) -> i64 {
    if i < 0 { i + n } else { i }
}

/// A slice's start as PyTorch reads it.
fn clipped(i: i64, n: i64) -> i64 {
    wrapped(i, n).clamp(0, n)
}

fn padded<'b>(x: V<'b>, d: usize, before: i64, after: i64, step: i64) -> V<'b> {
    let (mut low, mut high, mut hole) = (vec![0; x.rank()], vec![0; x.rank()], vec![0; x.rank()]);
    (low[d], high[d], hole[d]) = (before, after, step - 1);
    x.pad(x.lit(0.0), &low, &high, &hole)
}

/// Zeros of `size` along `d` with `x` at `start`, `start + step`, …
fn place<'b>(x: V<'b>, d: usize, size: i64, start: i64, step: i64) -> V<'b> {
    let reach = if x.dim(d) == 0 { 0 } else { (x.dim(d) - 1) * step + 1 };
    padded(x, d, start, size - start - reach, step)
}

/// `x` with `src` at `start`, `start + step`, … of dimension `d`.
fn put<'b>(x: V<'b>, src: V<'b>, d: usize, start: i64, step: i64) -> V<'b> {
    let n = x.dim(d);
    if src.dim(d) == 0 {
        return x;
    }
    if step == 1 {
        // not put together from parts: a buffer that is overwritten stays where it is
        let mut starts = vec![0; x.rank()];
        starts[d] = start;
        return x.update_slice(src, &starts);
    }
    let mark = src.builder().full(DType::Bool, &src.dims(), true);
    place(mark, d, n, start, step).select(place(src, d, n, start, step), x)
}

/// `x` with `src` (its last dimension) on the diagonal that the call names.
fn on_diagonal<'b>(cx: &Cx<'b>, x: V<'b>, src: V<'b>) -> V<'b> {
    let r = x.rank();
    let (d1, d2, offset) = (cx.dim("dim1", r), cx.dim("dim2", r), cx.int("offset"));
    let rest: Vec<usize> = (0..r).filter(|&d| d != d1 && d != d2).collect();
    let dims = x.dims();
    let last = src.rank() - 1;
    let n = src.dim(last);
    if n == 0 {
        return x;
    }
    // spread src over columns: element k stands at column k + max(offset, 0)
    let first = offset.max(0);
    let line = padded(src, last, first, dims[d2] - first - n, 1);
    let mut map = rest.clone();
    map.push(d2);
    // broadcast_in_dim wants source dimensions in any order, so the map alone places them
    let wide = line.broadcast_in_dim(&dims, &map);
    let on = (cx.b.iota(DType::I32, &dims, d2) - cx.b.iota(DType::I32, &dims, d1)).eq(offset);
    on.select(wide, x)
}
