//! The one thread that runs plans, in program order.

use crate::elements::{element_type, scalar_bytes};
use crate::fault::Fault;
use crate::mark::Mark;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::{Value, fault};
use crossbeam_channel::{Receiver, Sender, bounded};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tpu_base::{DType, Scalar};
use tpu_graph::{HostValue, Param};
use tpu_pjrt::{Buffer, Client, Device, Event};

/// Numbers kept on the device between plans.
const NUMBERS: usize = 4096;

/// A plan with its operands.
pub(crate) struct Run {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inputs: Vec<Arc<Value>>,
    pub(crate) hosts: SmallVec<[HostValue; 2]>,
    pub(crate) outs: SmallVec<[Arc<Value>; 2]>,
}

pub(crate) enum Job {
    Run(Run),
    /// Reached when everything before it has run.
    Mark(Arc<Mark>),
    /// Reached when everything before it was started.
    Start(Arc<Mark>),
}

/// The queue's end that recorders hold.
pub(crate) struct Executor {
    queue: Sender<Job>,
    sent: AtomicU64,
    stop: Arc<AtomicBool>,
}

struct Worker {
    client: Client,
    device: Device,
    progress: Arc<Progress>,
    /// Time each plan.
    explain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    numbers: FxHashMap<(DType, u8, u64, u64), Buffer>,
    /// Results not known to be computed yet, oldest first.
    running: VecDeque<Event>,
    outputs: Vec<Buffer>,
}

impl Executor {
    /// At most `queue` plans wait at once.
    pub(crate) fn start(
        client: Client,
        device: Device,
        progress: Arc<Progress>,
        explain: Arc<AtomicBool>,
        queue: usize,
    ) -> std::io::Result<Executor> {
        let (queue, jobs) = bounded(queue);
        let stop = Arc::new(AtomicBool::new(false));
        let mut w = Worker {
            client,
            device,
            progress,
            explain,
            stop: stop.clone(),
            numbers: FxHashMap::default(),
            running: VecDeque::new(),
            outputs: vec![],
        };
        std::thread::Builder::new().name("tpu-execute".into()).spawn(move || w.work(&jobs))?;
        Ok(Executor { queue, sent: AtomicU64::new(0), stop })
    }

    /// Appends to the queue; blocks while it is full (back-pressure). The job's number.
    pub(crate) fn send(&self, job: Job) -> u64 {
        drop(self.queue.send(job));
        self.sent.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Jobs ever sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Drops what has not started.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// The operands that results take over.
fn donated<'a>(run: &'a Run, keep: &'a [i64]) -> impl Iterator<Item = &'a Arc<Value>> {
    let params = run.plan.params.iter().zip(&run.plan.aliases).enumerate();
    params.filter_map(|(i, (p, alias))| match p {
        Param::Input(n) if alias.is_some() && !keep.contains(&(i as i64)) => Some(&run.inputs[*n as usize]),
        _ => None,
    })
}

impl Worker {
    fn work(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Run(run) => self.run(run),
                Job::Mark(mark) => {
                    for e in self.running.drain(..) {
                        drop(e.wait()); // an error belongs to the values, not to the queue
                    }
                    mark.reach();
                }
                Job::Start(mark) => mark.reach(),
            }
            self.progress.notify();
        }
    }

    fn run(&mut self, run: Run) {
        if self.stop.load(Ordering::SeqCst) {
            return;
        }
        if let Err(f) = self.try_run(&run) {
            self.outputs.clear();
            for o in &run.outs {
                o.payload.fill(Err(f.clone()));
            }
        }
    }

    fn try_run(&mut self, run: &Run) -> Result<(), Arc<Fault>> {
        let plan = &run.plan;
        let exe = plan.wait().as_ref().map_err(Arc::clone)?;
        let fail = |e: tpu_pjrt::Error| Arc::new(fault::Fault::from(e).at(&plan.op, &plan.site));
        // host values first: they need `self`, the buffers below borrow it
        let mut hosts = run.hosts.iter();
        let mut sent: SmallVec<[Buffer; 2]> = SmallVec::new();
        for p in &plan.params {
            match (p, if matches!(p, Param::Input(_)) { None } else { hosts.next() }) {
                (Param::Host { dtype, .. }, Some(HostValue::Scalar(s))) => self.number(*dtype, *s).map_err(fail)?,
                (_, Some(HostValue::Rng(seed, offset))) => {
                    let bytes = [seed.to_le_bytes(), offset.to_le_bytes()].concat();
                    let b = self.client.buffer_from_host(&bytes, element_type(DType::U64), &[2], &self.device);
                    sent.push(b.map_err(fail)?);
                }
                _ => {}
            }
        }
        let mut keep: SmallVec<[i64; 8]> = SmallVec::new();
        let mut operands: SmallVec<[&Buffer; 8]> = SmallVec::new();
        let (mut hosts, mut sent) = (run.hosts.iter(), sent.iter());
        for (i, p) in plan.params.iter().enumerate() {
            match p {
                Param::Input(n) => {
                    let value = &run.inputs[*n as usize];
                    match value.payload.get() {
                        Some(Ok(b)) => operands.push(b),
                        Some(Err(f)) => return Err(f.clone()),
                        None => {
                            let f = Fault::new(tpu_base::ErrorKind::Bug, "an operand was never computed");
                            return Err(Arc::new(f.at(&plan.op, &plan.site)));
                        }
                    }
                    // only a buffer that nobody else holds may be overwritten
                    if plan.aliases[i].is_some() && Arc::strong_count(value) > 1 {
                        keep.push(i as i64);
                    }
                }
                Param::Host { dtype, .. } => {
                    if let Some(HostValue::Scalar(s)) = hosts.next() {
                        let (tag, lo, hi) = s.bits();
                        operands.extend(self.numbers.get(&(*dtype, tag, lo, hi)));
                    }
                }
                Param::Rng { .. } => {
                    hosts.next();
                    operands.extend(sent.next());
                }
            }
        }
        self.outputs.clear();
        let begin = self.explain.load(Ordering::Relaxed).then(Instant::now);
        exe.execute(operands.iter().copied(), &keep, &mut self.outputs).map_err(fail)?;
        drop(operands);
        if let Some(begin) = begin {
            let events = self.outputs.iter().filter_map(|b| b.ready_event().ok());
            events.for_each(|e| drop(e.wait())); // an error belongs to the values
            plan.note_run(begin.elapsed(), donated(run, &keep).map(|v| v.base.nbytes() as u64).sum());
        }
        donated(run, &keep).for_each(|v| v.payload.give());
        if let Some(last) = self.outputs.last()
            && let Ok(e) = last.ready_event()
        {
            self.running.push_back(e);
            while self.running.len() > 32 && self.running.front().is_some_and(|e| e.is_ready().unwrap_or(true)) {
                self.running.pop_front();
            }
        }
        if !plan.checks.is_empty() {
            self.check(plan)?;
        }
        for (o, b) in run.outs.iter().zip(self.outputs.drain(..)) {
            o.payload.fill(Ok(b));
        }
        Ok(())
    }

    /// Reads the plan's check code, its last result.
    fn check(&mut self, plan: &Plan) -> Result<(), Arc<Fault>> {
        let Some(code) = self.outputs.pop() else { return Ok(()) };
        let mut bytes = [0; 4];
        code.to_host(&mut bytes).map_err(|e| Arc::new(Fault::from(e).at(&plan.op, &plan.site)))?;
        match i32::from_le_bytes(bytes) {
            0 => Ok(()),
            n => {
                let (kind, message) = &plan.checks[(n as usize - 1).min(plan.checks.len() - 1)];
                Err(Arc::new(Fault::new(*kind, message.clone()).at(&plan.op, &plan.site)))
            }
        }
    }

    /// Makes sure a number is on the device.
    fn number(&mut self, dtype: DType, s: Scalar) -> Result<(), tpu_pjrt::Error> {
        let (tag, lo, hi) = s.bits();
        let key = (dtype, tag, lo, hi);
        if !self.numbers.contains_key(&key) {
            if self.numbers.len() >= NUMBERS {
                self.numbers.clear();
            }
            let b = self.client.buffer_from_host(&scalar_bytes(dtype, s), element_type(dtype), &[], &self.device)?;
            self.numbers.insert(key, b);
        }
        Ok(())
    }
}
