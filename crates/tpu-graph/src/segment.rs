//! The open segment: nodes recorded and not yet cut.

use crate::key::fold;
use crate::sig::{HostValues, Operands, Sig, Target};
use crate::value::{Standing, Value};
use smallvec::SmallVec;
use std::sync::Arc;

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
    /// Operands in signature order.
    pub operands: SmallVec<[Operand; 4]>,
    /// Host values in signature order.
    pub hosts: HostValues,
    /// A value a result; `None` for absent ones.
    pub outs: SmallVec<[Option<Arc<Value<P>>>; 2]>,
}

/// Nodes in program order, with what they take from outside.
pub struct Segment<P> {
    inputs: Vec<Arc<Value<P>>>,
    nodes: Vec<Node<P>>,
    hash: u128,
}

/// A segment that was cut: what a plan is made of and run on.
pub struct Cut<P> {
    /// Identity of the plan.
    pub key: u128,
    /// Inputs in order of first use.
    pub inputs: Vec<Arc<Value<P>>>,
    /// The nodes; `outs` of dead results are gone.
    pub nodes: Vec<Node<P>>,
    /// (node, result) of each value that is still alive.
    pub live: Vec<(u32, u32)>,
}

impl<P> Default for Segment<P> {
    fn default() -> Self {
        Segment { inputs: vec![], nodes: vec![], hash: 0 }
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

    /// Appends a call. `make(k)` makes the value of result k.
    pub fn push(
        &mut self,
        sig: Arc<Sig>,
        operands: Operands<P>,
        hosts: HostValues,
        mut make: impl FnMut(usize) -> Arc<Value<P>>,
    ) -> &Node<P> {
        let n = self.nodes.len() as u32;
        let mut words: SmallVec<[u64; 16]> = SmallVec::new();
        words.push(sig.id as u64);
        words.push((sig.id >> 64) as u64);
        let operands = operands
            .into_iter()
            .map(|v| {
                let o = match v.place() {
                    Standing::Node(n, k) => Operand::Node(n, k),
                    Standing::Input(i) => Operand::Input(i),
                    Standing::Outside => {
                        let i = self.inputs.len() as u32;
                        v.set_place(Standing::Input(i));
                        self.inputs.push(v);
                        Operand::Input(i)
                    }
                };
                words.push(match o {
                    Operand::Input(i) => 1 << 63 | i as u64,
                    Operand::Node(n, k) => (n as u64) << 32 | k as u64,
                });
                o
            })
            .collect();
        let outs = sig
            .outs
            .iter()
            .enumerate()
            .map(|(k, o)| {
                (o.target != Target::Absent).then(|| {
                    let v = make(k);
                    v.set_place(Standing::Node(n, k as u32));
                    v
                })
            })
            .collect();
        self.hash = fold(self.hash, &words);
        self.nodes.push(Node { sig, operands, hosts, outs });
        &self.nodes[n as usize]
    }

    /// Ends the segment: what is still held elsewhere is live. Must run under the lock that recorded it.
    pub fn cut(&mut self) -> Cut<P> {
        let inputs = std::mem::take(&mut self.inputs);
        let mut nodes = std::mem::take(&mut self.nodes);
        let mut live = vec![];
        let mut words: SmallVec<[u64; 16]> = SmallVec::new();
        for (n, node) in nodes.iter_mut().enumerate() {
            for (k, slot) in node.outs.iter_mut().enumerate() {
                let Some(v) = slot else { continue };
                if Arc::strong_count(v) > 1 {
                    v.set_place(Standing::Outside);
                    live.push((n as u32, k as u32));
                    words.push((n as u64) << 32 | k as u64);
                } else {
                    *slot = None;
                }
            }
        }
        inputs.iter().for_each(|v| v.set_place(Standing::Outside));
        let key = fold(std::mem::take(&mut self.hash), &words);
        Cut { key, inputs, nodes, live }
    }
}
