//! What an optimized program (`hlo_with_config`) says of its instructions. The messages are those of XLA's hlo.proto and
//! xla_data.proto, in the fields that are read.

use std::collections::HashMap;

use prost::Message;

use crate::error::{Error, Result};
use crate::held::{Held, held};
use crate::trips::{Known, trips};
use crate::work::{self, Convolution, Window};

/// An instruction that runs by itself: of the entry computation, or of a loop or call that it makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instruction {
    /// Its name.
    pub name: String,
    /// `fusion`, `convolution`, `all-reduce` and so on.
    pub opcode: String,
    /// `f32[8,128]`; of several results the first.
    pub result: String,
    /// Bytes that it reads and writes, without padding.
    pub bytes: u64,
    /// Operations of its matrix products, in one run.
    pub flops: f64,
    /// How often it runs in one run of the program; the mean, where that depends on a loop around its own. Loops whose
    /// length only the run shows count once.
    pub times: f64,
    /// The compiler's estimate for one run, where it makes one.
    pub cycles: Option<u64>,
    /// What stands in the StableHLO's location: the op's name, the file and the line.
    pub op_name: String,
    /// See `op_name`.
    pub source_file: String,
    /// See `op_name`; 0: none.
    pub source_line: i32,
    /// `backend_config`, JSON.
    pub config: String,
}

/// The instructions that an optimized program runs, in order, loops' bodies where the loop stands; and what its memory holds
/// at its peak.
///
/// # Errors
/// Another format, or bytes that are none.
pub fn instructions(format: &str, code: &[u8]) -> Result<(Vec<Instruction>, Vec<Held>)> {
    let bad = |e: prost::DecodeError| Error::argument(format!("the optimized program can't be read: {e}"));
    let module = match format {
        "hlo" => Module::decode(code).map_err(bad)?,
        "hlo_with_config" => ModuleWithConfig::decode(code).map_err(bad)?.module.unwrap_or_default(),
        other => return Err(Error::argument(format!("an optimized program in the unknown format '{other}'"))),
    };
    let by_id: HashMap<i64, &Computation> = module.computations.iter().map(|c| (c.id, c)).collect();
    let mut walk = Walk { by_id, found: Vec::new(), depth: 0 };
    if let Some(entry) = walk.by_id.get(&module.entry) {
        walk.through(entry, &[], 1.0);
    }
    Ok((walk.found, held(&module)))
}

struct Walk<'a> {
    by_id: HashMap<i64, &'a Computation>,
    found: Vec<Instruction>,
    depth: usize,
}

/// Computations call each other without cycles; this stops at damaged ones.
const DEPTH: usize = 64;

impl<'a> Walk<'a> {
    fn through(&mut self, c: &'a Computation, known: &Known, times: f64) {
        if self.depth == DEPTH {
            return;
        }
        self.depth += 1;
        const NO_WORK: [&str; 5] = ["parameter", "constant", "tuple", "get-tuple-element", "bitcast"];
        for i in c.instructions.iter().filter(|i| !NO_WORK.contains(&i.opcode.as_str())) {
            let called: Vec<&'a Computation> = i.called.iter().filter_map(|id| self.by_id.get(id).copied()).collect();
            match i.opcode.as_str() {
                "while" => {
                    if let &[body, condition] = called.as_slice() {
                        let turns = trips(c, known, i, condition, body);
                        let (count, known) = turns.map_or((1.0, vec![]), |t| (t.count, t.known));
                        self.through(body, &known, times * count);
                    }
                    continue;
                }
                "call" | "conditional" | "async-start" => {
                    called.iter().for_each(|inner| self.through(inner, &[], times));
                    continue;
                }
                _ => {}
            }
            let config = String::from_utf8_lossy(&i.config).into_owned();
            let meta = i.metadata.clone().unwrap_or_default();
            let shape = i.shape.clone().unwrap_or_default();
            self.found.push(Instruction {
                name: i.name.clone(),
                opcode: i.opcode.clone(),
                result: shape.first(),
                bytes: work::bytes(c, i, &self.by_id),
                flops: work::flops(c, i, &self.by_id, DEPTH),
                times,
                cycles: number(&config, "estimated_cycles").filter(|n| *n < i64::MAX as u64),
                op_name: meta.op_name,
                source_file: meta.source_file,
                source_line: meta.source_line,
                config,
            });
        }
        self.depth -= 1;
    }
}

/// The first number behind `"name"` in JSON text: 64-bit numbers stand there as strings.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\""))?;
    let digits: String = rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    let sign = rest.find(|c: char| c.is_ascii_digit()).and_then(|k| rest[..k].chars().last());
    if sign == Some('-') { None } else { digits.parse().ok() }
}

#[derive(Clone, PartialEq, prost::Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Module {
    #[prost(message, repeated, tag = "3")]
    pub(crate) computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    pub(crate) entry: i64,
    #[prost(message, optional, tag = "7")]
    pub(crate) schedule: Option<Schedule>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Schedule {
    #[prost(map = "int64, message", tag = "1")]
    pub(crate) sequences: HashMap<i64, Sequence>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sequence {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) instructions: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Computation {
    #[prost(message, repeated, tag = "2")]
    pub(crate) instructions: Vec<RawInstruction>,
    #[prost(int64, tag = "5")]
    pub(crate) id: i64,
    #[prost(int64, tag = "6")]
    pub(crate) root: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RawInstruction {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) shape: Option<Shape>,
    #[prost(message, optional, tag = "7")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "8")]
    pub(crate) literal: Option<Literal>,
    #[prost(int64, tag = "9")]
    pub(crate) parameter: i64,
    #[prost(int64, tag = "13")]
    pub(crate) tuple_index: i64,
    #[prost(message, optional, tag = "15")]
    pub(crate) window: Option<Window>,
    #[prost(message, optional, tag = "16")]
    pub(crate) convolution: Option<Convolution>,
    #[prost(int64, tag = "35")]
    pub(crate) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(crate) operands: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(crate) called: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    pub(crate) config: Vec<u8>,
    #[prost(string, tag = "63")]
    pub(crate) comparison: String,
}

/// A constant; its integers only.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Literal {
    #[prost(int32, repeated, tag = "4")]
    s32: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    s64: Vec<i64>,
    #[prost(uint32, repeated, tag = "6")]
    u32: Vec<u32>,
}

impl Literal {
    /// The one it holds.
    pub(crate) fn number(&self) -> Option<i64> {
        match (self.s32.as_slice(), self.s64.as_slice(), self.u32.as_slice()) {
            (&[n], [], []) => Some(n.into()),
            ([], &[n], []) => Some(n),
            ([], [], &[n]) => Some(n.into()),
            _ => None,
        }
    }
}

impl RawInstruction {
    pub(crate) fn size(&self) -> u64 {
        self.shape.as_ref().map_or(0, Shape::bytes)
    }

    /// Bytes of it that lie in the device's main memory. A transfer that begins gives its target first, and its source.
    pub(crate) fn memory(&self) -> u64 {
        let Some(shape) = &self.shape else { return 0 };
        match shape.parts.first() {
            Some(target) if self.opcode.ends_with("-start") => target.in_memory(),
            _ => shape.in_memory(),
        }
    }

    pub(crate) fn source_line(&self) -> i32 {
        self.metadata.as_ref().map_or(0, |m| m.source_line)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metadata {
    #[prost(string, tag = "2")]
    op_name: String,
    #[prost(string, tag = "3")]
    source_file: String,
    #[prost(int32, tag = "4")]
    source_line: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Shape {
    #[prost(int32, tag = "2")]
    pub(crate) element: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) dims: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) parts: Vec<Shape>,
    #[prost(message, optional, tag = "5")]
    pub(crate) layout: Option<Layout>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Layout {
    /// 0: the device's main memory.
    #[prost(int64, tag = "8")]
    memory: i64,
}

/// Names and bits of XLA's `PrimitiveType`s.
fn element(id: i32) -> (&'static str, u64) {
    match id {
        1 => ("pred", 8),
        2 => ("s8", 8),
        3 => ("s16", 16),
        4 => ("s32", 32),
        5 => ("s64", 64),
        6 => ("u8", 8),
        7 => ("u16", 16),
        8 => ("u32", 32),
        9 => ("u64", 64),
        10 => ("f16", 16),
        11 => ("f32", 32),
        12 => ("f64", 64),
        15 => ("c64", 64),
        16 => ("bf16", 16),
        18 => ("c128", 128),
        19 => ("f8e5m2", 8),
        20 => ("f8e4m3fn", 8),
        21 => ("s4", 4),
        22 => ("u4", 4),
        _ => ("other", 0),
    }
}

impl Shape {
    pub(crate) fn largest(&self) -> &Shape {
        self.parts.iter().max_by_key(|p| p.bytes()).unwrap_or(self)
    }

    fn in_memory(&self) -> u64 {
        match &self.layout {
            _ if !self.parts.is_empty() => self.parts.iter().map(Shape::in_memory).sum(),
            Some(layout) if layout.memory != 0 => 0,
            _ => self.bytes(),
        }
    }

    pub(crate) fn first(&self) -> String {
        match self.parts.first() {
            Some(part) => part.first(),
            None => {
                let dims: Vec<String> = self.dims.iter().map(i64::to_string).collect();
                format!("{}[{}]", element(self.element).0, dims.join(","))
            }
        }
    }

    fn bytes(&self) -> u64 {
        if self.parts.is_empty() {
            let count: u64 = self.dims.iter().map(|&d| d.unsigned_abs()).product();
            (count * element(self.element).1).div_ceil(8)
        } else {
            self.parts.iter().map(Shape::bytes).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(name: &str, opcode: &str, config: &str, called: &[i64]) -> RawInstruction {
        RawInstruction {
            name: name.into(),
            opcode: opcode.into(),
            shape: Some(Shape { element: 16, dims: vec![8, 128], ..Shape::default() }),
            config: config.as_bytes().to_vec(),
            called: called.to_vec(),
            ..RawInstruction::default()
        }
    }

    fn value(id: i64, opcode: &str, operands: &[i64]) -> RawInstruction {
        RawInstruction { id, operands: operands.to_vec(), ..instruction("", opcode, "", &[]) }
    }

    fn constant(id: i64, n: i32) -> RawInstruction {
        RawInstruction { literal: Some(Literal { s32: vec![n], ..Literal::default() }), ..value(id, "constant", &[]) }
    }

    fn element(id: i64, k: i64) -> RawInstruction {
        RawInstruction { tuple_index: k, ..value(id, "get-tuple-element", &[1]) }
    }

    /// A loop's test, its counter being element 0 and its bound element 1.
    fn test(id: i64) -> Computation {
        let compare = RawInstruction { comparison: "LT".into(), ..value(4, "compare", &[2, 3]) };
        Computation {
            id,
            root: 4,
            instructions: vec![value(1, "parameter", &[]), element(2, 0), element(3, 1), compare],
        }
    }

    /// A loop's body that moves the counter by `step`, with more in it.
    fn body(id: i64, step: i32, more: Vec<RawInstruction>) -> Computation {
        let mut instructions = vec![
            value(1, "parameter", &[]),
            element(2, 0),
            element(3, 1),
            constant(4, step),
            value(5, "add", &[2, 4]),
            value(6, "tuple", &[5, 3]),
        ];
        instructions.extend(more);
        Computation { id, root: 6, instructions }
    }

    fn looped(id: i64, init: i64, body: i64, test: i64) -> RawInstruction {
        RawInstruction { called: vec![body, test], ..value(id, "while", &[init]) }
    }

    #[test]
    fn loops_count_their_trips_and_those_of_inner_loops_up_to_the_counter_their_mean() {
        let fusion = |name: &str| instruction(name, "fusion", r#"{"estimated_cycles":"70"}"#, &[9]);
        let inner = body(2, 1, vec![fusion("inner")]);
        let up_to = vec![constant(10, 0), value(11, "copy", &[2]), value(12, "tuple", &[10, 11]), looped(13, 12, 2, 3)];
        let outer = body(4, 1, [up_to, vec![fusion("outer")]].concat());
        let all = vec![constant(1, 0), constant(2, 5), value(3, "tuple", &[1, 2]), looped(4, 3, 4, 5)];
        let entry = Computation { id: 1, root: 4, instructions: all };
        let module = Module { computations: vec![inner, test(3), outer, test(5), entry], entry: 1, schedule: None };
        let code = ModuleWithConfig { module: Some(module) }.encode_to_vec();
        let (found, _) = instructions("hlo_with_config", &code).unwrap();
        let times = |name: &str| found.iter().find(|i| i.name == name).unwrap().times;
        assert_eq!((times("outer"), times("inner")), (5.0, 10.0));
        let one = found.iter().find(|i| i.name == "inner").unwrap();
        assert_eq!((one.cycles, one.bytes, one.result.as_str()), (Some(70), 2048, "bf16[8,128]"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(instructions("mlir", &[]).is_err());
        assert!(instructions("hlo", &[0xff, 0xff]).is_err());
    }

    #[test]
    fn numbers_are_found_behind_their_names() {
        assert_eq!(number(r#"{"a":"1","estimated_cycles":"42"}"#, "estimated_cycles"), Some(42));
        assert_eq!(number(r#"{"estimated_cycles":"-1"}"#, "estimated_cycles"), None);
        assert_eq!(number("{}", "estimated_cycles"), None);
    }
}
