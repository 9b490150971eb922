//! Programs that leave the process: captured as text, compiled, written as an executable, loaded again.

use crate::capture::{self, Captured, CapturedOut, From, Graph, Made, Owner};
use crate::compile::Source;
use crate::device::Device;
use crate::elements::element_type;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::{Slot, Storage, TensorArg, Value};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;
use tpu_base::{DType, ErrorKind};
use tpu_graph::geometry::{Base, Dims, View};
use tpu_graph::{HostValue, Node, Param, export, hash_base};

/// What an error says it is, in a file.
const KINDS: [(&str, ErrorKind); 9] = [
    ("user", ErrorKind::User),
    ("value", ErrorKind::Value),
    ("type", ErrorKind::Type),
    ("index", ErrorKind::Index),
    ("linalg", ErrorKind::LinAlg),
    ("unsupported", ErrorKind::Unsupported),
    ("memory", ErrorKind::OutOfMemory),
    ("device", ErrorKind::Device),
    ("bug", ErrorKind::Bug),
];

/// A dense array.
#[derive(Deserialize, Serialize)]
struct Array {
    dtype: String,
    shape: Vec<i64>,
}

impl Array {
    fn of(base: &Base) -> Array {
        Array { dtype: base.dtype.name().to_owned(), shape: base.dims.to_vec() }
    }

    fn base(&self) -> Result<Base, Fault> {
        let dtype = DType::ALL.into_iter().find(|d| d.name() == self.dtype);
        let dtype = dtype.ok_or_else(|| unsound(format!("there is no dtype {}", self.dtype)))?;
        Ok(Base::new(dtype, Dims::from_slice(&self.shape)))
    }
}

/// A program as a file has it. Its parameters are `inputs`, then the generator's state if `rng_increment` is given; its
/// results are those of `results`, then the check code if there are `checks`.
#[derive(Deserialize, Serialize)]
struct Description {
    module: String,
    thorough: bool,
    inputs: Vec<Array>,
    results: Vec<Array>,
    /// The first results are new values of these inputs.
    updates: Vec<usize>,
    /// For each parameter the result that may take over its buffer.
    aliases: Vec<Option<usize>>,
    checks: Vec<(String, String)>,
    rng_increment: Option<u64>,
    /// Of each op the number of its first value, its name and its Python line. A file has none.
    #[serde(default)]
    origins: Vec<(u32, String, String)>,
}

fn unsound(what: impl std::fmt::Display) -> Fault {
    Fault::new(ErrorKind::Value, format!("not a program that this version can run: {what}"))
}

impl Device {
    /// Ends the recording: the program as JSON (see [`Device::load_graph`]). What was written into `inputs` comes first
    /// among the results, then `outs`, each a new tensor.
    ///
    /// # Errors
    /// No recording is under way; the program reads what is no input; the lowering's mistake.
    pub fn export_capture(
        &self,
        inputs: &[TensorArg<'_, Slot>],
        outs: &[TensorArg<'_, Slot>],
        rng: (u64, u64),
    ) -> Result<String, Arc<Fault>> {
        let mut open = capture::close()?;
        let refuse = |what: &str| Arc::new(Fault::new(ErrorKind::Unsupported, what));
        let stands: Option<Vec<Arc<Value>>> = open.stands.into_iter().collect();
        let stands = stands.ok_or_else(|| refuse("a program cannot be exported from inputs without contents"))?;
        let (mut live, mut results, mut updates) = (vec![], vec![], vec![]);
        let mut give = |v: Option<Arc<Value>>| {
            let (v, node) = v
                .and_then(|v| v.node().map(|n| (v, n)))
                .ok_or_else(|| refuse("a result of the program is not computed by it"))?;
            results.push(Array::of(&v.base));
            live.push(node);
            Ok::<(), Arc<Fault>>(())
        };
        for (i, (t, stand)) in inputs.iter().zip(&stands).enumerate() {
            let now = t.storage.and_then(|s| s.value());
            if !now.as_ref().is_some_and(|v| Arc::ptr_eq(v, stand)) {
                updates.push(i);
                give(now)?;
            }
        }
        outs.iter().try_for_each(|t| give(t.storage.and_then(|s| s.value())))?;
        let lock = self.recorder.lock(); // values from outside are marked for a moment
        let mut cut = open.segment.cut(open.segment.len());
        drop(lock);
        cut.live = live;
        let program = export(&cut, &stands, rng.0).map_err(|e| {
            Arc::new(Fault::new(ErrorKind::Unsupported, format!("the program cannot be exported: {e}")))
        })?;
        let kind = |kind: ErrorKind| KINDS.iter().find(|(_, k)| *k == kind).map_or("bug", |(name, _)| name).to_owned();
        let draws = program.params.iter().any(|p| matches!(p, Param::Rng { .. }));
        let origin =
            |((n, site), start): ((&Node<Slot>, &Arc<str>), &u32)| (*start, n.sig.form.name.clone(), site.to_string());
        let description = Description {
            origins: cut.nodes.iter().zip(&open.sites).zip(&program.starts).map(origin).collect(),
            module: program.module.to_string(),
            thorough: Source::thorough(&program.module),
            inputs: stands.iter().map(|v| Array::of(&v.base)).collect(),
            results,
            updates,
            aliases: program.module.main.aliases,
            checks: program.checks.into_iter().map(|(k, text)| (kind(k), text)).collect(),
            rng_increment: draws.then(|| rng.1.wrapping_sub(rng.0)),
        };
        serde_json::to_string(&description).map_err(|e| Arc::new(Fault::new(ErrorKind::Bug, e.to_string())))
    }

    /// Makes `graph` run the program that [`Device::export_capture`] described: through `executable` if one is given, else
    /// compiled anew. Waits for it.
    ///
    /// # Errors
    /// A description that is not sound; what the plugin said.
    pub fn load_graph(&self, graph: &Graph, description: &str, executable: Option<&[u8]>) -> Result<(), Arc<Fault>> {
        let d: Description = serde_json::from_str(description).map_err(unsound)?;
        let bases = |arrays: &[Array]| {
            let bases = arrays.iter().map(Array::base);
            bases.map(|b| b.map(|b| (b.clone(), hash_base(&b)))).collect::<Result<Vec<(Base, u64)>, Fault>>()
        };
        let (inputs, results) = (bases(&d.inputs)?, bases(&d.results)?);
        let alias_fits = |(i, r): (usize, &Option<usize>)| r.is_none_or(|r| r < results.len() && i < inputs.len());
        if d.updates.len() > results.len()
            || d.updates.iter().any(|&i| i >= inputs.len())
            || !d.aliases.iter().enumerate().all(alias_fits)
        {
            return Err(Arc::new(unsound("it updates what is none of its inputs")));
        }
        let drawn = d.rng_increment.map(|_| Param::Rng { node: 0, slot: 0 });
        let params: Vec<Param> = (0..inputs.len() as u32).map(Param::Input).chain(drawn).collect();
        let mut aliases = d.aliases;
        aliases.resize(params.len(), None);
        let checks = d.checks.into_iter().map(|(kind, text)| {
            (KINDS.iter().find(|(name, _)| *name == kind).map_or(ErrorKind::Bug, |(_, k)| *k), text)
        });
        let bytes = |list: &[(Base, u64)]| list.iter().map(|(b, _)| b.nbytes() as u64).collect::<Vec<u64>>();
        let takes = bytes(&inputs).iter().sum();
        let plan = Arc::new(Plan::loaded(params, aliases, checks.collect(), takes, &bytes(&results)));
        match executable {
            Some(bytes) => plan.set(self.client.deserialize(bytes, None).map_err(Fault::from)),
            None => self.compiler.submit(plan.clone(), Source { text: d.module, thorough: d.thorough }),
        }
        let exe = plan.wait().as_ref().map_err(Arc::clone)?;
        let gives = results.len() + usize::from(!plan.checks.is_empty());
        if exe.num_outputs() != gives {
            let what = format!("its executable has {} results instead of {gives}", exe.num_outputs());
            return Err(Arc::new(unsound(what)));
        }
        let first = d.updates.len();
        let outs = results.iter().enumerate().skip(first).map(|(r, (base, _))| {
            let mut strides = Dims::from_elem(1, base.dims.len());
            (1..base.dims.len()).rev().for_each(|k| strides[k - 1] = strides[k] * base.dims[k].max(1));
            let (dtype, sizes, nbytes) = (base.dtype, base.dims.clone(), base.nbytes() as u64);
            CapturedOut { dtype, sizes, strides, offset: 0, nbytes, owner: Owner::New, made: Made::Result(r) }
        });
        let program = Captured {
            outs: outs.collect(),
            inputs: (0..inputs.len()).map(From::Operand).collect(),
            takes: inputs,
            hosts: drawn.iter().map(|_| HostValue::Rng(0, 0)).collect(),
            bytes: plan.bytes_out,
            results,
            updates: d.updates.into_iter().enumerate().map(|(r, i)| (i, Made::Result(r))).collect(),
            rng_increment: d.rng_increment.unwrap_or(0),
            key: 0,
            sigs: vec![],
            plan: Some(plan),
        };
        if graph.loaded.set(Arc::new(program)).is_err() {
            return Err(Arc::new(Fault::new(ErrorKind::Bug, "a graph was loaded twice")));
        }
        Ok(())
    }

    /// What the plugin makes of a program, as bytes for [`Device::load_graph`].
    ///
    /// # Errors
    /// The plugin refuses the program, or cannot write executables ([`ErrorKind::Unsupported`]).
    pub fn executable(&self, description: &str) -> Result<Vec<u8>, Fault> {
        let d: Description = serde_json::from_str(description).map_err(unsound)?;
        self.compiler.serialized(&Source { text: d.module, thorough: d.thorough })
    }

    /// Whether each input lies in memory as a loaded program wants it: a dense storage of its own. One never written is
    /// given its zeros.
    ///
    /// # Errors
    /// Another number of inputs; out of memory.
    pub(crate) fn takes(&self, program: &Captured, inputs: &[TensorArg<'_, Slot>]) -> Result<bool, Arc<Fault>> {
        if inputs.len() != program.takes.len() {
            let what = format!("a program of {} inputs was called with {}", program.takes.len(), inputs.len());
            return Err(Arc::new(Fault::new(ErrorKind::Value, what)));
        }
        for (t, (base, hash)) in inputs.iter().zip(&program.takes) {
            let Some(storage) = t.storage else { return Ok(false) };
            let view: SmallVec<[i64; 6]> = t.sizes.into();
            let plain = !t.conj && !t.neg && t.dtype == base.dtype && view == base.dims;
            if !plain || t.offset != 0 || !View::new(t.dtype, t.sizes, t.strides, 0).is_contiguous() {
                return Ok(false);
            }
            match storage.value() {
                Some(v) if v.base_hash == *hash => {}
                None if storage.nbytes == base.nbytes() as u64 => self.zero(storage, base)?,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn zero(&self, storage: &Storage, base: &Base) -> Result<(), Arc<Fault>> {
        self.make_room(storage.nbytes)?;
        let bytes = vec![0; storage.nbytes as usize];
        let buffer = self.client.buffer_from_host(&bytes, element_type(base.dtype), &base.dims, &self.device);
        let slot = Slot::pending(storage.nbytes, &self.memory);
        slot.fill(Ok(buffer.map_err(Fault::from)?));
        storage.set(Some(Value::new(base.clone(), slot)));
        Ok(())
    }
}
