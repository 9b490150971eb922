//! Plans on disk: shared by processes, bounded, checked. A bad entry is a miss.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"tpuplan1";

/// A folder of serialized executables, named by the hash of all that made them.
pub(crate) struct DiskCache {
    dir: PathBuf,
    limit: u64,
    identity: [u8; 32],
    /// Bytes written since the folder was last measured.
    written: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) bad: AtomicU64,
    pub(crate) write_errors: AtomicU64,
}

/// Name of an entry.
pub(crate) type Key = blake3::Hash;

impl DiskCache {
    /// The cache in `dir`, for a compiler described by `identity`. The folder is made when first written.
    pub(crate) fn new(dir: PathBuf, limit: u64, identity: &str) -> DiskCache {
        DiskCache {
            dir,
            limit,
            identity: *blake3::hash(identity.as_bytes()).as_bytes(),
            written: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        }
    }

    pub(crate) fn key(&self, program: &str, options: &[u8]) -> Key {
        let mut h = blake3::Hasher::new();
        h.update(&self.identity);
        h.update(&(options.len() as u64).to_le_bytes());
        h.update(options);
        h.update(program.as_bytes());
        h.finalize()
    }

    fn path(&self, key: &Key) -> PathBuf {
        let hex = key.to_hex();
        self.dir.join(&hex[..2]).join(&hex[2..])
    }

    /// Whether there is such an entry, good or bad.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        self.path(key).exists()
    }

    /// The entry, if it is there and whole. Touches it, so that it is evicted late.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let Ok(bytes) = fs::read(&path) else {
            self.misses.fetch_add(1, Relaxed);
            return None;
        };
        match payload(&bytes) {
            Some(p) => {
                self.hits.fetch_add(1, Relaxed);
                if let Ok(f) = fs::File::options().append(true).open(&path) {
                    drop(f.set_modified(SystemTime::now()));
                }
                Some(p.to_vec())
            }
            None => {
                self.discard(key);
                None
            }
        }
    }

    /// Forgets an entry that turned out bad.
    pub(crate) fn discard(&self, key: &Key) {
        self.bad.fetch_add(1, Relaxed);
        drop(fs::remove_file(self.path(key)));
    }

    /// Writes an entry: whole or not at all. A cache that can't be written is no error.
    pub(crate) fn put(&self, key: &Key, payload: &[u8]) {
        if let Err(_e) = self.try_put(key, payload) {
            self.write_errors.fetch_add(1, Relaxed);
        }
    }

    fn try_put(&self, key: &Key, payload: &[u8]) -> std::io::Result<()> {
        if payload.len() as u64 > self.limit {
            return Ok(());
        }
        let path = self.path(key);
        let dir = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(dir)?;
        let mut f = tempfile::NamedTempFile::new_in(dir)?;
        f.write_all(MAGIC)?;
        f.write_all(blake3::hash(payload).as_bytes())?;
        f.write_all(payload)?;
        f.persist(&path).map_err(|e| e.error)?;
        let written = self.written.fetch_add(payload.len() as u64, Relaxed) + payload.len() as u64;
        if written > self.limit / 16 {
            self.written.store(0, Relaxed);
            self.shrink();
        }
        Ok(())
    }

    /// Removes the longest unused entries until the folder is under its limit. Other processes may do the same at once.
    fn shrink(&self) {
        let mut entries = list(&self.dir);
        let mut total: u64 = entries.iter().map(|e| e.2).sum();
        entries.sort_by_key(|e| e.1);
        for (path, _, size) in entries {
            if total <= self.limit {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }

    /// Entries and bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        let l = list(&self.dir);
        (l.len(), l.iter().map(|e| e.2).sum())
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

fn payload(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, payload) = rest.split_at_checked(32)?;
    (blake3::hash(payload).as_bytes() == sum).then_some(payload)
}

fn list(dir: &Path) -> Vec<(PathBuf, SystemTime, u64)> {
    let inner = |d: fs::DirEntry| fs::read_dir(d.path()).into_iter().flatten().flatten();
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(inner)
        .filter_map(|e| {
            let m = e.metadata().ok()?;
            m.is_file().then(|| (e.path(), m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_and_a_bad_one_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let c = DiskCache::new(dir.path().join("deep/cache"), 1 << 20, "compiler 1");
        let k = c.key("module", b"options");
        assert_eq!(c.get(&k), None);
        c.put(&k, b"executable");
        assert_eq!(c.get(&k).as_deref(), Some(&b"executable"[..]));
        let path = c.path(&k);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(c.get(&k), None);
        assert!(!path.exists());
        fs::write(&path, b"tpu").unwrap();
        assert_eq!(c.get(&k), None);
    }

    #[test]
    fn keys_differ_by_compiler_options_and_program() {
        let d = PathBuf::from("unused");
        let (a, b) = (DiskCache::new(d.clone(), 1, "a"), DiskCache::new(d, 1, "b"));
        let k = a.key("m", b"o");
        assert!(k != b.key("m", b"o") && k != a.key("m", b"p") && k != a.key("n", b"o"));
    }

    #[test]
    fn the_folder_stays_under_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let c = DiskCache::new(dir.path().into(), 10_000, "x");
        for i in 0..40 {
            c.put(&c.key(&i.to_string(), b""), &[0; 1000]);
        }
        assert!(c.size().1 <= 11_000, "{:?}", c.size());
        assert!(c.get(&c.key("39", b"")).is_some());
    }

    #[test]
    fn an_unwritable_place_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let c = DiskCache::new(file.path().join("x"), 1000, "x");
        c.put(&c.key("m", b""), b"p");
        assert_eq!(c.write_errors.load(Relaxed), 1);
        assert_eq!(c.get(&c.key("m", b"")), None);
    }
}
