//! Our layouts against a table that someone else generated from the C headers
//! (`dump_layouts.py` writes `layouts.txt`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use tpu_pjrt_sys::layout::{Layout, end_of_last};
use tpu_pjrt_sys::layouts;

/// Structs that XLA makes and we only read; their published size stops before the last field.
const ONLY_READ: &[&str] = &["XLA_FFI_Metadata", "XLA_FFI_CallFrame"];

struct Theirs {
    size: usize,
    struct_size: Option<usize>,
    fields: Vec<(String, usize, usize)>,
}

fn table() -> HashMap<&'static str, Theirs> {
    let parse = |line: &'static str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let size = words.next().unwrap().parse().unwrap();
        let struct_size = words.next().unwrap().parse().ok();
        let fields = words
            .map(|word| {
                let mut parts = word.split(':');
                let name = parts.next().unwrap().to_owned();
                let mut number = || parts.next().unwrap().parse().unwrap();
                (name, number(), number())
            })
            .collect();
        (name, Theirs { size, struct_size, fields })
    };
    include_str!("layouts.txt").lines().map(parse).collect()
}

/// Differences between one of our structs and the table.
fn differences(ours: &Layout, theirs: &Theirs) -> Vec<String> {
    let mut found = Vec::new();
    if ours.size != theirs.size {
        found.push(format!("{}: sizeof {} != {}", ours.name, ours.size, theirs.size));
    }
    let end = end_of_last(ours.fields);
    let sent = ours.fields[0].name == "struct_size" && !ONLY_READ.contains(&ours.name);
    if sent && theirs.struct_size.is_some_and(|s| s != end) {
        found.push(format!("{}: struct_size {end} != {:?}", ours.name, theirs.struct_size));
    }
    let fields: Vec<_> =
        ours.fields.iter().map(|f| (f.name.trim_end_matches('_').to_owned(), f.offset, f.size)).collect();
    if fields != theirs.fields {
        found.push(format!("{}: {fields:?} != {:?}", ours.name, theirs.fields));
    }
    found
}

#[test]
fn every_struct_matches_the_table() {
    let table = table();
    let mut found = Vec::new();
    let mut seen = 0;
    for ours in layouts() {
        seen += 1;
        match table.get(ours.name) {
            Some(theirs) => found.extend(differences(ours, theirs)),
            None => found.push(format!("{}: not in the table", ours.name)),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(seen > 100, "only {seen} structs were compared");
}

#[test]
fn a_wrong_offset_would_be_noticed() {
    let table = table();
    let ours = layouts().find(|l| l.name == "PJRT_Buffer_IsDeleted_Args").unwrap();
    let mut theirs = Theirs { fields: Vec::new(), ..*table.get(ours.name).unwrap() };
    theirs.fields.clone_from(&table[ours.name].fields);
    assert!(differences(ours, &theirs).is_empty());
    theirs.fields[2].1 += 8;
    assert!(!differences(ours, &theirs).is_empty());
}
