//! A cut as a body: what an op of control flow runs when and as often as data say.

use crate::export::among;
use crate::geometry::Base;
use crate::key::fold;
use crate::lower::{Known, NodeRef, Params, body};
use crate::segment::{Cut, Operand};
use crate::sig::{HostValue, HostValues, Sig};
use crate::value::Value;
use smallvec::SmallVec;
use std::sync::Arc;
use tpu_aten::Body as AtenBody;
use tpu_base::ErrorKind;
use tpu_hlo::{Builder, Error, Type, V};

struct Step {
    sig: Arc<Sig>,
    operands: SmallVec<[Operand; 4]>,
    hosts: HostValues,
}

/// A recorded body. Its arguments are dense, its numbers are constants, and it draws nothing.
pub struct Body {
    steps: Vec<Step>,
    takes: Vec<Base>,
    live: Vec<(u32, u32)>,
    gives: Vec<Type>,
    checks: Vec<(ErrorKind, String)>,
    /// Bodies that its own ops run.
    _inner: Vec<Arc<dyn AtenBody>>,
}

impl Body {
    /// The body that gives `cut.live` (which may name one twice) for `inputs`, and its name.
    ///
    /// # Errors
    /// The first mistake a lowering made; an input of the cut that is not among `inputs`.
    pub fn new<P>(
        cut: Cut<P>,
        inputs: &[Arc<Value<P>>],
        inner: Vec<Arc<dyn AtenBody>>,
    ) -> Result<(String, Body), Error> {
        let operands = among(&cut, inputs)?;
        // the key knows what is computed from inputs in order of first use, and no numbers
        let mut words: Vec<u64> = inputs.iter().map(|v| v.base_hash).collect();
        for (node, operands) in cut.nodes.iter().zip(&operands) {
            let place = |o: &Operand| if let Operand::Input(i) = o { u64::from(*i) } else { u64::MAX };
            words.extend(operands.iter().map(place));
            for host in &node.hosts {
                let (tag, low, high) = match host {
                    HostValue::Scalar(s) => s.bits(),
                    HostValue::Rng(seed, offset) => (u8::MAX, *seed, *offset),
                };
                words.extend([u64::from(tag), low, high]);
            }
        }
        words.extend(cut.live.iter().map(|(n, k)| u64::from(*n) << 32 | u64::from(*k)));
        let name = format!("{:032x}", fold(cut.key, &words));
        let steps = cut.nodes.into_iter().zip(operands);
        let steps = steps.map(|(n, operands)| Step { sig: n.sig, operands, hosts: n.hosts }).collect();
        let takes = inputs.iter().map(|v| v.base.clone()).collect();
        let mut made = Body { steps, takes, live: cut.live, gives: vec![], checks: vec![], _inner: inner };
        let b = Builder::new();
        let args: Vec<V<'_>> = made.takes().into_iter().map(|t| b.param(t)).collect();
        let (mut results, checks) = made.lower(&b, &args);
        results.truncate(made.live.len());
        made.gives = results.iter().map(|v| v.ty()).collect();
        b.finish("body", &results, vec![])?;
        made.checks = checks;
        Ok((name, made))
    }

    fn lower<'b>(&self, b: &'b Builder, args: &[V<'b>]) -> (Vec<V<'b>>, Vec<(ErrorKind, String)>) {
        let nodes: Vec<NodeRef<'_>> =
            self.steps.iter().map(|s| NodeRef { sig: &s.sig, operands: &s.operands }).collect();
        let bases: Vec<&Base> = self.takes.iter().collect();
        let known = Known { hosts: self.steps.iter().map(|s| &s.hosts).collect(), offset: 0 };
        let params = Params::given(b, args, known);
        let (results, checks) = body(&params, &nodes, &bases, &self.live);
        (results.iter().map(|v| b.handle(v.id())).collect(), checks)
    }
}

impl AtenBody for Body {
    fn takes(&self) -> Vec<Type> {
        self.takes.iter().map(|b| Type::new(b.dtype, b.dims.to_vec())).collect()
    }

    fn gives(&self) -> &[Type] {
        &self.gives
    }

    fn checks(&self) -> &[(ErrorKind, String)] {
        &self.checks
    }

    fn build<'b>(&self, b: &'b Builder, args: &[V<'b>]) -> Vec<V<'b>> {
        self.lower(b, args).0
    }
}
