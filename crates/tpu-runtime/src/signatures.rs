//! What PyTorch's shape rules said, remembered between processes: asking them again costs from a tenth of a millisecond to
//! the import of a Python package, for every signature a model has.
//!
//! One file a torch version, lines appended whole: `checksum {"id": …, "outs": …}`. A bad line is skipped.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tpu_base::DType;
use tpu_graph::MetaOut;

/// Lines gathered before they are written.
const BATCH: usize = 64;
/// A file larger than this starts anew.
const LARGEST: u64 = 64 << 20;

type Out = Option<(u8, Vec<i64>, Vec<i64>)>;

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    outs: Vec<Out>,
}

/// Outcomes of shape rules by signature.
pub(crate) struct Signatures {
    path: Option<PathBuf>,
    known: FxHashMap<u128, Vec<Out>>,
    fresh: Mutex<Vec<String>>,
}

impl Signatures {
    /// Those in `dir`, for this torch; nothing is kept without a folder.
    pub(crate) fn open(dir: Option<&Path>, torch: &str) -> Signatures {
        let table = tpu_aten::table().iter().fold(blake3::Hasher::new(), |mut h, e| {
            h.update(e.schema.text.as_bytes());
            h
        });
        // the leading number grows when this project asks for shapes in another way
        let name = blake3::hash(format!("2 {torch} {}", table.finalize()).as_bytes());
        let path = dir.map(|d| d.join(format!("signatures-{}.jsonl", &name.to_hex()[..16])));
        let known = path.as_deref().map(read).unwrap_or_default();
        Signatures { path, known, fresh: Mutex::default() }
    }

    /// What was said about this signature.
    pub(crate) fn known(&self, id: u128) -> Option<Vec<Option<MetaOut>>> {
        let out = |o: &Out| match o {
            None => Some(None),
            Some((dtype, sizes, strides)) => Some(Some(MetaOut {
                dtype: DType::from_code(*dtype)?,
                sizes: sizes.as_slice().into(),
                strides: strides.as_slice().into(),
            })),
        };
        self.known.get(&id)?.iter().map(out).collect()
    }

    /// Remembers an outcome.
    pub(crate) fn learn(&self, id: u128, metas: &[Option<MetaOut>]) {
        if self.path.is_none() {
            return;
        }
        let outs =
            metas.iter().map(|m| m.as_ref().map(|m| (m.dtype as u8, m.sizes.to_vec(), m.strides.to_vec()))).collect();
        let Ok(text) = serde_json::to_string(&Line { id: format!("{id:x}"), outs }) else { return };
        let mut fresh = self.fresh.lock();
        fresh.push(text);
        if fresh.len() >= BATCH {
            self.write(std::mem::take(&mut *fresh));
        }
    }

    /// Writes what was learnt.
    pub(crate) fn flush(&self) {
        let lines = std::mem::take(&mut *self.fresh.lock());
        if !lines.is_empty() {
            self.write(lines);
        }
    }

    /// One append, so that lines of several processes don't mix. A cache that can't be written is no error.
    fn write(&self, lines: Vec<String>) {
        let Some(path) = &self.path else { return };
        let mut text = String::new();
        for l in lines {
            let _ = writeln!(text, "{} {l}", checksum(&l));
        }
        if std::fs::metadata(path).is_ok_and(|m| m.len() > LARGEST) {
            drop(std::fs::remove_file(path));
        }
        if let Some(dir) = path.parent() {
            drop(std::fs::create_dir_all(dir));
        }
        if let Ok(mut f) = std::fs::File::options().create(true).append(true).open(path) {
            drop(f.write_all(text.as_bytes()));
        }
    }
}

fn checksum(line: &str) -> String {
    blake3::hash(line.as_bytes()).to_hex()[..16].to_owned()
}

fn read(path: &Path) -> FxHashMap<u128, Vec<Out>> {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .lines()
        .filter_map(|l| {
            let (sum, text) = l.split_once(' ')?;
            let line: Line = (checksum(text) == sum).then(|| serde_json::from_str(text).ok())??;
            Some((u128::from_str_radix(&line.id, 16).ok()?, line.outs))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back_and_bad_lines_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let meta =
            Some(MetaOut { dtype: DType::BF16, sizes: [2, 3].as_slice().into(), strides: [3, 1].as_slice().into() });
        let s = Signatures::open(Some(dir.path()), "2.15");
        s.learn(7, &[meta, None]);
        assert!(s.known(7).is_none(), "learnt in this process: kept by its table");
        s.flush();
        let path = s.path.clone().unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str(&text.replacen("bf16", "x", 1).replacen('7', "8", 1));
        text.push_str("half a li");
        std::fs::write(&path, text).unwrap();
        let s = Signatures::open(Some(dir.path()), "2.15");
        let back = s.known(7).unwrap();
        assert_eq!(back[0].as_ref().map(|m| (m.dtype, m.sizes.to_vec())), Some((DType::BF16, vec![2, 3])));
        assert!(back[1].is_none());
        assert_eq!(s.known.len(), 1);
        assert!(Signatures::open(Some(dir.path()), "2.14").known(7).is_none());
    }
}
