//! Failures that real plugins do not offer, from the null plugin.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tpu_pjrt::{Client, Code, CompileOptions, ElementType, Error, Kind, MINIMUM_MINOR, Value};
use tpu_pjrt_sys as sys;
use tpu_testing::null::{Shape, plugin, plugin_with};

const ID: &str = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n return %x : tensor<4xf32>\n}";

#[test]
fn an_old_plugin_is_refused_with_its_version() {
    let shape = Shape { minor: MINIMUM_MINOR - 1, ..Shape::default() };
    let error = plugin_with(shape, |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Load);
    assert!(error.to_string().contains(&format!("0.{}", MINIMUM_MINOR - 1)), "{error}");
}

#[test]
fn a_newer_plugin_is_welcome() {
    let shape = Shape { minor: sys::PJRT_API_MINOR + 50, ..Shape::default() };
    Client::create(&plugin_with(shape, |_| {}).unwrap(), &[]).unwrap();
}

#[test]
fn functions_beyond_the_end_of_a_short_table_are_missing() {
    // Ends just before CopyRawToHost.
    let shape = Shape { minor: 70, struct_size: std::mem::offset_of!(sys::PJRT_Api, PJRT_Buffer_CopyRawToHost) };
    let client = Client::create(&plugin_with(shape, |_| {}).unwrap(), &[]).unwrap();
    let device = client.addressable_devices().unwrap().swap_remove(0);
    let buffer = client.buffer_from_host(&[1; 16], ElementType::F32, &[4], &device).unwrap();
    let mut out = [0; 16];
    let error = buffer.copy_raw_to_host(&mut out, 0).unwrap_err();
    assert!(matches!(error, Error::Missing { function: "PJRT_Buffer_CopyRawToHost", minor: 70, .. }), "{error:?}");
    assert_eq!(error.kind(), Kind::Unsupported);
    buffer.to_host(&mut out).unwrap();
    assert_eq!(out, [1; 16]);
}

#[test]
fn an_empty_slot_is_missing() {
    let plugin = plugin_with(Shape::default(), |api| api.PJRT_Client_Compile = None).unwrap();
    let client = Client::create(&plugin, &[]).unwrap();
    assert_eq!(client.compile(ID, &CompileOptions::default()).unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn out_of_memory_is_told_apart() {
    let client = Client::create(&plugin().unwrap(), &[("bytes_limit", Value::Int(40))]).unwrap();
    let device = client.addressable_devices().unwrap().swap_remove(0);
    let make = || client.buffer_from_host(&[0; 16], ElementType::F32, &[4], &device);
    let (one, _two) = (make().unwrap(), make().unwrap());
    let error = make().unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.code(), Code::ResourceExhausted);
    drop(one);
    make().unwrap();
    assert_eq!(device.memory_stats().unwrap().bytes_limit, Some(40));
}

#[test]
fn a_failed_compilation_carries_its_words() {
    let client = Client::create(&plugin().unwrap(), &[("fail_compile", Value::Bool(true))]).unwrap();
    let error = client.compile(ID, &CompileOptions::default()).unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Device, Code::Internal));
    assert!(error.to_string().contains("as asked"), "{error}");
}

#[test]
fn a_refused_execution_leaves_no_outputs() {
    let client = Client::create(&plugin().unwrap(), &[("fail_execute", Value::Bool(true))]).unwrap();
    let device = client.addressable_devices().unwrap().swap_remove(0);
    let exe = client.compile(ID, &CompileOptions::default()).unwrap();
    let x = client.buffer_from_host(&[0; 16], ElementType::F32, &[4], &device).unwrap();
    let mut outputs = Vec::new();
    assert!(exe.execute([&x], &[], &mut outputs).is_err());
    assert!(outputs.is_empty());
}

#[test]
fn a_poisoned_output_fails_when_read_and_poisons_what_uses_it() {
    let client = Client::create(&plugin().unwrap(), &[("poison_outputs", Value::Bool(true))]).unwrap();
    let device = client.addressable_devices().unwrap().swap_remove(0);
    let exe = client.compile(ID, &CompileOptions::default()).unwrap();
    let x = client.buffer_from_host(&[0; 16], ElementType::F32, &[4], &device).unwrap();
    let mut outputs = Vec::new();
    exe.execute([&x], &[], &mut outputs).unwrap();
    exe.execute([&outputs.remove(0)], &[], &mut outputs).unwrap();
    assert!(outputs[0].wait().is_err());
    assert!(outputs[0].to_host(&mut [0; 16]).is_err());
    let (send, receive) = std::sync::mpsc::channel();
    outputs[0].ready_event().unwrap().on_ready(move |result| drop(send.send(result))).unwrap();
    assert!(receive.recv().unwrap().is_err());
}

#[test]
fn what_is_no_plugin_cannot_be_loaded() {
    use tpu_pjrt::Plugin;
    assert_eq!(Plugin::load("/nonexistent/plugin.so").unwrap_err().kind(), Kind::Load);
    assert_eq!(Plugin::load(file!()).map_or_else(|error| error.kind(), |_| Kind::Bug), Kind::Load);
}
