//! Faults that are publicly known of other implementations of verbs, and are not to be repeated here: each has tests that begin with its
//! number.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::host;

/// Those that this workspace can have. The gaps are faults of others' own, or of the C interface, which there is none of.
const FAULTS: [&str; 33] = [
    "vb_01", "vb_02", "vb_04", "vb_05", "vb_06", "vb_08", "vb_10", "vb_12", "vb_14", "vb_15", "vb_16",
    "vb_17", "vb_18", "vb_20", "vb_22", "vb_23", "vb_24", "vb_25", "vb_27", "vb_28", "vb_29", "vb_32",
    "vb_33", "vb_34", "vb_35", "vb_38", "vb_39", "sp_1", "sp_2", "sp_3", "sp_4", "sp_7", "sp_11",
];

/// The numbers that names of functions below a folder begin with.
fn tested(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tested(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.split("fn ").skip(1).filter_map(number));
        }
    }
}

/// `vb_01` of `vb_01_wait_sees_what_came_before()`.
fn number(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('_')?;
    let (digits, _) = rest.split_once('_')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (matches!(prefix, "vb" | "sp") && is_number).then(|| format!("{prefix}_{digits}"))
}

#[test]
fn every_fault_has_a_test_that_names_it() {
    let mut found = BTreeSet::new();
    for folder in ["crates", "tests", "uapi"] {
        tested(&host::workspace().join(folder), &mut found);
    }
    assert_eq!(found, FAULTS.map(str::to_owned).into());
}
