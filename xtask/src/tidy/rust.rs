//! `unsafe` stays in the FFI crates, and the compiler is told so in the others.

use super::Finding;
use super::tree::File;

const UNSAFE_CRATES: [&str; 4] = ["tpu-pjrt-sys", "tpu-pjrt", "tpu-capi", "tpu-testing"];
const FORBID: &str = "#![forbid(unsafe_code)]";

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    let sources = files.iter().filter(|f| f.extension() == "rs");
    for (file, krate) in sources.filter_map(|f| Some((f, f.krate()?))) {
        if UNSAFE_CRATES.contains(&krate) {
            continue;
        }
        let is_root = ["lib.rs", "main.rs"].iter().any(|root| file.path.ends_with(format!("src/{root}")));
        if is_root && !file.text.contains(FORBID) {
            findings.push(Finding::error(&file.path, 1, format!("{krate} needs `{FORBID}`")));
        }
        for (i, line) in code_only(&file.text).lines().enumerate() {
            if words(line).any(|w| w == "unsafe") {
                let text = format!("unsafe code belongs in {}", UNSAFE_CRATES.join(", "));
                findings.push(Finding::error(&file.path, i + 1, text));
            }
        }
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Rust source with comments and string contents blanked out, line by line as before.
pub fn code_only(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped =
            comment(rest).or_else(|| raw_string(rest)).or_else(|| string(rest)).or_else(|| char_literal(rest));
        if let Some(n) = skipped {
            out.extend(rest[..n].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[n..];
        } else if c.is_alphanumeric() || c == '_' {
            // A whole word at once, so that the r of `for` is not taken for a raw string.
            let n = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            out.push_str(&rest[..n]);
            rest = &rest[n..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn comment(s: &str) -> Option<usize> {
    if s.starts_with("//") {
        return Some(s.find('\n').unwrap_or(s.len()));
    }
    if !s.starts_with("/*") {
        return None;
    }
    let (mut depth, mut i) = (0, 0);
    let bytes = s.as_bytes();
    while i < bytes.len() {
        match &bytes[i..(i + 2).min(bytes.len())] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return Some(i);
        }
    }
    Some(s.len())
}

fn raw_string(s: &str) -> Option<usize> {
    let body = s.strip_prefix("br").or_else(|| s.strip_prefix("cr")).or_else(|| s.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    if !body[hashes..].starts_with('"') {
        return None;
    }
    let start = s.len() - body.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(s[start..].find(&end).map_or(s.len(), |n| start + n + end.len()))
}

fn string(s: &str) -> Option<usize> {
    if !s.starts_with('"') {
        return None;
    }
    let mut escaped = false;
    for (i, c) in s.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(i + 1),
            _ => {}
        }
    }
    Some(s.len())
}

/// `'x'`, `'\n'`, `'\u{1f}'`, but not the lifetime `'a`.
fn char_literal(s: &str) -> Option<usize> {
    let body = s.strip_prefix('\'')?;
    let mut chars = body.char_indices();
    if chars.next()?.1 == '\\' {
        chars.next()?; // the escaped character, which may be a quote
        return body.char_indices().skip(2).find(|(_, c)| *c == '\'').map(|(i, _)| i + 2);
    }
    let (i, c) = chars.next()?;
    (c == '\'').then_some(i + 2)
}
