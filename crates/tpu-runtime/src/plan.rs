//! Plans and the bounded table that keeps them.

use crate::fault::Fault;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};
use tpu_base::ErrorKind;
use tpu_graph::{Cut, Param, Program};
use tpu_pjrt::LoadedExecutable;

/// A compiled (or compiling) program with what it takes to run it.
pub(crate) struct Plan {
    /// Where each parameter comes from.
    pub(crate) params: Vec<Param>,
    /// Which result may take over each parameter's buffer.
    pub(crate) aliases: Vec<Option<usize>>,
    /// What each check says.
    pub(crate) checks: Vec<(ErrorKind, String)>,
    /// Ops, for messages.
    pub(crate) op: String,
    /// Python line first seen.
    pub(crate) site: String,
    state: OnceLock<Result<LoadedExecutable, Arc<Fault>>>,
}

impl Plan {
    pub(crate) fn new<P>(program: &Program, cut: &Cut<P>) -> Plan {
        let (op, site) = match cut.nodes.first() {
            Some(n) if cut.nodes.len() == 1 => (n.sig.form.name.clone(), n.sig.site.clone()),
            Some(n) => (format!("{} and {} more", n.sig.form.name, cut.nodes.len() - 1), n.sig.site.clone()),
            None => (String::new(), String::new()),
        };
        Plan {
            params: program.params.clone(),
            aliases: program.module.main.aliases.clone(),
            checks: program.checks.clone(),
            op,
            site,
            state: OnceLock::new(),
        }
    }

    pub(crate) fn set(&self, result: Result<LoadedExecutable, Fault>) {
        drop(self.state.set(result.map_err(|f| Arc::new(f.at(&self.op, &self.site)))));
    }

    /// The executable; waits for the compiler.
    pub(crate) fn wait(&self) -> &Result<LoadedExecutable, Arc<Fault>> {
        self.state.wait()
    }

    /// Whether compiling has failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.state.get(), Some(Err(_)))
    }
}

/// Plans in memory, least recently used first out.
pub(crate) struct PlanTable {
    map: FxHashMap<u128, (Arc<Plan>, u64)>,
    clock: u64,
    capacity: usize,
    pub(crate) hits: u64,
    pub(crate) evictions: u64,
}

impl PlanTable {
    pub(crate) fn new(capacity: usize) -> PlanTable {
        PlanTable { map: FxHashMap::default(), clock: 0, capacity, hits: 0, evictions: 0 }
    }

    pub(crate) fn get(&mut self, key: u128) -> Option<Arc<Plan>> {
        self.clock += 1;
        let (plan, used) = self.map.get_mut(&key)?;
        *used = self.clock;
        self.hits += 1;
        Some(plan.clone())
    }

    /// Adds a plan; over capacity, the quarter unused for longest goes.
    pub(crate) fn insert(&mut self, key: u128, plan: Arc<Plan>) {
        if self.map.len() >= self.capacity {
            let mut ages: Vec<u64> = self.map.values().map(|(_, used)| *used).collect();
            ages.sort_unstable();
            let limit = ages[ages.len() / 4];
            let before = self.map.len();
            self.map.retain(|_, (_, used)| *used > limit);
            self.evictions += (before - self.map.len()) as u64;
        }
        self.clock += 1;
        self.map.insert(key, (plan, self.clock));
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn clear(&mut self) {
        self.map.clear();
    }
}
