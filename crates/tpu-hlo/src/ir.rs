//! The data: types, attributes, operations, functions.

use std::collections::HashSet;
use std::fmt;
use tpu_base::DType;

/// A ranked tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub dims: Vec<i64>,
}

impl Type {
    /// A tensor of `dims`.
    pub fn new(dtype: DType, dims: impl Into<Vec<i64>>) -> Type {
        Type { dtype, dims: dims.into() }
    }

    /// A 0-d tensor.
    pub fn scalar(dtype: DType) -> Type {
        Type { dtype, dims: vec![] }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.dims.iter().product()
    }
}

/// Names a value inside one module.
pub type ValueId = u32;

/// An attribute of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// `array<i64: …>`
    Ints(Vec<i64>),
    /// `array<i1: …>`
    Bools(Vec<bool>),
    /// `n : i64`
    Int(i64),
    /// `n : i32`
    Int32(i32),
    /// `true` / `false`
    Bool(bool),
    /// A quoted string.
    Str(String),
    /// `dense<…> : tensor<RxCxi64>`, row-major (padding).
    Matrix(usize, usize, Vec<i64>),
    /// A constant's elements, little-endian, dense or one splat element.
    Elements(Type, Vec<u8>),
    /// Dialect syntax given as is (`#stablehlo<…>`, arrays of attributes).
    Raw(String),
}

/// One operation in generic form.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Full name, e.g. `stablehlo.add`.
    pub name: &'static str,
    /// Operands.
    pub operands: Vec<ValueId>,
    /// Results.
    pub results: Vec<ValueId>,
    /// Attributes in writing order.
    pub attrs: Vec<(&'static str, Attr)>,
    /// Regions.
    pub regions: Vec<Block>,
}

/// A region of one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Block arguments.
    pub args: Vec<ValueId>,
    /// Operations in order; the terminator is last.
    pub ops: Vec<Op>,
}

/// A function.
#[derive(Clone, Debug, PartialEq)]
pub struct Func {
    /// Symbol name.
    pub name: String,
    /// The body; its block arguments are the parameters.
    pub body: Block,
    /// Result types.
    pub results: Vec<Type>,
    /// For each parameter, the result whose buffer it may become (donation), if any.
    pub aliases: Vec<Option<usize>>,
}

/// A module with its value types.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Symbol name.
    pub name: String,
    /// `main`.
    pub main: Func,
    /// Type of each [`ValueId`].
    pub types: Vec<Type>,
}

/// The first mistake made while building.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{op}: {what}")]
pub struct Error {
    /// The operation.
    pub op: &'static str,
    /// What was expected and what came.
    pub what: String,
}

impl Module {
    /// Whether some array of several dimensions is reduced to one number (some compilers need other options for that).
    pub fn reduces_fully(&self) -> bool {
        let rank = |v: &ValueId| self.types[*v as usize].dims.len();
        let full = |op: &Op| op.name == "stablehlo.reduce" && rank(&op.results[0]) == 0 && rank(&op.operands[0]) > 1;
        fn any(block: &Block, is: &dyn Fn(&Op) -> bool) -> bool {
            block.ops.iter().any(|op| is(op) || op.regions.iter().any(|r| any(r, is)))
        }
        any(&self.main.body, &full)
    }

    /// How many operations `main` has, those in regions too.
    pub fn size(&self) -> usize {
        fn ops(block: &Block) -> usize {
            block.ops.iter().map(|op| 1 + op.regions.iter().map(ops).sum::<usize>()).sum()
        }
        ops(&self.main.body)
    }

    /// Drops operations of `main` that no result depends on, then parameters that nothing reads. Which parameters stay, by
    /// their former positions. `aliases` are the caller's to set anew.
    pub fn prune(&mut self) -> Vec<usize> {
        let live = self.drop_dead();
        let body = &mut self.main.body;
        let kept: Vec<usize> = (0..body.args.len()).filter(|&i| live.contains(&body.args[i])).collect();
        body.args.retain(|a| live.contains(a));
        kept
    }

    /// Drops operations of `main` that no result depends on. The values that are read.
    pub fn drop_dead(&mut self) -> HashSet<ValueId> {
        fn reads(op: &Op, live: &mut HashSet<ValueId>) {
            live.extend(&op.operands);
            op.regions.iter().flat_map(|r| &r.ops).for_each(|op| reads(op, live));
        }
        let body = &mut self.main.body;
        let mut live = HashSet::new();
        let mut keep = vec![false; body.ops.len()];
        for (i, op) in body.ops.iter().enumerate().rev() {
            // the terminator has no results and is the root of all that lives
            if op.results.is_empty() || op.results.iter().any(|r| live.contains(r)) {
                keep[i] = true;
                reads(op, &mut live);
            }
        }
        let mut keep = keep.into_iter();
        body.ops.retain(|_| keep.next().unwrap_or(true));
        live
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for d in &self.dims {
            write!(f, "{d}x")?;
        }
        write!(f, "{}>", self.dtype.mlir())
    }
}
