//! Lowers calls given as JSON, one a line, and answers with StableHLO text, one a line: the door `tests/op_harness.py`
//! uses. `--list` prints the op table instead.
//!
//! Request: `{"op": name, "args": [in schema order], "outs": [{"t": dtype, "dims": […]} | null], "settings": …}`.
//! Tensors are `{"t": "float32", "dims": […], "host": bool}`, other arguments plain JSON (`{"f": "nan"}` for what JSON
//! can't say, `{"c": [re, im]}` for complex). Answer: `{"text", "params": [{"arg", "elem", "t", "rng"}], "checks"}`,
//! `{"refused"}` or `{"error"}`. With `"found": [types]` in the answer the program is the first of a counted call's two; the second
//! comes for the same request with that and `"counts": […]` in it. Results of the program: present results, then updates, then checks.
#![allow(clippy::unwrap_used, missing_docs)]

use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{BufRead, Write};
use tpu_aten::{Arg, ArgType, Cx, Entry, Host, HostParams, SchemaArg, Settings, Sig, SigArg, lower, table};
use tpu_base::{DType, Scalar};
use tpu_hlo::{Builder, Type, V};

struct Params<'b> {
    b: &'b Builder,
    /// What each parameter carries.
    list: RefCell<Vec<Value>>,
    hosts: RefCell<Vec<(Host, DType, V<'b>)>>,
}

impl<'b> Params<'b> {
    fn add(&self, ty: Type, arg: usize, elem: usize, rng: bool) -> V<'b> {
        self.list.borrow_mut().push(json!({"arg": arg, "elem": elem, "t": ty.dtype.name(), "rng": rng}));
        self.b.param(ty)
    }
}

impl<'b> HostParams<'b> for Params<'b> {
    fn param(&self, host: Host, dtype: DType) -> V<'b> {
        if let Some((_, _, v)) = self.hosts.borrow().iter().find(|(h, d, _)| *h == host && *d == dtype) {
            return *v;
        }
        let v = self.add(Type::scalar(dtype), host.arg, host.elem, false);
        self.hosts.borrow_mut().push((host, dtype, v));
        v
    }
}

fn dtype(name: &Value) -> Result<DType, String> {
    let name = name.as_str().unwrap_or_default();
    DType::ALL.into_iter().find(|d| d.name() == name).ok_or(format!("no dtype {name:?}"))
}

fn ty(v: &Value) -> Result<Type, String> {
    Ok(Type::new(dtype(&v["t"])?, ints(&v["dims"])))
}

fn ints(v: &Value) -> Vec<i64> {
    v.as_array().into_iter().flatten().map(|x| x.as_i64().unwrap_or(x.as_bool().unwrap_or(false) as i64)).collect()
}

fn number(v: &Value) -> Option<Scalar> {
    match v {
        Value::Bool(b) => Some(Scalar::Bool(*b)),
        Value::Number(n) => n.as_i64().map(Scalar::Int).or(n.as_f64().map(Scalar::Double)),
        Value::Object(o) if o.contains_key("f") => v["f"].as_str()?.parse().ok().map(Scalar::Double),
        Value::Object(o) if o.contains_key("c") => Some(Scalar::Complex(v["c"][0].as_f64()?, v["c"][1].as_f64()?)),
        _ => None,
    }
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().into_iter().flatten().filter_map(number).map(Scalar::as_f64).collect()
}

fn tensor<'b>(p: &Params<'b>, v: &Value, arg: usize, elem: usize) -> Result<Arg<'b>, String> {
    if v.is_null() {
        return Ok(Arg::None);
    }
    if let Some(s) = number(v) {
        return Ok(Arg::Host(Host { arg, elem, dtype: s.dtype(DType::F64), wrapped: true }));
    }
    let t = ty(v)?;
    if v["host"] == true {
        return Ok(Arg::Host(Host { arg, elem, dtype: t.dtype, wrapped: false }));
    }
    Ok(Arg::Tensor(p.add(t, arg, elem, false)))
}

fn argument<'b>(p: &Params<'b>, e: &Entry, k: usize, a: &SchemaArg, v: &Value) -> Result<Arg<'b>, String> {
    let wrong = || format!("argument {}: {v}", a.name);
    if v.is_null() {
        return Ok(if a.ty == ArgType::Generator && e.def.random {
            Arg::Rng(p.add(Type::new(DType::U64, [2]), k, 0, true))
        } else {
            Arg::None
        });
    }
    let operand = |s: Scalar| Arg::Host(Host { arg: k, elem: 0, dtype: s.dtype(DType::F64), wrapped: true });
    Ok(match a.ty {
        ArgType::Tensor => tensor(p, v, k, 0)?,
        ArgType::Tensors => {
            let list = v.as_array().ok_or_else(wrong)?;
            Arg::List(list.iter().enumerate().map(|(i, x)| tensor(p, x, k, i)).collect::<Result<_, _>>()?)
        }
        ArgType::Scalar => {
            let s = number(v).ok_or_else(wrong)?;
            let fixed = a.default == Some(s) || e.def.consts.contains(&a.name);
            if fixed { Arg::Scalar(s) } else { operand(s) }
        }
        ArgType::Scalars => {
            let list = v.as_array().ok_or_else(wrong)?;
            Arg::List(list.iter().filter_map(number).map(Arg::Scalar).collect())
        }
        ArgType::Int => Arg::Int(number(v).ok_or_else(wrong)?.as_i64()),
        ArgType::Ints if e.def.operands.contains(&a.name) => {
            let host = |elem| Arg::Host(Host { arg: k, elem, dtype: DType::I64, wrapped: true });
            Arg::List((0..ints(v).len()).map(host).collect())
        }
        ArgType::Ints if v.is_array() => Arg::Ints(ints(v)),
        ArgType::Ints => Arg::Ints(vec![v.as_i64().ok_or_else(wrong)?]),
        ArgType::Bool => Arg::Bool(number(v).ok_or_else(wrong)?.truthy()),
        ArgType::Float => {
            let s = number(v).ok_or_else(wrong)?;
            if e.def.operands.contains(&a.name) {
                Arg::Host(Host { arg: k, elem: 0, dtype: DType::F64, wrapped: true })
            } else {
                Arg::Float(s.as_f64())
            }
        }
        ArgType::Floats => Arg::Floats(floats(v)),
        ArgType::Str => Arg::Str(v.as_str().ok_or_else(wrong)?.into()),
        ArgType::Device | ArgType::Generator => Arg::None,
    })
}

fn sig_arg(a: &SchemaArg, v: &Value) -> SigArg {
    if v.is_null() {
        return SigArg::None;
    }
    let tensor = |v: &Value| match (ty(v), number(v)) {
        (Ok(t), _) => SigArg::Tensor { dtype: t.dtype, dims: t.dims, host: v["host"] == true },
        (_, Some(s)) => SigArg::Tensor { dtype: s.dtype(DType::F64), dims: vec![], host: true },
        _ => SigArg::None,
    };
    let n = number(v);
    match a.ty {
        ArgType::Tensor => tensor(v),
        ArgType::Tensors => SigArg::Tensors(v.as_array().into_iter().flatten().map(tensor).collect()),
        ArgType::Scalar => n.map_or(SigArg::None, SigArg::Scalar),
        ArgType::Scalars => SigArg::Scalars(v.as_array().into_iter().flatten().filter_map(number).collect()),
        ArgType::Int => n.map_or(SigArg::None, |s| SigArg::Int(s.as_i64())),
        ArgType::Ints if v.is_array() => SigArg::Ints(ints(v)),
        ArgType::Ints => SigArg::Ints(vec![v.as_i64().unwrap_or(0)]),
        ArgType::Bool => n.map_or(SigArg::None, |s| SigArg::Bool(s.truthy())),
        ArgType::Float => n.map_or(SigArg::None, |s| SigArg::Float(s.as_f64())),
        ArgType::Floats => SigArg::Floats(floats(v)),
        ArgType::Str => SigArg::Str(v.as_str().unwrap_or_default().into()),
        ArgType::Device | ArgType::Generator => SigArg::Other,
    }
}

fn answer(request: &Value) -> Result<Value, String> {
    let op = request["op"].as_str().unwrap_or_default();
    let e = table().iter().find(|e| e.schema.name == op).ok_or(format!("no op {op:?}"))?;
    let given = request["args"].as_array().ok_or("no args")?;
    if given.len() != e.schema.args.len() {
        return Err(format!("{} arguments, the schema has {}", given.len(), e.schema.args.len()));
    }
    let seen: Vec<SigArg> = e.schema.args.iter().zip(given).map(|(a, v)| sig_arg(a, v)).collect();
    let seen = Sig { schema: &e.schema, args: &seen };
    if let Some(why) = e.def.refuse.and_then(|refuse| refuse(&seen)) {
        return Ok(json!({"refused": why}));
    }
    let counted = e.def.counted.filter(|c| (c.applies)(&seen));
    let b = Builder::new();
    let p = Params { b: &b, list: RefCell::default(), hosts: RefCell::default() };
    let mut args = e
        .schema
        .args
        .iter()
        .zip(given)
        .enumerate()
        .map(|(k, (a, v))| argument(&p, e, k, a, v))
        .collect::<Result<Vec<_>, _>>()?;
    if e.def.random && !args.iter().any(|a| matches!(a, Arg::Rng(_))) {
        args.push(Arg::Rng(p.add(Type::new(DType::U64, [2]), args.len(), 0, true)));
    }
    let mut def = *e.def;
    let outs = request["outs"].as_array().ok_or("no outs")?.iter();
    let outs = match (counted, request["found"].as_array()) {
        (Some(c), None) => {
            def.lower = tpu_aten::Lower::Many(c.count);
            vec![]
        }
        (Some(c), Some(found)) => {
            for (k, v) in found.iter().enumerate() {
                args.push(tensor(&p, v, given.len() + k, 0)?);
            }
            let rooms: Vec<i64> = ints(&request["counts"]).into_iter().map(|n| (c.room)(&seen, n)).collect();
            args.push(Arg::Ints(rooms.clone()));
            (c.results)(&seen, &rooms)?.into_iter().map(Some).collect()
        }
        _ => {
            let own = |k: usize, t: Type| e.def.retype.map_or(t.clone(), |f| f(&seen, k, t));
            let out = |(k, o): (usize, &Value)| if o.is_null() { Ok(None) } else { ty(o).map(|t| Some(own(k, t))) };
            outs.enumerate().map(out).collect::<Result<Vec<_>, String>>()?
        }
    };
    let counting = counted.is_some() && outs.is_empty();
    let cx = Cx::new(&b, &e.schema, args, outs, Settings::default(), &p);
    let (values, checks) = lower(&def, &cx);
    let wire = |v: &V| json!({"t": v.dtype().name(), "dims": v.dims()});
    let found: Option<Vec<Value>> = counting.then(|| values.iter().flatten().map(wire).collect());
    let results: Vec<V> = values.into_iter().flatten().chain(checks.iter().map(|c| c.ok)).collect();
    let list = p.list.borrow().clone();
    let aliases = vec![None; list.len()];
    let module = b.finish("m", &results, aliases).map_err(|e| e.to_string())?;
    Ok(json!({"text": module.to_string(), "params": list, "checks": checks.len(), "found": found}))
}

fn list() -> Value {
    let entry = |e: &Entry| {
        let d = e.def;
        json!({
            "schema": d.schema, "name": e.schema.name, "examples": d.examples, "consts": d.consts,
            "operands": d.operands, "updates": d.updates, "random": d.random, "counted": d.counted.is_some(), "refuses": d.refuse.is_some(),
        })
    };
    Value::Array(table().iter().map(entry).collect())
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if std::env::args().any(|a| a == "--list") {
        return writeln!(out, "{}", list());
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let reply = std::panic::catch_unwind(|| {
            serde_json::from_str(&line).map_err(|e| e.to_string()).and_then(|request| answer(&request))
        });
        let reply = reply.unwrap_or(Err("panicked".into())).unwrap_or_else(|e| json!({"error": e}));
        writeln!(out, "{reply}")?;
        out.flush()?;
    }
    Ok(())
}
