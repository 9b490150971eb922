//! Triangular systems and the Cholesky factorization, which StableHLO has as operations.

use crate::def::{OpDef, many, one};
use tpu_base::DType;
use tpu_hlo::V;

pub(crate) static DEFS: &[OpDef] = &[
    one(
        "linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
        |cx| {
            let (a, b) = batched(cx.t("self"), cx.t("B"));
            if b.numel() == 0 {
                return b;
            }
            a.triangular_solve(b, cx.flag("left"), !cx.flag("upper"), cx.flag("unitriangular"), false)
        },
    )
    .eg(&[
        "f32[3,3]+ f32[3,2] upper=True",
        "f32[3,3]+ f32[3,2] upper=False",
        "f64[2,3,3]+ f64[4,3] upper=True left=False",
        "f32[3,3] f32[5,3,2] upper=False unitriangular=True",
        "c64[2,2] c64[2,2] upper=True",
        "f32[0,0] f32[0,2] upper=True",
    ]),
    many(
        "triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> \
         (Tensor solution, Tensor cloned_coefficient)",
        |cx| {
            let (a, b) = batched(cx.t("A"), cx.t("self"));
            // the transpose of an upper matrix is a lower one
            let flip = cx.flag("transpose");
            let used = if flip { a.swap(a.rank() - 2, a.rank() - 1) } else { a };
            let x = if b.numel() == 0 {
                b
            } else {
                used.triangular_solve(b, true, cx.flag("upper") == flip, cx.flag("unitriangular"), false)
            };
            vec![x, a]
        },
    )
    .eg(&["f32[3,2] f32[3,3]+", "f32[3,2] f32[3,3]+ True True", "f64[2,3,2] f64[3,3]+ False"]),
    many("linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)", |cx| {
        let x = cx.t("self");
        let r = x.rank();
        let info = cx.out(1);
        if x.numel() == 0 {
            return vec![x, cx.b.zeros(info.dtype, &info.dims)];
        }
        // PyTorch reads one triangle only
        let upper = cx.flag("upper");
        let source = if upper { x.swap(r - 2, r - 1).conj() } else { x };
        let d = x.dims();
        let (rows, cols) = (cx.b.iota(DType::I32, &d, r - 2), cx.b.iota(DType::I32, &d, r - 1));
        let factor = source.cholesky(true);
        let l = rows.ge(cols).select(factor, factor.zeros_like());
        // where the factorization breaks down NaNs begin: the first bad pivot, from 1
        let bad = rows.eq(cols) & l.real().is_nan();
        let n = d[r - 1];
        let first = bad.select(rows + 1i64, rows.full_like(n + 1)).min_over(&[r - 2, r - 1]);
        let info = first.gt(n).select(first.zeros_like(), first);
        vec![if upper { l.conj().swap(r - 2, r - 1) } else { l }, info]
    })
    .eg(&["f32[1,1]+", "f64[2,1,1]+ upper=True", "f32[0,0]", "f32[0,2,2]"]),
];

/// Both at their common batch shape.
fn batched<'b>(a: V<'b>, b: V<'b>) -> (V<'b>, V<'b>) {
    let (da, db) = (a.dims(), b.dims());
    let rank = da.len().max(db.len());
    let size = |d: &[i64], i: usize| if i + d.len() >= rank { d[i + d.len() - rank] } else { 1 };
    let batch: Vec<i64> = (0..rank - 2)
        .map(|i| {
            let (x, y) = (size(&da, i), size(&db, i));
            if x == 1 { y } else { x }
        })
        .collect();
    let whole = |v: V<'b>, d: &[i64]| v.broadcast_to(&[&batch[..], &d[d.len() - 2..]].concat());
    (whole(a, &da), whole(b, &db))
}
