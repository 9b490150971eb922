//! Signatures: everything about a call but the contents of its tensors.

use crate::geometry::{Base, Dims, View};
use crate::key::KeyWriter;
use crate::value::{Storage, Value};
use smallvec::SmallVec;
use std::sync::Arc;
use tpu_aten::{ArgType, Entry, Settings, SigArg};
use tpu_base::{DType, Scalar};

/// A tensor argument of a call.
pub struct TensorArg<'a, P> {
    /// Its storage; `None` for a 0-d host tensor.
    pub storage: Option<&'a Storage<P>>,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub sizes: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
    /// Offset in elements.
    pub offset: i64,
    /// A wrapped Python number.
    pub wrapped: bool,
    /// Conjugate bit.
    pub conj: bool,
    /// Negative bit.
    pub neg: bool,
    /// The value of a host tensor.
    pub host: Scalar,
}

impl<P> Clone for TensorArg<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for TensorArg<'_, P> {}

/// One argument of a call.
pub enum CallArg<'a, P> {
    /// Not given.
    None,
    /// A tensor.
    Tensor(TensorArg<'a, P>),
    /// A list of tensors with gaps.
    Tensors(Vec<Option<TensorArg<'a, P>>>),
    /// `Scalar`
    Scalar(Scalar),
    /// `Scalar[]`
    Scalars(Vec<Scalar>),
    /// `int` and friends
    Int(i64),
    /// `int[]`, `bool[]`
    Ints(&'a [i64]),
    /// `bool`
    Bool(bool),
    /// `float`
    Float(f64),
    /// `float[]`
    Floats(&'a [f64]),
    /// `str`
    Str(&'a str),
    /// A device.
    Device,
    /// Generator state: seed and offset.
    Generator(u64, u64),
}

// not derived: that would ask it of `P` too
impl<P> Clone for CallArg<'_, P> {
    fn clone(&self) -> Self {
        match self {
            CallArg::None => CallArg::None,
            CallArg::Tensor(t) => CallArg::Tensor(*t),
            CallArg::Tensors(l) => CallArg::Tensors(l.clone()),
            CallArg::Scalar(s) => CallArg::Scalar(*s),
            CallArg::Scalars(l) => CallArg::Scalars(l.clone()),
            CallArg::Int(v) => CallArg::Int(*v),
            CallArg::Ints(l) => CallArg::Ints(l),
            CallArg::Bool(v) => CallArg::Bool(*v),
            CallArg::Float(v) => CallArg::Float(*v),
            CallArg::Floats(l) => CallArg::Floats(l),
            CallArg::Str(s) => CallArg::Str(s),
            CallArg::Device => CallArg::Device,
            CallArg::Generator(seed, offset) => CallArg::Generator(*seed, *offset),
        }
    }
}

/// A value that the host supplies at each execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HostValue {
    /// A number.
    Scalar(Scalar),
    /// Generator state.
    Rng(u64, u64),
}

/// What a number argument is to a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarRule {
    /// Its value is part of the signature.
    Const,
    /// An operand, unless it holds this default.
    Operand(Option<Scalar>),
}

/// One callable form of an op: functional, in-place or `out=`.
pub struct Form {
    /// Position in the op table.
    pub op: usize,
    /// The table's entry.
    pub entry: &'static Entry,
    /// Full name, for messages.
    pub name: String,
    /// Identifies the form in signatures, the same in every process.
    pub key: u64,
    /// For each result (then each update): the argument it is written into.
    pub writes: Vec<Option<usize>>,
    /// For each argument.
    pub rules: Vec<ScalarRule>,
    /// Where this form leaves out the schema's factory arguments (`dtype` and what follows): an `out=` form of `arange`.
    pub gap: Option<usize>,
}

impl Form {
    /// The form `name` of table entry `op` whose result k is written into argument `writes[k]`.
    pub fn new(op: usize, name: String, mut writes: Vec<Option<usize>>) -> Option<Form> {
        let entry = tpu_aten::table().get(op)?;
        let schema = &entry.schema;
        if let Some(n) = schema.results {
            writes.resize(n, None);
        }
        writes.extend(entry.def.updates.iter().map(|u| schema.index(u)));
        let rules = schema
            .args
            .iter()
            .map(|a| match a.ty {
                ArgType::Scalar if !entry.def.consts.contains(&a.name) => ScalarRule::Operand(a.default),
                ArgType::Float | ArgType::Ints if entry.def.operands.contains(&a.name) => ScalarRule::Operand(None),
                _ => ScalarRule::Const,
            })
            .collect();
        let factory = |w: &usize| schema.args.get(*w).is_some_and(|a| a.name == "dtype");
        let gap = writes.iter().flatten().copied().find(factory);
        let key = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
        Some(Form { op, entry, name, key, writes, rules, gap })
    }

    /// What a counted call's first program found, when `args` are those of the second.
    pub fn found<'a, 'p, P>(&self, args: &'a [CallArg<'p, P>]) -> Option<&'a TensorArg<'p, P>> {
        self.entry.def.counted?;
        if let CallArg::Tensor(t) = args.get(self.entry.schema.args.len())? { Some(t) } else { None }
    }

    pub(crate) fn is_operand(&self, position: usize, value: Scalar) -> bool {
        match self.rules.get(position) {
            Some(ScalarRule::Operand(Some(d))) => !(d.as_f64() == value.as_f64() && value.imag() == 0.0),
            Some(ScalarRule::Operand(None)) => true,
            _ => false,
        }
    }
}

/// A tensor argument as the lowering needs it.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// Which operand of the node; `None`: a storage never written, read as zeros.
    pub operand: Option<usize>,
    /// The storage's base.
    pub base: Base,
    /// The tensor over it.
    pub view: View,
    /// Conjugate bit.
    pub conj: bool,
    /// Negative bit.
    pub neg: bool,
    /// `view.offset` is one of many: each call brings its own.
    pub moving: Option<Moving>,
}

/// Where a view's offset comes from, if it is none of the signature's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The node's host value that has it.
    pub slot: usize,
    /// The view is taken from the storage as one row of elements; otherwise by a slice of the base's own dimensions.
    pub flat: bool,
}

/// An argument as the lowering needs it.
#[derive(Clone, Debug)]
pub enum ArgSpec {
    /// Not given.
    None,
    /// A device tensor.
    Tensor(TensorSpec),
    /// Host value number `slot`.
    Host {
        /// Which of the node's host values.
        slot: usize,
        /// Its dtype.
        dtype: DType,
        /// A wrapped number.
        wrapped: bool,
    },
    /// Generator state in host value `slot`.
    Rng {
        /// Which of the node's host values.
        slot: usize,
    },
    /// A list.
    List(Vec<ArgSpec>),
    /// Anything known at compile time.
    Const(SigArg),
}

/// A tensor among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the argument.
    pub arg: usize,
    /// Element of a list argument.
    pub elem: Option<usize>,
}

impl Place {
    /// The tensor there.
    pub fn tensor<'s, 'a, P>(self, args: &'s [CallArg<'a, P>]) -> Option<&'s TensorArg<'a, P>> {
        match (args.get(self.arg)?, self.elem) {
            (CallArg::Tensor(t), None) => Some(t),
            (CallArg::Tensors(l), Some(i)) => l.get(i)?.as_ref(),
            _ => None,
        }
    }

    /// The storage there.
    pub fn storage<'a, P>(self, args: &[CallArg<'a, P>]) -> Option<&'a Storage<P>> {
        self.tensor(args)?.storage
    }

    /// The tensor's description, to change.
    pub(crate) fn spec_mut(self, args: &mut [ArgSpec]) -> Option<&mut TensorSpec> {
        match (args.get_mut(self.arg)?, self.elem) {
            (ArgSpec::Tensor(t), None) => Some(t),
            (ArgSpec::List(l), Some(i)) => match l.get_mut(i)? {
                ArgSpec::Tensor(t) => Some(t),
                _ => None,
            },
            _ => None,
        }
    }

    /// The tensor's description.
    pub fn spec(self, args: &[ArgSpec]) -> Option<&TensorSpec> {
        match (args.get(self.arg)?, self.elem) {
            (ArgSpec::Tensor(t), None) => Some(t),
            (ArgSpec::List(l), Some(i)) => match l.get(i)? {
                ArgSpec::Tensor(t) => Some(t),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A new storage.
    Fresh,
    /// Written into the tensor of an argument.
    Write(Place),
    /// Not wanted.
    Absent,
}

/// One result (or update) of a call.
#[derive(Clone, Debug)]
pub struct OutSpec {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Dims,
    /// Strides.
    pub strides: Dims,
    /// The base of the storage that receives it.
    pub base: Base,
    /// Hash of `base`.
    pub base_hash: u64,
    /// Bytes of that storage.
    pub nbytes: u64,
    /// Where it goes.
    pub target: Target,
}

/// How a signature runs.
#[derive(Clone, Debug)]
pub enum Way {
    /// Lowered.
    Native,
    /// Lowered, as the first program of a counted call: its results are the counts and what else the second takes.
    Count,
    /// On the CPU, for this reason.
    Fallback(String),
}

/// A call seen before.
#[derive(Clone)]
pub struct Sig {
    /// Identity.
    pub id: u128,
    /// The form called.
    pub form: Arc<Form>,
    /// Settings it was seen under.
    pub settings: Settings,
    /// Arguments.
    pub args: Vec<ArgSpec>,
    /// Results, then updates.
    pub outs: Vec<OutSpec>,
    /// How it runs.
    pub way: Way,
    /// Python line of the first call.
    pub site: String,
    /// Generator offset consumed.
    pub rng_increment: u64,
    /// Tensors whose offsets are its last host values, in order.
    pub moving: SmallVec<[Place; 1]>,
}

/// Operands in argument order.
pub type Operands<P> = SmallVec<[Arc<Value<P>>; 4]>;
/// Host values in argument order.
pub type HostValues = SmallVec<[HostValue; 2]>;

/// What the hot path takes from a call: its key, operands and host values.
pub struct Seen<P> {
    /// Signature identity.
    pub id: u128,
    /// Current values of the tensor arguments.
    pub operands: Operands<P>,
    /// Host values.
    pub hosts: HostValues,
}

/// Reads a call once: identity, operands, host values.
pub fn see<P>(form: &Form, settings: Settings, args: &[CallArg<'_, P>]) -> Seen<P> {
    read(KeyWriter::new(form.key, settings), form, args)
}

/// What calls have in common that differ in where their views begin.
pub fn family<P>(form: &Form, settings: Settings, args: &[CallArg<'_, P>]) -> u128 {
    read(KeyWriter::new(form.key, settings).without_offsets(), form, args).id
}

fn read<P>(mut w: KeyWriter, form: &Form, args: &[CallArg<'_, P>]) -> Seen<P> {
    let mut seen = Seen { id: 0, operands: SmallVec::new(), hosts: SmallVec::new() };
    for (i, a) in args.iter().enumerate() {
        match a {
            CallArg::None => w.tag(0),
            CallArg::Tensor(t) => see_tensor(&mut w, &mut seen, t),
            CallArg::Tensors(l) => {
                w.list(2, l.len());
                for t in l {
                    match t {
                        Some(t) => see_tensor(&mut w, &mut seen, t),
                        None => w.tag(0),
                    }
                }
            }
            CallArg::Scalar(s) if form.is_operand(i, *s) => {
                w.tag(16 + s.bits().0);
                seen.hosts.push(HostValue::Scalar(*s));
            }
            CallArg::Scalar(s) => w.scalar(*s),
            CallArg::Scalars(l) => {
                w.list(4, l.len());
                l.iter().for_each(|s| w.scalar(*s));
            }
            CallArg::Int(v) => w.word(5, *v as u64),
            CallArg::Bool(v) => w.word(6, *v as u64),
            CallArg::Float(v) if form.is_operand(i, Scalar::Double(*v)) => {
                w.tag(18);
                seen.hosts.push(HostValue::Scalar(Scalar::Double(*v)));
            }
            CallArg::Float(v) => w.word(7, v.to_bits()),
            CallArg::Ints(l) if form.is_operand(i, Scalar::Int(0)) => {
                w.list(19, l.len());
                seen.hosts.extend(l.iter().map(|&v| HostValue::Scalar(Scalar::Int(v))));
            }
            CallArg::Ints(l) => {
                w.list(8, l.len());
                l.iter().for_each(|v| w.raw(*v as u64));
            }
            CallArg::Floats(l) => {
                w.list(9, l.len());
                l.iter().for_each(|v| w.raw(v.to_bits()));
            }
            CallArg::Str(s) => w.str(s),
            CallArg::Device => w.tag(11),
            CallArg::Generator(seed, offset) => {
                w.tag(12);
                seen.hosts.push(HostValue::Rng(*seed, *offset));
            }
        }
    }
    if let Some(extent) = form.entry.def.extent {
        let mut numbers: SmallVec<[Scalar; 3]> = SmallVec::new();
        for (i, a) in args.iter().enumerate() {
            match a {
                CallArg::Scalar(s) => numbers.push(*s),
                CallArg::Ints(l) if form.is_operand(i, Scalar::Int(0)) => {
                    numbers.extend(l.iter().map(|&v| Scalar::Int(v)))
                }
                _ => {}
            }
        }
        extent(&numbers).iter().for_each(|&n| w.raw(n as u64));
    }
    seen.id = w.finish();
    seen
}

/// Reads tensors alone, as a graph of torch.compile takes them. A storage never written gives no operand.
pub fn see_tensors<P>(settings: Settings, tensors: &[TensorArg<'_, P>]) -> Seen<P> {
    let mut w = KeyWriter::new(0, settings);
    w.reserve(tensors.iter().map(|t| 3 + 2 * t.sizes.len()).sum());
    let mut seen = Seen { id: 0, operands: SmallVec::with_capacity(tensors.len()), hosts: SmallVec::new() };
    tensors.iter().for_each(|t| see_tensor(&mut w, &mut seen, t));
    seen.id = w.finish();
    seen
}

/// Whether the definition knows the call's numbers for bad ones.
pub fn invalid<P>(form: &Form, args: &[CallArg<'_, P>]) -> bool {
    let Some(bad) = form.entry.def.invalid else { return false };
    let mut dtype = None;
    let numbers: SmallVec<[Option<Scalar>; 6]> = args
        .iter()
        .map(|a| match a {
            CallArg::Scalar(s) => Some(*s),
            CallArg::Float(v) => Some(Scalar::Double(*v)),
            CallArg::Int(v) => Some(Scalar::Int(*v)),
            CallArg::Tensor(t) if t.storage.is_none() => Some(t.host),
            CallArg::Tensor(t) => {
                dtype.get_or_insert(t.dtype);
                None
            }
            _ => None,
        })
        .collect();
    bad(&numbers, dtype.unwrap_or(DType::I64))
}

fn see_tensor<P>(w: &mut KeyWriter, seen: &mut Seen<P>, t: &TensorArg<'_, P>) {
    let flags = t.wrapped as u64 | (t.conj as u64) << 1 | (t.neg as u64) << 2;
    let Some(storage) = t.storage else {
        w.word(1, 1 << 63 | flags << 8 | t.dtype as u64);
        seen.hosts.push(HostValue::Scalar(t.host));
        return;
    };
    w.word(1, (t.sizes.len() as u64) << 32 | flags << 8 | t.dtype as u64);
    match storage.value() {
        Some(v) => {
            w.raw(v.base_hash);
            seen.operands.push(v);
        }
        None => {
            w.raw(0);
            w.raw(storage.nbytes);
        }
    }
    w.offset(t.offset);
    t.sizes.iter().chain(t.strides).for_each(|&v| w.raw(v as u64));
}
