//! The compiler's threads: disk cache, then PJRT.

use crate::disk::DiskCache;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::progress::Progress;
use crossbeam_channel::{Receiver, Sender, select, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tpu_base::ErrorKind;
use tpu_hlo::Module;
use tpu_pjrt::{Client, CompileOptions, LoadedExecutable};

struct Task {
    plan: Arc<Plan>,
    source: Source,
}

/// Operations from which a program compiles as fast with the thorough options as with the quick ones.
const LARGE: usize = 32;

/// What the compiler is given.
pub(crate) struct Source {
    /// StableHLO.
    pub(crate) text: String,
    /// Whether its run time matters more than its compile time.
    pub(crate) thorough: bool,
}

impl Source {
    pub(crate) fn of(module: &Module) -> Source {
        Source { text: module.to_string(), thorough: Source::thorough(module) }
    }

    /// Large programs, and those that the quick options can't take (docs/decisions/compile-options.md).
    pub(crate) fn thorough(module: &Module) -> bool {
        module.size() >= LARGE || module.reduces_fully()
    }
}

/// Compile options with what they add to a disk key.
struct Options {
    options: CompileOptions,
    encoded: Vec<u8>,
}

impl Options {
    fn new(options: CompileOptions) -> Options {
        Options { encoded: options.encode(), options }
    }
}

/// Compiles in the background, as many programs at once as there are cores.
pub(crate) struct Compiler {
    /// What the executor waits for.
    urgent: Sender<Task>,
    /// What it can do without for a while.
    later: Sender<Task>,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    quick: Options,
    thorough: Options,
    disk: Option<DiskCache>,
    progress: Arc<Progress>,
    compiled: AtomicU64,
    nanos: AtomicU64,
    busy: AtomicUsize,
    /// Programs submitted and not done.
    open: AtomicUsize,
    stop: AtomicBool,
}

impl Compiler {
    pub(crate) fn start(client: Client, disk: Option<DiskCache>, progress: Arc<Progress>) -> std::io::Result<Compiler> {
        let ((urgent, first), (later, second)) = (unbounded::<Task>(), unbounded::<Task>());
        // measured: docs/decisions/compile-options.md
        let options = CompileOptions::for_platform(client.platform_name());
        let shared = Arc::new(Shared {
            client,
            quick: Options::new(options.clone()),
            thorough: Options::new(options.thorough()),
            disk,
            progress,
            compiled: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
        for i in 0..threads {
            let (shared, first, second) = (shared.clone(), first.clone(), second.clone());
            std::thread::Builder::new().name(format!("tpu-compile-{i}")).spawn(move || shared.work(&first, &second))?;
        }
        Ok(Compiler { urgent, later, shared })
    }

    /// Has `source` compiled into `plan`.
    pub(crate) fn submit(&self, plan: Arc<Plan>, source: Source) {
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        drop(self.urgent.send(Task { plan, source }));
    }

    /// The same, after all that is urgent.
    pub(crate) fn submit_later(&self, plan: Arc<Plan>, source: Source) {
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        drop(self.later.send(Task { plan, source }));
    }

    /// Compiles `source` now and gives the executable's bytes. Never from the disk: what some plugins write of an executable
    /// that they have read themselves lacks functions.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the plugin compiles it and cannot write it; else why it does not compile.
    pub(crate) fn serialized(&self, source: &Source) -> Result<Vec<u8>, Fault> {
        let refused = |f: Fault| match f.kind {
            ErrorKind::Unsupported => Fault { kind: ErrorKind::Device, ..f },
            _ => f,
        };
        Ok(self.shared.compile(source).map_err(refused)?.serialize()?)
    }

    /// Programs being compiled or waiting for it.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Whether there are none.
    pub(crate) fn is_idle(&self) -> bool {
        self.open() == 0
    }

    /// Whether the disk cache holds the program (it may still turn out bad).
    pub(crate) fn on_disk(&self, source: &Source) -> bool {
        self.disk().is_some_and(|d| d.holds(&d.key(&source.text, &self.shared.options(source).encoded)))
    }

    /// Programs compiled by this process (disk hits not counted).
    pub(crate) fn count(&self) -> u64 {
        self.shared.compiled.load(Ordering::Relaxed)
    }

    /// Seconds spent compiling.
    pub(crate) fn seconds(&self) -> f64 {
        self.shared.nanos.load(Ordering::Relaxed) as f64 / 1e9
    }

    pub(crate) fn disk(&self) -> Option<&DiskCache> {
        self.shared.disk.as_ref()
    }

    /// Takes no more work; waits at most `patience` for a compile under way, which can't be interrupted.
    pub(crate) fn stop(&self, patience: Duration) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let until = Instant::now() + patience;
        while self.shared.busy.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Shared {
    fn options(&self, source: &Source) -> &Options {
        if source.thorough { &self.thorough } else { &self.quick }
    }

    fn work(&self, urgent: &Receiver<Task>, later: &Receiver<Task>) {
        let next = || {
            urgent.try_recv().ok().or_else(|| {
                select! {
                    recv(urgent) -> task => task.ok(),
                    recv(later) -> task => task.ok(),
                }
            })
        };
        while let Some(task) = next() {
            self.busy.fetch_add(1, Ordering::SeqCst);
            let result = if self.stop.load(Ordering::SeqCst) {
                Err(Fault::new(ErrorKind::Device, "the device was shut down"))
            } else {
                self.make(&task)
            };
            task.plan.set(result);
            self.busy.fetch_sub(1, Ordering::SeqCst);
            self.open.fetch_sub(1, Ordering::SeqCst);
            self.progress.notify();
        }
    }

    fn make(&self, task: &Task) -> Result<LoadedExecutable, Fault> {
        let encoded = &self.options(&task.source).encoded;
        let key = self.disk.as_ref().map(|d| (d, d.key(&task.source.text, encoded)));
        if let Some((disk, key)) = &key
            && let Some(bytes) = disk.get(key)
        {
            match self.client.deserialize(&bytes, None) {
                Ok(exe) => return Ok(exe),
                // written by a compiler that only looks like this one
                Err(_) => disk.discard(key),
            }
        }
        let begin = Instant::now();
        let exe = self.compile(&task.source)?;
        task.plan.note_compiled(begin.elapsed());
        if let Some((disk, key)) = &key
            && let Ok(bytes) = exe.serialize()
        {
            disk.put(key, &bytes);
        }
        Ok(exe)
    }

    fn compile(&self, source: &Source) -> Result<LoadedExecutable, Fault> {
        let begin = Instant::now();
        let exe = self.client.compile(&source.text, &self.options(source).options).map_err(|e| {
            let f = Fault::from(e);
            Fault { message: format!("the program did not compile: {}", f.message), ..f }
        })?;
        self.nanos.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(exe)
    }
}
