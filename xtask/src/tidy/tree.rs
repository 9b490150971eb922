//! The text files of the repository.

use std::io;
use std::path::{Path, PathBuf};

/// A text file and its path inside the repository.
pub struct File {
    pub path: PathBuf,
    pub text: String,
}

impl File {
    pub fn extension(&self) -> &str {
        self.path.extension().and_then(|e| e.to_str()).unwrap_or("")
    }

    /// The crate the file belongs to: `tpu-hlo` for `crates/tpu-hlo/src/lib.rs`.
    pub fn krate(&self) -> Option<&str> {
        let mut parts = self.path.iter().filter_map(|p| p.to_str());
        match parts.next()? {
            "crates" => parts.next(),
            "xtask" => Some("xtask"),
            _ => None,
        }
    }

    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }
}

const GENERATED: [&str; 5] = ["target", "dist", "build", "__pycache__", "node_modules"];

/// All text files below `root`, without what tools generate. Hidden folders count as generated, except `.ci` and `.cargo`.
pub fn read(root: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let kind = entry.file_type()?;
            if kind.is_dir() && !is_generated(&name) {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = String::from_utf8(std::fs::read(entry.path())?)
                && !text.contains('\0')
            {
                let path = entry.path().strip_prefix(root).unwrap_or(&entry.path()).to_path_buf();
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn is_generated(name: &str) -> bool {
    let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
    hidden || GENERATED.contains(&name) || name.ends_with(".egg-info")
}
