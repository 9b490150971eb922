//! The builder and its value handle.

use crate::ir::{Attr, Block, Error, Func, Module, Op, Type, ValueId};
use std::cell::RefCell;
use tpu_base::DType;

/// Builds one module. Single-threaded; values borrow it.
pub struct Builder {
    inner: RefCell<Inner>,
}

struct Inner {
    types: Vec<Type>,
    blocks: Vec<Block>,
    error: Option<Error>,
}

/// A value: a copyable handle with the operations as methods.
#[derive(Clone, Copy)]
pub struct V<'b> {
    pub(crate) b: &'b Builder,
    pub(crate) id: ValueId,
}

impl std::fmt::Debug for V<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}: {}", self.id, self.ty())
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// An empty `main`.
    pub fn new() -> Builder {
        Builder { inner: RefCell::new(Inner { types: vec![], blocks: vec![Block::default()], error: None }) }
    }

    /// Adds a parameter to `main`. Call before any operation.
    pub fn param(&self, ty: Type) -> V<'_> {
        let id = self.value(ty);
        self.inner.borrow_mut().blocks[0].args.push(id);
        V { b: self, id }
    }

    fn value(&self, ty: Type) -> ValueId {
        let mut s = self.inner.borrow_mut();
        s.types.push(ty);
        (s.types.len() - 1) as ValueId
    }

    /// Appends an operation with known result types.
    pub fn op(
        &self,
        name: &'static str,
        operands: &[V<'_>],
        results: Vec<Type>,
        attrs: Vec<(&'static str, Attr)>,
        regions: Vec<Block>,
    ) -> Vec<V<'_>> {
        let ids: Vec<ValueId> = results.into_iter().map(|t| self.value(t)).collect();
        let op = Op { name, operands: operands.iter().map(|v| v.id).collect(), results: ids.clone(), attrs, regions };
        let mut s = self.inner.borrow_mut();
        if let Some(block) = s.blocks.last_mut() {
            block.ops.push(op);
        }
        drop(s);
        ids.into_iter().map(|id| V { b: self, id }).collect()
    }

    /// Appends an operation with one result.
    pub fn op1(&self, name: &'static str, operands: &[V<'_>], ty: Type, attrs: Vec<(&'static str, Attr)>) -> V<'_> {
        self.op(name, operands, vec![ty], attrs, vec![])[0]
    }

    /// Builds a region: `f` gets the block arguments and gives the returned values.
    pub fn region<'b>(&'b self, args: &[Type], f: impl FnOnce(&[V<'b>]) -> Vec<V<'b>>) -> Block {
        let ids: Vec<ValueId> = args.iter().map(|t| self.value(t.clone())).collect();
        let values: Vec<V<'b>> = ids.iter().map(|&id| V { b: self, id }).collect();
        self.inner.borrow_mut().blocks.push(Block { args: ids, ops: vec![] });
        let out = f(&values);
        self.op("stablehlo.return", &out, vec![], vec![], vec![]);
        self.inner.borrow_mut().blocks.pop().unwrap_or_default()
    }

    /// The handle of a value made earlier.
    pub fn handle(&self, id: ValueId) -> V<'_> {
        V { b: self, id }
    }

    /// Keeps the first mistake.
    pub fn fail(&self, op: &'static str, what: impl Into<String>) {
        let mut s = self.inner.borrow_mut();
        if s.error.is_none() {
            s.error = Some(Error { op, what: what.into() });
        }
    }

    /// The type of a value.
    pub fn type_of(&self, id: ValueId) -> Type {
        self.inner.borrow().types[id as usize].clone()
    }

    /// Number of operations so far in the outermost block.
    pub fn len(&self) -> usize {
        self.inner.borrow().blocks[0].ops.len()
    }

    /// Whether nothing has been built.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends `main`, returning `results`. `aliases[i] = Some(r)`: parameter i may be donated to result r.
    ///
    /// # Errors
    /// The first mistake made while building.
    pub fn finish(&self, name: &str, results: &[V<'_>], aliases: Vec<Option<usize>>) -> Result<Module, Error> {
        let result_types: Vec<Type> = results.iter().map(|v| v.ty()).collect();
        self.op("func.return", results, vec![], vec![], vec![]);
        let mut s = self.inner.borrow_mut();
        if let Some(e) = s.error.take() {
            return Err(e);
        }
        let types = std::mem::take(&mut s.types);
        let body = std::mem::take(&mut s.blocks[0]);
        Ok(Module {
            name: name.into(),
            main: Func { name: "main".into(), body, results: result_types, aliases },
            types,
        })
    }
}

impl<'b> V<'b> {
    /// The builder it lives in.
    pub fn builder(self) -> &'b Builder {
        self.b
    }

    /// Its id.
    pub fn id(self) -> ValueId {
        self.id
    }

    /// Its type.
    pub fn ty(self) -> Type {
        self.b.type_of(self.id)
    }

    /// Its element type.
    pub fn dtype(self) -> DType {
        self.b.inner.borrow().types[self.id as usize].dtype
    }

    /// Its sizes.
    pub fn dims(self) -> Vec<i64> {
        self.ty().dims
    }

    /// Its number of dimensions.
    pub fn rank(self) -> usize {
        self.b.inner.borrow().types[self.id as usize].dims.len()
    }

    /// Size of dimension `d`.
    pub fn dim(self, d: usize) -> i64 {
        self.b.inner.borrow().types[self.id as usize].dims[d]
    }

    /// Number of elements.
    pub fn numel(self) -> i64 {
        self.ty().numel()
    }
}
