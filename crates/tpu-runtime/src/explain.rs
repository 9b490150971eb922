//! What fused eager does, for people: which segments were met, why they ended, what each cost. Off unless asked for.

use crate::plan::Plan;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tpu_graph::{ArgSpec, Sig};

/// Why a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Every op is a segment (strict and debug eager).
    Op,
    /// A foreach op was complete, or as many of its ops as go together.
    Held,
    /// It had as many ops as a segment may have.
    Ops,
    /// Its results took as many bytes as they may.
    Bytes,
    /// A value was read.
    Read,
    /// Synchronize, or an event.
    Wait,
    /// The mode changed.
    Mode,
    /// It is a whole graph of torch.compile, or ended where one began.
    Graph,
}

const NAMES: [&str; 8] = ["each op", "foreach", "ops", "bytes", "read", "synchronize", "mode", "graph"];

/// How a segment was run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Through its own plan.
    Whole,
    /// Through the plans of its ops, because its own is new, being compiled, or was refused.
    Singly,
}

struct Row {
    sigs: Vec<Arc<Sig>>,
    live: Vec<(u32, u32)>,
    plan: Option<Arc<Plan>>,
    times: u64,
    singly: u64,
    why: [u64; NAMES.len()],
    /// What made it another program than one met before.
    change: String,
}

/// Segments met since it was switched on, in order.
#[derive(Default)]
pub(crate) struct Explain {
    on: Arc<AtomicBool>,
    rows: Mutex<(FxHashMap<u128, usize>, Vec<Row>)>,
}

impl Explain {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Read by the executor, which then waits for each plan to time it.
    pub(crate) fn switch(&self) -> Arc<AtomicBool> {
        self.on.clone()
    }

    pub(crate) fn start(&self) {
        *self.rows.lock() = Default::default();
        self.on.store(true, Ordering::SeqCst);
    }

    pub(crate) fn stop(&self) {
        self.on.store(false, Ordering::SeqCst);
    }

    /// Notes a cut.
    pub(crate) fn met(
        &self,
        key: u128,
        sigs: impl Iterator<Item = Arc<Sig>>,
        live: &[(u32, u32)],
        why: Why,
        how: How,
        plan: Option<&Arc<Plan>>,
    ) {
        let (by_key, rows) = &mut *self.rows.lock();
        let k = *by_key.entry(key).or_insert_with(|| {
            let sigs: Vec<Arc<Sig>> = sigs.collect();
            let change = changed(rows, &sigs);
            let (live, why) = (live.to_vec(), [0; NAMES.len()]);
            rows.push(Row { sigs, live, plan: None, times: 0, singly: 0, why, change });
            rows.len() - 1
        });
        let row = &mut rows[k];
        if row.times > 0 && row.change.is_empty() && !live.iter().all(|l| row.live.contains(l)) {
            row.change = "other results were still held at its end".into();
        }
        row.times += 1;
        row.why[why as usize] += 1;
        row.singly += u64::from(how == How::Singly);
        if let Some(plan) = plan {
            row.plan = Some(plan.clone());
        }
    }

    /// The rows as JSON.
    pub(crate) fn report(&self) -> Json {
        self.rows.lock().1.iter().map(Row::json).collect()
    }
}

impl Row {
    fn json(&self) -> Json {
        let ops: Vec<Json> = self.sigs.iter().map(|s| json!([s.form.name, s.site])).collect();
        let why: serde_json::Map<String, Json> =
            NAMES.iter().zip(self.why).filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_string(), json!(n))).collect();
        let mut j = json!({
            "ops": ops, "times": self.times, "singly": self.singly, "ended_by": why, "change": self.change,
            "compile_ms": Json::Null, "run_ms": Json::Null,
        });
        if let Some(plan) = &self.plan {
            let cost = plan.cost();
            j["program"] = json!(format!("{:032x}", plan.key));
            j["compile_ms"] = json!(cost.compile_ms);
            j["from_disk"] = json!(cost.from_disk);
            j["failed"] = json!(plan.failure());
            j["run_ms"] = json!(cost.run_ms);
            j["runs"] = json!(cost.runs);
            j["bytes_in"] = json!(plan.bytes_in);
            j["bytes_out"] = json!(plan.bytes_out);
            j["donated"] = json!(cost.donated);
        }
        j
    }
}

/// How `sigs` differs from the last segment of the same ops, in words; nothing when the ops are new.
fn changed(rows: &[Row], sigs: &[Arc<Sig>]) -> String {
    let same_ops =
        |row: &&Row| row.sigs.len() == sigs.len() && row.sigs.iter().zip(sigs).all(|(a, b)| a.form.name == b.form.name);
    let Some(row) = rows.iter().rev().find(same_ops) else { return String::new() };
    match row.sigs.iter().zip(sigs).find(|(a, b)| a.id != b.id) {
        Some((a, b)) => difference(a, b),
        None => "the same ops take their operands from elsewhere".into(),
    }
}

fn difference(a: &Sig, b: &Sig) -> String {
    let op = &b.form.name;
    if a.settings != b.settings {
        return format!("{op}: the precision or the default dtype changed");
    }
    for (k, (x, y)) in a.args.iter().zip(&b.args).enumerate() {
        let name = b.form.entry.schema.args.get(k).map_or("out", |a| a.name);
        let (x, y) = (shown(x), shown(y));
        if x != y {
            return format!("{op}: {name} was {x} and is {y}");
        }
    }
    format!("{op}: a tensor lies otherwise in memory")
}

fn shown(a: &ArgSpec) -> String {
    match a {
        ArgSpec::Tensor(t) => format!("{}{:?}", t.view.dtype.name(), t.view.sizes.as_slice()),
        ArgSpec::List(l) => format!("[{}]", l.iter().map(shown).collect::<Vec<_>>().join(", ")),
        ArgSpec::Const(c) => format!("{c:?}"),
        ArgSpec::Host { dtype, .. } => format!("a {} number", dtype.name()),
        ArgSpec::Rng { .. } => "a generator".into(),
        ArgSpec::None => "None".into(),
    }
}
