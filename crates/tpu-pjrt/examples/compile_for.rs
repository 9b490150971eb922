//! Compiles programs for devices that are not here: the door `tests/conformance/tpu.py` uses.
//!
//!     TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v6e-1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 \
//!         cargo run --release -p tpu-pjrt --example compile_for -- libtpu.so v6e:2x2
//!
//! Reads paths of StableHLO files, one a line, and answers each with a line: `ok <microseconds>` or `error <words>`. With
//! `--costs` the plugin's estimates follow.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use tpu_pjrt::{CompileOptions, Plugin, Topology};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let costs = args.iter().position(|a| a == "--costs").map(|k| args.remove(k)).is_some();
    let [plugin, topology] = args.as_slice() else { return Err("give a plugin and a topology".into()) };
    let plugin = Plugin::load(plugin)?;
    let topology = Topology::create(&plugin, topology, &[])?;
    let options = CompileOptions::for_platform("tpu");
    let mut answers = std::io::stdout();
    for path in std::io::stdin().lock().lines() {
        let program = std::fs::read(path?)?;
        let start = Instant::now();
        match topology.compile(&program, &options) {
            Ok(exe) => {
                writeln!(answers, "ok {}", start.elapsed().as_micros())?;
                if costs {
                    writeln!(answers, "{:?}\n{:?}", exe.cost_analysis(), exe.memory_stats())?;
                }
            }
            Err(e) => writeln!(answers, "error {}", e.to_string().replace('\n', " "))?,
        }
        answers.flush()?;
    }
    Ok(())
}
