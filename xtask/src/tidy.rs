//! Holds the tree to docs/STYLE.md: what may depend on what, where `unsafe` may stand, how long a file may be.

mod arrows;
mod rust;
mod text;
mod tree;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A broken rule: where, and what to do instead.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path inside the repository.
    pub path: PathBuf,
    /// Line, counted from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong.
    pub text: String,
    /// A warning does not fail the run.
    pub warning: bool,
}

impl Finding {
    fn error(path: &Path, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, text: text.into(), warning: false }
    }

    fn warning(path: &Path, text: impl Into<String>) -> Self {
        Self { path: path.into(), line: 0, text: text.into(), warning: true }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        let word = if self.warning { "warning" } else { "error" };
        write!(f, ": {word}: {}", self.text)
    }
}

/// Every finding in the tree at `root`.
pub fn check(root: &Path) -> std::io::Result<Vec<Finding>> {
    let files = tree::read(root)?;
    let mut findings = Vec::new();
    for rule in [arrows::check, rust::check, text::check] {
        rule(&files, &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(findings)
}

/// Prints the findings; fails when one of them is an error.
pub fn run(root: &Path) -> ExitCode {
    let findings = match check(root) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("tidy: cannot read {}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    for finding in &findings {
        eprintln!("{finding}");
    }
    let errors = findings.iter().filter(|f| !f.warning).count();
    println!("tidy: {errors} errors, {} warnings", findings.len() - errors);
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests;
