use super::rust::code_only;
use super::{Finding, check};
use std::fs;
use std::path::{Path, PathBuf};

/// A tree of files that goes away with the value.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("tidy-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("temporary folder");
            fs::write(path, text).expect("temporary file");
        }
        Self(root)
    }

    fn findings(&self) -> Vec<Finding> {
        check(&self.0).expect("the tree is readable")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The one finding that breaking a rule must give.
fn only_finding(name: &str, files: &[(&str, &str)]) -> Finding {
    let tree = Tree::new(name, files);
    let mut findings = tree.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

const LIB: &str = "#![forbid(unsafe_code)]\n";

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let errors: Vec<String> =
        check(root).expect("readable").iter().filter(|f| !f.warning).map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn a_tidy_tree_has_no_findings() {
    let manifest = "[dependencies]\ntpu-base.workspace = true\nserde = \"1\"\n";
    let tree = Tree::new(
        "clean",
        &[
            ("crates/tpu-hlo/Cargo.toml", manifest),
            ("crates/tpu-hlo/src/lib.rs", "//! unsafe is only a word here.\n#![forbid(unsafe_code)]\n"),
            ("crates/tpu-capi/src/lib.rs", "unsafe fn f() {}\n"),
            ("target/debug/utils.rs", "unsafe {} \n"),
        ],
    );
    assert_eq!(tree.findings(), []);
}

#[test]
fn an_arrow_against_the_grain_is_found() {
    let manifest = "[package]\nname = \"tpu-hlo\"\n[dependencies]\ntpu-pjrt.workspace = true\n";
    let finding = only_finding("arrow", &[("crates/tpu-hlo/Cargo.toml", manifest)]);
    assert_eq!((finding.line, finding.text.as_str()), (4, "tpu-hlo may not use tpu-pjrt"));
}

#[test]
fn a_dependency_with_its_own_heading_is_found() {
    let manifest = "[dependencies.tpu-graph]\nworkspace = true\n";
    let finding = only_finding("heading", &[("crates/tpu-aten/Cargo.toml", manifest)]);
    assert_eq!(finding.text, "tpu-aten may not use tpu-graph");
}

#[test]
fn tests_may_use_what_the_crate_may_not() {
    let tests = [("crates/tpu-runtime/Cargo.toml", "[dev-dependencies]\ntpu-testing = { workspace = true }\n")];
    assert_eq!(Tree::new("dev", &tests).findings(), []);
    let code = [("crates/tpu-runtime/Cargo.toml", "[dependencies]\ntpu-testing = { workspace = true }\n")];
    assert_eq!(only_finding("nodev", &code).text, "tpu-runtime may not use tpu-testing");
}

#[test]
fn an_unknown_crate_is_found() {
    let finding = only_finding("unknown", &[("crates/tpu-new/Cargo.toml", "[package]\n")]);
    assert!(finding.text.contains("no place in the map"), "{finding}");
}

#[test]
fn unsafe_outside_the_ffi_crates_is_found() {
    let text = format!("{LIB}fn f() {{\n    unsafe {{ g() }}\n}}\n");
    let finding = only_finding("unsafe", &[("crates/tpu-graph/src/lib.rs", &text)]);
    assert_eq!(finding.line, 3);
}

#[test]
fn a_crate_that_does_not_forbid_unsafe_is_found() {
    let finding = only_finding("forbid", &[("crates/tpu-aten/src/lib.rs", "//! Ops.\n")]);
    assert!(finding.text.contains("needs `#![forbid(unsafe_code)]`"), "{finding}");
}

#[test]
fn long_files_are_found_and_longish_ones_are_mentioned() {
    let finding = only_finding("long", &[("python/a.py", &"x = 1\n".repeat(1_001))]);
    assert!(!finding.warning, "{finding}");
    let finding = only_finding("longish", &[("python/a.py", &"x = 1\n".repeat(601))]);
    assert!(finding.warning, "{finding}");
}

#[test]
fn a_shim_that_grows_is_found() {
    let part = "// x\n".repeat(541);
    let names = ["a", "b", "c", "d", "e"].map(|n| format!("csrc/{n}.cpp"));
    let files: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), part.as_str())).collect();
    assert_eq!(only_finding("shim", &files).path, Path::new("csrc"));
}

#[test]
fn empty_names_are_found() {
    for path in ["python/utils.py", "csrc/string_helpers.cpp", "crates/tpu-base/src/common/shape.rs"] {
        let finding = only_finding("name", &[(path, "\n")]);
        assert!(finding.text.contains("says nothing"), "{finding}");
    }
}

#[test]
fn stray_text_is_found() {
    let home = concat!("see /ho", "me/someone/notes\n");
    assert!(only_finding("home", &[("README.md", home)]).text.contains("one machine only"));
    assert!(only_finding("blank", &[("README.md", "text \n")]).text.contains("white space"));
    assert!(only_finding("newline", &[("README.md", "text")]).text.contains("no newline"));
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let source = r##"/* unsafe /* nested unsafe */ */ let a = "unsafe \" unsafe"; let b = r#"unsafe " "#;
let c = '"'; unsafe { d('\'') } // unsafe
fn e<'a>(x: &'a str) {}"##;
    let code = code_only(source);
    assert_eq!(code.matches("unsafe").count(), 1, "{code}");
    assert!(code.contains("fn e<'a>(x: &'a str) {}"), "{code}");
    assert_eq!(code.lines().count(), source.lines().count());
}
