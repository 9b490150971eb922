//! Which crate may use which. The whole map is here; a crate missing from it is a finding too.

use super::Finding;
use super::tree::File;

struct Arrow {
    krate: &'static str,
    /// Workspace crates it may use.
    uses: &'static [&'static str],
    /// Further ones its tests may use.
    tests_use: &'static [&'static str],
}

const fn arrow(krate: &'static str, uses: &'static [&'static str], tests_use: &'static [&'static str]) -> Arrow {
    Arrow { krate, uses, tests_use }
}

/// csrc → capi → runtime → {graph → aten → hlo → base, pjrt → pjrt-sys}; dist between capi and runtime.
/// hlo, aten and graph are tested without PJRT, so `tpu-testing` (which has a plugin) is not for their tests.
const ARROWS: &[Arrow] = &[
    arrow("tpu-base", &[], &[]),
    arrow("tpu-hlo", &["tpu-base"], &[]),
    arrow("tpu-aten", &["tpu-base", "tpu-hlo"], &[]),
    arrow("tpu-graph", &["tpu-base", "tpu-hlo", "tpu-aten"], &[]),
    arrow("tpu-pjrt-sys", &[], &[]),
    arrow("tpu-pjrt", &["tpu-pjrt-sys"], &["tpu-testing"]),
    arrow("tpu-runtime", &["tpu-base", "tpu-hlo", "tpu-aten", "tpu-graph", "tpu-pjrt"], &["tpu-testing"]),
    arrow("tpu-dist", &["tpu-base", "tpu-runtime"], &["tpu-testing"]),
    arrow("tpu-capi", &["tpu-base", "tpu-hlo", "tpu-aten", "tpu-runtime", "tpu-dist"], &["tpu-testing"]),
    arrow(
        "tpu-testing",
        &["tpu-pjrt-sys", "tpu-pjrt"],
        &["tpu-base", "tpu-hlo", "tpu-aten", "tpu-graph", "tpu-runtime"],
    ),
    arrow("xtask", &[], &[]),
];

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    let manifests = files.iter().filter(|f| f.path.ends_with("Cargo.toml"));
    for (file, krate) in manifests.filter_map(|f| Some((f, f.krate()?))) {
        let Some(arrow) = ARROWS.iter().find(|a| a.krate == krate) else {
            let text = format!("crate {krate} has no place in the map of xtask/src/tidy/arrows.rs");
            findings.push(Finding::error(&file.path, 0, text));
            continue;
        };
        for dependency in dependencies(&file.text).filter(|d| d.name.starts_with("tpu-")) {
            let allowed = arrow.uses.contains(&dependency.name)
                || dependency.tests_only && arrow.tests_use.contains(&dependency.name);
            if !allowed {
                let text = format!("{krate} may not use {}", dependency.name);
                findings.push(Finding::error(&file.path, dependency.line, text));
            }
        }
    }
}

struct Dependency<'a> {
    name: &'a str,
    tests_only: bool,
    line: usize,
}

/// The dependencies a manifest names, in `[dependencies]` tables and `[dependencies.name]` headings of every kind.
fn dependencies(manifest: &str) -> impl Iterator<Item = Dependency<'_>> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(i, line)| {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(heading) = line.strip_prefix('[') {
            section = heading.trim_end_matches(']');
            let (kind, name) = section.rsplit_once('.')?;
            return kind.ends_with("dependencies").then(|| dependency(kind, name, i));
        }
        let (key, _) = line.split_once('=')?;
        let name = key.split('.').next().unwrap_or("").trim().trim_matches('"');
        section.ends_with("dependencies").then(|| dependency(section, name, i))
    })
}

fn dependency<'a>(section: &str, name: &'a str, index: usize) -> Dependency<'a> {
    Dependency { name, tests_only: section.ends_with("dev-dependencies"), line: index + 1 }
}
