//! When segments are cut, and through which plans they run.
//!
//! Fused eager never waits for a large program that it meets for the first time: the segment runs through the plans of its
//! single ops, as strict eager would, and is compiled in the background once those are known. So a program whose shapes
//! change all the time compiles what strict eager compiles and no more. docs/decisions/fused-eager.md has the measurements.

use crate::capture::hosts;
use crate::compile::Source;
use crate::device::{Device, Mode, Recorder};
use crate::executor::{Job, Run};
use crate::explain::{How, Why};
use crate::fault::Fault;
use crate::plan::{Plan, Short};
use crate::{Slot, info};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tpu_base::ErrorKind;
use tpu_graph::{Cut, lower};

/// How long a segment waits for values to be let go of, when it is new or no plan of its own gives enough.
/// In microseconds.
const PATIENCE: [u64; 6] = [20, 50, 100, 300, 500, 1000];
/// Nodes that a held region (a foreach op) puts into one plan; compile time grows with it.
const HELD_NODES: usize = 8;

thread_local! {
    static HOLDS: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside a held region.
pub(crate) fn held() -> bool {
    HOLDS.get() > 0
}

impl Device {
    /// From here on this thread's calls stay in one segment…
    pub fn hold(&self) {
        HOLDS.set(HOLDS.get() + 1);
    }

    /// …until here.
    pub fn release(&self) {
        HOLDS.set(HOLDS.get().saturating_sub(1));
        if !held() && self.mode() != Mode::Fused {
            self.flush(Why::Held);
        }
    }

    /// After a call: cuts what the mode wants cut.
    pub(crate) fn settle(&self, r: &mut Recorder, mode: Mode) {
        let n = r.segment.len();
        match mode {
            Mode::Fused if n >= self.config.segment_ops => {
                let n = r.segment.boundary();
                self.cut(r, n, Why::Ops)
            }
            Mode::Fused if r.segment.bytes() >= self.config.segment_bytes => {
                let n = r.segment.boundary();
                self.cut(r, n, Why::Bytes)
            }
            Mode::Fused => {}
            _ if !held() => self.cut(r, n, Why::Op),
            _ if n >= HELD_NODES => self.cut(r, n, Why::Held),
            _ => {}
        }
    }

    /// Ends the open segment.
    pub(crate) fn flush(&self, why: Why) {
        let mut r = self.recorder.lock();
        self.cut_all(&mut r, why);
    }

    pub(crate) fn cut_all(&self, r: &mut Recorder, why: Why) {
        while !r.segment.is_empty() {
            // a read may come while more is recorded than one segment holds
            let n = r.segment.len();
            self.cut(r, n.min(self.config.segment_ops), why);
        }
    }

    /// Queues the first `count` nodes of the open segment.
    fn cut(&self, r: &mut Recorder, count: usize, why: Why) {
        let mut cut = r.segment.cut(count);
        if cut.live.is_empty() {
            return;
        }
        let whole = cut.nodes.len() == 1 || self.mode() != Mode::Fused;
        let plan = if whole { Some(self.plan(r, &cut)) } else { self.fused_plan(r, &mut cut) };
        if self.explain.is_on() {
            let plan = plan.as_ref().and_then(|p| p.as_ref().ok()).cloned();
            let how = if plan.is_some() { How::Whole } else { How::Singly };
            let plan = plan.or_else(|| r.plans.any(cut.key));
            let sigs = cut.nodes.iter().map(|n| n.sig.clone());
            self.explain.met(cut.key, sigs, &cut.live, why, how, plan.as_ref());
        }
        match plan {
            Some(plan) => self.send(plan, cut),
            None => {
                cut.nodes.iter().for_each(|n| r.plans.note_op(n.sig.id, true));
                for one in cut.singly() {
                    let plan = self.plan(r, &one);
                    self.send(plan, one);
                }
            }
        }
    }

    /// The plan of a segment if there is no wait for it. One met for the first time is asked of the disk; if its ops are all
    /// known, it is compiled in the background.
    fn fused_plan(&self, r: &mut Recorder, cut: &mut Cut<Slot>) -> Option<Result<Arc<Plan>, Arc<Fault>>> {
        if let Some(plan) = r.plans.get(cut.key, &cut.live) {
            return plan.is_ready().then_some(Ok(plan));
        }
        if r.plans.has_failed(cut.key) {
            return None; // what the compiler refused as a whole goes on in pieces
        }
        // autograd's threads let go of their last values a little after backward() has returned
        for pause in PATIENCE {
            std::thread::sleep(Duration::from_micros(pause));
            cut.let_go();
            if let Some(plan) = r.plans.get(cut.key, &cut.live) {
                return plan.is_ready().then_some(Ok(plan));
            }
            if !r.plans.holds(cut.key) {
                break;
            }
        }
        match r.plans.falls_short(cut.key, &cut.live) {
            Short::Unknown => {}
            Short::Seldom => return None,
            Short::Often(wanted) => cut.live = wanted,
        }
        let known: Vec<bool> = cut.nodes.iter().filter_map(|n| r.plans.knows_op(n.sig.id)).collect();
        let all = known.len() == cut.nodes.len();
        // a process that ran most of the ops on their own has no reason to hope for the disk
        if !all && 2 * known.iter().filter(|alone| **alone).count() >= cut.nodes.len() {
            return None;
        }
        let program = lower(cut).ok()?;
        let source = Source::of(&program.module);
        let on_disk = self.compiler.on_disk(&source);
        if !on_disk && !all {
            return None;
        }
        let plan = Arc::new(Plan::new(&program, cut));
        info::dump(&plan.op, cut, &program.starts, &source.text);
        r.plans.insert(cut.key, plan.clone());
        if on_disk {
            cut.nodes.iter().for_each(|n| r.plans.note_op(n.sig.id, false));
            self.compiler.submit(plan.clone(), source);
            return Some(Ok(plan));
        }
        self.compiler.submit_later(plan, source);
        None
    }

    /// A cut's own plan, which is compiled if there is none.
    ///
    /// # Errors
    /// The lowering's mistake.
    fn plan(&self, r: &mut Recorder, cut: &Cut<Slot>) -> Result<Arc<Plan>, Arc<Fault>> {
        if let Some(plan) = r.plans.get(cut.key, &cut.live) {
            return Ok(plan);
        }
        let plan = self.whole_plan(cut)?;
        r.plans.insert(cut.key, plan.clone());
        Ok(plan)
    }

    /// The plan of everything in a cut, which is compiled from here on.
    ///
    /// # Errors
    /// The lowering's mistake.
    pub(crate) fn whole_plan(&self, cut: &Cut<Slot>) -> Result<Arc<Plan>, Arc<Fault>> {
        let first = &cut.nodes[0].sig;
        let program = lower(cut)
            .map_err(|e| Arc::new(Fault::new(ErrorKind::Bug, e.to_string()).at(&first.form.name, &first.site)))?;
        let plan = Arc::new(Plan::new(&program, cut));
        let source = Source::of(&program.module);
        info::dump(&plan.op, cut, &program.starts, &source.text);
        self.compiler.submit(plan.clone(), source);
        Ok(plan)
    }

    fn send(&self, plan: Result<Arc<Plan>, Arc<Fault>>, mut cut: Cut<Slot>) {
        let plan = match plan {
            Ok(plan) => plan,
            Err(fault) => return cut.results().for_each(|v| v.payload.fill(Err(fault.clone()))),
        };
        cut.live.clone_from(&plan.live);
        let hosts = hosts(&plan, &cut).collect();
        let outs = cut.results().cloned().collect();
        self.executor.send(Job::Run(Run { plan, inputs: cut.inputs, hosts, outs }));
    }
}
