//! The open segment: nodes recorded and not yet cut.

use crate::key::fold;
use crate::sig::{HostValues, Operands, Sig, Target};
use crate::value::{Standing, Value};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;

/// Calls that decide together whether a place is a good boundary.
const WINDOW: usize = 4;
/// Boundaries remembered.
const BOUNDARIES: usize = 4096;

/// An operand of a node inside its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Input `i` of the segment.
    Input(u32),
    /// Result `k` of node `n`.
    Node(u32, u32),
}

/// One recorded call.
pub struct Node<P> {
    /// Its signature.
    pub sig: Arc<Sig>,
    /// Operands in signature order; empty before the cut.
    pub operands: SmallVec<[Operand; 4]>,
    /// Host values in signature order.
    pub hosts: HostValues,
    /// A value a result; `None` for absent ones.
    pub outs: SmallVec<[Option<Arc<Value<P>>>; 2]>,
    /// The operands' values; empty after the cut.
    values: Operands<P>,
    /// Rank as a boundary: see [`Segment::boundary`].
    rank: u64,
}

/// Nodes in program order.
pub struct Segment<P> {
    nodes: Vec<Node<P>>,
    bytes: u64,
    /// Signatures of the last calls, cut or not.
    recent: [u64; WINDOW],
    /// Ranks of places that were boundaries.
    boundaries: HashSet<u64>,
}

/// A segment that was cut: what a plan is made of and run on.
pub struct Cut<P> {
    /// Identity of what is computed. A plan that also gives all live results serves.
    pub key: u128,
    /// Inputs in order of first use.
    pub inputs: Vec<Arc<Value<P>>>,
    /// The nodes.
    pub nodes: Vec<Node<P>>,
    /// (node, result) of each value that is still alive.
    pub live: Vec<(u32, u32)>,
}

impl<P> Default for Segment<P> {
    fn default() -> Self {
        Segment { nodes: vec![], bytes: 0, recent: [0; WINDOW], boundaries: HashSet::new() }
    }
}

impl<P> Segment<P> {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Bytes of all results recorded, dead ones too.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a call. `make(k)` makes the value of result k.
    pub fn push(
        &mut self,
        sig: Arc<Sig>,
        values: Operands<P>,
        hosts: HostValues,
        mut make: impl FnMut(usize) -> Arc<Value<P>>,
    ) -> &Node<P> {
        let n = self.nodes.len();
        let mut outs = SmallVec::with_capacity(sig.outs.len());
        for (k, o) in sig.outs.iter().enumerate() {
            outs.push((o.target != Target::Absent).then(|| {
                let v = make(k);
                v.set_place(Standing::Node(n as u32, k as u32));
                self.bytes += o.nbytes;
                v
            }));
        }
        // with the operands that the last calls made: the start of a chain of equal calls is a place of its own
        let near = values.iter().fold(0, |h: u64, v| {
            let back = v.node().map_or(0, |(m, _)| n as u64 - m as u64);
            h << 4 | if back <= WINDOW as u64 { back } else { 0 }
        });
        self.recent.rotate_right(1);
        self.recent[0] = sig.id as u64 ^ near.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let rank = self.recent.iter().fold(0u64, |h, id| (h.rotate_left(17) ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.nodes.push(Node { sig, operands: SmallVec::new(), hosts, outs, values, rank });
        &self.nodes[n]
    }

    /// How many nodes to cut so that a loop meets the same segments again, whatever stood before it: the boundary is where
    /// the hash of the last few calls is least, a place in the program and not a count (winnowing: Schleimer, Wilkerson,
    /// Aiken, *Winnowing: local algorithms for document fingerprinting*, 2003). A place that stands alone in the segment
    /// goes before one that comes again and again (a layer, a chain of equal calls: cut there, an outer loop would drift),
    /// one that was a boundary before goes before a new one. Of equal places the last.
    pub fn boundary(&mut self) -> usize {
        let first = self.nodes.len() / 4;
        let mut places: Vec<(u64, usize)> =
            self.nodes.iter().enumerate().skip(first).map(|(n, p)| (p.rank, n)).collect();
        places.sort_unstable();
        let repeated = |k: usize| {
            let same = |j: Option<usize>| j.and_then(|j| places.get(j)).is_some_and(|p| p.0 == places[k].0);
            same(k.checked_sub(1)) || same(Some(k + 1))
        };
        let order = |k: &usize| {
            (repeated(*k), !self.boundaries.contains(&places[*k].0), places[*k].0, usize::MAX - places[*k].1)
        };
        let Some((rank, n)) = (0..places.len()).min_by_key(order).map(|k| places[k]) else { return 0 };
        if self.boundaries.len() >= BOUNDARIES {
            self.boundaries.clear();
        }
        self.boundaries.insert(rank);
        n + 1
    }

    /// Takes the first `count` nodes: what of them is still held elsewhere, or used by the nodes that stay, is live. Must
    /// run under the lock that recorded it.
    pub fn cut(&mut self, count: usize) -> Cut<P> {
        let rest = if count < self.nodes.len() { self.nodes.split_off(count) } else { vec![] };
        let mut nodes = std::mem::replace(&mut self.nodes, rest);
        let (mut inputs, mut hash): (Vec<Arc<Value<P>>>, u128) = (vec![], 0);
        for node in &mut nodes {
            let mut words: SmallVec<[u64; 16]> = SmallVec::new();
            words.extend([node.sig.id as u64, (node.sig.id >> 64) as u64]);
            for v in node.values.drain(..) {
                let operand = match v.place() {
                    Standing::Node(n, k) => Operand::Node(n, k),
                    Standing::Input(i) => Operand::Input(i),
                    Standing::Outside => {
                        let i = inputs.len() as u32;
                        v.set_place(Standing::Input(i));
                        inputs.push(v);
                        Operand::Input(i)
                    }
                };
                words.push(match operand {
                    Operand::Input(i) => 1 << 63 | i as u64,
                    Operand::Node(n, k) => (n as u64) << 32 | k as u64,
                });
                node.operands.push(operand);
            }
            hash = fold(hash, &words);
        }
        let mut live = vec![];
        for (n, node) in nodes.iter().enumerate() {
            for (k, slot) in node.outs.iter().enumerate() {
                let Some(v) = slot else { continue };
                v.set_place(Standing::Outside);
                if Arc::strong_count(v) > 1 {
                    live.push((n as u32, k as u32));
                }
            }
        }
        inputs.iter().for_each(|v| v.set_place(Standing::Outside));
        self.bytes = 0;
        for (n, node) in self.nodes.iter().enumerate() {
            for (k, v) in node.outs.iter().enumerate().filter_map(|(k, v)| Some((k, v.as_ref()?))) {
                v.set_place(Standing::Node(n as u32, k as u32));
                self.bytes += node.sig.outs[k].nbytes;
            }
        }
        Cut { key: hash, inputs, nodes, live }
    }
}

impl<P> Cut<P> {
    /// The values of the live results, in order.
    pub fn results(&self) -> impl Iterator<Item = &Arc<Value<P>>> {
        self.live.iter().filter_map(|&(n, k)| self.nodes[n as usize].outs[k as usize].as_ref())
    }

    /// Forgets live results that nobody holds any more.
    pub fn let_go(&mut self) {
        let nodes = &self.nodes;
        let held =
            |n: u32, k: u32| nodes[n as usize].outs[k as usize].as_ref().is_some_and(|v| Arc::strong_count(v) > 1);
        self.live.retain(|&(n, k)| held(n, k));
    }

    /// The same work as cuts of one node each, in order.
    pub fn singly(self) -> Vec<Cut<P>> {
        let value = |o: &Operand| match *o {
            Operand::Input(i) => self.inputs.get(i as usize).cloned(),
            Operand::Node(n, k) => self.nodes[n as usize].outs[k as usize].clone(),
        };
        let values: Vec<Operands<P>> =
            self.nodes.iter().map(|n| n.operands.iter().filter_map(value).collect()).collect();
        // from here on a result is held by those who use it only
        drop(self.inputs);
        let mut one = Segment::default();
        let single = |(node, values): (Node<P>, Operands<P>)| {
            let mut outs = node.outs;
            // an absent result is not asked for
            one.push(node.sig, values, node.hosts, |k| outs[k].take().expect("a present result has a value"));
            one.cut(1)
        };
        self.nodes.into_iter().zip(values).map(single).filter(|cut| !cut.live.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sig::{Form, OutSpec, Way};
    use crate::{Storage, geometry::Base};
    use tpu_aten::Settings;
    use tpu_base::DType;

    /// A call with identity `id` and one result.
    fn sig(id: u128) -> Arc<Sig> {
        let base = Base::new(DType::F32, [].as_slice());
        let out = OutSpec {
            dtype: DType::F32,
            sizes: Default::default(),
            strides: Default::default(),
            base_hash: 1,
            base,
            nbytes: 4,
            target: Target::Fresh,
        };
        Arc::new(Sig {
            id: id.wrapping_mul(0x1234_5678_9abc_def1_2345_6789_abcd_ef01),
            form: Arc::new(Form::new(0, "test".into(), vec![]).unwrap()),
            settings: Settings::default(),
            args: vec![],
            outs: vec![out],
            way: Way::Native,
            site: String::new(),
            rng_increment: 0,
            moving: SmallVec::new(),
        })
    }

    fn push(s: &mut Segment<()>, id: u128, operands: &[&Arc<Value<()>>]) -> Arc<Value<()>> {
        let base = Base::new(DType::F32, [].as_slice());
        let operands = operands.iter().map(|v| Arc::clone(v)).collect();
        s.push(sig(id), operands, Default::default(), |_| Value::new(base.clone(), ())).outs[0].clone().unwrap()
    }

    #[test]
    fn a_result_lives_on_when_somebody_or_a_later_node_has_it() {
        let mut s = Segment::default();
        let a = push(&mut s, 1, &[]);
        let b = push(&mut s, 2, &[&a]);
        let c = push(&mut s, 3, &[&b]);
        drop((a, b));
        let d = push(&mut s, 4, &[&c]);
        drop(c);
        let cut = s.cut(2);
        assert_eq!(cut.live, [(1, 0)], "b is used by the third node, a by nobody any more");
        assert_eq!(cut.nodes[1].operands[..], [Operand::Node(0, 0)]);
        let cut = s.cut(2);
        assert_eq!((cut.live.as_slice(), cut.inputs.len()), ([(1, 0)].as_slice(), 1));
        assert!(s.is_empty() && !d.is_deferred());
    }

    #[test]
    fn singly_computes_what_is_used_later_and_nothing_else() {
        let mut s = Segment::default();
        let a = push(&mut s, 1, &[]);
        let b = push(&mut s, 2, &[&a, &a]);
        drop(push(&mut s, 3, &[&b]));
        drop(a);
        let cuts = s.cut(3).singly();
        let shapes: Vec<_> = cuts.iter().map(|c| (c.nodes.len(), c.inputs.len(), c.live.len())).collect();
        assert_eq!(shapes, [(1, 0, 1), (1, 1, 1)]);
        assert_eq!(cuts[1].nodes[0].operands[..], [Operand::Input(0), Operand::Input(0)]);
    }

    /// Keys of the segments of `program`, met from a given start.
    fn keys(program: impl Iterator<Item = u128>, most: usize) -> Vec<u128> {
        let mut s = Segment::default();
        let mut keys = vec![];
        for id in program {
            drop(push(&mut s, id, &[]));
            if s.len() == most {
                let n = s.boundary();
                keys.push(s.cut(n).key);
            }
        }
        keys
    }

    #[test]
    fn a_loop_meets_the_same_segments_from_its_second_round_on() {
        for period in [1, 2, 3, 7, 40, 64, 100, 333, 1000] {
            let round: Vec<u128> = (0..period as u128).map(|i| i + 1000).collect();
            let before = (0..37).map(|i| i + 1);
            let known = |rounds: usize| {
                let program = before.clone().chain(round.iter().cycle().take(period * rounds).copied());
                keys(program, 64).into_iter().collect::<std::collections::HashSet<_>>().len()
            };
            let enough = 3.max(400 / period);
            assert_eq!(known(enough), known(8 * enough), "period {period}");
        }
    }

    #[test]
    fn chains_of_equal_calls_are_cut_where_they_start() {
        for length in [30, 70, 100, 250_usize] {
            let mut s = Segment::default();
            let (mut keys, mut early) = (std::collections::HashSet::new(), 0);
            for round in 0..40 {
                let mut v = push(&mut s, 1, &[]);
                for i in 0..length {
                    v = push(&mut s, 2 + i as u128 % 2, &[&v]);
                    if s.len() == 64 {
                        let n = s.boundary();
                        keys.insert(s.cut(n).key);
                    }
                }
                if early == 0 && round >= 2 && (round + 1) * length >= 400 {
                    early = keys.len();
                }
            }
            assert_eq!(
                early,
                keys.len(),
                "length {length}: segments after three rounds and 400 calls, and after forty rounds"
            );
        }
    }

    #[test]
    fn storages_tell_deferred_values() {
        let mut s = Segment::default();
        let v = push(&mut s, 1, &[]);
        let storage = Storage::holding(4, v.clone());
        assert!(storage.value().is_some_and(|v| v.is_deferred()));
        s.cut(1);
        assert!(!v.is_deferred());
    }
}
