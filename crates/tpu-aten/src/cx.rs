//! What a lowering sees: the call's arguments as StableHLO values and numbers, by name.

use crate::schema::Schema;
use std::cell::RefCell;
use tpu_base::{Category, DType, ErrorKind, Scalar};
use tpu_hlo::{Builder, Precision, Type, V};

/// A 0-d value that lives on the host and enters the plan as an operand of whatever dtype the lowering asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Position of the argument, and in a list of its element.
    pub arg: usize,
    /// Element of a list argument.
    pub elem: usize,
    /// Its own dtype (before any request).
    pub dtype: DType,
    /// A wrapped Python number: weakest in type promotion.
    pub wrapped: bool,
}

/// One argument.
#[derive(Clone, Debug)]
pub enum Arg<'b> {
    /// Not given.
    None,
    /// A device tensor at its logical shape.
    Tensor(V<'b>),
    /// A 0-d CPU tensor, wrapped number or operand scalar.
    Host(Host),
    /// A list, with gaps.
    List(Vec<Arg<'b>>),
    /// A number known at compile time.
    Scalar(Scalar),
    /// `int` and friends.
    Int(i64),
    /// `int[]`, `bool[]`
    Ints(Vec<i64>),
    /// `bool`
    Bool(bool),
    /// `float`
    Float(f64),
    /// `float[]`
    Floats(Vec<f64>),
    /// `str`
    Str(String),
    /// Generator state: 2 × ui64, seed and offset.
    Rng(V<'b>),
}

/// Turns a host value into an operand of the plan.
pub trait HostParams<'b> {
    /// The operand that carries `host` in `dtype` (0-d).
    fn param(&self, host: Host, dtype: DType) -> V<'b>;
}

/// Settings that change what is lowered; part of a plan's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// `torch.set_float32_matmul_precision`.
    pub precision: Precision,
    /// `torch.get_default_dtype()`: what a Python float brings to an integer tensor.
    pub default_dtype: DType,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { precision: Precision::default(), default_dtype: DType::F32 }
    }
}

/// A condition the device tests while the plan runs; when it does not hold, the plan's results are poisoned.
#[derive(Clone, Debug)]
pub struct Check<'b> {
    /// 0-d bool: fine.
    pub ok: V<'b>,
    /// What to raise.
    pub kind: ErrorKind,
    /// In which words.
    pub message: String,
}

/// A call being lowered.
pub struct Cx<'b> {
    /// The builder.
    pub b: &'b Builder,
    pub(crate) schema: &'static Schema,
    pub(crate) args: Vec<Arg<'b>>,
    pub(crate) outs: Vec<Option<Type>>,
    pub(crate) settings: Settings,
    pub(crate) host: &'b dyn HostParams<'b>,
    pub(crate) checks: RefCell<Vec<Check<'b>>>,
    /// Arguments whose elements don't lie in row-major order.
    pub(crate) scattered: Vec<usize>,
}

impl<'b> Cx<'b> {
    /// A call of `schema` with results of types `outs` (as Meta gave them).
    pub fn new(
        b: &'b Builder,
        schema: &'static Schema,
        args: Vec<Arg<'b>>,
        outs: Vec<Option<Type>>,
        settings: Settings,
        host: &'b dyn HostParams<'b>,
    ) -> Cx<'b> {
        Cx { b, schema, args, outs, settings, host, checks: RefCell::new(vec![]), scattered: vec![] }
    }

    /// Of a call in which the arguments at these positions are not contiguous.
    pub fn scattered(mut self, positions: Vec<usize>) -> Cx<'b> {
        self.scattered = positions;
        self
    }

    /// Whether `name` is contiguous: some results mean another thing then.
    pub fn is_contiguous(&self, name: &str) -> bool {
        self.schema.index(name).is_none_or(|i| !self.scattered.contains(&i))
    }

    /// The raw argument called `name`.
    pub fn arg(&self, name: &str) -> &Arg<'b> {
        match self.schema.index(name) {
            Some(i) => self.at(i), // a form may leave out trailing arguments
            None => {
                self.b.fail("lowering", format!("{} has no argument {name}", self.schema.name));
                &Arg::None
            }
        }
    }

    /// Whether the schema has an argument `name`.
    pub fn has(&self, name: &str) -> bool {
        self.schema.index(name).is_some()
    }

    /// The schema's argument at `position`.
    pub fn at(&self, position: usize) -> &Arg<'b> {
        self.args.get(position).unwrap_or(&Arg::None)
    }

    fn wrong(&self, name: &str, wanted: &str) {
        self.b.fail(
            "lowering",
            format!("{}: argument {name} is {:?}, wanted {wanted}", self.schema.name, self.arg(name)),
        );
    }

    fn value(&self, a: &Arg<'b>, dtype: Option<DType>) -> Option<V<'b>> {
        match a {
            Arg::Tensor(v) => Some(match dtype {
                Some(d) => v.convert(d),
                None => *v,
            }),
            Arg::Host(h) => Some(self.host.param(*h, dtype.unwrap_or(h.dtype))),
            Arg::Scalar(s) => Some(self.b.scalar(dtype.unwrap_or_else(|| s.dtype(DType::F32)), *s)),
            Arg::Int(i) => Some(self.b.scalar(dtype.unwrap_or(DType::I64), *i)),
            Arg::Float(f) => Some(self.b.scalar(dtype.unwrap_or(DType::F32), *f)),
            Arg::Bool(f) => Some(self.b.scalar(dtype.unwrap_or(DType::Bool), *f)),
            _ => None,
        }
    }

    fn required(&self, name: &str, dtype: Option<DType>) -> V<'b> {
        match self.value(self.arg(name), dtype) {
            Some(v) => v,
            None => {
                self.wrong(name, "a tensor or number");
                self.b.scalar(dtype.unwrap_or(DType::F32), 0.0)
            }
        }
    }

    /// Tensor argument `name` in its own dtype.
    pub fn t(&self, name: &str) -> V<'b> {
        self.required(name, None)
    }
    /// Tensor or number argument `name` in `dtype` (numbers and host tensors are 0-d).
    pub fn t_as(&self, name: &str, dtype: DType) -> V<'b> {
        self.required(name, Some(dtype))
    }
    /// Optional tensor `name`.
    pub fn opt(&self, name: &str) -> Option<V<'b>> {
        self.value(self.arg(name), None)
    }
    /// Optional tensor or number `name` in `dtype`.
    pub fn opt_as(&self, name: &str, dtype: DType) -> Option<V<'b>> {
        self.value(self.arg(name), Some(dtype))
    }
    /// Tensors of list `name`, in their own dtypes.
    pub fn ts(&self, name: &str) -> Vec<V<'b>> {
        self.opts(name).into_iter().flatten().collect()
    }
    /// Tensors of list `name` with gaps.
    pub fn opts(&self, name: &str) -> Vec<Option<V<'b>>> {
        match self.arg(name) {
            Arg::List(l) => l.iter().map(|a| self.value(a, None)).collect(),
            _ => {
                self.wrong(name, "a list of tensors");
                vec![]
            }
        }
    }
    /// `Scalar` (or operand `float`) argument `name` as a 0-d value of `dtype`.
    pub fn scalar(&self, name: &str, dtype: DType) -> V<'b> {
        self.t_as(name, dtype)
    }

    /// A number known at compile time: a `Scalar` listed in `consts`, or any `int`, `float`, `bool`.
    pub fn number(&self, name: &str) -> Scalar {
        match self.opt_number(name) {
            Some(s) => s,
            None => {
                self.wrong(name, "a constant number");
                Scalar::Int(0)
            }
        }
    }
    /// An optional number known at compile time.
    pub fn opt_number(&self, name: &str) -> Option<Scalar> {
        match self.arg(name) {
            Arg::Scalar(s) => Some(*s),
            Arg::Int(i) => Some(Scalar::Int(*i)),
            Arg::Float(f) => Some(Scalar::Double(*f)),
            Arg::Bool(b) => Some(Scalar::Bool(*b)),
            Arg::None => None,
            _ => {
                self.wrong(name, "a constant number");
                None
            }
        }
    }
    /// `int` argument.
    pub fn int(&self, name: &str) -> i64 {
        self.number(name).as_i64()
    }
    /// `int?` argument.
    pub fn opt_int(&self, name: &str) -> Option<i64> {
        self.opt_number(name).map(Scalar::as_i64)
    }
    /// `float` argument.
    pub fn float(&self, name: &str) -> f64 {
        self.number(name).as_f64()
    }
    /// `float?` argument.
    pub fn opt_float(&self, name: &str) -> Option<f64> {
        self.opt_number(name).map(Scalar::as_f64)
    }
    /// `bool` argument.
    pub fn flag(&self, name: &str) -> bool {
        self.number(name).truthy()
    }
    /// `int[]` argument.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        self.opt_ints(name).unwrap_or_default()
    }
    /// `int[]?` argument.
    pub fn opt_ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.arg(name) {
            Arg::Ints(v) => Some(v.clone()),
            Arg::Int(i) => Some(vec![*i]),
            _ => None,
        }
    }
    /// `int[n]` argument: a single number stands for n.
    pub fn ints_n(&self, name: &str, n: usize) -> Vec<i64> {
        let v = self.ints(name);
        if v.len() == 1 && n != 1 { vec![v[0]; n] } else { v }
    }
    /// `float[]?` argument.
    pub fn opt_floats(&self, name: &str) -> Option<Vec<f64>> {
        if let Arg::Floats(v) = self.arg(name) { Some(v.clone()) } else { None }
    }
    /// `str` argument; `None` when not given.
    pub fn str(&self, name: &str) -> Option<&str> {
        if let Arg::Str(s) = self.arg(name) { Some(s) } else { None }
    }
    /// `ScalarType?` argument.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.opt_int(name).and_then(|c| DType::from_code(c as u8))
    }
    /// `int dim` wrapped into 0..rank (0-d tensors count as 1-d).
    pub fn dim(&self, name: &str, rank: usize) -> usize {
        wrap(self.int(name), rank)
    }
    /// `int[]? dim` wrapped, sorted; none or empty means every dimension.
    pub fn dims(&self, name: &str, rank: usize) -> Vec<usize> {
        let mut d: Vec<usize> = match self.opt_ints(name) {
            Some(v) if !v.is_empty() => v.iter().map(|&d| wrap(d, rank)).collect(),
            _ => (0..rank).collect(),
        };
        d.retain(|&i| i < rank);
        d.sort_unstable();
        d.dedup();
        d
    }

    /// What the first program of a counted call found: its counts as `found(0)`, then what it hands on.
    pub fn found(&self, k: usize) -> V<'b> {
        match self.value(self.at(self.schema.args.len() + k), None) {
            Some(v) => v,
            None => {
                self.b.fail("lowering", format!("{}: nothing was found as {k}", self.schema.name));
                self.b.scalar(DType::I64, 0)
            }
        }
    }
    /// What this program, the second of a counted call, is compiled for in place of the counts.
    pub fn rooms(&self) -> &[i64] {
        if let Some(Arg::Ints(rooms)) = self.args.last() { rooms } else { &[] }
    }

    /// Type of result `k`, as Meta gave it. An absent result has the type of the first present one.
    pub fn out(&self, k: usize) -> Type {
        match self.outs.get(k).and_then(Option::as_ref).or_else(|| self.outs.iter().flatten().next()) {
            Some(t) => t.clone(),
            None => Type::scalar(DType::F32),
        }
    }
    /// Whether result `k` is wanted.
    pub fn wants(&self, k: usize) -> bool {
        matches!(self.outs.get(k), Some(Some(_)))
    }
    /// Dtype of result 0.
    pub fn out_dtype(&self) -> DType {
        self.out(0).dtype
    }
    /// Precision of float32 products.
    pub fn precision(&self) -> Precision {
        self.settings.precision
    }

    /// `torch.result_type` of the named tensor and number arguments (absent ones don't count).
    pub fn common_dtype(&self, names: &[&str]) -> DType {
        let mut dim: Option<DType> = None;
        let mut zero: Option<DType> = None;
        let mut wrapped: Option<DType> = None;
        let join = |slot: &mut Option<DType>, d: DType| *slot = Some(slot.map_or(d, |s| s.promote(d)));
        for name in names {
            match self.arg(name) {
                Arg::Tensor(v) if v.rank() > 0 => join(&mut dim, v.dtype()),
                Arg::Tensor(v) => join(&mut zero, v.dtype()),
                Arg::Host(h) if h.wrapped => join(&mut wrapped, h.dtype),
                Arg::Host(h) => join(&mut zero, h.dtype),
                Arg::Scalar(s) => join(&mut wrapped, s.dtype(DType::F32)),
                _ => {}
            }
        }
        // a lower-priority operand only counts when its category is higher
        let mut result: Option<DType> = None;
        for (k, slot) in [dim, zero, wrapped].into_iter().enumerate() {
            let Some(mut d) = slot else { continue };
            result = Some(match result {
                None if k == 2 && d == DType::F64 => self.settings.default_dtype,
                None => d,
                Some(r) if d.category() > r.category() => {
                    if k == 2 {
                        // a Python number brings the default dtype of its category
                        d = match d.category() {
                            Category::Float => self.settings.default_dtype,
                            Category::Complex if r.category() == Category::Float => r.complex(),
                            Category::Complex => self.settings.default_dtype.complex(),
                            _ => d,
                        };
                    }
                    r.promote(d)
                }
                Some(r) => r,
            });
        }
        result.unwrap_or(DType::F32)
    }

    /// Uniform random bits of an unsigned dtype, from the call's generator state.
    pub fn random_bits(&self, dtype: DType, dims: &[i64]) -> V<'b> {
        for a in &self.args {
            if let Arg::Rng(state) = a {
                return self.b.threefry(*state, dtype, dims).1;
            }
        }
        self.b.fail("lowering", format!("{} has no generator state", self.schema.name));
        self.b.zeros(dtype, dims)
    }

    /// Generator state of a stream of the call's own, for loops that draw until they are content: [`Builder::threefry`]
    /// gives the state after each draw. Its key comes from the call's bits, so the streams of other calls stay untouched.
    pub fn random_stream(&self) -> V<'b> {
        let key = self.random_bits(DType::U64, &[1]);
        self.b.concat(&[key, key.zeros_like()], 0)
    }

    /// Makes the plan fail with `message` when `ok` (0-d bool) does not hold.
    pub fn check(&self, ok: V<'b>, kind: ErrorKind, message: impl Into<String>) {
        self.checks.borrow_mut().push(Check { ok, kind, message: message.into() });
    }
}

fn wrap(d: i64, rank: usize) -> usize {
    let n = rank.max(1) as i64;
    (if d < 0 { d + n } else { d }).clamp(0, n - 1) as usize
}
