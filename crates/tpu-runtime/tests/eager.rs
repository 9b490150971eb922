//! Strict eager and exported programs on a real CPU plugin, without PyTorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
use std::path::PathBuf;
use std::sync::Arc;
use tpu_base::{DType, Scalar};
use tpu_runtime::{CallArg, Config, Device, Form, Graph, GraphOutcome, MetaOut, Outcome, Slot, Storage, TensorArg};

fn plugins() -> Vec<PathBuf> {
    if let Some(list) = std::env::var_os("TPU_TEST_PLUGINS") {
        return std::env::split_paths(&list).collect();
    }
    let lib = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/lib"));
    let site = std::fs::read_dir(&lib).into_iter().flatten().flatten().map(|d| d.path().join("site-packages"));
    let found = site.flat_map(|s| {
        ["fastatomstruct_xla_cpu", "lammps_jax_pjrt_cpu"]
            .into_iter()
            .flat_map(move |p| std::fs::read_dir(s.join(p)).into_iter().flatten().flatten().map(|f| f.path()))
    });
    found.filter(|p| p.extension().is_some_and(|e| e == "so")).collect()
}

fn device(cache: Option<PathBuf>, limit: Option<u64>) -> Device {
    let plugin = plugins().into_iter().next().expect("no CPU plugin: set TPU_TEST_PLUGINS or run `make setup`");
    let config = Config {
        plugin,
        kind: "cpu".into(),
        cache_dir: cache,
        cache_bytes: 1 << 30,
        memory_limit: limit,
        torch: "test".into(),
        segment_ops: 64,
        segment_bytes: 1 << 30,
        queue: 64,
        options: Default::default(),
    };
    Device::start(config).unwrap()
}

fn form(name: &str, full: &str, write: Option<usize>) -> Arc<Form> {
    let op = tpu_aten::table().iter().position(|e| e.schema.name == name).unwrap();
    Arc::new(Form::new(op, full.into(), vec![write]).unwrap())
}

fn tensor<'a>(s: &'a Storage, sizes: &'a [i64], strides: &'a [i64]) -> TensorArg<'a, Slot> {
    TensorArg {
        storage: Some(s),
        dtype: DType::F32,
        sizes,
        strides,
        offset: 0,
        wrapped: false,
        conj: false,
        neg: false,
        host: Scalar::Int(0),
    }
}

fn bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(d: &Device, s: &Storage) -> Vec<f32> {
    let mut b = vec![0; s.nbytes as usize];
    d.download(s, 0, &mut b).unwrap();
    b.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Calls, answering for Meta with results shaped like `like`.
fn call(d: &Device, f: &Arc<Form>, args: &[CallArg<'_, Slot>], like: &TensorArg<'_, Slot>) -> Option<Storage> {
    loop {
        match d.call(f, args).unwrap() {
            Outcome::Called(c) => return c.storages.into_iter().next().flatten(),
            Outcome::NeedMeta => {
                let m = MetaOut { dtype: like.dtype, sizes: like.sizes.into(), strides: like.strides.into() };
                d.define(f, args, &[Some(m)], "test.py:1");
            }
            Outcome::Fallback(why) => panic!("{why}"),
        }
    }
}

#[test]
fn adds_views_and_writes_in_place() {
    let d = device(None, None);
    let (add, add_) = (form("add.Tensor", "aten::add.Tensor", None), form("add.Tensor", "aten::add_.Tensor", Some(0)));
    let (x, y) = (Storage::empty(24), Storage::empty(24));
    let (sizes, strides) = ([2, 3], [3, 1]);
    let (tx, ty) = (tensor(&x, &sizes, &strides), tensor(&y, &sizes, &strides));
    d.upload(&tx, &bytes(&[1., 2., 3., 4., 5., 6.])).unwrap();
    d.upload(&ty, &bytes(&[10., 20., 30., 40., 50., 60.])).unwrap();
    let args = [CallArg::Tensor(tx), CallArg::Tensor(ty), CallArg::Scalar(Scalar::Int(1))];
    let z = call(&d, &add, &args, &tx).unwrap();
    assert_eq!(floats(&d, &z), [11., 22., 33., 44., 55., 66.]);
    // another alpha is an operand: two values, one more program
    let before = d.compile_count();
    for alpha in [2.0, 3.0] {
        let args = [CallArg::Tensor(tx), CallArg::Tensor(ty), CallArg::Scalar(Scalar::Double(alpha))];
        let z = call(&d, &add, &args, &tx).unwrap();
        assert_eq!(floats(&d, &z)[5], 6. + 60. * alpha as f32);
    }
    assert_eq!(d.compile_count(), before + 1);
    // x.t() + y.t() in place of x, through a view
    let (tsizes, tstrides) = ([3, 2], [1, 3]);
    let (vx, vy) = (tensor(&x, &tsizes, &tstrides), tensor(&y, &tsizes, &tstrides));
    let args = [CallArg::Tensor(vx), CallArg::Tensor(vy), CallArg::Scalar(Scalar::Int(1))];
    assert!(call(&d, &add_, &args, &vx).is_none());
    assert_eq!(floats(&d, &x), [11., 22., 33., 44., 55., 66.]);
    // a column of x
    let col = TensorArg { offset: 1, ..tensor(&x, &[2], &[3]) };
    let args = [CallArg::Tensor(col), CallArg::Tensor(col), CallArg::Scalar(Scalar::Int(1))];
    call(&d, &add_, &args, &col);
    assert_eq!(floats(&d, &x), [11., 44., 33., 44., 110., 66.]);
    assert!(d.synchronize(None));
}

#[test]
fn a_second_device_compiles_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let run = || {
        let d = device(Some(cache.path().into()), None);
        let add = form("add.Tensor", "aten::add.Tensor", None);
        let x = Storage::empty(8);
        let t = tensor(&x, &[2], &[1]);
        d.upload(&t, &bytes(&[1., 2.])).unwrap();
        let args = [CallArg::Tensor(t), CallArg::Tensor(t), CallArg::Scalar(Scalar::Int(1))];
        let z = call(&d, &add, &args, &t).unwrap();
        assert_eq!(floats(&d, &z), [2., 4.]);
        d.compile_count()
    };
    assert_eq!(run(), 1);
    assert_eq!(run(), 0);
    for f in std::fs::read_dir(cache.path()).unwrap().flatten() {
        for e in std::fs::read_dir(f.path()).unwrap().flatten() {
            std::fs::write(e.path(), b"tpuplan1 but not really").unwrap();
        }
    }
    assert_eq!(run(), 1);
}

#[test]
fn the_memory_limit_refuses_and_nothing_is_lost() {
    let d = device(None, Some(100));
    let add = form("add.Tensor", "aten::add.Tensor", None);
    let x = Storage::empty(40);
    let t = tensor(&x, &[10], &[1]);
    d.upload(&t, &bytes(&[1.; 10])).unwrap();
    let args = [CallArg::Tensor(t), CallArg::Tensor(t), CallArg::Scalar(Scalar::Int(1))];
    let z = call(&d, &add, &args, &t).unwrap();
    let Err(e) = d.call(&add, &args) else { panic!("a third 40 bytes fit into 100") };
    assert_eq!(e.kind, tpu_base::ErrorKind::OutOfMemory);
    assert_eq!((d.memory_stats().current, d.memory_stats().oom_count), (80, 1));
    assert_eq!(floats(&d, &z), [2.; 10]);
    drop(z);
    let z = call(&d, &add, &args, &t).unwrap();
    assert_eq!(floats(&d, &z), [2.; 10]);
}

#[test]
fn an_exported_program_keeps_numbers_and_runs_on_another_device() {
    let d = device(None, None);
    let add = form("add.Tensor", "aten::add.Tensor", None);
    let add_ = form("add.Tensor", "aten::add_.Tensor", Some(0));
    let (x, y) = (Storage::empty(8), Storage::empty(8));
    // never written: an export needs no contents
    let stands = d.capture(&[tensor(&x, &[2], &[1]), tensor(&y, &[2], &[1])], true).unwrap();
    let (tx, ty) = (tensor(&stands[0], &[2], &[1]), tensor(&stands[1], &[2], &[1]));
    let by = |a, b, n| [CallArg::Tensor(a), CallArg::Tensor(b), CallArg::Scalar(Scalar::Double(n))];
    let z = call(&d, &add, &by(ty, ty, 4.0), &ty).unwrap();
    assert!(call(&d, &add_, &by(ty, ty, 2.0), &ty).is_none());
    let text = d.export_capture(&[tx, ty], &[tensor(&z, &[2], &[1])], (0, 0)).unwrap();
    assert!(text.contains("@main(%0: tensor<2xf32>, %1: tensor<2xf32> {tf.aliasing_output = 0 : i32})"), "{text}");
    assert!(text.contains("dense<4.0> : tensor<f32>"), "{text}");
    assert_eq!(d.compile_count(), 0);
    let executable = d.executable(&text).unwrap();
    assert_eq!(d.compile_count(), 1);

    let other = device(None, None);
    let graph = Graph::default();
    other.load_graph(&graph, &text, Some(&executable)).unwrap();
    let (x, y) = (Storage::empty(8), Storage::empty(8));
    let (tx, ty) = (tensor(&x, &[2], &[1]), tensor(&y, &[2], &[1]));
    other.upload(&ty, &bytes(&[1., 2.])).unwrap();
    let Ok(GraphOutcome::Called(_, made)) = other.call_graph(&graph, &[tx, ty], (0, 0)) else { panic!("it runs") };
    assert_eq!(floats(&other, made[0].as_ref().unwrap()), [5., 10.]);
    assert_eq!(floats(&other, &y), [3., 6.]);
    assert_eq!(other.compile_count(), 0);
    // part of a larger storage is no input of such a program
    let part = TensorArg { offset: 1, ..tensor(&y, &[1], &[1]) };
    assert!(matches!(other.call_graph(&graph, &[tx, part], (0, 0)), Ok(GraphOutcome::Unknown)));
    let Err(e) = other.call_graph(&graph, &[tx], (0, 0)) else { panic!("one input is missing") };
    assert_eq!(e.kind, tpu_base::ErrorKind::Value);
    let Err(e) = other.load_graph(&Graph::default(), "{}", None) else { panic!("no program") };
    assert_eq!(e.kind, tpu_base::ErrorKind::Value);
}
