//! Which values fill the memory where an optimized program needs most of it: a walk over its schedule.

use std::collections::{HashMap, HashSet};

use crate::optimized::{Computation, Module, RawInstruction};

/// A value in memory at the program's peak.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The instruction that made it.
    pub name: String,
    /// Its opcode; `parameter` for an argument.
    pub opcode: String,
    /// `f32[8,128]`; of several results the largest.
    pub result: String,
    /// Its size, without padding.
    pub bytes: u64,
    /// Line of the StableHLO it comes from; 0: none.
    pub source_line: i32,
    /// Which argument, for a parameter.
    pub parameter: Option<i64>,
}

/// Values of fewer bytes are not worth a word.
const LEAST: u64 = 1 << 10;

/// The values alive where those of the entry computation take most, the largest first. A loop's own values are not looked
/// into; arguments live throughout, results from where they are made. Values in the chip's fast memories do not count.
pub(crate) fn held(module: &Module) -> Vec<Held> {
    let Some(entry) = module.computations.iter().find(|c| c.id == module.entry) else { return vec![] };
    let by_id: HashMap<i64, &RawInstruction> = entry.instructions.iter().map(|i| (i.id, i)).collect();
    let order = order(module, entry);
    let mut last: HashMap<i64, usize> = HashMap::new();
    for (at, id) in order.iter().enumerate() {
        for owner in by_id[id].operands.iter().flat_map(|o| owners(*o, &by_id)) {
            last.insert(owner, at);
        }
    }
    last.extend(owners(entry.root, &by_id).into_iter().map(|owner| (owner, order.len())));
    let (mut alive, mut now) = (HashSet::new(), 0);
    for i in entry.instructions.iter().filter(|i| i.opcode == "parameter") {
        last.insert(i.id, order.len());
        alive.insert(i.id);
        now += i.memory();
    }
    let (mut peak, mut best) = (now, alive.clone());
    for (at, id) in order.iter().enumerate() {
        let i = by_id[id];
        if owns(i) && i.opcode != "parameter" {
            alive.insert(*id);
            now += i.memory();
        }
        if now > peak {
            (peak, best) = (now, alive.clone());
        }
        let used = i.operands.iter().flat_map(|o| owners(*o, &by_id)).chain([*id]);
        for done in used.filter(|u| last.get(u).is_none_or(|&l| l <= at)) {
            if alive.remove(&done) {
                now -= by_id[&done].memory();
            }
        }
    }
    let mut found: Vec<Held> = best.iter().map(|id| by_id[id]).filter(|i| i.memory() >= LEAST).map(one).collect();
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    found
}

fn one(i: &RawInstruction) -> Held {
    Held {
        name: i.name.clone(),
        opcode: i.opcode.clone(),
        result: i.shape.as_ref().map(|s| s.largest().first()).unwrap_or_default(),
        bytes: i.memory(),
        source_line: i.source_line(),
        parameter: (i.opcode == "parameter").then_some(i.parameter),
    }
}

/// The entry computation's schedule; without one, the order in which the instructions are listed.
fn order(module: &Module, entry: &Computation) -> Vec<i64> {
    let scheduled = module.schedule.as_ref().and_then(|s| s.sequences.get(&entry.id));
    match scheduled {
        Some(s) if s.instructions.len() == entry.instructions.len() => s.instructions.clone(),
        _ => entry.instructions.iter().map(|i| i.id).collect(),
    }
}

/// Whether an instruction's result is memory of its own, and not another's seen in another way.
fn owns(i: &RawInstruction) -> bool {
    const SEES: [&str; 9] = [
        "bitcast",
        "get-tuple-element",
        "tuple",
        "while",
        "copy-done",
        "async-done",
        "optimization-barrier",
        "constant",
        "after-all",
    ];
    !SEES.contains(&i.opcode.as_str())
}

/// Whose memory a value is.
fn owners(id: i64, by_id: &HashMap<i64, &RawInstruction>) -> Vec<i64> {
    let (mut found, mut waiting, mut met) = (vec![], vec![id], HashSet::new());
    while let Some(id) = waiting.pop() {
        match by_id.get(&id) {
            Some(i) if met.insert(id) => match owns(i) {
                true => found.push(id),
                false => waiting.extend(&i.operands),
            },
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimized::Shape;

    fn value(id: i64, opcode: &str, elements: i64, operands: &[i64]) -> RawInstruction {
        let shape = Some(Shape { element: 11, dims: vec![elements], ..Shape::default() });
        RawInstruction {
            id,
            opcode: opcode.into(),
            shape,
            operands: operands.to_vec(),
            name: format!("{opcode}.{id}"),
            ..Default::default()
        }
    }

    #[test]
    fn the_peak_is_where_most_is_alive_at_once() {
        // a (1000) makes b (2000), which makes c (500); d (1500) is made of c when b is gone
        let instructions = vec![
            value(1, "parameter", 1000, &[]),
            value(2, "fusion", 2000, &[1]),
            value(3, "bitcast", 2000, &[2]),
            value(4, "fusion", 500, &[3]),
            value(5, "fusion", 1500, &[4]),
        ];
        let entry = Computation { id: 7, root: 5, instructions };
        let found = held(&Module { computations: vec![entry], entry: 7, schedule: None });
        let names: Vec<(&str, u64)> = found.iter().map(|h| (h.name.as_str(), h.bytes)).collect();
        assert_eq!(names, [("fusion.2", 8000), ("parameter.1", 4000), ("fusion.4", 2000)]);
    }
}
