//! How often a loop of an optimized program runs. The TPU compiler does not write that down, so it is read from the loop: a
//! counter that starts at a known number, moves by a known step and is compared with a known bound. A bound that depends on
//! the counter of a loop around it (a causal mask's) is known for that loop's first and last turn, and the mean is taken.

use std::collections::HashMap;

use crate::optimized::{Computation, RawInstruction};

/// A number in the first and in the last turn of the loops around it.
type Number = [f64; 2];

/// What is known of the elements of a computation's one parameter, a tuple.
pub(crate) type Known = [Option<Number>];

/// Turns, and what the body then knows of its parameter.
pub(crate) struct Trips {
    pub(crate) count: f64,
    pub(crate) known: Vec<Option<Number>>,
}

struct Scope<'a> {
    by_id: HashMap<i64, &'a RawInstruction>,
    known: &'a Known,
}

impl<'a> Scope<'a> {
    fn new(c: &'a Computation, known: &'a Known) -> Scope<'a> {
        Scope { by_id: c.instructions.iter().map(|i| (i.id, i)).collect(), known }
    }

    /// Past copies.
    fn origin(&self, id: i64) -> Option<&'a RawInstruction> {
        let mut i = *self.by_id.get(&id)?;
        while matches!(i.opcode.as_str(), "copy" | "bitcast" | "convert" | "reshape") {
            i = self.by_id.get(i.operands.first()?)?;
        }
        Some(i)
    }

    /// Which element of the parameter it is.
    fn element(&self, id: i64) -> Option<usize> {
        let i = self.origin(id).filter(|i| i.opcode == "get-tuple-element")?;
        let of = self.origin(*i.operands.first()?)?;
        (of.opcode == "parameter").then_some(i.tuple_index as usize)
    }

    fn number(&self, id: i64, depth: usize) -> Option<Number> {
        if let Some(k) = self.element(id) {
            return *self.known.get(k)?;
        }
        let i = self.origin(id)?;
        if i.opcode == "constant" {
            let n = i.literal.as_ref()?.number()? as f64;
            return Some([n; 2]);
        }
        if depth == 0 {
            return None;
        }
        let &[a, b] = i.operands.as_slice() else { return None };
        let (a, b) = (self.number(a, depth - 1)?, self.number(b, depth - 1)?);
        let on: fn(f64, f64) -> f64 = match i.opcode.as_str() {
            "add" => |a, b| a + b,
            "subtract" => |a, b| a - b,
            "multiply" => |a, b| a * b,
            "divide" => |a, b| (a / b).trunc(),
            "maximum" => f64::max,
            "minimum" => f64::min,
            "shift-left" => |a, b| a * b.exp2(),
            "shift-right-logical" | "shift-right-arithmetic" => |a, b| (a / b.exp2()).floor(),
            _ => return None,
        };
        let both = [on(a[0], b[0]), on(a[1], b[1])];
        both.iter().all(|n| n.is_finite()).then_some(both)
    }
}

const DEPTH: usize = 16;

/// Of the loop `i` in `c`, with the loop's condition and body.
pub(crate) fn trips(
    c: &Computation,
    known: &Known,
    i: &RawInstruction,
    condition: &Computation,
    body: &Computation,
) -> Option<Trips> {
    let outside = Scope::new(c, known);
    let init = outside.origin(*i.operands.first()?).filter(|t| t.opcode == "tuple")?;
    let start: Vec<Option<Number>> = init.operands.iter().map(|id| outside.number(*id, DEPTH)).collect();

    let inside = Scope::new(body, &[]);
    let end = inside.origin(body.root).filter(|t| t.opcode == "tuple")?;
    let stays = |k: usize| end.operands.get(k).is_some_and(|id| inside.element(*id) == Some(k));
    let mut inner: Vec<Option<Number>> = start.iter().enumerate().map(|(k, n)| n.filter(|_| stays(k))).collect();

    let test = Scope::new(condition, &inner);
    let compare = test.origin(condition.root).filter(|i| i.opcode == "compare")?;
    let &[counter, bound] = compare.operands.as_slice() else { return None };
    let (counter, bound) = (test.element(counter)?, test.number(bound, DEPTH)?);
    let first = (*start.get(counter)?)?;
    let mut at_start = vec![None; start.len()];
    at_start[counter] = Some(first);
    let next = Scope::new(body, &at_start).number(*end.operands.get(counter)?, DEPTH)?;
    let step = next[0] - first[0];
    if step == 0.0 {
        return None;
    }
    let inclusive = matches!(compare.comparison.as_str(), "LE" | "GE");
    let turns = [0, 1].map(|k| {
        let way = (bound[k] - first[k]) / step;
        (if inclusive { way.floor() + 1.0 } else { way.ceil() }).max(0.0)
    });
    inner[counter] = Some([first[0], first[1] + step * (turns[1] - 1.0).max(0.0)]);
    Some(Trips { count: (turns[0] + turns[1]) / 2.0, known: inner })
}
