//! Control flow: what torch.compile makes of PyTorch's higher-order ops. Their functions are bodies (see `crate::body`),
//! recorded through the ordinary kernels, and their operands are passed to them.

use crate::body::Part;
use crate::cx::Cx;
use crate::def::{OpDef, Sig, SigArg, many};
use tpu_base::DType;
use tpu_hlo::{Type, V};

// PyTorch has no such ops, so there are no examples that it could be compared on; tests/python/test_control_flow.py is
// about them.
pub(crate) static DEFS: &[OpDef] = &[
    many("tpu::cond(Tensor pred, Tensor[] operands, str yes, str no) -> Tensor[]", cond)
        .shapes(|s| Some(s.body("yes")?.gives().to_vec())),
    many("tpu::while_loop(Tensor[] carried, Tensor[] more, str test, str body) -> Tensor[]", while_loop)
        .shapes(|s| types(s, "carried")),
    many("tpu::scan(Tensor[] carried, Tensor[] xs, Tensor[] more, str body) -> Tensor[]", scan).shapes(scanned),
];

fn types(s: &Sig<'_>, name: &str) -> Option<Vec<Type>> {
    let SigArg::Tensors(list) = s.arg(name) else { return None };
    let ty = |a: &SigArg| match a {
        SigArg::Tensor { dtype, dims, .. } => Some(Type::new(*dtype, &dims[..])),
        _ => None,
    };
    list.iter().map(ty).collect()
}

/// The carried values, then what each turn gives, stacked.
fn scanned(s: &Sig<'_>) -> Option<Vec<Type>> {
    let carried = types(s, "carried")?;
    let turns = *types(s, "xs")?.first()?.dims.first()?;
    let gives = s.body("body")?.gives().to_vec();
    let stacked = gives.into_iter().skip(carried.len()).map(|t| stack_of(&t, turns));
    Some(carried.into_iter().chain(stacked).collect())
}

fn stack_of(t: &Type, n: i64) -> Type {
    Type::new(t.dtype, [&[n], &t.dims[..]].concat())
}

fn cond<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let (Some(yes), Some(no)) = (Part::of(cx, "yes"), Part::of(cx, "no")) else { return vec![] };
    let (b, operands) = (cx.b, cx.ts("operands"));
    let pred = cx.t_as("pred", DType::Bool).reshape(&[]);
    let mut types = yes.gives();
    if no.gives() != types {
        b.fail("lowering", format!("the branches give {types:?} and {:?}", no.gives()));
        return vec![];
    }
    // a code for each branch that checks something
    let codes = [yes.has_checks(), no.has_checks()];
    types.extend(codes.iter().filter(|c| **c).map(|_| Type::scalar(DType::I32)));
    let branch = |part: &Part, mine: usize| {
        let (mut results, code) = part.build(b, &operands);
        let place = |k: usize| if k == mine { code } else { b.scalar(DType::I32, 0) };
        results.extend((0..2).filter(|&k| codes[k]).map(place));
        results
    };
    let mut results = b.if_else(pred, types, || branch(&yes, 0), || branch(&no, 1));
    for part in [&no, &yes].into_iter().filter(|p| p.has_checks()) {
        if let Some(code) = results.pop() {
            part.check(cx, code);
        }
    }
    results
}

fn while_loop<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let (Some(test), Some(body)) = (Part::of(cx, "test"), Part::of(cx, "body")) else { return vec![] };
    let (b, carried, more) = (cx.b, cx.ts("carried"), cx.ts("more"));
    if test.gives().len() != 1 || body.gives() != carried.iter().map(|v| v.ty()).collect::<Vec<_>>() {
        b.fail("lowering", format!("a loop over {carried:?} gives {:?}", body.gives()));
        return carried;
    }
    let tested = |s: &[V<'b>]| {
        let (results, code) = test.build(b, &[s, &more[..]].concat());
        [results[0].convert(DType::Bool).reshape(&[]), code]
    };
    // what the test checks can leave the loop only if the test is part of the turn
    let within = test.has_checks();
    let zero = b.scalar(DType::I32, 0);
    let first = if within { tested(&carried) } else { [b.scalar(DType::Bool, true), zero] };
    let state = [&[first[0], first[1], zero], &carried[..]].concat();
    let goes_on = |s: &[V<'b>]| {
        let go = if within { s[0] } else { tested(&s[3..])[0] };
        let fine = [within.then(|| s[1]), body.has_checks().then(|| s[2])];
        fine.into_iter().flatten().fold(go, |go, code| go & code.eq(0i64))
    };
    let turn = |s: &[V<'b>]| {
        let (results, code) = body.build(b, &[&s[3..], &more[..]].concat());
        let next = if within { tested(&results) } else { [s[0], s[1]] };
        [&[next[0], next[1], code], &results[..]].concat()
    };
    let mut state = b.while_loop(&state, goes_on, turn);
    body.check(cx, state[2]);
    test.check(cx, state[1]);
    state.split_off(3)
}

fn scan<'b>(cx: &Cx<'b>) -> Vec<V<'b>> {
    let Some(body) = Part::of(cx, "body") else { return vec![] };
    let (b, carried, xs, more) = (cx.b, cx.ts("carried"), cx.ts("xs"), cx.ts("more"));
    let (n, first) = (xs[0].dim(0), carried.len());
    let stacks = body.gives().into_iter().skip(first).map(|t| stack_of(&t, n)).map(|t| b.zeros(t.dtype, &t.dims));
    let init: Vec<V<'b>> = carried.iter().copied().chain(stacks).collect();
    if n == 0 {
        return init;
    }
    if body.gives().len() < first || body.gives()[..first] != carried.iter().map(|v| v.ty()).collect::<Vec<_>>() {
        b.fail("lowering", format!("a scan that carries {carried:?} gives {:?}", body.gives()));
        return init;
    }
    let zero = b.scalar(DType::I32, 0);
    let at = |x: V<'b>, i: V<'b>| [&[i], &vec![zero; x.rank() - 1][..]].concat();
    let turn = |s: &[V<'b>]| {
        let (i, bad, carried, stacks) = (s[0], s[1], &s[2..2 + first], &s[2 + first..]);
        let slice = |x: &V<'b>| {
            let dims = x.dims();
            x.dynamic_slice(&at(*x, i), &[&[1], &dims[1..]].concat()).reshape(&dims[1..])
        };
        let slices: Vec<V<'b>> = xs.iter().map(slice).collect();
        let (mut results, code) = body.build(b, &[carried, &slices[..], &more[..]].concat());
        let ys = results.split_off(first);
        let stacks = stacks.iter().zip(ys).map(|(all, y)| all.dynamic_update_slice(y.unsqueeze(0), &at(*all, i)));
        let bad = bad.eq(0i64).select(code, bad); // the first turn that failed
        [i + 1i64, bad].into_iter().chain(results).chain(stacks).collect()
    };
    let state = [&[zero, zero], &init[..]].concat();
    let mut state = b.while_loop(&state, |s| s[0].lt(n), turn);
    body.check(cx, state[1]);
    state.split_off(2)
}
