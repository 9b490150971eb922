//! Joining, repeating, mirroring and masking by position.

use crate::cx::Cx;
use crate::def::{OpDef, Refusal, Sig, SigArg, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one("clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor", |cx| cx.t("self"))
        .eg(&["f32[2,3]", "bool[2]", "c64[]", "bf16[0,3]"]),
    one("cat(Tensor[] tensors, int dim=0) -> Tensor", |cx| {
        let out = cx.out(0);
        // an empty 1-d tensor joins anything
        let parts: Vec<V<'_>> = cx
            .ts("tensors")
            .into_iter()
            .filter(|v| v.rank() == out.dims.len() && (v.rank() > 1 || v.numel() > 0))
            .map(|v| v.convert(out.dtype))
            .collect();
        if parts.is_empty() {
            return cx.b.zeros(out.dtype, &out.dims);
        }
        cx.b.concat(&parts, cx.dim("dim", out.dims.len()))
    })
    .eg(&[
        "[f32[2,3] f32[1,3]]",
        "[f32[2,3] f32[2,1] f32[2,0]] -1",
        "[f32[0] f32[2,3]]",
        "[f32[0] f32[0]]",
        "[i64[2] f32[3] bf16[1]]",
        "[bf16[2,3]]",
        "[bool[2] u8[3]]",
        "[c64[2,1] f64[2,2]] 1",
    ]),
    one("stack(Tensor[] tensors, int dim=0) -> Tensor", |cx| {
        let out = cx.out(0);
        let d = cx.dim("dim", out.dims.len());
        let parts: Vec<V<'_>> = cx.ts("tensors").into_iter().map(|v| v.convert(out.dtype).unsqueeze(d)).collect();
        cx.b.concat(&parts, d)
    })
    .eg(&["[f32[2,3] f32[2,3]]", "[f32[2,3] f32[2,3]] -1", "[f32[] f32[]]", "[i64[2] f64[2]] 1", "[f32[0] f32[0]]"]),
    one("block_diag(Tensor[] tensors) -> Tensor", |cx| {
        let out = cx.out(0);
        let zero = cx.b.scalar(out.dtype, 0);
        let mut left = 0;
        let rows: Vec<V<'_>> = cx
            .ts("tensors")
            .into_iter()
            .map(|v| {
                let v = v.convert(out.dtype);
                let v = v.reshape(&[if v.rank() == 2 { v.dim(0) } else { 1 }, if v.rank() == 0 { 1 } else { v.dim(v.rank() - 1) }]);
                let row = v.pad(zero, &[0, left], &[0, out.dims[1] - left - v.dim(1)], &[0, 0]);
                left += v.dim(1);
                row
            })
            .collect();
        if rows.is_empty() { cx.b.zeros(out.dtype, &out.dims) } else { cx.b.concat(&rows, 0) }
    })
    .eg(&["[f32[2,3] f32[3] f32[]]", "[i64[2,2] f32[1,2]]"]),
    one("repeat(Tensor self, SymInt[] repeats) -> Tensor", |cx| {
        let out = cx.out(0);
        let repeats = cx.ints("repeats");
        let x = cx.t("self");
        let lead = repeats.len() - x.rank();
        let mut dims = vec![1; lead];
        dims.extend(x.dims());
        // every dimension gets its count in front of it
        let wide: Vec<i64> = repeats.iter().zip(&dims).flat_map(|(&r, &d)| [r, d]).collect();
        let map: Vec<usize> = (0..dims.len()).map(|i| 2 * i + 1).collect();
        x.reshape(&dims).broadcast_in_dim(&wide, &map).reshape(&out.dims)
    })
    .eg(&["f32[2,3] (2,2)", "f32[3] (4,1,2)", "f32[] (3)", "f32[2] (0)", "bool[2,1] (1,1)", "f32[] ()"]),
    one("flip(Tensor self, int[] dims) -> Tensor", |cx| {
        let x = cx.t("self");
        let dims = cx.ints("dims");
        let r = x.rank() as i64;
        let dims: Vec<usize> = dims.iter().map(|&d| (if d < 0 { d + r } else { d }) as usize).collect();
        if r == 0 { x } else { x.reverse(&dims) }
    })
    .eg(&["f32[2,3] (0)", "f32[2,3] (-1,0)", "i64[3] ()", "f32[0,2] (1)", "bool[3] (0)"]),
    one("roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor", |cx| {
        let x = cx.t("self");
        let (shifts, dims) = (cx.ints("shifts"), cx.ints("dims"));
        if x.numel() == 0 {
            return x;
        }
        if dims.is_empty() {
            return roll(x.reshape(&[x.numel()]), shifts[0], 0).reshape(&x.dims());
        }
        let r = x.rank() as i64;
        shifts.iter().zip(&dims).fold(x, |x, (&s, &d)| roll(x, s, (if d < 0 { d + r } else { d }) as usize))
    })
    .eg(&["f32[2,3] (1)", "f32[2,3] (1) (1)", "f32[2,5] (-1,7) (0,-1)", "i64[4] (4) (0)", "f32[0] (1) (0)", "f32[] (3)"]),
    one("tril(Tensor self, SymInt diagonal=0) -> Tensor", |cx| {
        let x = cx.t("self");
        diagonal_offset(x, cx.int("diagonal")).le(0i64).select(x, x.zeros_like())
    })
    .eg(&["f32[3,4]", "f32[2,4,3] 1", "bool[3,3] -1", "bf16[3,3]", "f32[0,3]", "i64[2,2] 5", "c64[2,2]"]),
    one("triu(Tensor self, SymInt diagonal=0) -> Tensor", |cx| {
        let x = cx.t("self");
        diagonal_offset(x, cx.int("diagonal")).ge(0i64).select(x, x.zeros_like())
    })
    .eg(&["f32[3,4]", "f32[2,4,3] 1", "bool[3,3] -1", "bf16[3,3]", "f32[0,3]"]),
    one(
        "tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, \
         bool? pin_memory=None) -> Tensor",
        |cx| triangle_indices(cx, |r, c, offset| c - r <= offset),
    )
    .refuse(many_indices)
    .eg(&["3 4", "4 3 1", "3 3 -1", "2 2 0 dtype=i32", "0 3"]),
    one(
        "triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, \
         bool? pin_memory=None) -> Tensor",
        |cx| triangle_indices(cx, |r, c, offset| c - r >= offset),
    )
    .refuse(many_indices)
    .eg(&["3 4", "4 3 1", "3 3 -1"]),
    one("diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor", |cx| {
        let x = cx.t("self");
        let (r, offset) = (x.rank(), cx.int("offset"));
        let (d1, d2) = (cx.dim("dim1", r + 1), cx.dim("dim2", r + 1));
        let n = x.dim(r - 1);
        let mut square = x.dims();
        square.push(n);
        let wide = x.broadcast_in_dim(&square, &(0..r).collect::<Vec<_>>());
        let kept = diagonal_offset(wide, 0).eq(0i64).select(wide, wide.zeros_like());
        let (mut low, mut high) = (vec![0; r + 1], vec![0; r + 1]);
        (low[r], high[r - 1]) = (offset.max(0), offset.max(0));
        (low[r - 1], high[r]) = ((-offset).max(0), (-offset).max(0));
        let m = kept.pad(kept.lit(0.0), &low, &high, &vec![0; r + 1]);
        // rows to dim1, columns to dim2
        let mut perm = vec![0; r + 1];
        (perm[d1], perm[d2]) = (r - 1, r);
        for (batch, i) in (0..=r).filter(|&i| i != d1 && i != d2).enumerate() {
            perm[i] = batch;
        }
        m.transpose(&perm)
    })
    .eg(&["f32[3]", "f32[2,3] 1", "f32[2,3] -2 0 2", "i64[2,3] 0 2 0", "f32[2,0]", "bool[3]"]),
    one("pixel_shuffle(Tensor self, int upscale_factor) -> Tensor", |cx| {
        let (x, r, out) = (cx.t("self"), cx.int("upscale_factor"), cx.out(0));
        let n = x.rank() - 3;
        let d = x.dims();
        let lead = &d[..n];
        let split = x.reshape(&[lead, &[d[n] / (r * r), r, r, d[n + 1], d[n + 2]]].concat());
        let perm: Vec<usize> = (0..n).chain([0, 3, 1, 4, 2].map(|i| n + i)).collect();
        split.transpose(&perm).reshape(&out.dims)
    })
    .eg(&["f32[2,8,3,4] 2", "f32[9,2,2] 3", "bf16[0,4,2,2] 2"]),
    one("pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor", |cx| {
        let (x, r, out) = (cx.t("self"), cx.int("downscale_factor"), cx.out(0));
        let n = x.rank() - 3;
        let d = x.dims();
        let split = x.reshape(&[&d[..n], &[d[n], d[n + 1] / r, r, d[n + 2] / r, r]].concat());
        let perm: Vec<usize> = (0..n).chain([0, 2, 4, 1, 3].map(|i| n + i)).collect();
        split.transpose(&perm).reshape(&out.dims)
    })
    .eg(&["f32[2,3,4,6] 2", "f32[1,6,3] 3"]),
    one("channel_shuffle(Tensor self, SymInt groups) -> Tensor", |cx| {
        let (x, g) = (cx.t("self"), cx.int("groups"));
        let d = x.dims();
        x.reshape(&[&[d[0], g, d[1] / g], &d[2..]].concat()).swap(1, 2).reshape(&d)
    })
    .eg(&["f32[2,6,3,4] 3", "f32[1,4,2] 2"]),
    one("narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor", |cx| {
        let x = cx.t("self");
        let d = cx.dim("dim", x.rank());
        let start = cx.int("start");
        let start = if start < 0 { start + x.dim(d) } else { start };
        x.slice_dim(d, start, start + cx.int("length"))
    })
    .eg(&["f32[4,5] 1 2 2", "f32[4,5] -2 -3 2", "i64[3] 0 1 0"]),
    one("linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor", |cx| {
        let d = cx.out_dtype();
        let (a, b) = cx.t_as("self", d).broadcast_with(cx.t_as("other", d));
        let dim = cx.dim("dim", a.rank());
        let turn = |v, by| roll(v, by, dim);
        turn(a, -1) * turn(b, -2) - turn(a, -2) * turn(b, -1)
    })
    .eg(&["f32[2,3] f32[2,3]", "f32[3,4] f32[3,1] dim=0", "i64[3] i64[3]", "c64[3] c64[3]"]),
];

/// PyTorch's `roll` of one dimension.
fn roll<'b>(x: V<'b>, shift: i64, dim: usize) -> V<'b> {
    if x.rank() == 0 {
        return x;
    }
    let n = x.dim(dim);
    let cut = if n == 0 { 0 } else { (-shift).rem_euclid(n) };
    if cut == 0 {
        return x;
    }
    x.builder().concat(&[x.slice_dim(dim, cut, n), x.slice_dim(dim, 0, cut)], dim)
}

/// Column minus row minus `offset` for every element of the last two dimensions (int32).
fn diagonal_offset<'b>(x: V<'b>, offset: i64) -> V<'b> {
    let d = x.dims();
    let plane = &d[d.len() - 2..];
    let b = x.builder();
    (b.iota(DType::I32, plane, 1) - b.iota(DType::I32, plane, 0) - offset).broadcast_to(&d)
}

/// More than this is better computed than written into the program.
fn many_indices(s: &Sig<'_>) -> Option<Refusal> {
    match (s.arg("row"), s.arg("col")) {
        (SigArg::Int(r), SigArg::Int(c)) if r.saturating_mul(*c) > 1 << 18 => Some("too many positions for a constant"),
        _ => None,
    }
}

fn triangle_indices<'b>(cx: &Cx<'b>, keep: fn(i64, i64, i64) -> bool) -> V<'b> {
    let (rows, cols, offset) = (cx.int("row"), cx.int("col"), cx.int("offset"));
    let pairs: Vec<(i64, i64)> =
        (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).filter(|&(r, c)| keep(r, c, offset)).collect();
    let values: Vec<i64> = pairs.iter().map(|p| p.0).chain(pairs.iter().map(|p| p.1)).collect();
    cx.b.table(cx.out_dtype(), &[2, pairs.len() as i64], &values)
}
