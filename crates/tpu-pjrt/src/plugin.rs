//! Plugins: shared libraries that export a function table.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libloading::Library;
use tpu_pjrt_sys as sys;

use crate::api::{Api, call};
use crate::error::{Error, Result};
use crate::value::{self, Value};

/// Plugins older than this are refused. The API promises no more than months of compatibility; what
/// we measured with begins well after this.
pub const MINIMUM_MINOR: i32 = 60;

/// A loaded, initialized plugin.
pub struct Plugin {
    pub(crate) api: Api,
    name: String,
    attributes: Vec<(String, Value)>,
    /// Compile options that it does not know.
    refused: Mutex<BTreeSet<String>>,
}

/// A plugin must be initialized once per process, so each path is loaded once.
static LOADED: Mutex<Option<HashMap<PathBuf, Arc<Plugin>>>> = Mutex::new(None);

impl Plugin {
    /// Loads the shared library at `path`, or returns it if this process has it already.
    ///
    /// Loading runs the library's code: the path must be trusted as one trusts a program.
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        let path = path.as_ref();
        let fail = |message: String| Error::Load { path: path.to_owned(), message };
        let key = path.canonicalize().map_err(|error| fail(error.to_string()))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(plugin) = loaded.get(&key) {
            return Ok(Arc::clone(plugin));
        }
        // SAFETY: initializers run as for any library; see the documentation above.
        let library = unsafe { Library::new(&key) }.map_err(|error| fail(error.to_string()))?;
        // SAFETY: the symbol has this type in every PJRT plugin.
        let get = unsafe { library.get::<sys::GetPjrtApi>(sys::GET_PJRT_API.to_bytes_with_nul()) }
            .map_err(|_| fail("it does not export GetPjrtApi, so it is no PJRT plugin".into()))?;
        // SAFETY: takes nothing.
        let table = unsafe { get() };
        // The table points into the library, whose threads may also outlive us.
        std::mem::forget(library);
        // SAFETY: the table of a plugin that is never unloaded.
        let plugin = unsafe { Self::from_api(table, &key.display().to_string()) }.map_err(|error| match error {
            Error::Load { message, .. } => fail(message),
            other => other,
        })?;
        loaded.insert(key, Arc::clone(&plugin));
        Ok(plugin)
    }

    /// Uses a function table that is already in this process and initializes it.
    ///
    /// # Safety
    /// `table` is null or a function table as the PJRT C API describes it, valid forever.
    pub unsafe fn from_api(table: *const sys::PJRT_Api, name: &str) -> Result<Arc<Self>> {
        let fail = |message: String| Error::Load { path: name.into(), message };
        if table.is_null() {
            return Err(fail("GetPjrtApi answered null".into()));
        }
        // SAFETY: a table by contract.
        let api = unsafe { Api::new(table) };
        let (major, minor) = api.version();
        if major != sys::PJRT_API_MAJOR || minor < MINIMUM_MINOR {
            return Err(fail(format!(
                "it speaks PJRT {major}.{minor}, and {}.{MINIMUM_MINOR} is the oldest that works \
                 (this build knows up to {}.{})",
                sys::PJRT_API_MAJOR,
                sys::PJRT_API_MAJOR,
                sys::PJRT_API_MINOR,
            )));
        }
        // SAFETY: no arguments.
        match unsafe { call!(&api, PJRT_Plugin_Initialize {}) } {
            Ok(_) | Err(Error::Missing { .. }) => {}
            Err(error) => return Err(fail(error.to_string())),
        }
        // SAFETY: no arguments; the answer lives as long as the plugin and is copied.
        let attributes = unsafe {
            match call!(&api, PJRT_Plugin_Attributes {}) {
                Ok(args) => value::from_raw(args.attributes, args.num_attributes),
                Err(_) => Vec::new(),
            }
        };
        Ok(Arc::new(Self { api, name: name.to_owned(), attributes, refused: Mutex::default() }))
    }

    /// Where it was loaded from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the C API that it speaks: (major, minor).
    pub fn version(&self) -> (i32, i32) {
        self.api.version()
    }

    /// What it says about itself, such as the StableHLO versions it reads.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.attributes
    }

    /// One attribute.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The type ids of its extensions (`tpu_pjrt_sys::PJRT_Extension_Type_*`), in chain order.
    pub fn extensions(&self) -> Vec<u32> {
        self.chain().map(|base| base.type_).collect()
    }

    pub(crate) fn refused(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chain(&self) -> impl Iterator<Item = &sys::PJRT_Extension_Base> {
        // SAFETY: a null-terminated chain in the plugin, immutable and never unloaded.
        let next = |raw: *mut sys::PJRT_Extension_Base| unsafe { raw.cast_const().as_ref() };
        std::iter::successors(next(self.api.table.extension_start), move |base| next(base.next))
    }

    /// A copy of the extension of type `id`, zero where the plugin's ends.
    ///
    /// # Safety
    /// `T` is the layout of that extension: `repr(C)`, starting with the base, valid when zero.
    pub(crate) unsafe fn extension<T: Copy>(&self, id: u32) -> Option<T> {
        let base = self.chain().find(|base| base.type_ == id)?;
        let size = base.struct_size.min(size_of::<T>());
        let mut copy = std::mem::MaybeUninit::<T>::zeroed();
        // SAFETY: the extension says how large it is; T is valid when zero.
        unsafe {
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(base).cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size);
            Some(copy.assume_init())
        }
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "Plugin({}, PJRT {major}.{minor})", self.name)
    }
}
