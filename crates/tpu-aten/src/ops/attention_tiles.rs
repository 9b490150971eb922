//! How the scores of attention are cut: rows of queries in an outer loop, tiles of keys in an inner one. What a causal mask
//! hides as a whole is never computed.

use super::matmul::contract;
use crate::cx::Cx;
use tpu_base::DType;
use tpu_hlo::{DotDims, V};

/// Queries and the keys they may see: all `keys` of them, or, if `causal`, the keys up to each query's own place.
pub(super) struct Part<'a, 'b> {
    pub(super) cx: &'a Cx<'b>,
    /// (batch, key heads, queries a key head, rows, E), multiplied by the scale where that rounds nothing away.
    pub(super) q: V<'b>,
    /// (batch, key heads, keys, E), and with the last two exchanged, as the products want it.
    k: [V<'b>; 2],
    v: [V<'b>; 2],
    /// As the scores, with ones where it repeats.
    pub(super) bias: Option<V<'b>>,
    pub(super) scale: f64,
    /// What the scores are still to be multiplied by.
    pub(super) late: Option<f64>,
    /// Where the rows begin among all queries.
    pub(super) first: i64,
    pub(super) rows: i64,
    pub(super) keys: i64,
    causal: bool,
    /// Rows and keys of a tile.
    tile: i64,
    drop: f64,
    /// Key of the random bits, one 64-bit word.
    seed: Option<V<'b>>,
}

/// The rows of one turn of the outer loop: `start` (0-d) and how many.
pub(super) struct Rows<'b> {
    start: V<'b>,
    size: i64,
}

/// Some keys for some rows.
pub(super) struct Tile<'b> {
    start: V<'b>,
    pub(super) k: [V<'b>; 2],
    pub(super) v: [V<'b>; 2],
    bias: Option<V<'b>>,
    /// Where the mask hides some of it.
    edge: bool,
}

/// The call as parts. More queries than keys under a causal mask are two: the last queries see every key.
pub(super) fn parts<'a, 'b>(cx: &'a Cx<'b>, seed: Option<V<'b>>) -> Vec<Part<'a, 'b>> {
    let (l, s) = (cx.t("query").dim(2), cx.t("key").dim(2));
    if !cx.flag("is_causal") {
        return vec![Part::of(cx, seed, 0, l, s, false)];
    }
    let square = l.min(s);
    let mut parts = vec![Part::of(cx, seed, 0, square, square, true)];
    if l > s {
        parts.push(Part::of(cx, seed, s, l - s, s, false));
    }
    parts
}

/// `size` elements of `x` along `dim` from `start` on.
fn cut<'b>(x: V<'b>, dim: usize, start: V<'b>, size: i64) -> V<'b> {
    let mut sizes = x.dims();
    sizes[dim] = size;
    if sizes == x.dims() { x } else { x.dynamic_slice(&starts(x, &[(dim, start)]), &sizes) }
}

/// `x` with `part` in it, from the starts `at` along their dimensions.
fn put<'b>(x: V<'b>, part: V<'b>, at: &[(usize, V<'b>)]) -> V<'b> {
    if x.dims() == part.dims() { part } else { x.dynamic_update_slice(part, &starts(x, at)) }
}

fn starts<'b>(x: V<'b>, at: &[(usize, V<'b>)]) -> Vec<V<'b>> {
    let mut starts = vec![x.builder().scalar(DType::I32, 0i64); x.rank()];
    for &(dim, start) in at.iter().filter(|(dim, _)| x.dim(*dim) > 1) {
        starts[dim] = start;
    }
    starts
}

/// `size` elements of `x` along `dim` among `all`, `first` zeros before them.
pub(super) fn placed<'b>(x: V<'b>, dim: usize, (first, size): (i64, i64), all: i64) -> V<'b> {
    let (x, zeros) = (x.slice_dim(dim, 0, size), vec![0; x.rank()]);
    if size == all {
        return x;
    }
    let (mut low, mut high) = (zeros.clone(), zeros.clone());
    (low[dim], high[dim]) = (first, all - first - size);
    x.pad(x.lit(0.0), &low, &high, &zeros)
}

fn up(n: i64, step: i64) -> i64 {
    (n + step - 1) / step * step
}

/// Scores of a tile, of all heads: two megabytes stay in a CPU's cache and in a TPU's vector memory, and leave each turn
/// enough to do.
const SCORES: i64 = 1 << 19;

/// Rows and keys of a tile, as many of both.
fn edge(heads: i64) -> i64 {
    [512, 256].into_iter().find(|n| heads * n * n <= SCORES).unwrap_or(128)
}

impl<'a, 'b> Part<'a, 'b> {
    fn of(cx: &'a Cx<'b>, seed: Option<V<'b>>, first: i64, rows: i64, keys: i64, causal: bool) -> Part<'a, 'b> {
        let (q, k, v) = (cx.t("query"), cx.t("key"), cx.t("value"));
        let (d, heads) = (q.dims(), k.dim(1));
        let tile = edge(d[0] * d[1]);
        let split = [d[0], heads, d[1] / heads, d[2], d[3]];
        let scale = cx.opt_float("scale").unwrap_or(1.0 / (d[3] as f64).sqrt());
        let exact = q.dtype() == DType::F32 || scale.log2().fract() == 0.0;
        let (q, late) = if exact { (q * scale, None) } else { (q, Some(scale)) };
        let bias = cx.opt_as("attn_bias", DType::F32).map(|m| {
            let own = [vec![1; 4 - m.rank()], m.dims()].concat();
            let heads = if own[1] == 1 { [1, 1] } else { [split[1], split[2]] };
            m.reshape(&[own[0], heads[0], heads[1], own[2], own[3]])
        });
        let mut part = Part {
            cx,
            q: q.reshape(&split),
            k: [k; 2],
            v: [v; 2],
            bias,
            scale,
            late,
            first,
            rows,
            keys,
            causal,
            tile,
            drop: cx.float("dropout_p"),
            seed,
        };
        part.q = part.rows_of(part.q);
        let both = |x: V<'b>| {
            let x = part.keys_of(x, 2);
            [x, x.transpose(&[0, 1, 3, 2])]
        };
        (part.k, part.v) = (both(k), both(v));
        part.bias = bias.map(|m| {
            let m = if m.dim(3) == 1 { m } else { part.rows_of(m) };
            if m.dim(4) == 1 { m } else { part.keys_of(m, 4) }
        });
        part
    }

    /// Whether there is more than one tile.
    pub(super) fn in_tiles(&self) -> bool {
        self.rows_in_tiles() || self.keys_in_tiles()
    }

    fn keys_in_tiles(&self) -> bool {
        if self.causal { self.rows_in_tiles() } else { self.keys >= 2 * self.key_tile() }
    }

    /// Keys of a tile: more than rows where there are few rows, as when one token is generated.
    fn key_tile(&self) -> i64 {
        let d = self.q.dims();
        let (few, scores) = (!self.causal && !self.rows_in_tiles(), d[0] * d[1] * d[2] * self.rows);
        if few { (SCORES / scores.max(1) / 128 * 128).max(self.tile) } else { self.tile }
    }

    fn rows_in_tiles(&self) -> bool {
        self.rows >= 2 * self.tile
    }

    /// The part's rows of `x`, rows being dimension 3, and zeros up to whole tiles.
    pub(super) fn rows_of(&self, x: V<'b>) -> V<'b> {
        let own = x.slice_dim(3, self.first, self.first + self.rows);
        if self.rows_in_tiles() { placed(own, 3, (0, self.rows), up(self.rows, self.tile)) } else { own }
    }

    /// The part's keys of `x`; where the mask hides them, zeros up to whole tiles.
    fn keys_of(&self, x: V<'b>, dim: usize) -> V<'b> {
        let own = x.slice_dim(dim, 0, self.keys);
        if self.causal && self.rows_in_tiles() {
            placed(own, dim, (0, self.keys), up(self.keys, self.tile))
        } else {
            own
        }
    }

    /// Keys with what fills the last tile.
    pub(super) fn all_keys(&self) -> i64 {
        self.k[0].dim(2)
    }

    /// A product of (batch, key heads, …) with (batch, key heads, …), in float32.
    pub(super) fn dot(&self, a: V<'b>, b: V<'b>, lhs: &[usize], rhs: &[usize]) -> V<'b> {
        let d = DotDims {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contract: lhs.to_vec(),
            rhs_contract: rhs.to_vec(),
        };
        contract(self.cx, a, b, d)
    }

    /// `step` over all rows, some at a time.
    pub(super) fn over_rows(&self, state: Vec<V<'b>>, step: impl Fn(&[V<'b>], &Rows<'b>) -> Vec<V<'b>>) -> Vec<V<'b>> {
        let zero = self.cx.b.scalar(DType::I32, 0i64);
        if !self.rows_in_tiles() {
            return step(&state, &Rows { start: zero, size: self.rows });
        }
        let (size, end) = (self.tile, self.rows);
        let turn = |s: &[V<'b>]| [&[s[0] + size], &step(&s[1..], &Rows { start: s[0], size })[..]].concat();
        self.cx.b.while_loop(&[&[zero], &state[..]].concat(), |s| s[0].lt(end), turn)[1..].to_vec()
    }

    /// `step` over the tiles of keys that `rows` see: what doesn't fill one comes first, whole ones in a loop, and last the one
    /// that the causal mask cuts.
    pub(super) fn over_keys(
        &self,
        rows: &Rows<'b>,
        state: Vec<V<'b>>,
        step: impl Fn(&[V<'b>], &Tile<'b>) -> Vec<V<'b>>,
    ) -> Vec<V<'b>> {
        let (b, n, size) = (self.cx.b, self.all_keys(), self.key_tile());
        let zero = b.scalar(DType::I32, 0i64);
        let tile = |start: V<'b>, size: i64, edge: bool| Tile {
            start,
            k: [cut(self.k[0], 2, start, size), cut(self.k[1], 3, start, size)],
            v: [cut(self.v[0], 2, start, size), cut(self.v[1], 3, start, size)],
            bias: self.bias.map(|m| {
                let m = if m.dim(3) == 1 { m } else { rows.of(m) };
                if m.dim(4) == 1 { m } else { cut(m, 4, start, size) }
            }),
            edge,
        };
        if !self.keys_in_tiles() {
            return if n == 0 { state } else { step(&state, &tile(zero, n, self.causal)) };
        }
        let first = n % size;
        let state = if first > 0 { step(&state, &tile(zero, first, false)) } else { state };
        let end = if self.causal { rows.start / size * size } else { b.scalar(DType::I32, n) };
        let init = [&[b.scalar(DType::I32, first)], &state[..]].concat();
        let turn = |s: &[V<'b>]| [&[s[0] + size], &step(&s[1..], &tile(s[0], size, false))[..]].concat();
        let state = b.while_loop(&init, |s| s[0].lt(end), turn)[1..].to_vec();
        if self.causal { step(&state, &tile(end, size, true)) } else { state }
    }

    /// Scores of a tile, for its rows of `q`: (batch, key heads, queries a key head, rows, keys).
    pub(super) fn scores(&self, q: V<'b>, rows: &Rows<'b>, tile: &Tile<'b>) -> V<'b> {
        let s = self.dot(q, tile.k[1], &[4], &[2]);
        let s = self.late.map_or(s, |scale| s * scale);
        let s = tile.bias.map_or(s, |m| s + m);
        if !tile.edge {
            return s;
        }
        let (own, other) = (self.cx.b.iota(DType::I32, &s.dims(), 3), self.cx.b.iota(DType::I32, &s.dims(), 4));
        (other + tile.start).le(own + rows.start).select(s, s.full_like(f64::NEG_INFINITY))
    }

    /// `x`, as a tile's scores, with a share of its elements dropped and the others grown; the same ones every time.
    pub(super) fn dropped(&self, x: V<'b>, rows: &Rows<'b>, tile: &Tile<'b>) -> V<'b> {
        let Some(seed) = self.seed.filter(|_| self.drop > 0.0) else { return x };
        // each row of tiles has a key of its own, and each tile counts from a place of its own
        let key = seed + (rows.start + self.first).convert(DType::U64);
        let counter = tile.start.convert(DType::U64).shl(40i64).reshape(&[1]);
        let state = self.cx.b.concat(&[key, counter], 0);
        let bits = self.cx.b.threefry(state, DType::U32, &x.dims()).1.shr_logical(8i64).convert(DType::I32);
        let kept = bits.ge((self.drop * (1i64 << 24) as f64).round() as i64);
        kept.select(x * if self.drop < 1.0 { 1.0 / (1.0 - self.drop) } else { 0.0 }, x.zeros_like())
    }
}

impl<'b> Rows<'b> {
    /// These rows of `x`.
    pub(super) fn of(&self, x: V<'b>) -> V<'b> {
        cut(x, 3, self.start, self.size)
    }

    /// `x` with `part` as these rows.
    pub(super) fn put(&self, x: V<'b>, part: V<'b>) -> V<'b> {
        put(x, part, &[(3, self.start)])
    }
}

impl<'b> Tile<'b> {
    /// `x` with `part` added at these keys, which are its last dimension.
    pub(super) fn add(&self, x: V<'b>, part: V<'b>) -> V<'b> {
        Self::add_at(x, part, &[(x.rank() - 1, self.start)])
    }

    /// `x`, shaped as the scores but for ones, with `part` added at these rows and keys.
    pub(super) fn add_for(&self, rows: &Rows<'b>, x: V<'b>, part: V<'b>) -> V<'b> {
        Self::add_at(x, part, &[(3, rows.start), (4, self.start)])
    }

    fn add_at(x: V<'b>, part: V<'b>, at: &[(usize, V<'b>)]) -> V<'b> {
        let own = if x.dims() == part.dims() { x } else { x.dynamic_slice(&starts(x, at), &part.dims()) };
        put(x, own + part, at)
    }
}
