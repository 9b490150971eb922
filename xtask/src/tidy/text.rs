//! Rules on names, sizes and plain text, the same in every language.

use super::Finding;
use super::tree::File;

const SOURCE: [&str; 5] = ["rs", "cpp", "h", "py", "sh"];
const TEXT: [&str; 9] = ["rs", "cpp", "h", "py", "sh", "toml", "md", "txt", "mlir"];
const LINES_THINK: usize = 600;
const LINES_STOP: usize = 1_000;
const CSRC_LINES: usize = 2_700;
/// Names that say where code was put, not what it is.
const EMPTY_NAMES: [&str; 4] = ["utils", "common", "helpers", "manager"];

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    for file in files {
        if SOURCE.contains(&file.extension()) {
            size(file, findings);
            name(file, findings);
        }
        if TEXT.contains(&file.extension()) || file.extension().is_empty() {
            lines(file, findings);
        }
    }
    csrc(files, findings);
}

fn size(file: &File, findings: &mut Vec<Finding>) {
    let lines = file.lines();
    if lines > LINES_STOP {
        let text = format!("{lines} lines; a file ends at {LINES_STOP}: divide it by what it knows");
        findings.push(Finding::error(&file.path, 0, text));
    } else if lines > LINES_THINK {
        findings.push(Finding::warning(&file.path, format!("{lines} lines; is this one thing?")));
    }
}

fn name(file: &File, findings: &mut Vec<Finding>) {
    for part in file.path.iter().filter_map(|p| p.to_str()) {
        let stem = part.split('.').next().unwrap_or(part).to_lowercase();
        if let Some(word) = stem.split(['_', '-']).find(|w| EMPTY_NAMES.contains(w)) {
            let text = format!("`{word}` says nothing: name {part} after what it knows");
            findings.push(Finding::error(&file.path, 0, text));
        }
    }
}

fn lines(file: &File, findings: &mut Vec<Finding>) {
    for (i, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            findings.push(Finding::error(&file.path, i + 1, "white space at the end of the line"));
        }
        if let Some(path) = home(line) {
            findings.push(Finding::error(&file.path, i + 1, format!("{path}… exists on one machine only")));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::error(&file.path, file.lines(), "no newline at the end of the file"));
    }
}

/// An absolute path into somebody's home, if the line has one.
fn home(line: &str) -> Option<&'static str> {
    // Spelled in halves, so that this file passes its own rule.
    [concat!("/ho", "me/"), concat!("/Use", "rs/"), concat!("/ro", "ot/")].into_iter().find(|home| {
        line.match_indices(home).any(|(i, _)| {
            let before = line[..i].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '}' | ')' | '~'))
        })
    })
}

fn csrc(files: &[File], findings: &mut Vec<Finding>) {
    let shim = files.iter().filter(|f| f.path.starts_with("csrc") && SOURCE.contains(&f.extension()));
    let total: usize = shim.map(File::lines).sum();
    if total > CSRC_LINES {
        let text = format!("{total} lines of C++; the shim ends at {CSRC_LINES}: move meaning into the core");
        findings.push(Finding::error("csrc".as_ref(), 0, text));
    }
}
