//! Compiles the C++ shim (`csrc/`) against the PyTorch of the chosen interpreter and links it into the extension module.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Finds torch without importing it: importing would load this very backend.
const PROBE: &str = r#"
import importlib.metadata, importlib.util, os, sysconfig
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    raise SystemExit("no torch")
print(spec.submodule_search_locations[0])
print(importlib.metadata.version("torch"))
print(sysconfig.get_paths()["include"])
"#;

/// What the shim is compiled against.
struct Torch {
    root: PathBuf,
    version: String,
    python_include: PathBuf,
}

fn fail(text: &str) -> ! {
    println!("cargo::error={text}");
    exit(1)
}

/// The interpreter named by the environment, else `python3`.
fn interpreter() -> PathBuf {
    for name in ["PYO3_PYTHON", "PYTHON", "VIRTUAL_ENV"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    named("PYO3_PYTHON")
        .or_else(|| named("PYTHON"))
        .or_else(|| named("VIRTUAL_ENV").map(|v| v.join("bin/python")))
        .unwrap_or_else(|| PathBuf::from("python3"))
}

fn find_torch() -> Torch {
    let python = interpreter();
    let shown = python.display();
    let out = match Command::new(&python).args(["-c", PROBE]).output() {
        Ok(out) if out.status.success() => out,
        Ok(_) => {
            fail(&format!("{shown} has no torch: install torch there, or point PYO3_PYTHON at a Python that has it"))
        }
        Err(error) => fail(&format!("cannot run {shown} ({error}): point PYO3_PYTHON at a Python that has torch")),
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let mut lines = text.lines().map(str::trim);
    match (lines.next(), lines.next(), lines.next()) {
        (Some(root), Some(version), Some(python_include)) => {
            Torch { root: root.into(), version: version.into(), python_include: python_include.into() }
        }
        _ => fail(&format!("{shown} did not say where torch is")),
    }
}

fn sources(csrc: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(csrc) {
        Ok(entries) => entries,
        Err(error) => fail(&format!("cannot read {}: {error}", csrc.display())),
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "cpp"))
        .collect();
    files.sort();
    files
}

fn main() {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let workspace = here.join("../..").canonicalize().unwrap_or(here);
    let csrc = workspace.join("csrc");
    // the C ABI belongs to this crate
    let abi = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    println!("cargo::rerun-if-changed={}", csrc.display());
    println!("cargo::rerun-if-changed={}", abi.display());
    let torch = find_torch();
    let include = torch.root.join("include");

    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .debug(false)
        .pic(true)
        .files(sources(&csrc))
        .include(&abi)
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        .flag(format!("-ffile-prefix-map={}/=", workspace.display()))
        // torch's headers come as system headers: their warnings are not ours
        .flag("-isystem")
        .flag(include.as_os_str())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").as_os_str())
        .flag("-isystem")
        .flag(torch.python_include.as_os_str())
        .flag("-Wno-unused-parameter")
        .define("AT_PER_OPERATOR_HEADERS", None)
        .compile("tpu_csrc");

    println!("cargo::rustc-link-search=native={}", torch.root.join("lib").display());
    for library in ["torch_python", "torch_cpu", "torch", "c10"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    println!("cargo::rustc-env=TORCH_TPU_BUILT_FOR={}", torch.version);
}
