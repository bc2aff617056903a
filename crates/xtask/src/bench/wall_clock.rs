//! Perftest and `uverbs bench` by the clock on the wall, in pairs, in a virtual machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::chart::{self, Bar};
use crate::host;
use crate::kernel::Line;
use crate::vm::{Copy, Vm};

const PROGRAM: &str = "/usr/bin/wall-clock";
/// How long a pair of all tests may take.
const SECONDS: u64 = 120;

/// What `wall-clock` prints.
#[derive(Deserialize)]
struct Report {
    kernel: String,
    perftest: String,
    tests: Vec<Test>,
}

#[derive(Deserialize, Serialize)]
struct Test {
    name: String,
    unit: String,
    perftest: Vec<f64>,
    uverbs: Vec<f64>,
}

impl Test {
    /// Pair by pair how much of perftest's time ours takes, sorted.
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.perftest.iter().zip(&self.uverbs);
        let is_time = self.unit == "µs";
        sorted(pairs.map(|(theirs, ours)| if is_time { ours / theirs } else { theirs / ours }))
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Lower quartile, middle and upper quartile of sorted values; of two that are as near the outer ones.
fn quarters(values: &[f64]) -> [f64; 3] {
    let last = values.len() - 1;
    let middle = f64::midpoint(values[last / 2], values[last - last / 2]);
    [values[last / 4], middle, values[last - last / 4]]
}

/// Measures so many pairs of each test, into `docs/benchmarks`.
pub(crate) fn compare(kernel: Line, pairs: usize) -> Result<()> {
    ensure!(pairs > 0, "no pairs: nothing is measured");
    let build = ["build", "--release", "-p", "uverbs-benches", "--bin", "wall-clock"];
    let mut vm = Vm::command(kernel, [PROGRAM, "rxe0", &pairs.to_string()]);
    vm.files.push(Copy { host: host::cargo_executable(&build)?, guest: PROGRAM.to_owned() });
    vm.reference = true;
    vm.timeout = SECONDS * (1 + pairs as u64);
    let report: Report = super::report(&mut vm)?;
    let versions = BTreeMap::from([
        ("Linux", report.kernel),
        ("perftest", report.perftest),
        ("QEMU", super::says(host::QEMU.0)?),
        ("uverbs", env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    let text = document(&report.tests, pairs, &versions)?;
    let row = |test: &Test| {
        let [least, value, most] = quarters(&test.ratios());
        (test.name.clone(), vec![Some(Bar { value, spread: Some((least, most)) })])
    };
    let rows: Vec<_> = report.tests.iter().map(row).collect();
    let title = "Time of uverbs bench for each of perftest's";
    let chart = chart::bars(title, "ratio: less is better", &["time"], &rows)?;
    super::write("time", &text, &chart, &serde_json::json!({ "versions": versions, "tests": report.tests }))
}

fn document(tests: &[Test], pairs: usize, versions: &BTreeMap<&str, String>) -> Result<String> {
    let mut text = format!(
        "# Time\n\n\
         Made by `cargo xtask bench time`: [what it does](../benchmarks.md). The middle of {pairs} pairs; the ratio is of times, pair by pair, \
         and at least half of the pairs are in its range.\n\n![ratios](time.svg)\n\n\
         | test | perftest | uverbs | | ratio | range |\n|---|--:|--:|---|--:|--:|\n"
    );
    for test in tests {
        let middle = |values: &[f64]| quarters(&sorted(values.iter().copied()))[1];
        let [least, ratio, most] = quarters(&test.ratios());
        writeln!(
            text,
            "| `{}` | {:.2} | {:.2} | {} | {ratio:.2} | {least:.2} to {most:.2} |",
            test.name,
            middle(&test.perftest),
            middle(&test.uverbs),
            test.unit,
        )?;
    }
    text.push('\n');
    for (name, version) in versions {
        writeln!(text, "* {name}: {version}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_times() {
        let test = |unit: &str| Test {
            name: "ib_send_bw -s 64".to_owned(),
            unit: unit.to_owned(),
            perftest: vec![10.0, 20.0, 30.0],
            uverbs: vec![20.0, 20.0, 15.0],
        };
        assert_eq!(test("µs").ratios(), [0.5, 1.0, 2.0]);
        assert_eq!(test("MiB/s").ratios(), [0.5, 1.0, 2.0]);
        assert_eq!(quarters(&[1.0, 2.0, 3.0, 4.0, 5.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quarters(&[1.0, 2.0]), [1.0, 1.5, 2.0]);
        assert_eq!(quarters(&[7.0]), [7.0; 3]);
        let text = document(&[test("MiB/s")], 3, &BTreeMap::new()).unwrap();
        assert!(
            text.contains("| `ib_send_bw -s 64` | 20.00 | 20.00 | MiB/s | 1.00 | 0.50 to 2.00 |"),
            "{text}"
        );
    }
}
