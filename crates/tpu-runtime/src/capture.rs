//! Whole programs: calls recorded once on stand-ins of their inputs, run as one plan from then on. What torch.compile calls.

use crate::device::{Device, Mode};
use crate::executor::{Job, Run};
use crate::explain::{How, Why};
use crate::fault::Fault;
use crate::plan::Plan;
use crate::{Slot, Storage, TensorArg, Value};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use tpu_base::{DType, ErrorKind};
use tpu_graph::geometry::{Base, Dims, base_for};
use tpu_graph::{Cut, HostValue, Node, Param, Segment, Sig, see_tensors};

thread_local! {
    /// A graph, and in it the bodies that are being recorded for it.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(vec![]) };
}

/// A recording under way on this thread.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) segment: Segment<Slot>,
    key: u128,
    /// What stands for each input's value; `None` for a storage never written.
    pub(crate) stands: Vec<Option<Arc<Value>>>,
    /// Bodies that its ops run.
    bodies: Vec<Arc<dyn tpu_aten::Body>>,
    /// The user's line that is being recorded, and that of each node.
    site: Arc<str>,
    pub(crate) sites: Vec<Arc<str>>,
}

/// One graph of torch.compile: a program for each geometry of its inputs.
#[derive(Default)]
pub struct Graph {
    programs: RwLock<FxHashMap<u128, Arc<Captured>>>,
    /// A program from a file, which is all there is then.
    pub(crate) loaded: OnceLock<Arc<Captured>>,
}

/// A recorded program.
pub struct Captured {
    /// `None`: nothing is computed.
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) inputs: Vec<From>,
    /// Numbers of the plan; a generator's offset counts from where the call finds it.
    pub(crate) hosts: SmallVec<[HostValue; 2]>,
    pub(crate) results: Vec<(Base, u64)>,
    pub(crate) bytes: u64,
    /// Arguments whose storage gets a new value.
    pub(crate) updates: Vec<(usize, Made)>,
    /// What the program returns, in order.
    pub outs: Vec<CapturedOut>,
    /// Generator offset consumed.
    pub rng_increment: u64,
    pub(crate) key: u128,
    /// What a program from a file takes; its inputs lie densely, each in a storage of its own.
    pub(crate) takes: Vec<(Base, u64)>,
    /// Empty in a program from a file.
    pub(crate) sigs: Vec<Arc<Sig>>,
}

/// Where an input of a plan comes from.
pub(crate) enum From {
    /// Operand `i` of the call.
    Operand(usize),
    /// A value that was there when the program was recorded.
    Kept(Arc<Value>),
}

/// A value that a call leaves somewhere.
pub(crate) enum Made {
    /// Result `r` of the plan.
    Result(usize),
    /// A value that was there when the program was recorded; `None`: none was.
    Kept(Option<Arc<Value>>),
}

/// One returned tensor.
pub struct CapturedOut {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Dims,
    /// Strides.
    pub strides: Dims,
    /// Offset in elements.
    pub offset: i64,
    /// Size of its storage in bytes.
    pub nbytes: u64,
    /// Whose storage it has.
    pub owner: Owner,
    pub(crate) made: Made,
}

/// Whose storage a returned tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A new one.
    New,
    /// That of an argument.
    Argument(usize),
    /// That of an earlier result.
    Earlier(usize),
}

/// What became of a call of a graph.
pub enum GraphOutcome {
    /// It runs: the program, and the new storage of each result that has its own.
    Called(Arc<Captured>, Vec<Option<Storage>>),
    /// Inputs of a geometry never seen: record it first.
    Unknown,
}

/// Whether this thread records a graph.
pub(crate) fn is_open() -> bool {
    OPEN.with_borrow(|o| !o.is_empty())
}

/// Puts a call into the graph that this thread records, if it does.
pub(crate) fn record<R>(f: impl FnOnce(&mut Segment<Slot>) -> R) -> Option<R> {
    OPEN.with_borrow_mut(|o| {
        let o = o.last_mut()?;
        let done = f(&mut o.segment);
        o.sites.resize(o.segment.len(), o.site.clone());
        Some(done)
    })
}

/// From which line of the user what this thread records comes from here on.
pub(crate) fn at(site: &str) {
    OPEN.with_borrow_mut(|o| o.last_mut().into_iter().for_each(|o| o.site = site.into()));
}

/// Ends the recording of this thread's graph.
///
/// # Errors
/// There is none, or one inside it.
pub(crate) fn close() -> Result<Open, Arc<Fault>> {
    let open = OPEN.with_borrow_mut(|o| if o.len() > 1 { None } else { o.pop() });
    open.ok_or_else(|| Arc::new(Fault::new(ErrorKind::Bug, "no graph is being recorded, or one inside another")))
}

/// What asking for a value says while a graph is recorded.
pub(crate) fn no_value() -> Arc<Fault> {
    Arc::new(Fault::new(ErrorKind::Unsupported, "a graph is being recorded, in which this value is not known"))
}

impl Device {
    /// Starts recording on this thread: a stand-in storage for each input. With `filled`, an input never written counts as
    /// one that holds what its geometry says. Inside another recording it can end as a body only.
    ///
    /// # Errors
    /// There is none.
    pub fn capture(&self, inputs: &[TensorArg<'_, Slot>], filled: bool) -> Result<Vec<Storage>, Arc<Fault>> {
        self.flush(Why::Graph); // what the graph keeps from outside must be no node of the open segment
        let mut open = Open { key: self.graph_key(inputs), ..Open::default() };
        let storages = inputs.iter().map(|t| {
            let real = t.storage.and_then(|s| s.value());
            let nbytes = t.storage.map_or(0, |s| s.nbytes);
            let base = match real {
                Some(v) => Some(v.base.clone()),
                None => filled.then(|| base_for(t.dtype, t.sizes, t.strides, t.offset, nbytes as i64)),
            };
            let stand = base.map(|base| Value::new(base, Slot::pending(0, &self.memory)));
            open.stands.push(stand.clone());
            stand.map_or_else(|| Storage::empty(nbytes), |v| Storage::holding(nbytes, v))
        });
        let storages = storages.collect();
        OPEN.with_borrow_mut(|o| o.push(open));
        Ok(storages)
    }

    /// Forgets the recording.
    pub fn abandon_capture(&self) {
        drop(OPEN.with_borrow_mut(Vec::pop));
    }

    /// Ends a recording inside another: the body that gives `outs`, each dense and computed by it. Its name, for the ops of
    /// control flow in the outer one.
    ///
    /// # Errors
    /// There is no outer recording; it does what a body cannot; the lowering's mistake.
    pub fn end_body(
        &self,
        inputs: &[TensorArg<'_, Slot>],
        outs: &[TensorArg<'_, Slot>],
        rng: (u64, u64),
    ) -> Result<String, Arc<Fault>> {
        let refuse = |what: String| Arc::new(Fault::new(ErrorKind::Unsupported, what));
        let open = OPEN.with_borrow_mut(|o| if o.len() > 1 { o.pop() } else { None });
        let mut open = open.ok_or_else(|| Arc::new(Fault::new(ErrorKind::Bug, "no body is being recorded")))?;
        if rng.0 != rng.1 {
            return Err(refuse("a branch or loop that draws random numbers".into()));
        }
        let value = |t: &TensorArg<'_, Slot>| t.storage.and_then(|s| s.value());
        let kept = |(t, stand): (&TensorArg<'_, Slot>, &Option<Arc<Value>>)| {
            value(t).zip(stand.as_ref()).is_some_and(|(now, stand)| Arc::ptr_eq(&now, stand))
        };
        if !inputs.iter().zip(&open.stands).all(kept) {
            return Err(refuse("a branch or loop that writes into its inputs".into()));
        }
        let live: Option<Vec<(u32, u32)>> = outs.iter().map(|t| value(t)?.node()).collect();
        let live = live.ok_or_else(|| refuse("a branch or loop with a result that it does not compute".into()))?;
        let stands: Vec<Arc<Value>> = open.stands.into_iter().flatten().collect();
        let lock = self.recorder.lock(); // values from outside are marked for a moment
        let mut cut = open.segment.cut(open.segment.len());
        drop(lock);
        cut.live = live;
        let (name, body) = tpu_graph::Body::new(cut, &stands, open.bodies).map_err(|e| refuse(e.to_string()))?;
        let body = tpu_aten::publish(&name, Arc::new(body));
        OPEN.with_borrow_mut(|o| o.last_mut().into_iter().for_each(|outer| outer.bodies.push(body.clone())));
        Ok(name)
    }

    /// Ends the recording: the program that gives `outs` and what was written into `inputs` (the stand-ins). `rng` is the
    /// generator's offset before and after.
    ///
    /// # Errors
    /// No recording is under way; the lowering's mistake.
    pub fn end_capture(
        &self,
        graph: &Graph,
        inputs: &[TensorArg<'_, Slot>],
        outs: &[TensorArg<'_, Slot>],
        rng: (u64, u64),
    ) -> Result<(), Arc<Fault>> {
        let mut open = close()?;
        let mut live: Vec<(u32, u32)> = vec![];
        let mut nodes: Vec<Arc<Value>> = vec![];
        // a result is known by its place until all are; numbers follow below
        let mut made = |value: Option<Arc<Value>>| match value {
            Some(v) if v.is_deferred() => {
                let k = nodes.iter().position(|n| Arc::ptr_eq(n, &v)).unwrap_or_else(|| {
                    live.extend(v.node());
                    nodes.push(v);
                    nodes.len() - 1
                });
                Made::Result(k)
            }
            other => Made::Kept(other),
        };
        let same = |a: Option<&Storage>, b: Option<&Storage>| match (a, b) {
            (Some(a), Some(b)) => std::ptr::eq(a, b),
            _ => false,
        };
        let mut updates = vec![];
        for (i, (t, stand)) in inputs.iter().zip(&open.stands).enumerate() {
            let now = t.storage.and_then(|s| s.value());
            let unchanged = match (&now, stand) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (a, b) => a.is_none() && b.is_none(),
            };
            if !unchanged {
                updates.push((i, made(now)));
            }
        }
        let mut captured: Vec<CapturedOut> = vec![];
        for (k, t) in outs.iter().enumerate() {
            let owner = match inputs.iter().position(|i| same(i.storage, t.storage)) {
                Some(i) => Owner::Argument(i),
                None => outs[..k].iter().position(|e| same(e.storage, t.storage)).map_or(Owner::New, Owner::Earlier),
            };
            captured.push(CapturedOut {
                dtype: t.dtype,
                sizes: t.sizes.into(),
                strides: t.strides.into(),
                offset: t.offset,
                nbytes: t.storage.map_or(0, |s| s.nbytes),
                owner,
                made: if owner == Owner::New { made(t.storage.and_then(|s| s.value())) } else { Made::Kept(None) },
            });
        }
        let lock = self.recorder.lock(); // values from outside are marked for a moment
        let mut cut = open.segment.cut(open.segment.len());
        drop(lock);
        // results in the order of the program, as a plan gives them
        let mut order: Vec<usize> = (0..live.len()).collect();
        order.sort_unstable_by_key(|&k| live[k]);
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(r, &k)| rank[k] = r);
        let renumber = |m: &mut Made| {
            if let Made::Result(k) = m {
                *k = rank[*k];
            }
        };
        updates.iter_mut().for_each(|(_, m)| renumber(m));
        captured.iter_mut().for_each(|o| renumber(&mut o.made));
        cut.live = order.iter().map(|&k| live[k]).collect();
        let results: Vec<(Base, u64)> = order.iter().map(|&k| (nodes[k].base.clone(), nodes[k].base_hash)).collect();
        let plan = if cut.live.is_empty() { None } else { Some(self.whole_plan(&cut)?) };
        let operand = |v: &Arc<Value>| {
            let stands = open.stands.iter().flatten();
            match stands.enumerate().find(|(_, s)| Arc::ptr_eq(s, v)) {
                Some((k, _)) => From::Operand(k),
                None => From::Kept(v.clone()),
            }
        };
        let relative = |h: HostValue| match h {
            HostValue::Rng(seed, offset) => HostValue::Rng(seed, offset.wrapping_sub(rng.0)),
            number => number,
        };
        let program = Captured {
            inputs: cut.inputs.iter().map(operand).collect(),
            hosts: plan.iter().flat_map(|p| hosts(p, &cut)).map(relative).collect(),
            bytes: results.iter().map(|(b, _)| b.nbytes() as u64).sum(),
            results,
            updates,
            outs: captured,
            rng_increment: rng.1.wrapping_sub(rng.0),
            key: cut.key,
            takes: vec![],
            sigs: cut.nodes.iter().zip(&open.sites).map(located).collect(),
            plan,
        };
        // a program stays as long as its graph: results point into it
        graph.programs.write().entry(open.key).or_insert_with(|| Arc::new(program));
        Ok(())
    }

    fn graph_key(&self, inputs: &[TensorArg<'_, Slot>]) -> u128 {
        see_tensors(*self.settings.read(), inputs).id
    }

    /// Runs the program that was recorded for inputs of this geometry. `rng` is the generator's state.
    ///
    /// # Errors
    /// Out of memory; in debug mode also what the program itself ran into.
    pub fn call_graph(
        &self,
        graph: &Graph,
        inputs: &[TensorArg<'_, Slot>],
        rng: (u64, u64),
    ) -> Result<GraphOutcome, Arc<Fault>> {
        let loaded = graph.loaded.get();
        if let Some(program) = loaded
            && !self.takes(program, inputs)?
        {
            return Ok(GraphOutcome::Unknown);
        }
        let mut seen = see_tensors(*self.settings.read(), inputs);
        let known = || graph.programs.read().get(&seen.id).cloned();
        let Some(program) = loaded.cloned().or_else(known) else { return Ok(GraphOutcome::Unknown) };
        let mut outs: SmallVec<[Arc<Value>; 2]> = SmallVec::with_capacity(program.results.len());
        if let Some(plan) = &program.plan {
            self.make_room(program.bytes).map_err(|f| Arc::new(f.at(&plan.op, &plan.site)))?;
            if seen.operands.iter().any(|v| v.is_deferred()) {
                self.flush(Why::Graph);
            }
            for (base, hash) in &program.results {
                let slot = Slot::pending(base.nbytes() as u64, &self.memory);
                outs.push(Value::with_hash(base.clone(), *hash, slot));
            }
        }
        let value = |m: &Made| match m {
            Made::Result(r) => Some(outs[*r].clone()),
            Made::Kept(v) => v.clone(),
        };
        let new = |o: &CapturedOut| {
            (o.owner == Owner::New)
                .then(|| value(&o.made).map_or_else(|| Storage::empty(o.nbytes), |v| Storage::holding(o.nbytes, v)))
        };
        let storages: Vec<Option<Storage>> = program.outs.iter().map(new).collect();
        if let Some(plan) = &program.plan {
            let mut operands: SmallVec<[Option<Arc<Value>>; 8]> = seen.operands.drain(..).map(Some).collect();
            let values = program.inputs.iter().filter_map(|i| match i {
                From::Operand(k) => operands[*k].take(), // an input of a plan stands once among them
                From::Kept(v) => Some(v.clone()),
            });
            let values = values.collect();
            for (i, m) in &program.updates {
                inputs[*i].storage.inspect(|s| s.set(value(m)));
            }
            drop(operands); // an input that nobody else holds may be overwritten
            let hosts = program.hosts.iter().map(|h| match h {
                HostValue::Rng(_, offset) => HostValue::Rng(rng.0, rng.1.wrapping_add(*offset)),
                number => *number,
            });
            if self.explain.is_on() && !program.sigs.is_empty() {
                let sigs = program.sigs.iter().cloned();
                self.explain.met(program.key, sigs, &plan.live, Why::Graph, How::Whole, Some(plan));
            }
            let last = outs.last().cloned();
            self.executor.send(Job::Run(Run { plan: plan.clone(), inputs: values, hosts: hosts.collect(), outs }));
            if let (Mode::Debug, Some(v)) = (self.mode(), last) {
                self.wait_storage(&Storage::holding(v.base.nbytes() as u64, v), None)?;
            }
        } else {
            for (i, m) in &program.updates {
                inputs[*i].storage.inspect(|s| s.set(value(m)));
            }
        }
        Ok(GraphOutcome::Called(program, storages))
    }
}

/// A node's signature with its own line.
fn located((node, site): (&Node<Slot>, &Arc<str>)) -> Arc<Sig> {
    if site.is_empty() { node.sig.clone() } else { Arc::new(Sig { site: site.to_string(), ..(*node.sig).clone() }) }
}

/// The values of a plan's numbers and generators, in order.
pub(crate) fn hosts<'a>(plan: &'a Plan, cut: &'a Cut<Slot>) -> impl Iterator<Item = HostValue> + 'a {
    plan.params.iter().filter_map(|p| match p {
        Param::Host { node, slot, .. } | Param::Rng { node, slot } => {
            Some(cut.nodes[*node as usize].hosts[*slot as usize])
        }
        Param::Input(_) => None,
    })
}
