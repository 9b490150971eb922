//! Compiling for devices that are not here: what `torch_tpu`'s check asks, in a process of its own, because such a compiler
//! may take its process down.

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tpu_pjrt::{CompileOptions, DeviceDescription, Executable, Plugin, Topology, instructions};

use crate::info::attributes;

/// Values named of those that fill the memory.
const HELD: usize = 20;

static OPEN: Mutex<Option<Topology>> = Mutex::new(None);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Opens a topology of a library.
    Open { library: PathBuf, topology: String },
    /// Compiles the StableHLO in a file for it. The executable and the optimized program are written where it says.
    Compile {
        program: PathBuf,
        #[serde(default = "one")]
        replicas: i64,
        #[serde(default = "one")]
        partitions: i64,
        executable: Option<PathBuf>,
        optimized: Option<PathBuf>,
    },
}

fn one() -> i64 {
    1
}

type Answer = Result<Json, Box<dyn std::error::Error>>;

/// Answers a request, both JSON. What fails is `{"error": words}`.
pub fn topology(request: &str) -> Json {
    let answer = match serde_json::from_str(request) {
        Ok(Request::Open { library, topology }) => open(&library, &topology),
        Ok(Request::Compile { program, replicas, partitions, executable, optimized }) => {
            let options = CompileOptions {
                num_replicas: replicas,
                num_partitions: partitions,
                use_spmd_partitioning: partitions > 1,
                use_shardy_partitioner: partitions > 1,
                ..CompileOptions::for_platform("tpu")
            };
            compile(&program, &options, executable.as_deref(), optimized.as_deref())
        }
        Err(e) => Err(e.into()),
    };
    answer.unwrap_or_else(|e| json!({ "error": e.to_string() }))
}

fn open(library: &Path, name: &str) -> Answer {
    let plugin = Plugin::load(library)?;
    let topology = Topology::create(&plugin, name, &[])?;
    let devices = topology.devices()?;
    let first = devices.first().ok_or("the topology has no devices")?;
    let answer = json!({
        "topology": name, "platform": topology.platform_name()?, "version": topology.platform_version()?,
        "devices": devices.len(), "kind": first.kind, "attributes": attributes(&first.attributes),
        "chips": chips(&devices),
    });
    *OPEN.lock() = Some(topology);
    Ok(answer)
}

/// Devices at different coordinates; a chip may hold two.
fn chips(devices: &[DeviceDescription]) -> usize {
    let place = |d: &DeviceDescription| d.attributes.iter().find(|(k, _)| k == "coords").map(|(_, v)| format!("{v:?}"));
    let places: std::collections::HashSet<_> = devices.iter().filter_map(place).collect();
    if places.is_empty() { devices.len() } else { places.len() }
}

fn compile(program: &Path, options: &CompileOptions, executable: Option<&Path>, optimized: Option<&Path>) -> Answer {
    let open = OPEN.lock();
    let topology = open.as_ref().ok_or("no topology is open")?;
    let text = std::fs::read(program)?;
    let begin = Instant::now();
    let exe: Executable = topology.compile(&text, options)?;
    let seconds = begin.elapsed().as_secs_f64();
    let memory = exe.memory_stats()?;
    let (format, code) = exe.optimized_program()?;
    if let Some(path) = executable {
        std::fs::write(path, exe.serialize()?)?;
    }
    if let Some(path) = optimized {
        std::fs::write(path, &code)?;
    }
    let (found, held) = instructions(&format, &code)?;
    let held: Vec<Json> = held
        .into_iter()
        .take(HELD)
        .map(|h| {
            json!({
                "name": h.name, "opcode": h.opcode, "result": h.result, "bytes": h.bytes, "line": h.source_line,
                "parameter": h.parameter,
            })
        })
        .collect();
    let found: Vec<Json> = found
        .into_iter()
        .map(|i| {
            json!({
                "name": i.name, "opcode": i.opcode, "result": i.result, "bytes": i.bytes, "flops": i.flops, "times": i.times,
                "cycles": i.cycles, "op": i.op_name, "file": i.source_file, "line": i.source_line,
            })
        })
        .collect();
    Ok(json!({
        "compile_seconds": seconds,
        "cost": exe.cost_analysis().map(|c| attributes(&c)).unwrap_or(Json::Null),
        "memory": {
            "code": memory.generated_code, "arguments": memory.arguments, "outputs": memory.outputs,
            "aliased": memory.aliased, "temporaries": memory.temporaries, "peak": memory.peak,
        },
        "instructions": found,
        "held": held,
    }))
}
