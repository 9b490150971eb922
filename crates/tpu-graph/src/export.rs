//! A cut as a program that stands on its own: all inputs are parameters, in a given order, and numbers are constants.

use crate::geometry::Base;
use crate::lower::{Known, NodeRef, Param, Params, Program, aliases, body};
use crate::segment::{Cut, Operand};
use crate::value::Value;
use smallvec::SmallVec;
use std::sync::Arc;
use tpu_hlo::{Builder, Error};

/// Lowers a cut for others to run. Its parameters are `inputs`, read or not, then the generator's state (2 × ui64) if
/// anything is drawn; `offset` is the generator's offset that the state's stands for. The results are `cut.live`, which may
/// name one twice.
///
/// # Errors
/// The first mistake a lowering made; an input of the cut that is not among `inputs`.
pub fn export<P>(cut: &Cut<P>, inputs: &[Arc<Value<P>>], offset: u64) -> Result<Program, Error> {
    let operands = among(cut, inputs)?;
    let nodes: Vec<NodeRef<'_>> =
        cut.nodes.iter().zip(&operands).map(|(n, operands)| NodeRef { sig: &n.sig, operands }).collect();
    let bases: Vec<&Base> = inputs.iter().map(|v| &v.base).collect();
    let b = Builder::new();
    let known = Known { hosts: cut.nodes.iter().map(|n| &n.hosts).collect(), offset };
    let params = Params::whole(&b, &bases, known);
    let (results, checks) = body(&params, &nodes, &bases, &cut.live);
    let (starts, mut params) = (params.starts.take(), params.made());
    let mut module = b.finish("exported", &results, vec![])?;
    let read = module.drop_dead();
    let args = &mut module.main.body.args;
    // an op that may draw need not do so
    if matches!(params.last(), Some(Param::Rng { .. })) && args.last().is_some_and(|a| !read.contains(a)) {
        args.pop();
        params.pop();
    }
    module.main.aliases = aliases(&nodes, &bases, &cut.live, &params);
    Ok(Program { module, params, checks, starts })
}

/// Each node's operands, with inputs counted as in `inputs`.
pub(crate) fn among<P>(cut: &Cut<P>, inputs: &[Arc<Value<P>>]) -> Result<Vec<SmallVec<[Operand; 4]>>, Error> {
    let place = |v: &Arc<Value<P>>| inputs.iter().position(|i| Arc::ptr_eq(i, v));
    let places: Option<Vec<u32>> = cut.inputs.iter().map(|v| place(v).map(|p| p as u32)).collect();
    let places = places.ok_or_else(|| Error {
        op: "export",
        what: "the program reads a device tensor that is none of its inputs".into(),
    })?;
    let renamed = |o: &Operand| match *o {
        Operand::Input(i) => Operand::Input(places[i as usize]),
        node => node,
    };
    Ok(cut.nodes.iter().map(|n| n.operands.iter().map(renamed).collect()).collect())
}
