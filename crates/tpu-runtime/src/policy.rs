//! When segments are cut, and through which plans they run.
//!
//! Fused eager never waits for a large program that it meets for the first time: the segment runs through the plans of its
//! single ops, as strict eager would, and is compiled in the background once those are known. So a program whose shapes
//! change all the time compiles what strict eager compiles and no more. docs/decisions/fused-eager.md has the measurements.

use crate::device::{Device, Mode, Recorder};
use crate::executor::{Job, Run};
use crate::fault::Fault;
use crate::plan::Plan;
use crate::{Slot, info};
use std::cell::Cell;
use std::sync::Arc;
use tpu_base::ErrorKind;
use tpu_graph::{Cut, Param, lower};

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
            self.flush();
        }
    }

    /// After a call: cuts what the mode wants cut.
    pub(crate) fn settle(&self, r: &mut Recorder, mode: Mode) {
        let n = r.segment.len();
        match mode {
            Mode::Fused if n < self.config.segment_ops && r.segment.bytes() < self.config.segment_bytes => {}
            Mode::Fused => self.cut(r, r.segment.boundary()),
            _ if held() && n < HELD_NODES => {}
            _ => self.cut(r, n),
        }
    }

    /// Ends the open segment.
    pub(crate) fn flush(&self) {
        let mut r = self.recorder.lock();
        self.cut_all(&mut r);
    }

    pub(crate) fn cut_all(&self, r: &mut Recorder) {
        while !r.segment.is_empty() {
            // a read may come while more is recorded than one segment holds
            let n = r.segment.len();
            self.cut(r, n.min(self.config.segment_ops));
        }
    }

    /// Queues the first `count` nodes of the open segment.
    fn cut(&self, r: &mut Recorder, count: usize) {
        let cut = r.segment.cut(count);
        if cut.live.is_empty() {
            return;
        }
        if cut.nodes.len() == 1 || self.mode() != Mode::Fused {
            return self.run(r, cut);
        }
        match r.plans.get(cut.key, &cut.live) {
            Some(plan) if plan.is_ready() => self.send(plan, cut),
            Some(_) => cut.singly().into_iter().for_each(|c| self.run(r, c)),
            // what the compiler refused as a whole goes on in pieces
            None if r.plans.has_failed(cut.key) => cut.singly().into_iter().for_each(|c| self.run(r, c)),
            None => self.meet(r, cut),
        }
    }

    /// A segment without a plan: the disk may have it, else its ops run singly, and if those are all known it is compiled.
    fn meet(&self, r: &mut Recorder, cut: Cut<Slot>) {
        let key = cut.key;
        let known = cut.nodes.iter().filter(|n| r.plans.has_single(n.sig.id)).count();
        let all = known == cut.nodes.len();
        // a process that knows most of the ops already has no reason to hope for the disk
        let program = (all || 2 * known < cut.nodes.len()).then(|| lower(&cut));
        if let Some(Ok(program)) = &program {
            let text = program.module.to_string();
            let plan = Arc::new(Plan::new(program, &cut));
            if self.compiler.on_disk(&text) {
                info::dump(&plan.op, key, &text);
                r.plans.insert(key, plan.clone());
                self.compiler.submit(plan.clone(), text);
                return self.send(plan, cut);
            }
            if all {
                info::dump(&plan.op, key, &text);
                r.plans.insert(key, plan.clone());
                self.compiler.submit_later(plan, text);
            }
        }
        cut.singly().into_iter().for_each(|c| self.run(r, c));
    }

    /// Queues a cut through its own plan, which is compiled if there is none.
    fn run(&self, r: &mut Recorder, cut: Cut<Slot>) {
        let plan = match r.plans.get(cut.key, &cut.live) {
            Some(p) => p,
            None => match lower(&cut) {
                Ok(program) => {
                    let plan = Arc::new(Plan::new(&program, &cut));
                    r.plans.insert(cut.key, plan.clone());
                    if let [one] = cut.nodes.as_slice() {
                        r.plans.note_single(one.sig.id);
                    }
                    let text = program.module.to_string();
                    info::dump(&plan.op, cut.key, &text);
                    self.compiler.submit(plan.clone(), text);
                    plan
                }
                Err(e) => {
                    let site = cut.nodes.first().map_or("", |n| &n.sig.site);
                    let op = cut.nodes.first().map_or("", |n| &n.sig.form.name);
                    let f = Arc::new(Fault::new(ErrorKind::Bug, e.to_string()).at(op, site));
                    cut.results().for_each(|v| v.payload.fill(Err(f.clone())));
                    return;
                }
            },
        };
        self.send(plan, cut);
    }

    fn send(&self, plan: Arc<Plan>, mut cut: Cut<Slot>) {
        cut.live.clone_from(&plan.live);
        let hosts = plan
            .params
            .iter()
            .filter_map(|p| match p {
                Param::Host { node, slot, .. } | Param::Rng { node, slot } => {
                    Some(cut.nodes[*node as usize].hosts[*slot as usize])
                }
                Param::Input(_) => None,
            })
            .collect();
        let outs = cut.results().cloned().collect();
        self.executor.send(Job::Run(Run { plan, inputs: cut.inputs, hosts, outs }));
    }
}
