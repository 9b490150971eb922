//! Compile and run times of small and large programs under sets of XLA options.
//!
//!     cargo run --release -p tpu-pjrt --example compile_options -- PLUGIN.so [case] [option=value,…]
//!
//! Without a case every case runs under every set below; docs/decisions/compile-options.md has results.

use std::error::Error;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tpu_pjrt::{Buffer, Client, CompileOptions, ElementType, LoadedExecutable, Override, Plugin, Value};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Sets of options worth comparing; a set is `name=value,…`.
const SETS: &[&str] = &[
    "",
    "xla_cpu_use_fusion_emitters=false",
    "xla_cpu_use_fusion_emitters=false,xla_backend_optimization_level=1",
    "xla_cpu_use_fusion_emitters=false,xla_backend_optimization_level=0",
    "xla_cpu_use_fusion_emitters=false,xla_llvm_disable_expensive_passes=true",
    "xla_cpu_use_fusion_emitters=false,xla_cpu_parallel_codegen_split_count=1",
    "xla_cpu_use_fusion_emitters=false,xla_cpu_multi_thread_eigen=false",
    "xla_cpu_use_new_xtile_lowering=true",
    "xla_cpu_use_new_xtile_lowering=true,xla_backend_optimization_level=1",
    "xla_disable_hlo_passes=fusion-wrapper",
    "xla_cpu_use_new_xtile_lowering=true,xla_disable_hlo_passes=fusion-wrapper",
];

struct Case {
    name: &'static str,
    element: ElementType,
    dims: &'static [i64],
    program: String,
}

fn binary(op: &str, ty: &str) -> String {
    format!("    %r = stablehlo.{op} %x, %y : {ty}\n    return %r : {ty}\n")
}

fn cases() -> Vec<Case> {
    let module = |ty: &str, body: String| {
        format!("module @m {{\n  func.func public @main(%x: {ty}, %y: {ty}) -> {ty} {{\n{body}  }}\n}}\n")
    };
    let mut chain = String::new();
    for layer in 0..256 {
        let from = if layer == 0 { "%x".to_owned() } else { format!("%v{}", layer - 1) };
        let op = ["add", "multiply", "subtract", "maximum"][layer % 4];
        let _ = writeln!(chain, "    %v{layer} = stablehlo.{op} {from}, %y : tensor<64x64xf32>");
    }
    chain.push_str("    return %v255 : tensor<64x64xf32>\n");
    let dot = |ty: &str| {
        format!(
            "    %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({ty}, {ty}) -> {ty}\n    return %r : {ty}\n"
        )
    };
    let tanh = "    %t = stablehlo.tanh %x : tensor<4096x4096xf32>\n    return %t : tensor<4096x4096xf32>\n";
    let case = |name, element, dims, program| Case { name, element, dims, program };
    let f32 = ElementType::F32;
    vec![
        case("add 8", f32, &[8, 8], module("tensor<8x8xf32>", binary("add", "tensor<8x8xf32>"))),
        case("add 64", f32, &[64, 64], module("tensor<64x64xf32>", binary("add", "tensor<64x64xf32>"))),
        case("add 512", f32, &[512, 512], module("tensor<512x512xf32>", binary("add", "tensor<512x512xf32>"))),
        case("chain 256", f32, &[64, 64], module("tensor<64x64xf32>", chain)),
        case("dot f32", f32, &[256, 256], module("tensor<256x256xf32>", dot("tensor<256x256xf32>"))),
        case("dot bf16", ElementType::Bf16, &[256, 256], module("tensor<256x256xbf16>", dot("tensor<256x256xbf16>"))),
        case("dot1k f32", f32, &[1024, 1024], module("tensor<1024x1024xf32>", dot("tensor<1024x1024xf32>"))),
        case(
            "dot1k bf16",
            ElementType::Bf16,
            &[1024, 1024],
            module("tensor<1024x1024xbf16>", dot("tensor<1024x1024xbf16>")),
        ),
        case("tanh 4096", f32, &[4096, 4096], module("tensor<4096x4096xf32>", tanh.to_owned())),
    ]
}

fn options(set: &str) -> CompileOptions {
    let mut options = CompileOptions::new();
    for (name, value) in set.split(',').filter_map(|pair| pair.split_once('=')) {
        let value = match (value.parse::<bool>(), value.parse::<i64>()) {
            (Ok(value), _) => Override::Bool(value),
            (_, Ok(value)) => Override::Int(value),
            _ => Override::Str(value.to_owned()),
        };
        options = options.with(name, value);
    }
    options
}

/// Median and best of the time `body` takes.
fn time(mut body: impl FnMut() -> Outcome<()>, budget: Duration, at_least: usize) -> Outcome<(f64, f64)> {
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < at_least || start.elapsed() < budget {
        let before = Instant::now();
        body()?;
        samples.push(before.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    Ok((samples[samples.len() / 2], samples[0]))
}

/// CPU seconds of this process: unlike wall time it does not count what else the machine does.
fn cpu_seconds() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit_once(')').ok_or("stat")?.1;
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / 100.0)
}

fn run(exe: &LoadedExecutable, x: &Buffer, y: &Buffer) -> Outcome<[f64; 3]> {
    let mut outputs = Vec::with_capacity(1);
    let budget = Duration::from_millis(300);
    for _ in 0..20 {
        exe.execute([x, y], &[], &mut outputs)?;
        outputs.drain(..).try_for_each(|out| out.wait())?;
    }
    let (done, best) = time(
        || {
            exe.execute([x, y], &[], &mut outputs)?;
            outputs.drain(..).try_for_each(|out| out.wait())?;
            Ok(())
        },
        budget,
        5,
    )?;
    // What the recording thread pays when nobody waits.
    let (queue, _) = time(
        || {
            exe.execute([x, y], &[], &mut outputs)?;
            outputs.clear();
            Ok(())
        },
        budget,
        5,
    )?;
    Ok([queue * 1e6, done * 1e6, best * 1e6])
}

fn measure(client: &Client, case: &Case, set: &str) -> Outcome<()> {
    let device = client.addressable_devices()?.into_iter().next().ok_or("no device")?;
    let options = options(set);
    let bytes = vec![0x3c_u8; case.element.host_bytes(case.dims).ok_or("size")?];
    let x = client.buffer_from_host(&bytes, case.element, case.dims, &device)?;
    let y = client.buffer_from_host(&bytes, case.element, case.dims, &device)?;
    let exe = match client.compile(&case.program, &options) {
        Ok(exe) => exe,
        Err(error) => {
            println!("{:10} {error}", case.name);
            return Ok(());
        }
    };
    let (before, mut count) = (cpu_seconds()?, 0);
    let compile = time(
        || {
            count += 1;
            Ok(client.compile(&case.program, &options).map(drop)?)
        },
        Duration::from_secs(1),
        3,
    )?;
    let cpu = (cpu_seconds()? - before) / f64::from(count);
    let serialized = exe.serialize()?;
    let load = time(|| Ok(client.deserialize(&serialized, None).map(drop)?), Duration::from_millis(100), 3)?;
    let [queue, done, best] = run(&exe, &x, &y)?;
    println!(
        "{:10} compile {:7.2} ms (best {:7.2}, cpu {:6.1})  load {:6.2} ms ({:6} B)  run: queue {:8.2} done {:8.2} best {:8.2} us  [{set}]",
        case.name,
        compile.0 * 1e3,
        compile.1 * 1e3,
        cpu * 1e3,
        load.0 * 1e3,
        serialized.len(),
        queue,
        done,
        best,
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give the path of a plugin")?;
    let (only, set) = (args.next(), args.next());
    let client = Client::create(&Plugin::load(&path)?, &[("cpu_device_count", Value::Int(1))])?;
    println!("{client:?} PJRT {:?}", client.plugin().version());
    for case in cases().iter().filter(|case| only.as_deref().is_none_or(|only| case.name.starts_with(only))) {
        match &set {
            Some(set) => measure(&client, case, set)?,
            None => SETS.iter().try_for_each(|set| measure(&client, case, set))?,
        }
    }
    Ok(())
}
