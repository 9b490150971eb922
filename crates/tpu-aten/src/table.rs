//! The table of all definitions with their parsed schemas, and the one place where a call is lowered.

use crate::cx::{Check, Cx};
use crate::def::{Lower, OpDef};
use crate::ops;
use crate::schema::Schema;
use std::sync::OnceLock;
use tpu_base::DType;
use tpu_hlo::V;

/// A definition with its schema.
pub struct Entry {
    /// The definition.
    pub def: &'static OpDef,
    /// Its parsed schema.
    pub schema: Schema,
}

/// Every op, in declaration order; positions are op ids.
pub fn table() -> &'static [Entry] {
    static TABLE: OnceLock<Vec<Entry>> = OnceLock::new();
    TABLE.get_or_init(|| {
        ops::FAMILIES
            .iter()
            .flat_map(|f| f.iter())
            .filter_map(|def| Schema::parse(def.schema).map(|schema| Entry { def, schema }))
            .collect()
    })
}

/// Lowers the call `cx`: one value a result (then one an update), each of the type Meta promised.
pub fn lower<'b>(def: &OpDef, cx: &Cx<'b>) -> (Vec<Option<V<'b>>>, Vec<Check<'b>>) {
    let mut values: Vec<Option<V<'b>>> = match def.lower {
        Lower::Unary(f) => {
            let d = cx.out_dtype().opmath();
            vec![Some(f(first(cx, 0, d)))]
        }
        Lower::UnarySame(f) => {
            let d = match cx.at(0) {
                crate::Arg::Tensor(v) => v.dtype(),
                _ => cx.out_dtype(),
            };
            vec![Some(f(first(cx, 0, d)))]
        }
        Lower::Binary(f) => {
            let d = cx.out_dtype().opmath();
            vec![Some(f(first(cx, 0, d), first(cx, 1, d)))]
        }
        Lower::Compare(f) => {
            let names = [cx.schema.args[0].name, cx.schema.args[1].name];
            let d = cx.common_dtype(&names);
            vec![Some(f(first(cx, 0, d), first(cx, 1, d)))]
        }
        Lower::One(f) => vec![Some(f(cx))],
        Lower::Many(f) => f(cx).into_iter().map(Some).collect(),
        Lower::Maybe(f) => f(cx),
    };
    for (k, v) in values.iter_mut().enumerate() {
        let Some(out) = cx.outs.get(k).and_then(Option::as_ref) else {
            if k < cx.outs.len() {
                *v = None; // computed but not wanted
            }
            continue;
        };
        let Some(x) = v else {
            cx.b.fail("lowering", format!("{}: result {k} is missing", cx.schema.name));
            continue;
        };
        let mut y = x.convert(out.dtype);
        if y.dims() != out.dims && y.rank() == 0 {
            y = y.broadcast_to(&out.dims);
        }
        if y.dims() != out.dims {
            cx.b.fail("lowering", format!("{}: result {k} is {}, Meta says {out}", cx.schema.name, y.ty()));
        }
        *v = Some(y);
    }
    (values, cx.checks.take())
}

fn first<'b>(cx: &Cx<'b>, position: usize, dtype: DType) -> V<'b> {
    match cx.schema.args.get(position) {
        Some(a) => cx.t_as(a.name, dtype),
        None => cx.b.scalar(dtype, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_schema_parses_once() {
        let all: usize = ops::FAMILIES.iter().map(|f| f.len()).sum();
        assert_eq!(table().len(), all, "a schema does not parse");
        let mut seen = HashSet::new();
        for e in table() {
            assert!(seen.insert(e.schema.name), "{} is declared twice", e.schema.name);
            for n in e.def.consts.iter().chain(e.def.operands).chain(e.def.updates) {
                assert!(e.schema.index(n).is_some(), "{} has no argument {n}", e.schema.name);
            }
            let own = e.schema.name.starts_with("tpu::");
            assert!(own || !e.def.examples.is_empty(), "{} has no example", e.schema.name);
        }
    }
}
