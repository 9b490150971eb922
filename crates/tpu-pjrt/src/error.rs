//! What can go wrong, and whose concern it is.

use std::path::PathBuf;

use tpu_pjrt_sys as sys;

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// An error from a plugin or on the way to one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plugin answered with an error.
    #[error("{message} [{code:?} from {function}]")]
    Plugin {
        /// The C function that failed.
        function: &'static str,
        /// The status code.
        code: Code,
        /// The plugin's words.
        message: String,
    },
    /// The plugin lacks a function: it is older, or leaves the slot empty.
    #[error("the plugin (PJRT {major}.{minor}) has no {function}")]
    Missing {
        /// The C function or extension.
        function: &'static str,
        /// The plugin's major version.
        major: i32,
        /// The plugin's minor version.
        minor: i32,
    },
    /// The shared library cannot be used as a plugin.
    #[error("cannot load the PJRT plugin {}: {message}", path.display())]
    Load {
        /// Where it was looked for.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// The arguments were refused before the plugin saw them.
    #[error("{message}")]
    Argument {
        /// What is wrong with them.
        message: String,
    },
}

/// Whose concern an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The device has no room: `torch.OutOfMemoryError`.
    OutOfMemory,
    /// This plugin cannot do that.
    Unsupported,
    /// The device or its runtime failed.
    Device,
    /// The plugin's installation is at fault.
    Load,
    /// We sent something wrong.
    Bug,
}

impl Error {
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::Argument { message: message.into() }
    }

    /// Whose concern this is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Missing { .. } => Kind::Unsupported,
            Self::Load { .. } => Kind::Load,
            Self::Argument { .. } => Kind::Bug,
            Self::Plugin { code, .. } => match code {
                Code::ResourceExhausted => Kind::OutOfMemory,
                Code::Unimplemented => Kind::Unsupported,
                Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => Kind::Bug,
                _ => Kind::Device,
            },
        }
    }

    /// The status code; what the plugin did not say is [`Code::Unknown`].
    pub fn code(&self) -> Code {
        match self {
            Self::Plugin { code, .. } => *code,
            Self::Missing { .. } => Code::Unimplemented,
            Self::Argument { .. } => Code::InvalidArgument,
            Self::Load { .. } => Code::Unknown,
        }
    }

    /// The device has no room for what was asked.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind() == Kind::OutOfMemory
    }
}

macro_rules! codes {
    ($($name:ident = $raw:ident,)*) => {
        /// A status code of the PJRT C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are the C API's")]
        #[non_exhaustive]
        pub enum Code { $($name,)* }

        impl Code {
            /// The code of the C API.
            pub fn to_raw(self) -> sys::PJRT_Error_Code {
                match self { $(Self::$name => sys::$raw,)* }
            }

            /// A code this version does not know is `Unknown`.
            pub fn from_raw(raw: sys::PJRT_Error_Code) -> Self {
                match raw { $(sys::$raw => Self::$name,)* _ => Self::Unknown }
            }
        }
    };
}
codes! {
    Ok = PJRT_Error_Code_OK,
    Cancelled = PJRT_Error_Code_CANCELLED,
    Unknown = PJRT_Error_Code_UNKNOWN,
    InvalidArgument = PJRT_Error_Code_INVALID_ARGUMENT,
    DeadlineExceeded = PJRT_Error_Code_DEADLINE_EXCEEDED,
    NotFound = PJRT_Error_Code_NOT_FOUND,
    AlreadyExists = PJRT_Error_Code_ALREADY_EXISTS,
    PermissionDenied = PJRT_Error_Code_PERMISSION_DENIED,
    ResourceExhausted = PJRT_Error_Code_RESOURCE_EXHAUSTED,
    FailedPrecondition = PJRT_Error_Code_FAILED_PRECONDITION,
    Aborted = PJRT_Error_Code_ABORTED,
    OutOfRange = PJRT_Error_Code_OUT_OF_RANGE,
    Unimplemented = PJRT_Error_Code_UNIMPLEMENTED,
    Internal = PJRT_Error_Code_INTERNAL,
    Unavailable = PJRT_Error_Code_UNAVAILABLE,
    DataLoss = PJRT_Error_Code_DATA_LOSS,
    Unauthenticated = PJRT_Error_Code_UNAUTHENTICATED,
}
