//! Plans and the bounded table that keeps them.

use crate::fault::Fault;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tpu_base::ErrorKind;
use tpu_graph::{Cut, Param, Program};
use tpu_pjrt::LoadedExecutable;

/// A compiled (or compiling) program with what it takes to run it.
#[derive(Default)]
pub(crate) struct Plan {
    /// The key of the cut that it was made for, which names its program in a dump.
    pub(crate) key: u128,
    /// Where each parameter comes from.
    pub(crate) params: Vec<Param>,
    /// Which result may take over each parameter's buffer.
    pub(crate) aliases: Vec<Option<usize>>,
    /// (node, result) of each result.
    pub(crate) live: Vec<(u32, u32)>,
    /// What each check says.
    pub(crate) checks: Vec<(ErrorKind, String)>,
    /// Ops, for messages.
    pub(crate) op: String,
    /// Python line first seen.
    pub(crate) site: String,
    /// Bytes of its array operands.
    pub(crate) bytes_in: u64,
    /// Bytes of its results.
    pub(crate) bytes_out: u64,
    state: OnceLock<Result<LoadedExecutable, Arc<Fault>>>,
    /// Nanoseconds it took to compile; 0: it came from the disk.
    compiled: AtomicU64,
    /// Runs that were timed, their nanoseconds, bytes they took over.
    runs: [AtomicU64; 3],
}

/// What a plan cost so far.
pub(crate) struct Cost {
    pub(crate) compile_ms: f64,
    pub(crate) from_disk: bool,
    pub(crate) runs: u64,
    /// Of one run.
    pub(crate) run_ms: f64,
    /// Bytes of operands that the last run's results took over.
    pub(crate) donated: u64,
}

impl Plan {
    pub(crate) fn new<P>(program: &Program, cut: &Cut<P>) -> Plan {
        let (op, site) = match cut.nodes.first() {
            Some(n) if cut.nodes.len() == 1 => (n.sig.form.name.clone(), n.sig.site.clone()),
            Some(n) => (format!("{} and {} more", n.sig.form.name, cut.nodes.len() - 1), n.sig.site.clone()),
            None => (String::new(), String::new()),
        };
        Plan {
            key: cut.key,
            params: program.params.clone(),
            aliases: program.module.main.aliases.clone(),
            live: cut.live.clone(),
            checks: program.checks.clone(),
            op,
            site,
            bytes_in: program.params.iter().map(|p| bytes(cut, p)).sum(),
            bytes_out: cut.results().map(|v| v.base.nbytes() as u64).sum(),
            ..Plan::default()
        }
    }

    /// A plan from a file: it takes arrays of `takes` bytes in all, and gives results of these bytes.
    pub(crate) fn loaded(
        params: Vec<Param>,
        aliases: Vec<Option<usize>>,
        checks: Vec<(ErrorKind, String)>,
        takes: u64,
        gives: &[u64],
    ) -> Plan {
        Plan {
            params,
            aliases,
            live: (0..gives.len() as u32).map(|r| (0, r)).collect(),
            checks,
            op: "a program loaded from a file".into(),
            bytes_in: takes,
            bytes_out: gives.iter().sum(),
            ..Plan::default()
        }
    }

    pub(crate) fn set(&self, result: Result<LoadedExecutable, Fault>) {
        drop(self.state.set(result.map_err(|f| Arc::new(f.at(&self.op, &self.site)))));
    }

    pub(crate) fn note_compiled(&self, time: Duration) {
        self.compiled.store(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn note_run(&self, time: Duration, donated: u64) {
        self.runs[0].fetch_add(1, Relaxed);
        self.runs[1].fetch_add(time.as_nanos() as u64, Relaxed);
        self.runs[2].store(donated, Relaxed);
    }

    pub(crate) fn cost(&self) -> Cost {
        let [runs, nanos, donated] = self.runs.each_ref().map(|n| n.load(Relaxed));
        let compiled = self.compiled.load(Relaxed);
        Cost {
            compile_ms: compiled as f64 / 1e6,
            from_disk: compiled == 0 && self.is_ready(),
            runs,
            run_ms: nanos as f64 / 1e6 / runs.max(1) as f64,
            donated,
        }
    }

    /// What the compiler said, if it refused.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.state.get()?.as_ref().err().map(|f| f.message.as_str())
    }

    /// The executable; waits for the compiler.
    pub(crate) fn wait(&self) -> &Result<LoadedExecutable, Arc<Fault>> {
        self.state.wait()
    }

    /// Whether all of `live` (sorted) are among its results.
    fn gives(&self, live: &[(u32, u32)]) -> bool {
        let mut mine = self.live.iter();
        live.iter().all(|l| mine.any(|m| m == l))
    }

    /// Whether it is compiled.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state.get(), Some(Ok(_)))
    }

    /// Whether compiling has failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.state.get(), Some(Err(_)))
    }
}

fn bytes<P>(cut: &Cut<P>, p: &Param) -> u64 {
    if let Param::Input(i) = p { cut.inputs[*i as usize].base.nbytes() as u64 } else { 0 }
}

/// Plans of the same work: they differ in which results they give.
struct Variants {
    plans: SmallVec<[Arc<Plan>; 1]>,
    used: u64,
    /// How often none of them gave enough, and what was wanted then.
    short: u32,
    wanted: Vec<(u32, u32)>,
}

/// So often must a segment's plans give too little before it gets another one.
const SHORT: u32 = 3;

/// Why no plan of a segment gives enough.
pub(crate) enum Short {
    /// It has none.
    Unknown,
    /// It happened too seldom to compile another.
    Seldom,
    /// It needs one that gives these.
    Often(Vec<(u32, u32)>),
}

/// Plans in memory, least recently used first out.
pub(crate) struct PlanTable {
    map: FxHashMap<u128, Variants>,
    /// Signatures of ops that fused eager has run, and whether it did on their own.
    ops: FxHashMap<u128, bool>,
    clock: u64,
    capacity: usize,
    pub(crate) hits: u64,
    pub(crate) evictions: u64,
}

impl PlanTable {
    pub(crate) fn new(capacity: usize) -> PlanTable {
        let (map, ops) = (FxHashMap::default(), FxHashMap::default());
        PlanTable { map, ops, clock: 0, capacity, hits: 0, evictions: 0 }
    }

    /// A plan that computes `key` and gives at least the results `live` (in order): of several the one that gives least,
    /// those that are compiled before the others. What else it gives is dropped: whether a value is still held at a cut may
    /// be a matter of microseconds (autograd's threads let go of theirs late), and must not cost a program each time.
    pub(crate) fn get(&mut self, key: u128, live: &[(u32, u32)]) -> Option<Arc<Plan>> {
        self.clock += 1;
        let variants = self.map.get_mut(&key)?;
        let serves = variants.plans.iter().filter(|p| !p.failed() && p.gives(live));
        let plan = serves.min_by_key(|p| (!p.is_ready(), p.live.len()))?.clone();
        variants.used = self.clock;
        self.hits += 1;
        Some(plan)
    }

    /// Whether a segment met before needs a plan that gives more: not the first time, which may have been a value let go of
    /// late. If so, all the results that were wanted.
    pub(crate) fn falls_short(&mut self, key: u128, live: &[(u32, u32)]) -> Short {
        let Some(v) = self.map.get_mut(&key).filter(|v| v.plans.iter().any(|p| !p.failed())) else {
            return Short::Unknown;
        };
        v.wanted.extend_from_slice(live);
        v.wanted.sort_unstable();
        v.wanted.dedup();
        v.short += 1;
        if v.short < SHORT {
            return Short::Seldom;
        }
        v.short = 0;
        Short::Often(std::mem::take(&mut v.wanted))
    }

    /// The latest plan of this work, whatever it gives.
    pub(crate) fn any(&self, key: u128) -> Option<Arc<Plan>> {
        self.map.get(&key)?.plans.last().cloned()
    }

    /// Whether this work has a plan.
    pub(crate) fn holds(&self, key: u128) -> bool {
        self.map.contains_key(&key)
    }

    /// Whether compiling this work has failed.
    pub(crate) fn has_failed(&self, key: u128) -> bool {
        self.map.get(&key).is_some_and(|v| v.plans.iter().any(|p| p.failed()))
    }

    /// Adds a plan; over capacity, the quarter unused for longest goes.
    pub(crate) fn insert(&mut self, key: u128, plan: Arc<Plan>) {
        if self.map.len() >= self.capacity {
            let mut ages: Vec<u64> = self.map.values().map(|v| v.used).collect();
            ages.sort_unstable();
            let limit = ages[ages.len() / 4];
            let before = self.map.len();
            self.map.retain(|_, v| v.used > limit);
            self.evictions += (before - self.map.len()) as u64;
        }
        self.clock += 1;
        let used = self.clock;
        let variants =
            self.map.entry(key).or_insert_with(|| Variants { plans: SmallVec::new(), used, short: 0, wanted: vec![] });
        variants.plans.retain(|p| !p.failed());
        variants.plans.push(plan);
    }

    /// Remembers that this op has run, on its own or not.
    pub(crate) fn note_op(&mut self, sig: u128, alone: bool) {
        if self.ops.len() >= 8 * self.capacity {
            self.ops.clear();
        }
        *self.ops.entry(sig).or_default() |= alone;
    }

    /// Whether this op has run, and if so, whether on its own.
    pub(crate) fn knows_op(&self, sig: u128) -> Option<bool> {
        self.ops.get(&sig).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.ops.clear();
    }
}
