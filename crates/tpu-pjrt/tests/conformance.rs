//! What we rely on, asked of every plugin: the null plugin and each real one.
//!
//! A real plugin that is not installed fails the suite: see `tpu_testing::plugins`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::mpsc::channel;

use tpu_pjrt::{
    Buffer, Client, Code, CompileOptions, Device, ElementType, Error, ExecArgs, HostSemantics, Kind, Plugin, Topology,
};

const ADD: &str = "module @add {
  func.func public @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %r = stablehlo.add %x, %y : tensor<2x3xf32>
    return %r : tensor<2x3xf32>
  }
}";
const SWAP: &str = "module @swap {
  func.func public @main(%x: tensor<2x3xf32>, %n: tensor<i64>) -> (tensor<i64>, tensor<2x3xf32>) {
    return %n, %x : tensor<i64>, tensor<2x3xf32>
  }
}";
const DONATE: &str = "module @donate {
  func.func public @main(%x: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2x3xf32> {
    %r = stablehlo.add %x, %x : tensor<2x3xf32>
    return %r : tensor<2x3xf32>
  }
}";

struct Under {
    name: String,
    client: Client,
    device: Device,
    computes: bool,
}

fn start(plugin: &Arc<Plugin>, computes: bool) -> Under {
    let client = Client::create(plugin, &[]).unwrap();
    let device = client.addressable_devices().unwrap().swap_remove(0);
    Under { name: plugin.name().to_owned(), client, device, computes }
}

/// Runs `test` against every plugin.
fn each(test: impl Fn(&Under)) {
    test(&start(&tpu_testing::null::plugin().unwrap(), false));
    let real = tpu_testing::plugins::real();
    assert!(!real.is_empty(), "{} names no plugin", tpu_testing::plugins::VARIABLE);
    for path in real {
        assert!(
            path.exists(),
            "no plugin at {}: install it, or name the plugins to test in {}",
            path.display(),
            tpu_testing::plugins::VARIABLE
        );
        test(&start(&Plugin::load(path).unwrap(), true));
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

impl Under {
    fn matrix(&self, first: f32) -> Buffer {
        let values: Vec<f32> = (0..6).map(|i| first + i as f32).collect();
        self.client.buffer_from_host(&bytes(&values), ElementType::F32, &[2, 3], &self.device).unwrap()
    }

    fn read(buffer: &Buffer) -> Vec<f32> {
        let mut out = vec![0; 24];
        buffer.to_host(&mut out).unwrap();
        out.chunks(4).map(|chunk| f32::from_ne_bytes(chunk.try_into().unwrap())).collect()
    }
}

/// A plugin may lack this, but then it says so in the way we expect.
fn optional<T>(under: &Under, what: &str, result: tpu_pjrt::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == Kind::Unsupported => {
            println!("{}: no {what} ({error})", under.name);
            None
        }
        Err(error) => panic!("{}: {what}: {error}", under.name),
    }
}

#[test]
fn plugins_say_who_they_are() {
    each(|under| {
        let plugin = under.client.plugin();
        println!("{plugin:?} {:?} {:?}", plugin.extensions(), plugin.attributes());
        assert_eq!(plugin.version().0, 0);
        assert!(!under.client.platform_name().is_empty());
        let description = under.device.description().unwrap();
        assert!(!description.kind.is_empty());
        assert_eq!(description.id, under.device.id().unwrap());
        assert!(under.device.is_addressable().unwrap());
        assert_eq!(under.client.default_device_assignment(1, 1).unwrap().len(), 1);
        optional(under, "memory statistics", under.device.memory_stats());
        optional(under, "memories", under.device.memories());
    });
}

#[test]
fn loading_a_path_twice_gives_one_plugin() {
    for path in tpu_testing::plugins::real() {
        let (one, two) = (Plugin::load(&path).unwrap(), Plugin::load(&path).unwrap());
        assert!(Arc::ptr_eq(&one, &two));
    }
}

#[test]
fn host_memory_goes_in_and_comes_out() {
    each(|under| {
        let buffer = under.matrix(1.0);
        assert_eq!(buffer.dims().unwrap(), [2, 3]);
        assert_eq!(buffer.element_type().unwrap(), Some(ElementType::F32));
        assert!(buffer.device_size().unwrap() >= 24);
        assert_eq!(buffer.device().unwrap().as_ref(), Some(&under.device));
        buffer.wait().unwrap();
        assert!(buffer.is_ready().unwrap());
        assert_eq!(Under::read(&buffer), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut tail = [0; 8];
        if optional(under, "raw copy", buffer.copy_raw_to_host(&mut tail, 16)).is_some() {
            assert_eq!(tail.to_vec(), bytes(&[5.0, 6.0]));
        }
        let short = under.client.buffer_from_host(&[0; 23], ElementType::F32, &[2, 3], &under.device);
        assert!(matches!(short, Err(Error::Argument { .. })));
        assert!(matches!(buffer.to_host(&mut [0; 23]), Err(Error::Argument { .. })));
    });
}

#[test]
fn empty_and_scalar_arrays_work() {
    each(|under| {
        let scalar = under.client.buffer_from_host(&7_i64.to_ne_bytes(), ElementType::S64, &[], &under.device).unwrap();
        let mut out = [0; 8];
        scalar.to_host(&mut out).unwrap();
        assert_eq!(i64::from_ne_bytes(out), 7);
        let empty = under.client.buffer_from_host(&[], ElementType::F32, &[0, 3], &under.device).unwrap();
        assert_eq!(empty.dims().unwrap(), [0, 3]);
        empty.to_host(&mut []).unwrap();
    });
}

#[test]
fn programs_run() {
    each(|under| {
        let exe = under.client.compile(ADD, &CompileOptions::default()).unwrap();
        assert_eq!(exe.num_outputs(), 1);
        let types = exe.output_types().unwrap();
        assert_eq!(types[0].element_type, Some(ElementType::F32));
        assert_eq!(types[0].dims, [2, 3]);
        assert_eq!(exe.addressable_devices().unwrap(), std::slice::from_ref(&under.device));
        let (x, y) = (under.matrix(0.0), under.matrix(10.0));
        let mut outputs = Vec::new();
        exe.execute([&x, &y], &[], &mut outputs).unwrap();
        let args = ExecArgs { completion: true, ..ExecArgs::default() };
        exe.execute_with([&x, &y], &args, &mut outputs).unwrap().unwrap().wait().unwrap();
        exe.execute_sharded(&[&[&x, &y]], &ExecArgs::default(), &mut vec![]).unwrap();
        assert_eq!(outputs.len(), 2);
        let expected = [10.0, 12.0, 14.0, 16.0, 18.0, 20.0].map(|v| if under.computes { v } else { 0.0 });
        for output in &outputs {
            assert_eq!(Under::read(output), expected);
        }
    });
}

#[test]
fn an_unknown_option_is_refused_and_an_unknown_preference_is_not() {
    each(|under| {
        if !under.computes {
            return;
        }
        let name = "xla_an_option_that_no_version_has";
        let error = under.client.compile(ADD, &CompileOptions::new().with(name, true)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        for _ in 0..2 {
            under.client.compile(ADD, &CompileOptions::new().prefer(name, true)).unwrap();
        }
        let usual = CompileOptions::for_platform(under.client.platform_name());
        under.client.compile(ADD, &usual).unwrap();
    });
}

#[test]
fn outputs_keep_their_order() {
    each(|under| {
        let exe = under.client.compile(SWAP, &CompileOptions::default()).unwrap();
        let n = under.client.buffer_from_host(&5_i64.to_ne_bytes(), ElementType::S64, &[], &under.device).unwrap();
        let mut outputs = Vec::new();
        exe.execute([&under.matrix(1.0), &n], &[], &mut outputs).unwrap();
        assert_eq!(outputs[0].element_type().unwrap(), Some(ElementType::S64));
        assert_eq!(Under::read(&outputs[1])[5], 6.0);
    });
}

#[test]
fn reading_in_place_does_not_stop_later_donation() {
    each(|under| {
        if !under.computes {
            return;
        }
        let exe = under.client.compile(DONATE, &CompileOptions::default()).unwrap();
        let given = under.matrix(1.0);
        Under::read(&given);
        let mut outputs = Vec::new();
        exe.execute([&given], &[], &mut outputs).unwrap();
        assert!(given.is_deleted().unwrap());
        assert_eq!(Under::read(&outputs[0])[5], 12.0);
    });
}

#[test]
fn transposed_host_memory_arrives_row_major() {
    each(|under| {
        if !under.computes {
            return;
        }
        // The columns of a 2x3 matrix, one after another.
        let data = bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        // SAFETY: the strides stay inside `data`, which is copied during the call.
        let (buffer, _) = unsafe {
            let made = under.client.buffer_from_host_unsafe(
                data.as_ptr(),
                ElementType::F32,
                &[2, 3],
                Some(&[4, 8]),
                HostSemantics::DuringCall,
                &under.device,
            );
            made.unwrap()
        };
        assert_eq!(Under::read(&buffer), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    });
}

#[test]
fn executables_survive_serialization() {
    each(|under| {
        let bytes = under.client.compile(ADD, &CompileOptions::default()).unwrap().serialize().unwrap();
        let exe = under.client.deserialize(&bytes, None).unwrap();
        let mut outputs = Vec::new();
        exe.execute([&under.matrix(0.0), &under.matrix(0.0)], &[], &mut outputs).unwrap();
        assert_eq!(Under::read(&outputs[0])[1], if under.computes { 2.0 } else { 0.0 });
        assert!(under.client.deserialize(b"no executable", None).is_err());
        optional(under, "fingerprint", exe.fingerprint());
        optional(under, "cost analysis", exe.cost_analysis());
        optional(under, "memory statistics", exe.memory_stats());
        optional(under, "optimized program", exe.optimized_program());
        optional(under, "code size", exe.code_size());
    });
}

#[test]
fn donation_takes_the_input_unless_told_not_to() {
    each(|under| {
        if !under.computes {
            return;
        }
        let exe = under.client.compile(DONATE, &CompileOptions::default()).unwrap();
        let (kept, given) = (under.matrix(1.0), under.matrix(1.0));
        let mut outputs = Vec::new();
        exe.execute([&kept], &[0], &mut outputs).unwrap();
        exe.execute([&given], &[], &mut outputs).unwrap();
        assert!(!kept.is_deleted().unwrap());
        assert!(given.is_deleted().unwrap());
        assert_eq!(Under::read(&kept)[0], 1.0);
        assert_eq!(Under::read(&outputs[0]), Under::read(&outputs[1]));
        let mut out = [0; 24];
        assert!(given.to_host(&mut out).is_err(), "{}: a donated buffer was read", under.name);
    });
}

#[test]
fn events_call_back_once() {
    each(|under| {
        let (send, receive) = channel();
        let buffer = under.matrix(0.0);
        buffer.ready_event().unwrap().on_ready(move |result| send.send(result.is_ok()).unwrap()).unwrap();
        assert!(receive.recv().unwrap());
        assert!(receive.recv().is_err(), "the callback is gone after one call");
    });
}

#[test]
fn a_panic_in_a_callback_stays_there() {
    each(|under| {
        let event = under.matrix(0.0).ready_event().unwrap();
        event.on_ready(|_| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        event.wait().unwrap();
    });
}

#[test]
fn wrong_use_is_an_error() {
    each(|under| {
        assert!(under.client.compile("no module", &CompileOptions::default()).is_err());
        let exe = under.client.compile(ADD, &CompileOptions::default()).unwrap();
        let x = under.matrix(0.0);
        let mut outputs = Vec::new();
        assert!(exe.execute([&x], &[], &mut outputs).is_err(), "{}: an input is missing", under.name);
        x.delete().unwrap();
        assert!(x.is_deleted().unwrap());
        assert!(exe.execute([&x, &x], &[], &mut outputs).is_err(), "{}: a deleted input", under.name);
        assert!(outputs.is_empty());
        let other = start(&tpu_testing::null::plugin().unwrap(), false);
        let foreign = other.matrix(0.0);
        let mixed = exe.execute([&foreign, &foreign], &[], &mut outputs);
        assert!(matches!(mixed, Err(Error::Argument { .. })));
        let placed = under.client.buffer_from_host(&[0; 4], ElementType::F32, &[1], &other.device);
        assert!(matches!(placed, Err(Error::Argument { .. })));
    });
}

#[test]
fn host_memory_is_free_when_the_event_says_so() {
    each(|under| {
        for semantics in [HostSemantics::UntilTransferCompletes, HostSemantics::ZeroCopy] {
            let data = bytes(&[1.0; 6]);
            // SAFETY: `data` outlives the buffer and is not changed.
            let (buffer, done) = unsafe {
                let made = under.client.buffer_from_host_unsafe(
                    data.as_ptr(),
                    ElementType::F32,
                    &[2, 3],
                    None,
                    semantics,
                    &under.device,
                );
                made.unwrap()
            };
            assert_eq!(Under::read(&buffer), [1.0; 6]);
            drop(buffer);
            done.unwrap().wait().unwrap();
        }
    });
}

#[test]
fn arrays_can_arrive_in_pieces() {
    each(|under| {
        let Some(Some(memory)) = optional(under, "memory", under.device.default_memory()) else { return };
        let made = under.client.async_transfer(&[(ElementType::F32, &[2, 3])], &memory);
        let Some(transfer) = optional(under, "async transfer", made) else { return };
        let buffer = transfer.take(0).unwrap();
        let data = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(transfer.send(0, 20, &data, true).is_err());
        transfer.send(0, 0, &data[..12], false).unwrap();
        assert!(!buffer.is_ready().unwrap());
        transfer.send(0, 12, &data[12..], true).unwrap();
        assert_eq!(Under::read(&buffer)[4], 5.0);
    });
}

#[test]
fn programs_compile_for_a_topology() {
    each(|under| {
        let made = Topology::create(under.client.plugin(), "", &[]);
        let Some(topology) = optional(under, "topology", made) else { return };
        assert!(!topology.platform_name().unwrap().is_empty());
        let devices = topology.devices().unwrap();
        println!("{}: {} devices, {:?}", under.name, devices.len(), devices.first());
        let compiled = topology.compile(ADD, &CompileOptions::default());
        if let Some(exe) = optional(under, "compilation for a topology", compiled) {
            assert_eq!(exe.num_outputs(), 1);
            let loaded = under.client.deserialize(&exe.serialize().unwrap(), None).unwrap();
            let mut outputs = Vec::new();
            loaded.execute([&under.matrix(0.0), &under.matrix(0.0)], &[], &mut outputs).unwrap();
            assert_eq!(Under::read(&outputs[0])[1], 2.0);
        }
        if let Some(bytes) = optional(under, "serialized topology", topology.serialize()) {
            let again = Topology::deserialize(under.client.plugin(), &bytes);
            optional(under, "deserialized topology", again);
        }
    });
}

#[test]
fn handles_may_go_in_any_order_and_on_any_thread() {
    each(|under| {
        let Under { client, .. } = start(under.client.plugin(), under.computes);
        let device = client.addressable_devices().unwrap().swap_remove(0);
        let buffer = client.buffer_from_host(&[0; 4], ElementType::F32, &[1], &device).unwrap();
        let event = buffer.ready_event().unwrap();
        drop((client, device));
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        event.wait().unwrap();
    });
}
