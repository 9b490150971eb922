//! Bodies: parts of a program that an op runs when and as often as data say. An op names them in `str` arguments.

use crate::cx::Cx;
use crate::def::{Sig, SigArg};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};
use tpu_base::{DType, ErrorKind};
use tpu_hlo::{Builder, Type, V};

/// What is computed from dense arrays.
pub trait Body: Send + Sync {
    /// Types of its arguments.
    fn takes(&self) -> Vec<Type>;
    /// Types of its results.
    fn gives(&self) -> &[Type];
    /// What each of its checks says when it fails.
    fn checks(&self) -> &[(ErrorKind, String)];
    /// Builds it where the builder stands. With checks there is one more result, a 0-d int32: 0, or 1 + the number of the
    /// first check that failed.
    fn build<'b>(&self, b: &'b Builder, args: &[V<'b>]) -> Vec<V<'b>>;
}

type Known = HashMap<String, Weak<dyn Body>>;

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);

/// Makes a body known by its name, which says all about it, for as long as it is held: what to hold is returned, the same
/// for all who publish it.
pub fn publish(name: &str, body: Arc<dyn Body>) -> Arc<dyn Body> {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = known.get(name).and_then(Weak::upgrade) {
        return there;
    }
    known.retain(|_, body| body.strong_count() > 0);
    known.insert(name.to_owned(), Arc::downgrade(&body));
    body
}

/// The body called `name`.
pub fn body(name: &str) -> Option<Arc<dyn Body>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(name)?.upgrade()
}

impl Sig<'_> {
    /// The body that argument `name` names.
    pub(crate) fn body(&self, name: &str) -> Option<Arc<dyn Body>> {
        if let SigArg::Str(s) = self.arg(name) { body(s) } else { None }
    }
}

/// A body as a lowering uses it: what its checks say is kept as a code (0-d int32, 0: all is well) that the lowering carries
/// to where [`Part::check`] may stand, outside of all regions.
pub(crate) struct Part(Arc<dyn Body>);

impl Part {
    /// The body that argument `name` of the call names.
    pub(crate) fn of(cx: &Cx<'_>, name: &str) -> Option<Part> {
        let found = cx.str(name).and_then(body);
        if found.is_none() {
            cx.b.fail("lowering", format!("{}: there is no such {name}", cx.schema.name));
        }
        found.map(Part)
    }

    /// Results and check code.
    pub(crate) fn build<'b>(&self, b: &'b Builder, args: &[V<'b>]) -> (Vec<V<'b>>, V<'b>) {
        let takes = self.0.takes();
        if !takes.iter().eq(args.iter().map(|v| v.ty()).collect::<Vec<_>>().iter()) {
            let given: Vec<String> = args.iter().map(|v| v.ty().to_string()).collect();
            b.fail("lowering", format!("a body of {takes:?} is given {}", given.join(", ")));
            return (self.0.gives().iter().map(|t| b.zeros(t.dtype, &t.dims)).collect(), b.scalar(DType::I32, 0));
        }
        let mut results = self.0.build(b, args);
        let code = if self.0.checks().is_empty() { None } else { results.pop() };
        (results, code.unwrap_or_else(|| b.scalar(DType::I32, 0)))
    }

    pub(crate) fn gives(&self) -> Vec<Type> {
        self.0.gives().to_vec()
    }

    pub(crate) fn has_checks(&self) -> bool {
        !self.0.checks().is_empty()
    }

    /// Makes the plan fail where `code` says so.
    pub(crate) fn check<'b>(&self, cx: &Cx<'b>, code: V<'b>) {
        for (k, (kind, message)) in self.0.checks().iter().enumerate() {
            cx.check(code.ne(k as i64 + 1), *kind, message.clone());
        }
    }
}
