//! What went wrong, kept with every value it touched.

use tpu_base::ErrorKind;

/// A failure with the op and Python line it belongs to.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}{}", self.origin())]
pub struct Fault {
    /// Decides the exception.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// The op, e.g. `aten::add.Tensor`.
    pub op: String,
    /// `file.py:line` where this op was first called with this signature, or empty.
    pub site: String,
}

impl Fault {
    /// A fault without an op.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), op: String::new(), site: String::new() }
    }

    /// The same fault, at an op.
    pub fn at(mut self, op: &str, site: &str) -> Fault {
        if self.op.is_empty() {
            self.op = op.to_owned();
            self.site = site.to_owned();
        }
        self
    }

    fn origin(&self) -> String {
        match (self.op.is_empty(), self.site.is_empty()) {
            (true, _) => String::new(),
            (false, true) => format!(" (in {})", self.op),
            (false, false) => format!(" (in {}, first called at {})", self.op, self.site),
        }
    }
}

impl From<tpu_pjrt::Error> for Fault {
    fn from(e: tpu_pjrt::Error) -> Fault {
        use tpu_pjrt::Kind;
        let kind = match e.kind() {
            Kind::OutOfMemory => ErrorKind::OutOfMemory,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Bug => ErrorKind::Bug,
            Kind::Device | Kind::Load => ErrorKind::Device,
        };
        Fault::new(kind, e.to_string())
    }
}
