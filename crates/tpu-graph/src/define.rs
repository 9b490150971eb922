//! Learning a signature: what Meta said about a call becomes its [`Sig`].

use crate::geometry::{Base, Dims, View, base_for};
use crate::lower::{count_types, lower_node_alone};
use crate::sig::{ArgSpec, CallArg, Form, OutSpec, Place, Sig, Target, TensorArg, TensorSpec, Way};
use crate::value::hash_base;
use smallvec::SmallVec;
use std::sync::Arc;
use tpu_aten::{Lower, Refusal, Settings, Sig as AtenSig, SigArg};
use tpu_base::{DType, Scalar};
use tpu_hlo::Type;

/// One result as Meta gave it.
#[derive(Clone, Debug)]
pub struct MetaOut {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Dims,
    /// Strides.
    pub strides: Dims,
}

impl From<Type> for MetaOut {
    fn from(t: Type) -> MetaOut {
        let mut strides = Dims::from_elem(1, t.dims.len());
        for d in (1..t.dims.len()).rev() {
            strides[d - 1] = strides[d] * t.dims[d].max(1);
        }
        MetaOut { dtype: t.dtype, sizes: t.dims.into(), strides }
    }
}

struct Specs {
    operands: usize,
    hosts: usize,
}

/// The signature of `args` under `form`, whose results Meta gave as `metas` (`None`: absent).
///
/// A call that can't be lowered still gets a signature: its way is the CPU, with the reason.
pub fn define<P>(
    id: u128,
    form: &Arc<Form>,
    settings: Settings,
    args: &[CallArg<'_, P>],
    metas: &[Option<MetaOut>],
    site: &str,
) -> Sig {
    let mut sig = bare(id, form, settings, args, site);
    let declared = form.writes.len() - form.entry.def.updates.len();
    let results = form.entry.schema.results.unwrap_or(metas.len());
    let mut metas = metas.iter();
    let retype = form.entry.def.retype;
    for k in 0..results {
        let arg = if k < declared { form.writes[k] } else { None };
        // a result written into a list is one result an element
        let elems = match arg.map(|i| &sig.args[i]) {
            Some(ArgSpec::List(l)) => (0..l.len()).map(Some).collect(),
            _ => vec![None],
        };
        for elem in elems {
            let write = arg.map(|arg| Place { arg, elem });
            let given = metas.next().and_then(Option::as_ref);
            let own = retype.filter(|_| write.is_none()).zip(given);
            let own = own.map(|(f, m)| with_sig(&sig.args, form, |seen| retyped(f, seen, k, m)));
            let out = out_spec(&sig.args, own.as_ref().or(given), write);
            sig.outs.push(out);
        }
    }
    for write in &form.writes[declared..] {
        let write = write.map(|arg| Place { arg, elem: None });
        let meta = write.and_then(|w| w.spec(&sig.args)).map(|t| MetaOut {
            dtype: t.view.dtype,
            sizes: t.view.sizes.clone(),
            strides: t.view.strides.clone(),
        });
        let out = out_spec(&sig.args, meta.as_ref(), write);
        sig.outs.push(out);
    }
    let draws = form.entry.def.draws.is_none_or(|f| with_sig(&sig.args, form, f));
    if form.entry.def.random && draws {
        let numbers = |o: &OutSpec| o.sizes.iter().product::<i64>() * if o.dtype.is_complex() { 2 } else { 1 };
        let n: i64 = sig.outs.iter().map(numbers).max().unwrap_or(0);
        sig.rng_increment = (n as u64).div_ceil(4) * 4;
    }
    if let Some(absent) = form.entry.def.absent {
        with_sig(&sig.args, form, |seen| {
            for (k, out) in sig.outs.iter_mut().enumerate().filter(|(k, _)| absent(seen, *k)) {
                debug_assert!(out.target == Target::Fresh, "result {k} is written somewhere");
                *out = out_spec(&[], None, None);
            }
        });
    }
    if let Err(reason) = lowerable(&sig) {
        sig.way = Way::Fallback(reason);
    }
    sig
}

/// What Meta gave, as the CPU has it.
fn retyped(f: fn(&AtenSig<'_>, usize, Type) -> Type, seen: &AtenSig<'_>, k: usize, given: &MetaOut) -> MetaOut {
    let ty = f(seen, k, Type::new(given.dtype, given.sizes.to_vec()));
    if ty.dims[..] == given.sizes[..] { MetaOut { dtype: ty.dtype, ..given.clone() } } else { ty.into() }
}

/// The results' types by the definition's own rule, where PyTorch has no Meta kernel: dense tensors.
pub fn promised<P>(form: &Arc<Form>, args: &[CallArg<'_, P>]) -> Option<Vec<Option<MetaOut>>> {
    let rule = form.entry.def.shapes?;
    let declared = form.writes.len() - form.entry.def.updates.len();
    if form.writes[..declared].iter().any(Option::is_some) {
        return None; // out= may resize
    }
    let types = with_sig(&arg_specs(form, args), form, rule)?;
    Some(types.into_iter().map(|t| Some(t.into())).collect())
}

fn arg_specs<P>(form: &Form, args: &[CallArg<'_, P>]) -> Vec<ArgSpec> {
    let mut n = Specs { operands: 0, hosts: 0 };
    args.iter().enumerate().map(|(i, a)| n.arg(form, i, a)).collect()
}

fn bare<P>(id: u128, form: &Arc<Form>, settings: Settings, args: &[CallArg<'_, P>], site: &str) -> Sig {
    let (args, form, site) = (arg_specs(form, args), form.clone(), site.to_owned());
    Sig { id, form, settings, args, outs: vec![], way: Way::Native, site, rng_increment: 0, moving: SmallVec::new() }
}

/// The first program of a counted call; `None` if this is an ordinary one.
pub fn define_count<P>(id: u128, form: &Arc<Form>, settings: Settings, args: &[CallArg<'_, P>]) -> Option<Sig> {
    let counted = form.entry.def.counted?;
    let mut sig = bare(id, form, settings, args, "");
    if !with_sig(&sig.args, form, counted.applies) {
        return None;
    }
    sig.way = Way::Count;
    let types = refused(&sig).and_then(|()| count_types(&sig).map_err(|e| format!("its lowering fails: {e}")));
    match types {
        Ok(types) => sig.outs = types.into_iter().map(|t| out_spec(&[], Some(&t.into()), None)).collect(),
        Err(reason) => sig.way = Way::Fallback(reason),
    }
    Some(sig)
}

/// What the second program of a counted call with these `counts` is compiled for, and the types of its results and of those shown.
pub struct Sizes {
    /// In place of the counts.
    pub rooms: Vec<i64>,
    /// As compiled.
    pub made: Vec<Option<MetaOut>>,
    shown: Vec<MetaOut>,
}

impl Sizes {
    /// Of the call `args`.
    ///
    /// # Errors
    /// Why there is no such call.
    pub fn of<P>(form: &Form, args: &[CallArg<'_, P>], counts: &[i64]) -> Result<Sizes, Refusal> {
        let counted = form.entry.def.counted.ok_or("nothing to count")?;
        with_sig(&arg_specs(form, args), form, |sig| {
            let rooms: Vec<i64> = counts.iter().map(|&n| (counted.room)(sig, n)).collect();
            let made = (counted.results)(sig, &rooms)?.into_iter().map(|t| Some(t.into())).collect();
            let shown = (counted.results)(sig, counts)?.into_iter().map(MetaOut::from).collect();
            Ok(Sizes { rooms, made, shown })
        })
    }

    /// `sig` with its results as they are shown: the front of what is made.
    pub fn shown(&self, sig: &Sig) -> Sig {
        let mut sig = sig.clone();
        for (o, m) in sig.outs.iter_mut().zip(&self.shown).filter(|(o, _)| o.target == Target::Fresh) {
            o.nbytes = m.sizes.iter().product::<i64>() as u64 * m.dtype.size() as u64;
            (o.sizes, o.strides) = (m.sizes.clone(), m.strides.clone());
        }
        sig
    }
}

fn with_sig<R>(args: &[ArgSpec], form: &Form, f: impl FnOnce(&AtenSig<'_>) -> R) -> R {
    let args: Vec<SigArg> = args.iter().map(sig_arg).collect();
    f(&AtenSig { schema: &form.entry.schema, args: &args })
}

fn refused(sig: &Sig) -> Result<(), String> {
    let reason = sig.form.entry.def.refuse.and_then(|refuse| with_sig(&sig.args, &sig.form, refuse));
    reason.map_or(Ok(()), |r| Err(r.to_owned()))
}

fn lowerable(sig: &Sig) -> Result<(), String> {
    refused(sig)?;
    let def = sig.form.entry.def;
    // PyTorch's Meta kernels let some in-place products pass
    if matches!(def.lower, Lower::Binary(_))
        && let Some(out) = sig.outs.iter().find(|o| matches!(o.target, Target::Write(_)))
    {
        let dtype = |a| if let SigArg::Tensor { dtype, .. } = sig_arg(a) { Some(dtype) } else { None };
        if sig.args.iter().filter_map(dtype).any(|d| d.category() > out.dtype.category()) {
            return Err("the result can't be cast to what it is written into".to_owned());
        }
    }
    let shared = |o: &OutSpec| matches!(o.target, Target::Write(w) if w.spec(&sig.args).is_some_and(|t| !t.view.shared().is_empty()));
    if sig.outs.iter().any(shared) && with_sig(&sig.args, &sig.form, |s| s.flag("accumulate")) {
        return Err("elements that share a place can't accumulate".to_owned());
    }
    lower_node_alone(sig).map_err(|e| format!("its lowering fails: {e}"))
}

fn sig_arg(a: &ArgSpec) -> SigArg {
    match a {
        ArgSpec::None => SigArg::None,
        ArgSpec::Tensor(t) => SigArg::Tensor { dtype: t.view.dtype, dims: t.view.sizes.to_vec(), host: false },
        ArgSpec::Host { dtype, .. } => SigArg::Tensor { dtype: *dtype, dims: vec![], host: true },
        ArgSpec::Rng { .. } => SigArg::Other,
        ArgSpec::List(l) => SigArg::Tensors(l.iter().map(sig_arg).collect()),
        ArgSpec::Const(c) => c.clone(),
    }
}

impl Specs {
    fn arg<P>(&mut self, form: &Form, position: usize, a: &CallArg<'_, P>) -> ArgSpec {
        let operand = |s: Scalar| form.is_operand(position, s);
        let wrapped =
            |n: &mut Specs, s: Scalar| ArgSpec::Host { slot: n.slot(), dtype: s.dtype(DType::F64), wrapped: true };
        match a {
            CallArg::None => ArgSpec::None,
            CallArg::Tensor(t) => self.tensor(t),
            CallArg::Tensors(l) => {
                ArgSpec::List(l.iter().map(|t| t.as_ref().map_or(ArgSpec::None, |t| self.tensor(t))).collect())
            }
            CallArg::Scalar(s) if operand(*s) => wrapped(self, *s),
            CallArg::Float(v) if operand(Scalar::Double(*v)) => wrapped(self, Scalar::Double(*v)),
            CallArg::Scalar(s) => ArgSpec::Const(SigArg::Scalar(*s)),
            CallArg::Scalars(l) => ArgSpec::Const(SigArg::Scalars(l.clone())),
            CallArg::Int(v) => ArgSpec::Const(SigArg::Int(*v)),
            CallArg::Ints(l) if operand(Scalar::Int(0)) => {
                ArgSpec::List(l.iter().map(|&v| wrapped(self, Scalar::Int(v))).collect())
            }
            CallArg::Ints(l) => ArgSpec::Const(SigArg::Ints(l.to_vec())),
            CallArg::Bool(v) => ArgSpec::Const(SigArg::Bool(*v)),
            CallArg::Float(v) => ArgSpec::Const(SigArg::Float(*v)),
            CallArg::Floats(l) => ArgSpec::Const(SigArg::Floats(l.to_vec())),
            CallArg::Str(s) => ArgSpec::Const(SigArg::Str((*s).to_owned())),
            CallArg::Device => ArgSpec::Const(SigArg::Other),
            CallArg::Generator(..) => ArgSpec::Rng { slot: self.slot() },
        }
    }

    fn slot(&mut self) -> usize {
        self.hosts += 1;
        self.hosts - 1
    }

    fn tensor<P>(&mut self, t: &TensorArg<'_, P>) -> ArgSpec {
        let Some(storage) = t.storage else {
            return ArgSpec::Host { slot: self.slot(), dtype: t.dtype, wrapped: t.wrapped };
        };
        let (operand, base) = match storage.value() {
            Some(v) => {
                self.operands += 1;
                (Some(self.operands - 1), v.base.clone())
            }
            None => (None, base_for(t.dtype, t.sizes, t.strides, t.offset, storage.nbytes as i64)),
        };
        let view = View::new(t.dtype, t.sizes, t.strides, t.offset);
        ArgSpec::Tensor(TensorSpec { operand, base, view, conj: t.conj, neg: t.neg, moving: None })
    }
}

fn out_spec(args: &[ArgSpec], meta: Option<&MetaOut>, write: Option<Place>) -> OutSpec {
    let absent = |base: Base| OutSpec {
        dtype: DType::F32,
        sizes: Dims::new(),
        strides: Dims::new(),
        base_hash: 0,
        base,
        nbytes: 0,
        target: Target::Absent,
    };
    let Some(m) = meta else { return absent(Base::new(DType::F32, [].as_slice())) };
    match write.map(|w| (w, w.spec(args))) {
        Some((w, Some(t))) => OutSpec {
            dtype: t.view.dtype,
            sizes: t.view.sizes.clone(),
            strides: t.view.strides.clone(),
            base_hash: hash_base(&t.base),
            base: t.base.clone(),
            nbytes: t.base.nbytes() as u64,
            target: Target::Write(w),
        },
        Some(_) => absent(Base::new(DType::F32, [].as_slice())),
        None => {
            // a result with gaps in memory (select_scatter keeps the strides of what it copies) has them in its storage
            let last: i64 = m.sizes.iter().zip(&m.strides).map(|(n, s)| (n - 1) * s).sum();
            let count = if m.sizes.contains(&0) { 0 } else { last + 1 };
            let nbytes = count * m.dtype.size() as i64;
            let base = base_for(m.dtype, &m.sizes, &m.strides, 0, nbytes);
            OutSpec {
                dtype: m.dtype,
                sizes: m.sizes.clone(),
                strides: m.strides.clone(),
                base_hash: hash_base(&base),
                base,
                nbytes: nbytes as u64,
                target: Target::Fresh,
            }
        }
    }
}
