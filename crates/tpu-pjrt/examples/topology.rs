//! Compiles for devices that are not here.
//!
//!     TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v6e-1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 \
//!         cargo run --release -p tpu-pjrt --example topology -- libtpu.so v6e:2x2

use std::error::Error;
use std::time::Instant;

use tpu_pjrt::{CompileOptions, Plugin, Topology};

const PROGRAM: &str = "module @m {
  func.func public @main(%x: tensor<512x512xbf16>, %y: tensor<512x512xbf16>) -> tensor<512x512xbf16> {
    %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<512x512xbf16>, tensor<512x512xbf16>) -> tensor<512x512xbf16>
    return %r : tensor<512x512xbf16>
  }
}";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (path, name) = (args.next().ok_or("give a plugin")?, args.next().ok_or("give a topology")?);
    let plugin = Plugin::load(path)?;
    println!("{plugin:?} {:?}", plugin.attributes());
    let topology = Topology::create(&plugin, &name, &[])?;
    let devices = topology.devices()?;
    println!("{} devices, the first is {:?}", devices.len(), devices.first());
    let start = Instant::now();
    // An option that no version knows shows that preferences are negotiated here too.
    let options = CompileOptions::new().prefer("xla_an_option_that_no_version_has", true);
    let exe = topology.compile(PROGRAM, &options)?;
    println!("compiled {} in {:?}: {:?}", exe.name()?, start.elapsed(), exe.output_types()?);
    println!("cost {:?}", exe.cost_analysis());
    println!("memory {:?}", exe.memory_stats());
    let (format, program) = exe.optimized_program()?;
    println!("optimized: {} bytes of {format}; serialized: {} bytes", program.len(), exe.serialize()?.len());
    Ok(())
}
