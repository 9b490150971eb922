//! One device: recorder, plans, executor.

use crate::capture;
use crate::compile::Compiler;
use crate::config::Config;
use crate::disk::DiskCache;
use crate::executor::{Executor, Job};
use crate::explain::{Explain, Why};
use crate::fault::Fault;
use crate::mark::Mark;
use crate::memory::{Memory, MemoryStats};
use crate::plan::PlanTable;
use crate::policy::held;
use crate::progress::Progress;
use crate::signatures::Signatures;
use crate::slot::Slot;
use crate::{Storage, Value};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tpu_aten::Settings;
use tpu_base::ErrorKind;
use tpu_graph::{
    CallArg, Family, Form, MetaOut, Seen, Segment, Sig, Sizes, Target, TensorArg, Way, define, define_count, family,
    invalid, promised, see,
};
use tpu_pjrt::{Client, Plugin};

/// Plans kept in memory.
const PLANS: usize = 16_384;
/// Signatures kept; beyond, all are learnt anew.
const SIGNATURES: usize = 131_072;

/// When segments are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// After every op.
    Strict = 0,
    /// Where it pays.
    Fused = 1,
    /// After every op, waiting for it.
    Debug = 2,
}

/// What became of a call.
pub enum Outcome {
    /// Recorded. If its way is [`Way::Count`], only the first program of a counted call is: wait for its first result and call
    /// again with all of them behind the arguments.
    Called(Called),
    /// Its signature is new: ask Meta, [`Device::define`], call again.
    NeedMeta,
    /// It can't be lowered; why.
    Fallback(String),
}

/// A recorded call.
pub struct Called {
    /// Its signature: types and geometry of the results.
    pub sig: Arc<Sig>,
    /// The new storage of each fresh result; `None` for those written into an argument or absent.
    pub storages: SmallVec<[Option<Storage>; 2]>,
}

pub(crate) struct Recorder {
    sigs: FxHashMap<u128, Arc<Sig>>,
    families: FxHashMap<u128, Family>,
    pub(crate) segment: Segment<Slot>,
    pub(crate) plans: PlanTable,
}

impl Recorder {
    fn keep(&mut self, id: u128, sig: Arc<Sig>) {
        if self.sigs.len() >= SIGNATURES {
            self.sigs.clear();
            self.families.clear();
        }
        self.sigs.insert(id, sig);
    }

    /// Keeps a new signature, and whose relative it is.
    fn learn(&mut self, form: &Form, args: &[CallArg<'_, Slot>], sig: Arc<Sig>) {
        self.keep(sig.id, sig.clone());
        if sig.sees_part() {
            self.families.entry(family(form, sig.settings, args)).or_default().add(&sig);
        }
    }
}

/// A started device.
pub struct Device {
    pub(crate) client: Client,
    pub(crate) device: tpu_pjrt::Device,
    pub(crate) config: Config,
    pub(crate) compiler: Compiler,
    pub(crate) memory: Arc<Memory>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) executor: Executor,
    pub(crate) recorder: Mutex<Recorder>,
    pub(crate) settings: RwLock<Settings>,
    signatures: Signatures,
    pub(crate) explain: Explain,
    /// Jobs known to have run, and all they started.
    idle_at: AtomicU64,
    mode: AtomicU8,
}

impl Device {
    /// Loads the plugin, creates its client, starts the threads.
    ///
    /// # Errors
    /// What the plugin or the system said, in words that name the plugin.
    pub fn start(config: Config) -> Result<Device, Fault> {
        let name = config.plugin.display().to_string();
        let failed = |e: tpu_pjrt::Error| {
            let f = Fault::from(e);
            Fault { message: format!("cannot start the PJRT plugin {name}: {}", f.message), ..f }
        };
        let plugin = Plugin::load(&config.plugin).map_err(failed)?;
        let options: Vec<(&str, tpu_pjrt::Value)> = config
            .options
            .iter()
            .filter_map(|(k, v)| {
                let v = match v {
                    serde_json::Value::Bool(b) => tpu_pjrt::Value::Bool(*b),
                    serde_json::Value::Number(n) if n.is_i64() => tpu_pjrt::Value::Int(n.as_i64()?),
                    serde_json::Value::Number(n) => tpu_pjrt::Value::Float(n.as_f64()? as f32),
                    serde_json::Value::String(s) => tpu_pjrt::Value::Str(s.clone()),
                    _ => return None,
                };
                Some((k.as_str(), v))
            })
            .collect();
        let client = Client::create(&plugin, &options).map_err(failed)?;
        let device = client.addressable_devices().map_err(failed)?.into_iter().next();
        let device =
            device.ok_or_else(|| Fault::new(ErrorKind::Device, format!("the PJRT plugin {name} has no device")))?;
        let (limit, total) = crate::info::memory_limits(&config, &device);
        let memory = Arc::new(Memory::new(limit, total));
        let progress = Arc::new(Progress::default());
        let place = config.cache_dir.as_ref().filter(|_| config.cache_bytes > 0);
        let disk =
            place.map(|dir| DiskCache::new(dir.clone(), config.cache_bytes, &crate::info::identity(&config, &client)));
        let signatures = Signatures::open(place.map(|dir| dir.as_path()), &config.torch);
        let threads = |e: std::io::Error| Fault::new(ErrorKind::Device, format!("cannot start a thread: {e}"));
        let compiler = Compiler::start(client.clone(), disk, progress.clone()).map_err(threads)?;
        let explain = Explain::default();
        let executor =
            Executor::start(client.clone(), device.clone(), progress.clone(), explain.switch(), config.queue.max(1))
                .map_err(threads)?;
        Ok(Device {
            client,
            device,
            config,
            compiler,
            memory,
            progress,
            executor,
            recorder: Mutex::new(Recorder {
                sigs: FxHashMap::default(),
                families: FxHashMap::default(),
                segment: Segment::default(),
                plans: PlanTable::new(PLANS),
            }),
            settings: RwLock::new(Settings::default()),
            signatures,
            explain,
            idle_at: AtomicU64::new(0),
            mode: AtomicU8::new(Mode::Strict as u8),
        })
    }

    /// Records a call of `form`.
    ///
    /// # Errors
    /// Out of memory; in debug mode also what the op itself ran into.
    pub fn call(&self, form: &Arc<Form>, args: &[CallArg<'_, Slot>]) -> Result<Outcome, Arc<Fault>> {
        if invalid(form, args) {
            return Ok(Outcome::Fallback("its numbers are out of range".into()));
        }
        match form.found(args) {
            Some(counts) => {
                let counts = self.read_counts(counts)?;
                match Sizes::of(form, args, &counts) {
                    Ok(sizes) => {
                        let rooms = CallArg::Ints(&sizes.rooms);
                        let args: SmallVec<[CallArg<'_, Slot>; 10]> = args.iter().cloned().chain([rooms]).collect();
                        self.record(form, &args, Some(&sizes))
                    }
                    Err(why) => Ok(Outcome::Fallback(why.to_owned())),
                }
            }
            None => self.record(form, args, None),
        }
    }

    fn read_counts(&self, counts: &TensorArg<'_, Slot>) -> Result<Vec<i64>, Arc<Fault>> {
        let mut bytes = vec![0; counts.sizes.iter().product::<i64>() as usize * 8];
        if let Some(storage) = counts.storage {
            self.download(storage, 0, &mut bytes)?;
        }
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|w| i64::from_le_bytes(*w)).collect())
    }

    fn record(
        &self,
        form: &Arc<Form>,
        args: &[CallArg<'_, Slot>],
        sizes: Option<&Sizes>,
    ) -> Result<Outcome, Arc<Fault>> {
        let settings = *self.settings.read();
        let mut r = self.recorder.lock();
        let mut seen = see(form, settings, args);
        // who asks for an explanation wants Python lines: asking Meta tells them, where PyTorch has a rule
        let explain = self.explain.is_on() && form.entry.def.shapes.is_none();
        // a graph is recorded once: its places stay, whatever ran before
        let lasting = |sig: &Arc<Sig>| sig.moving.is_empty() || !capture::is_open();
        let sig = match r.sigs.get(&seen.id).cloned().filter(lasting) {
            Some(sig) if !(explain && sig.site.is_empty() && sizes.is_none() && sig.moving.is_empty()) => sig,
            Some(_) => return Ok(Outcome::NeedMeta),
            None if let Some(sig) = self.moving(&mut r, form, settings, args, &seen, sizes) => sig,
            None => {
                let new = |metas: &[Option<MetaOut>]| define(seen.id, form, settings, args, metas, "");
                let sig = match sizes {
                    Some(sizes) => Some(new(&sizes.made)),
                    None => define_count(seen.id, form, settings, args).or_else(|| {
                        self.signatures
                            .known(seen.id)
                            .filter(|_| !explain)
                            .or_else(|| promised(form, args))
                            .map(|metas| new(&metas))
                    }),
                };
                let Some(sig) = sig.map(Arc::new) else { return Ok(Outcome::NeedMeta) };
                r.learn(form, args, sig.clone());
                sig
            }
        };
        sig.bring_offsets(args, &mut seen.hosts);
        if let Way::Fallback(why) = &sig.way {
            return Ok(Outcome::Fallback(why.clone()));
        }
        if capture::is_open() {
            let called = capture::record(|segment| self.push(segment, &sig, seen, args, sizes, true));
            return called.map(Outcome::Called).ok_or_else(capture::no_value);
        }
        let fresh: u64 = sig.outs.iter().filter(|o| o.target == Target::Fresh).map(|o| o.nbytes).sum();
        if !self.memory.fits(fresh) {
            drop(r);
            self.make_room(fresh).map_err(|f| Arc::new(f.at(&sig.form.name, &sig.site)))?;
            return self.record(form, args, sizes);
        }
        let called = self.push(&mut r.segment, &sig, seen, args, sizes, false);
        let mode = self.mode();
        self.settle(&mut r, mode);
        drop(r);
        if mode == Mode::Debug && !held() {
            self.wait_called(&sig, &called.storages, args)?;
        }
        Ok(Outcome::Called(called))
    }

    /// Appends the call to a segment. In a graph being recorded its results take no memory.
    fn push(
        &self,
        segment: &mut Segment<Slot>,
        sig: &Arc<Sig>,
        seen: Seen<Slot>,
        args: &[CallArg<'_, Slot>],
        sizes: Option<&Sizes>,
        in_graph: bool,
    ) -> Called {
        let memory = &self.memory;
        let node = segment.push(sig.clone(), seen.operands, seen.hosts, |k| {
            let o = &sig.outs[k];
            let bytes = if in_graph { 0 } else { o.nbytes };
            Value::with_hash(o.base.clone(), o.base_hash, Slot::pending(bytes, memory))
        });
        let shown = sizes.map_or(sig.clone(), |sizes| Arc::new(sizes.shown(sig)));
        let mut storages = SmallVec::new();
        for (o, v) in shown.outs.iter().zip(&node.outs) {
            storages.push(match (o.target, v) {
                (Target::Fresh, Some(v)) => Some(Storage::holding(o.nbytes, v.clone())),
                (Target::Write(w), Some(v)) => {
                    if let Some(s) = w.storage(args) {
                        s.set(Some(v.clone()));
                    }
                    None
                }
                _ => None,
            });
        }
        Called { sig: shown, storages }
    }

    /// Debug eager: the op's own failure is raised by the op.
    fn wait_called(
        &self,
        sig: &Sig,
        storages: &[Option<Storage>],
        args: &[CallArg<'_, Slot>],
    ) -> Result<(), Arc<Fault>> {
        for (o, s) in sig.outs.iter().zip(storages) {
            let target = match o.target {
                Target::Write(w) => w.storage(args),
                _ => s.as_ref(),
            };
            if let Some(s) = target {
                self.wait_storage(s, None)?;
            }
        }
        Ok(())
    }

    /// Keeps what Meta said about a call (see [`Outcome::NeedMeta`]).
    pub fn define(&self, form: &Arc<Form>, args: &[CallArg<'_, Slot>], metas: &[Option<MetaOut>], site: &str) {
        let settings = *self.settings.read();
        let id = see(form, settings, args).id;
        // autograd's threads run no Python; asking again would not help
        let site = if site.is_empty() && self.explain.is_on() { "outside Python" } else { site };
        let sig = Arc::new(define(id, form, settings, args, metas, site));
        self.signatures.learn(id, metas);
        self.recorder.lock().learn(form, args, sig);
    }

    /// A signature for views that begin elsewhere in each call, if this is such a call.
    fn moving(
        &self,
        r: &mut Recorder,
        form: &Form,
        settings: Settings,
        args: &[CallArg<'_, Slot>],
        seen: &Seen<Slot>,
        sizes: Option<&Sizes>,
    ) -> Option<Arc<Sig>> {
        if sizes.is_some() || capture::is_open() {
            return None;
        }
        let id = family(form, settings, args);
        let family = r.families.get_mut(&id)?;
        let sig = family.serve(id, args, seen.hosts.len())?;
        if r.plans.knows_op(sig.id).is_none() && family.fixed().iter().all(|s| r.plans.knows_op(s.id).is_some()) {
            r.plans.note_op(sig.id, true);
        }
        if self.mode() == Mode::Fused {
            // the first places too, or segments with them would be others
            family.fixed().iter().for_each(|s| drop(r.sigs.remove(&s.id)));
        }
        r.keep(seen.id, sig.clone());
        Some(sig)
    }

    /// Waits until everything recorded has run; whether it did in time.
    pub fn synchronize(&self, timeout: Option<Duration>) -> bool {
        let idle = {
            let r = self.recorder.lock();
            r.segment.is_empty() && self.executor.sent() == self.idle_at.load(Ordering::Relaxed)
        };
        // a query still has to reach the executor
        let ran = idle || self.wait_mark(&self.mark(), timeout.map(|t| t.max(Duration::from_micros(500))));
        // compiling in the background counts too, unless somebody only asks: after it the next round runs as all later ones
        ran && (timeout == Some(Duration::ZERO) || self.progress.wait(timeout, || self.compiler.is_idle()))
    }

    /// A point after everything recorded so far.
    pub fn mark(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        let mut r = self.recorder.lock();
        self.cut_all(&mut r, Why::Wait);
        mark.number(self.executor.send(Job::Mark(mark.clone())));
        mark
    }

    /// Waits for a mark; whether it was reached in time.
    pub fn wait_mark(&self, mark: &Mark, timeout: Option<Duration>) -> bool {
        let reached = self.progress.wait(timeout, || mark.is_reached());
        if reached {
            self.idle_at.fetch_max(mark.ordinal(), Ordering::Relaxed);
        }
        reached
    }

    /// Makes `bytes` fit under the memory limit by letting queued work finish.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), Fault> {
        if self.memory.fits(bytes) {
            return Ok(());
        }
        self.memory.count_retry();
        self.synchronize(None);
        if self.memory.fits(bytes) { Ok(()) } else { Err(self.memory.refuse(bytes)) }
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            1 => Mode::Fused,
            2 => Mode::Debug,
            _ => Mode::Strict,
        }
    }

    /// Changes the mode; what is recorded is cut first.
    pub fn set_mode(&self, mode: Mode) {
        self.flush(Why::Mode);
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Changes the precision of float32 products from here on.
    pub fn set_precision(&self, precision: tpu_hlo::Precision) {
        self.settings.write().precision = precision;
    }

    /// Changes what a Python float brings to integer tensors from here on.
    pub fn set_default_dtype(&self, dtype: tpu_base::DType) {
        self.settings.write().default_dtype = dtype;
    }

    /// Memory account, after everything recorded was started.
    pub fn memory_stats(&self) -> MemoryStats {
        self.started();
        self.memory.stats()
    }

    /// Waits until everything recorded was started: buffers are made and given up in that order.
    fn started(&self) {
        let mark = Arc::new(Mark::default());
        {
            let mut r = self.recorder.lock();
            self.cut_all(&mut r, Why::Wait);
            self.executor.send(Job::Start(mark.clone()));
        }
        self.progress.wait(None, || mark.is_reached());
    }

    /// The peak becomes the current use.
    pub fn reset_peak(&self) {
        self.started();
        self.memory.reset_peak();
    }

    /// Totals and counts start anew.
    pub fn reset_accumulated(&self) {
        self.memory.reset_accumulated();
    }

    /// Programs compiled by this process.
    pub fn compile_count(&self) -> u64 {
        self.compiler.count()
    }

    /// Frees host memory kept for transfers. Device buffers are never kept.
    pub fn empty_cache(&self) {
        tpu_pjrt::HostMemory::free_kept();
    }

    /// Drops all plans held in memory.
    pub fn clear_plans(&self) {
        self.recorder.lock().plans.clear();
    }

    pub(crate) fn table_counts(&self) -> (usize, usize, u64, u64) {
        let r = self.recorder.lock();
        (r.sigs.len(), r.plans.len(), r.plans.hits, r.plans.evictions)
    }

    /// Stops the threads: queued work is dropped, a compile under way gets a moment.
    pub fn shutdown(&self) {
        self.executor.stop();
        self.signatures.flush();
        self.compiler.stop(Duration::from_secs(5));
    }
}
