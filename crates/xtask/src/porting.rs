//! The guide for porting from libibverbs: it has a row for every function that a program can call.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::{self, Tool};

/// What the library and its header are in.
pub(crate) const PACKAGES: [&str; 2] = ["libibverbs1", "libibverbs-dev"];
pub(crate) const READELF: Tool = ("readelf", "binutils");
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";
const HEADER: &str = "usr/include/infiniband/verbs.h";

/// Compares the guide with the library that is unpacked in a folder, and gives the number of functions.
pub(crate) fn check(root: &Path, guide: &Path) -> Result<usize> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let symbols = host::output(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(root.join(LIBRARY)))?;
    let mut functions = exported(&symbols);
    functions.extend(inline(&read(&root.join(HEADER))?));
    ensure!(functions.len() > 150, "only {} functions in libibverbs: is it another one?", functions.len());
    let rows = rows(&read(guide)?);
    let missing: Vec<&String> = functions.difference(&rows).collect();
    let unknown: Vec<&String> = rows.difference(&functions).collect();
    ensure!(missing.is_empty(), "{} has no row for {missing:?}", guide.display());
    ensure!(unknown.is_empty(), "{} has rows for what libibverbs has not: {unknown:?}", guide.display());
    Ok(functions.len())
}

/// Functions of the public versions in a table of dynamic symbols. What begins with an underscore is behind an inline function.
fn exported(table: &str) -> BTreeSet<String> {
    let names = table.lines().filter(|line| line.contains(" FUNC ") && !line.contains(" UND "));
    let public = names.filter_map(|line| {
        let (name, version) = line.split_whitespace().last()?.split_once("@")?;
        version.trim_start_matches('@').starts_with("IBVERBS_1.").then_some(name)
    });
    public.filter(|name| !name.starts_with('_')).map(str::to_owned).collect()
}

/// Functions that a header defines.
fn inline(header: &str) -> BTreeSet<String> {
    let functions = header.split("static inline ").skip(1);
    let names = functions.filter_map(|function| {
        let before = function.split_once('(')?.0;
        before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()
    });
    names.filter(|name| name.starts_with("ibv_")).map(str::to_owned).collect()
}

/// Functions that begin a row of a table.
fn rows(guide: &str) -> BTreeSet<String> {
    let cells = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let names = cells.flat_map(|(cell, _)| cell.split(", "));
    names.filter_map(|name| name.strip_prefix('`')?.strip_suffix('`')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_library_and_its_header() {
        let table = "   Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
            10: 0000000000011af0   173 FUNC    GLOBAL DEFAULT   16 ibv_reg_mr@@IBVERBS_1.1\n\
            11: 0000000000011af0   173 FUNC    GLOBAL DEFAULT   16 ibv_reg_mr@IBVERBS_1.0\n\
            12: 0000000000011bf0    73 FUNC    GLOBAL DEFAULT   16 ibv_cmd_reg_mr@@IBVERBS_PRIVATE_57\n\
            13: 0000000000011cf0    73 FUNC    GLOBAL DEFAULT   16 _ibv_query_gid_ex@@IBVERBS_1.11\n\
            14: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND strlen@GLIBC_2.2.5 (2)\n\
            15: 0000000000011df0    73 FUNC    GLOBAL DEFAULT   16 mult_to_ibv_rate@@IBVERBS_1.0\n";
        assert!(exported(table).iter().eq(["ibv_reg_mr", "mult_to_ibv_rate"]));
        let header = "static inline int ibv_poll_cq(struct ibv_cq *cq, int n)\n{\n}\n\
            static inline struct ibv_mw *\nibv_alloc_mw(struct ibv_pd *pd)\n{}\n\
            static inline int ___ibv_query_port(int a)\n{}\n";
        assert!(inline(header).iter().eq(["ibv_alloc_mw", "ibv_poll_cq"]));
        let guide =
            "| `ibv_poll_cq` | `poll` |\n| `ibv_a`, `ibv_b` | yes |\n| word | `ibv_c` |\nSee `ibv_d` | x\n";
        assert!(rows(guide).iter().eq(["ibv_a", "ibv_b", "ibv_poll_cq"]));
    }
}
