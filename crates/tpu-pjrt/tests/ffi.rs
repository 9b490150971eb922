//! Host code inside compiled programs, on the real plugins.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tpu_pjrt::ffi::{Call, Handler};
use tpu_pjrt::{Client, CompileOptions, ElementType, Plugin};

/// Multiplies by an attribute.
struct Scale;

impl Handler for Scale {
    fn call(call: &mut Call<'_>) -> Result<(), String> {
        let factor = call.int_attribute("factor").ok_or("no factor")? as f32;
        let input = call.input(0).ok_or("no input")?;
        if input.element_type != Some(ElementType::F32) || input.dims != [4] {
            return Err(format!("unexpected input {:?} {:?}", input.element_type, input.dims));
        }
        let values: Vec<u8> = input
            .data
            .chunks_exact(4)
            .flat_map(|chunk| (factor * f32::from_ne_bytes(chunk.try_into().unwrap())).to_ne_bytes())
            .collect();
        call.output(0).ok_or("no output")?.data.copy_from_slice(&values);
        Ok(())
    }
}

struct Refuse;

impl Handler for Refuse {
    fn call(_: &mut Call<'_>) -> Result<(), String> {
        Err("refused on purpose".into())
    }
}

struct Panic;

impl Handler for Panic {
    fn call(_: &mut Call<'_>) -> Result<(), String> {
        std::panic::resume_unwind(Box::new("on purpose"))
    }
}

fn program(target: &str) -> String {
    format!(
        "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
           %r = stablehlo.custom_call @{target}(%x)
             {{api_version = 4 : i32, backend_config = {{factor = 3 : i64}}}}
             : (tensor<4xf32>) -> tensor<4xf32>
           return %r : tensor<4xf32>
         }}"
    )
}

#[test]
fn handlers_run_inside_programs() {
    for path in tpu_testing::plugins::real() {
        let plugin = Plugin::load(&path).unwrap();
        plugin.register_ffi::<Scale>("tpu_pjrt.scale", "Host").unwrap();
        plugin.register_ffi::<Refuse>("tpu_pjrt.refuse", "Host").unwrap();
        plugin.register_ffi::<Panic>("tpu_pjrt.panic", "Host").unwrap();
        let client = Client::create(&plugin, &[]).unwrap();
        let device = client.addressable_devices().unwrap().swap_remove(0);
        let data: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let x = client.buffer_from_host(&data, ElementType::F32, &[4], &device).unwrap();
        let run = |target: &str| {
            let exe = client.compile(program(target), &CompileOptions::default())?;
            let mut outputs = Vec::new();
            exe.execute([&x], &[], &mut outputs)?;
            let mut out = [0; 16];
            outputs[0].to_host(&mut out)?;
            Ok::<_, tpu_pjrt::Error>(out)
        };
        let scaled = run("tpu_pjrt.scale").unwrap();
        assert_eq!(scaled[12..], 12.0_f32.to_ne_bytes());
        for (target, words) in [("tpu_pjrt.refuse", "refused on purpose"), ("tpu_pjrt.panic", "panicked")] {
            let error = run(target).unwrap_err();
            assert!(error.to_string().contains(words), "{target}: {error}");
        }
        assert!(run("tpu_pjrt.unknown").is_err());
    }
}
