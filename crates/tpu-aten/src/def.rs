//! What one op definition holds, and the archetypes that make an elementwise op one line.

use crate::cx::Cx;
use tpu_base::{DType, Scalar};
use tpu_hlo::{Type, V};

/// How an op becomes StableHLO.
#[derive(Clone, Copy)]
pub enum Lower {
    /// Elementwise over `self`, computed in the result's opmath dtype (float32 for halves).
    Unary(for<'b> fn(V<'b>) -> V<'b>),
    /// Elementwise over `self`, computed in `self`'s own dtype.
    UnarySame(for<'b> fn(V<'b>) -> V<'b>),
    /// Elementwise over the first two arguments (tensors or numbers), promoted to the result's opmath dtype.
    Binary(for<'b> fn(V<'b>, V<'b>) -> V<'b>),
    /// Elementwise over the first two arguments at their common dtype, result bool.
    Compare(for<'b> fn(V<'b>, V<'b>) -> V<'b>),
    /// One result.
    One(for<'a, 'b> fn(&'a Cx<'b>) -> V<'b>),
    /// Several results, all present.
    Many(for<'a, 'b> fn(&'a Cx<'b>) -> Vec<V<'b>>),
    /// Several results, of which some may be absent (output masks).
    Maybe(for<'a, 'b> fn(&'a Cx<'b>) -> Vec<Option<V<'b>>>),
}

/// Why a signature can't be lowered (it then runs on the CPU).
pub type Refusal = &'static str;

/// Two calls with equal extents have results of equal sizes.
pub type Extent = [i64; 2];

/// By position every `Scalar`, `float`, `int` and 0-d host tensor of a call, and the dtype of its first tensor (int64 without
/// one): whether PyTorch refuses these numbers. Asked at every call.
pub type Invalid = fn(&[Option<Scalar>], DType) -> bool;

/// The types of a call's results.
pub type Shapes = fn(&Sig<'_>) -> Option<Vec<Type>>;

/// A call whose results' sizes are data. It runs as two programs: the first counts, the host reads, and the second is
/// compiled for the counts rounded up, so that counts without number need few programs. Results are the front of what the
/// second makes.
#[derive(Clone, Copy)]
pub struct Counted {
    /// Whether this call is one: an op may also take arguments that settle its sizes (integers as indices).
    pub applies: fn(&Sig<'_>) -> bool,
    /// The first program: the counts (int64, 1-d), then whatever the second takes over (see [`Cx::found`]).
    pub count: for<'a, 'b> fn(&'a Cx<'b>) -> Vec<V<'b>>,
    /// For what count to compile the second when `n` were counted; see [`roomy`].
    pub room: fn(&Sig<'_>, i64) -> i64,
    /// Types of the results for these counts. `Err`: no such call, the CPU has the words.
    pub results: fn(&Sig<'_>, &[i64]) -> Result<Vec<Type>, Refusal>,
}

/// `n` rounded up so that few programs serve all counts up to `bound`.
pub fn roomy(n: i64, bound: i64) -> i64 {
    if n == 0 { 0 } else { (n.max(8) as u64).next_power_of_two().min(bound.max(0) as u64) as i64 }
}

/// One functional overload. Build with the archetypes below and the `with_*` methods, all const.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// Exact upstream schema.
    pub schema: &'static str,
    /// The lowering.
    pub lower: Lower,
    /// `Scalar` arguments whose value the lowering must know (others become operands unless they hold their default).
    pub consts: &'static [&'static str],
    /// `float` and `int[]` arguments that become operands nonetheless (learning rates, lengths of sequences).
    pub operands: &'static [&'static str],
    /// Tensor arguments that the op updates though the schema's results don't say so; their new values follow the results.
    pub updates: &'static [&'static str],
    /// What the results' sizes take from the call's numbers although these are operands: part of the signature.
    pub extent: Option<fn(&[Scalar]) -> Extent>,
    /// Whether the CPU refuses the call for its numbers: then it has the words.
    pub invalid: Option<Invalid>,
    /// Types of the results, for an op that PyTorch has no Meta kernel for; `None` leaves the call to the CPU.
    pub shapes: Option<Shapes>,
    /// Some or all calls have results whose sizes are data.
    pub counted: Option<Counted>,
    /// PyTorch's structured shape rule leaves the shape to the kernel, so that Meta is asked.
    pub late_shape: bool,
    /// Consumes generator state.
    pub random: bool,
    /// Whether a call of a random op draws anything (all do, unless this says no).
    pub draws: Option<fn(&Sig<'_>) -> bool>,
    /// The type of result k where the CPU gives another than Meta, which is given.
    pub retype: Option<fn(&Sig<'_>, usize, Type) -> Type>,
    /// Says no to signatures it can't lower.
    pub refuse: Option<fn(&Sig<'_>) -> Option<Refusal>>,
    /// Whether result k is absent although Meta gives one: an answer that was not asked for.
    pub absent: Option<fn(&Sig<'_>, usize) -> bool>,
    /// Calls to test with: see docs/adding-an-op.md.
    pub examples: &'static [&'static str],
}

impl OpDef {
    /// A definition with this lowering and nothing else.
    pub const fn new(schema: &'static str, lower: Lower) -> OpDef {
        OpDef {
            schema,
            lower,
            consts: &[],
            operands: &[],
            updates: &[],
            extent: None,
            invalid: None,
            shapes: None,
            counted: None,
            late_shape: false,
            random: false,
            draws: None,
            retype: None,
            refuse: None,
            absent: None,
            examples: &[],
        }
    }
    /// These `Scalar` arguments are compile-time constants.
    pub const fn consts(mut self, names: &'static [&'static str]) -> OpDef {
        self.consts = names;
        self
    }
    /// These `float` or `int[]` arguments are operands.
    pub const fn operands(mut self, names: &'static [&'static str]) -> OpDef {
        self.operands = names;
        self
    }
    /// These tensor arguments get new values, which follow the results.
    pub const fn updates(mut self, names: &'static [&'static str]) -> OpDef {
        self.updates = names;
        self
    }
    /// The results' sizes follow from the call's numbers in this way.
    pub const fn extent(mut self, f: fn(&[Scalar]) -> Extent) -> OpDef {
        self.extent = Some(f);
        self
    }
    /// The CPU refuses calls with such numbers.
    pub const fn invalid(mut self, f: Invalid) -> OpDef {
        self.invalid = Some(f);
        self
    }
    /// What Meta would say, had PyTorch a Meta kernel.
    pub const fn shapes(mut self, f: Shapes) -> OpDef {
        self.shapes = Some(f);
        self
    }
    /// The results' sizes are data.
    pub const fn counted(mut self, how: Counted) -> OpDef {
        self.counted = Some(how);
        self
    }
    /// PyTorch's structured shape rule is of no use.
    pub const fn late_shape(mut self) -> OpDef {
        self.late_shape = true;
        self
    }
    /// Consumes generator state.
    pub const fn random(mut self) -> OpDef {
        self.random = true;
        self
    }
    /// Random only where this holds.
    pub const fn draws(mut self, f: fn(&Sig<'_>) -> bool) -> OpDef {
        self.draws = Some(f);
        self
    }
    /// Results have the CPU's types rather than Meta's.
    pub const fn retype(mut self, f: fn(&Sig<'_>, usize, Type) -> Type) -> OpDef {
        self.retype = Some(f);
        self
    }
    /// Says no to some signatures.
    pub const fn refuse(mut self, f: fn(&Sig<'_>) -> Option<Refusal>) -> OpDef {
        self.refuse = Some(f);
        self
    }
    /// These results are absent though Meta gives them.
    pub const fn absent(mut self, f: fn(&Sig<'_>, usize) -> bool) -> OpDef {
        self.absent = Some(f);
        self
    }
    /// Example calls.
    pub const fn eg(mut self, examples: &'static [&'static str]) -> OpDef {
        self.examples = examples;
        self
    }
}

/// Elementwise in opmath of the result's dtype: `exp`, `sigmoid`, …
pub const fn unary(schema: &'static str, f: for<'b> fn(V<'b>) -> V<'b>) -> OpDef {
    OpDef::new(schema, Lower::Unary(f)).eg(&["f32[2,3]+"])
}
/// Elementwise in `self`'s own dtype: `neg`, `floor`, …
pub const fn unary_same(schema: &'static str, f: for<'b> fn(V<'b>) -> V<'b>) -> OpDef {
    OpDef::new(schema, Lower::UnarySame(f)).eg(&["f32[2,3]"])
}
/// Elementwise over two arguments in opmath of the result's dtype.
pub const fn binary(schema: &'static str, f: for<'b> fn(V<'b>, V<'b>) -> V<'b>) -> OpDef {
    OpDef::new(schema, Lower::Binary(f)).eg(&["f32[2,3]+ f32[3]+"])
}
/// Elementwise comparison of two arguments.
pub const fn compare(schema: &'static str, f: for<'b> fn(V<'b>, V<'b>) -> V<'b>) -> OpDef {
    OpDef::new(schema, Lower::Compare(f)).eg(&["f32[2,3] f32[3]"])
}
/// Any lowering with one result.
pub const fn one(schema: &'static str, f: for<'a, 'b> fn(&'a Cx<'b>) -> V<'b>) -> OpDef {
    OpDef::new(schema, Lower::One(f))
}
/// Any lowering with several results.
pub const fn many(schema: &'static str, f: for<'a, 'b> fn(&'a Cx<'b>) -> Vec<V<'b>>) -> OpDef {
    OpDef::new(schema, Lower::Many(f))
}
/// Any lowering with results that may be absent.
pub const fn maybe(schema: &'static str, f: for<'a, 'b> fn(&'a Cx<'b>) -> Vec<Option<V<'b>>>) -> OpDef {
    OpDef::new(schema, Lower::Maybe(f))
}

/// One argument as far as a signature knows it (no values of tensors).
#[derive(Clone, Debug, PartialEq)]
pub enum SigArg {
    /// Not given.
    None,
    /// A tensor: dtype and sizes; `host` for a 0-d CPU tensor.
    Tensor {
        /// Element type.
        dtype: DType,
        /// Sizes.
        dims: Vec<i64>,
        /// A 0-d CPU tensor or wrapped number.
        host: bool,
    },
    /// A list of tensors.
    Tensors(Vec<SigArg>),
    /// A number.
    Scalar(Scalar),
    /// Several numbers.
    Scalars(Vec<Scalar>),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A bool.
    Bool(bool),
    /// A float.
    Float(f64),
    /// Floats.
    Floats(Vec<f64>),
    /// A string.
    Str(String),
    /// A device or a generator.
    Other,
}

/// A call's arguments by name, for [`OpDef::refuse`].
pub struct Sig<'a> {
    /// The schema.
    pub schema: &'a crate::Schema,
    /// Arguments in order.
    pub args: &'a [SigArg],
}

impl Sig<'_> {
    /// The argument called `name`.
    pub fn arg(&self, name: &str) -> &SigArg {
        self.schema.index(name).and_then(|i| self.args.get(i)).unwrap_or(&SigArg::None)
    }
    /// The sizes of tensor argument `name`; none for anything else.
    pub fn dims(&self, name: &str) -> &[i64] {
        if let SigArg::Tensor { dims, .. } = self.arg(name) { dims } else { &[] }
    }
    /// Whether bool argument `name` is given as true.
    pub fn flag(&self, name: &str) -> bool {
        *self.arg(name) == SigArg::Bool(true)
    }
    /// The dtype of tensor argument `name`.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        if let SigArg::Tensor { dtype, .. } = self.arg(name) { Some(*dtype) } else { None }
    }
    /// The type of tensor argument `name`.
    pub fn ty(&self, name: &str) -> Option<Type> {
        if let SigArg::Tensor { dtype, dims, .. } = self.arg(name) { Some(Type::new(*dtype, &dims[..])) } else { None }
    }
}
