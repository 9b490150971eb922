//! From a cut segment to one StableHLO program.

use crate::geometry::{Base, View, read_path, write_path};
use crate::interpret::{self, Walk};
use crate::segment::{Cut, Operand};
use crate::sig::{ArgSpec, HostValue, HostValues, Moving, OutSpec, Sig, Target, TensorSpec, Way};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use tpu_aten::{Arg, Check, Cx, Host, HostParams, SigArg};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{Builder, Error, Module, Type, V, ValueId};

/// Where a parameter of the program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Param {
    /// Input `i` of the segment.
    Input(u32),
    /// Host value `slot` of node `node`, as a 0-d array of `dtype`.
    Host {
        /// The node.
        node: u32,
        /// Its host value.
        slot: u32,
        /// The dtype asked for.
        dtype: DType,
    },
    /// Generator state in host value `slot` of node `node`: 2 × ui64.
    Rng {
        /// The node.
        node: u32,
        /// Its host value.
        slot: u32,
    },
}

/// A program with the meaning of its parameters. Its results are the live values, in order; if there are checks, one more
/// 0-d int32 follows: 0, or 1 + the number of the first check that failed.
pub struct Program {
    /// StableHLO.
    pub module: Module,
    /// Parameters.
    pub params: Vec<Param>,
    /// What each check says when it fails.
    pub checks: Vec<(ErrorKind, String)>,
    /// The first value that each node made, whatever of it was pruned.
    pub starts: Vec<ValueId>,
}

#[derive(Clone, Copy)]
pub(crate) struct NodeRef<'a> {
    pub(crate) sig: &'a Sig,
    pub(crate) operands: &'a [Operand],
}

/// Lowers a cut.
///
/// # Errors
/// The first mistake a lowering made.
pub fn lower<P>(cut: &Cut<P>) -> Result<Program, Error> {
    let nodes: Vec<NodeRef<'_>> = cut.nodes.iter().map(|n| NodeRef { sig: &n.sig, operands: &n.operands }).collect();
    let bases: Vec<&Base> = cut.inputs.iter().map(|v| &v.base).collect();
    let name = match nodes.as_slice() {
        [one] => symbol(&one.sig.form.name),
        many => format!("segment_{}", many.len()),
    };
    program(&nodes, &bases, &cut.live, &name)
}

/// Lowers one signature on its own, to learn whether it can be.
pub(crate) fn lower_node_alone(sig: &Sig) -> Result<(), Error> {
    let (bases, operands) = alone(sig);
    let live: Vec<(u32, u32)> =
        (0..sig.outs.len() as u32).filter(|&k| sig.outs[k as usize].target != Target::Absent).map(|k| (0, k)).collect();
    program(&[NodeRef { sig, operands: &operands }], &bases, &live, "one").map(drop)
}

/// The types of what the first program of a counted call gives.
pub(crate) fn count_types(sig: &Sig) -> Result<Vec<Type>, Error> {
    let (bases, operands) = alone(sig);
    let b = Builder::new();
    let params = Params::new(&b);
    let mut l = Lowering::new(&b, &params, &bases);
    let values: Vec<V<'_>> = l.call(NodeRef { sig, operands: &operands }).into_iter().flatten().collect();
    let types = values.iter().map(|v| v.ty()).collect();
    b.finish("one", &values, vec![]).map(|_| types)
}

/// The operands of a lone node: each an input of its own.
fn alone(sig: &Sig) -> (Vec<&Base>, Vec<Operand>) {
    let mut bases: Vec<&Base> = vec![];
    fn walk<'a>(a: &'a ArgSpec, bases: &mut Vec<&'a Base>) {
        match a {
            ArgSpec::Tensor(t) if t.operand.is_some() => bases.push(&t.base),
            ArgSpec::List(l) => l.iter().for_each(|a| walk(a, bases)),
            _ => {}
        }
    }
    sig.args.iter().for_each(|a| walk(a, &mut bases));
    let operands = (0..bases.len() as u32).map(Operand::Input).collect();
    (bases, operands)
}

fn symbol(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn program(nodes: &[NodeRef<'_>], inputs: &[&Base], live: &[(u32, u32)], name: &str) -> Result<Program, Error> {
    let b = Builder::new();
    let params = Params::new(&b);
    let (results, checks) = body(&params, nodes, inputs, live);
    let mut module = b.finish(name, &results, vec![])?;
    // what nothing reads is no operand: a fault in an overwritten value ends there
    let kept = module.prune();
    let made = params.made.borrow();
    let starts = params.starts.take();
    let params: Vec<Param> = kept.into_iter().map(|i| made[i].0).collect();
    module.main.aliases = aliases(nodes, inputs, live, &params);
    Ok(Program { module, params, checks, starts })
}

/// Builds all nodes; the live results, with the check code behind them if there are checks.
pub(crate) fn body<'b>(
    params: &'b Params<'b>,
    nodes: &[NodeRef<'_>],
    inputs: &[&Base],
    live: &[(u32, u32)],
) -> (Vec<V<'b>>, Vec<(ErrorKind, String)>) {
    let b = params.b;
    let mut l = Lowering::new(b, params, inputs);
    for (n, node) in nodes.iter().enumerate() {
        params.node.set(n as u32);
        params.starts.borrow_mut().push(b.len() as ValueId);
        let r = l.node(*node);
        l.results.push(r);
    }
    let mut results: Vec<V<'_>> = vec![];
    for &(n, k) in live {
        match l.results[n as usize].get(k as usize).copied().flatten() {
            Some(v) => results.push(v),
            None => b.fail("lowering", format!("node {n} has no result {k}")),
        }
    }
    if !l.checks.is_empty() {
        let code = l
            .checks
            .iter()
            .enumerate()
            .rev()
            .fold(b.scalar(DType::I32, 0), |code, (i, c)| c.ok.select(code, b.scalar(DType::I32, i as i64 + 1)));
        results.push(code);
    }
    (results, l.checks.into_iter().map(|c| (c.kind, c.message)).collect())
}

/// The parameters made so far, in order.
pub(crate) struct Params<'b> {
    b: &'b Builder,
    node: Cell<u32>,
    pub(crate) starts: RefCell<Vec<ValueId>>,
    made: RefCell<Vec<(Param, ValueId)>>,
    /// Numbers that are written into the program.
    known: Option<Known<'b>>,
}

/// The host values of each node, and the generator's offset where the program begins.
pub(crate) struct Known<'b> {
    pub(crate) hosts: Vec<&'b HostValues>,
    pub(crate) offset: u64,
}

impl<'b> Params<'b> {
    fn new(b: &'b Builder) -> Params<'b> {
        Params { b, node: Cell::new(0), starts: RefCell::default(), made: RefCell::new(vec![]), known: None }
    }

    /// All `inputs` become parameters, in order; numbers do not, and all of a program's generators are one.
    pub(crate) fn whole(b: &'b Builder, inputs: &[&Base], known: Known<'b>) -> Params<'b> {
        let params = Params { known: Some(known), ..Params::new(b) };
        for (i, base) in inputs.iter().enumerate() {
            params.get(Param::Input(i as u32), || Type::new(base.dtype, base.dims.to_vec()));
        }
        params
    }

    /// The inputs are `args`, numbers are known, and there is no generator.
    pub(crate) fn given(b: &'b Builder, args: &[V<'b>], known: Known<'b>) -> Params<'b> {
        let made = args.iter().enumerate().map(|(i, v)| (Param::Input(i as u32), v.id())).collect();
        Params { known: Some(known), made: RefCell::new(made), ..Params::new(b) }
    }

    /// In order.
    pub(crate) fn made(&self) -> Vec<Param> {
        self.made.borrow().iter().map(|(p, _)| *p).collect()
    }

    /// What the host supplies at `slot` of the current node, if that is known.
    fn known(&self, slot: u32) -> Option<HostValue> {
        self.known.as_ref()?.hosts.get(self.node.get() as usize)?.get(slot as usize).copied()
    }

    fn rng(&self, slot: u32) -> V<'b> {
        let ty = || Type::new(DType::U64, [2]);
        match (self.known(slot), &self.known) {
            (Some(HostValue::Rng(_, offset)), Some(known)) => {
                let drawn = offset.wrapping_sub(known.offset) as i64;
                let state = self.get(Param::Rng { node: 0, slot: 0 }, ty);
                if drawn == 0 { state } else { state + self.b.table(DType::U64, &[2], &[0, drawn]) }
            }
            _ => self.get(Param::Rng { node: self.node.get(), slot }, ty),
        }
    }

    fn get(&self, p: Param, ty: impl FnOnce() -> Type) -> V<'b> {
        if let Some((_, id)) = self.made.borrow().iter().find(|(q, _)| *q == p) {
            return self.b.handle(*id);
        }
        let v = self.b.param(ty());
        self.made.borrow_mut().push((p, v.id()));
        v
    }
}

impl<'b> HostParams<'b> for Params<'b> {
    fn param(&self, host: Host, dtype: DType) -> V<'b> {
        if let Some(HostValue::Scalar(number)) = self.known(host.arg as u32) {
            return self.b.scalar(dtype, number);
        }
        let p = Param::Host { node: self.node.get(), slot: host.arg as u32, dtype };
        self.get(p, || Type::scalar(dtype))
    }
}

struct Lowering<'b, 'n> {
    b: &'b Builder,
    params: &'b Params<'b>,
    inputs: &'n [&'n Base],
    results: Vec<Vec<Option<V<'b>>>>,
    /// Views already derived: many ops read the same one.
    reads: HashMap<(ValueId, View), V<'b>>,
    checks: Vec<Check<'b>>,
}

impl<'b, 'n> Lowering<'b, 'n> {
    fn new(b: &'b Builder, params: &'b Params<'b>, inputs: &'n [&'n Base]) -> Lowering<'b, 'n> {
        Lowering { b, params, inputs, results: vec![], reads: HashMap::new(), checks: vec![] }
    }

    /// What the op itself gives, before it is stored.
    fn call(&mut self, node: NodeRef<'_>) -> Vec<Option<V<'b>>> {
        let sig = node.sig;
        let (schema, mut def) = (&sig.form.entry.schema, *sig.form.entry.def);
        if let (Way::Count, Some(counted)) = (&sig.way, def.counted) {
            def.lower = tpu_aten::Lower::Many(counted.count);
        }
        // out= arguments stand behind the schema's own, and so does what the lowering needs: a random op's state, what was counted
        let further = |a: &ArgSpec| matches!(a, ArgSpec::Rng { .. }) || def.counted.is_some();
        let args: Vec<Arg<'b>> = sig
            .args
            .iter()
            .enumerate()
            .filter(|(i, a)| *i < sig.form.gap.unwrap_or(schema.args.len()) || further(a))
            .map(|(_, a)| self.arg(node, a))
            .collect();
        let results = sig.outs.len() - sig.form.entry.def.updates.len();
        let outs = sig
            .outs
            .iter()
            .enumerate()
            .map(|(k, o)| (o.target != Target::Absent || k >= results).then(|| logical(o)))
            .enumerate()
            .map(|(k, t)| if sig.outs[k].target == Target::Absent { None } else { t })
            .collect();
        let scattered = |a: &ArgSpec| matches!(a, ArgSpec::Tensor(t) if !t.view.is_contiguous());
        let scattered = sig.args.iter().enumerate().filter(|(_, a)| scattered(a)).map(|(i, _)| i).collect();
        let cx = Cx::new(self.b, schema, args, outs, sig.settings, self.params).scattered(scattered);
        let (values, checks) = tpu_aten::lower(&def, &cx);
        self.checks.extend(checks);
        values
    }

    fn node(&mut self, node: NodeRef<'_>) -> Vec<Option<V<'b>>> {
        let sig = node.sig;
        let values = self.call(node);
        let mut stored: Vec<Option<V<'b>>> = Vec::with_capacity(sig.outs.len());
        for (k, out) in sig.outs.iter().enumerate() {
            let value = values.get(k).copied().flatten();
            stored.push(match (out.target, value) {
                (Target::Absent, _) | (_, None) => None,
                (Target::Fresh, Some(v)) => {
                    let view = View::new(out.dtype, out.sizes.clone(), out.strides.clone(), 0);
                    self.write(&out.base, &view, v, |l| l.b.zeros(out.base.dtype, &out.base.dims))
                }
                (Target::Write(w), Some(v)) => match w.spec(&sig.args) {
                    Some(t) => {
                        let shared = t.view.shared();
                        let v = if shared.is_empty() { v } else { interpret::settled(v, self.read(node, t), &shared) };
                        let v = if t.conj { v.conj() } else { v };
                        let v = if t.neg { v.neg() } else { v };
                        // two results into one storage: the later goes on from the earlier
                        let earlier = (0..k).rev().find(|&j| same_storage(sig, j, t));
                        let earlier = earlier.and_then(|j| stored[j]);
                        let old = |l: &Self| earlier.unwrap_or_else(|| l.base(node, t));
                        match self.walk(t) {
                            Some(walk) => self.given(walk.write(old(self), v)),
                            None => self.write(&t.base, &t.view, v, old),
                        }
                    }
                    None => None,
                },
            });
        }
        stored
    }

    fn arg(&mut self, node: NodeRef<'_>, a: &ArgSpec) -> Arg<'b> {
        match a {
            ArgSpec::None => Arg::None,
            ArgSpec::Tensor(t) => Arg::Tensor(self.read(node, t)),
            ArgSpec::Host { slot, dtype, wrapped } => {
                Arg::Host(Host { arg: *slot, elem: 0, dtype: *dtype, wrapped: *wrapped })
            }
            ArgSpec::Rng { slot } => Arg::Rng(self.params.rng(*slot as u32)),
            ArgSpec::List(l) => Arg::List(l.iter().map(|a| self.arg(node, a)).collect()),
            ArgSpec::Const(c) => match c {
                SigArg::Scalar(s) => Arg::Scalar(*s),
                SigArg::Scalars(l) => Arg::List(l.iter().map(|s| Arg::Scalar(*s)).collect()),
                SigArg::Int(i) => Arg::Int(*i),
                SigArg::Ints(l) => Arg::Ints(l.clone()),
                SigArg::Bool(f) => Arg::Bool(*f),
                SigArg::Float(f) => Arg::Float(*f),
                SigArg::Floats(l) => Arg::Floats(l.clone()),
                SigArg::Str(s) => Arg::Str(s.clone()),
                _ => Arg::None,
            },
        }
    }

    /// The base array of a tensor argument before this node.
    fn base(&self, node: NodeRef<'_>, t: &TensorSpec) -> V<'b> {
        let zeros = || self.b.zeros(t.base.dtype, &t.base.dims);
        let Some(operand) = t.operand else { return zeros() };
        match node.operands.get(operand) {
            Some(&Operand::Input(i)) => {
                let base = self.inputs[i as usize];
                self.params.get(Param::Input(i), || Type::new(base.dtype, base.dims.to_vec()))
            }
            Some(&Operand::Node(n, k)) => match self.results[n as usize].get(k as usize).copied().flatten() {
                Some(v) => v,
                None => {
                    self.b.fail("lowering", format!("node {n} has no result {k}"));
                    zeros()
                }
            },
            None => {
                self.b.fail("lowering", format!("operand {operand} is missing"));
                zeros()
            }
        }
    }

    fn read(&mut self, node: NodeRef<'_>, t: &TensorSpec) -> V<'b> {
        let base = self.base(node, t);
        let key = (base.id(), t.view.clone());
        let v = match (self.walk(t), self.reads.get(&key)) {
            (Some(walk), _) => self.given(walk.read(base)).unwrap_or_else(|| self.b.zeros(t.view.dtype, &t.view.sizes)),
            (None, Some(v)) => *v,
            (None, None) => {
                let v = match read_path(&t.base, &t.view) {
                    Ok(path) => interpret::steps(base, &path.steps),
                    Err(e) => {
                        self.b.fail("view", e.to_string());
                        self.b.zeros(t.view.dtype, &t.view.sizes)
                    }
                };
                self.reads.insert(key, v);
                v
            }
        };
        let v = if t.conj { v.conj() } else { v };
        if t.neg { v.neg() } else { v }
    }

    /// How a view is reached that lies elsewhere in each call.
    fn walk<'s>(&self, spec: &'s TensorSpec) -> Option<Walk<'b, 's>> {
        let Moving { slot, flat } = spec.moving?;
        let dtype = if spec.base.numel() < i32::MAX as i64 { DType::I32 } else { DType::I64 };
        let host = Host { arg: slot, elem: 0, dtype: DType::I64, wrapped: false };
        Some(Walk { spec, flat, offset: self.params.param(host, dtype) })
    }

    fn given(&self, v: Option<V<'b>>) -> Option<V<'b>> {
        if v.is_none() {
            self.b.fail("view", "it can't lie elsewhere".to_owned());
        }
        v
    }

    fn write(&self, base: &Base, view: &View, v: V<'b>, old: impl FnOnce(&Self) -> V<'b>) -> Option<V<'b>> {
        match write_path(base, view) {
            Ok(path) => Some(interpret::write(&path, v, || old(self))),
            Err(e) => {
                self.b.fail("view", e.to_string());
                None
            }
        }
    }
}

fn same_storage(sig: &Sig, result: usize, t: &TensorSpec) -> bool {
    let Target::Write(w) = sig.outs[result].target else { return false };
    w.spec(&sig.args).is_some_and(|u| u.operand.is_some() && u.operand == t.operand)
}

fn logical(o: &OutSpec) -> Type {
    Type::new(o.dtype, o.sizes.to_vec())
}

/// Which parameter each live result may take over: the storage it overwrites.
pub(crate) fn aliases(
    nodes: &[NodeRef<'_>],
    inputs: &[&Base],
    live: &[(u32, u32)],
    params: &[Param],
) -> Vec<Option<usize>> {
    let mut aliases = vec![None; params.len()];
    for (r, &(n, k)) in live.iter().enumerate() {
        let (mut n, mut k) = (n, k);
        // follow a chain of writes back to the segment's input
        let root = loop {
            let node = nodes[n as usize];
            let out = &node.sig.outs[k as usize];
            let Target::Write(w) = out.target else { break None };
            let Some(t) = w.spec(&node.sig.args) else { break None };
            match t.operand.and_then(|o| node.operands.get(o)) {
                Some(&Operand::Input(i)) => break Some(i),
                Some(&Operand::Node(m, l)) => (n, k) = (m, l),
                None => break None,
            }
        };
        let Some(root) = root else { continue };
        let out = &nodes[live[r].0 as usize].sig.outs[live[r].1 as usize];
        if *inputs[root as usize] != out.base {
            continue;
        }
        if let Some(p) = params.iter().position(|p| *p == Param::Input(root))
            && aliases[p].is_none()
        {
            aliases[p] = Some(r);
        }
    }
    aliases
}
