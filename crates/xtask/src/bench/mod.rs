//! What verbs cost in instructions, ours and the reference's, in the same virtual machine; and whether that is within bounds.

mod chart;
mod soft;
mod wall_clock;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use chart::Bar;

use crate::cache::Cache;
use crate::kernel::Line;
use crate::vm::{Copy, Device, Vm};
use crate::{host, peer, tasks};

/// Where the guest has the programs: what measures, ours, the reference's.
const COMPARE: &str = "/usr/bin/compare";
const OURS: &str = "/usr/bin/operations";
const REFERENCE: &str = "/usr/bin/operations-reference";

/// Whose user's part is not counted: it takes a process from its start, or depends on when the kernel's threads run.
const NOT_STEPPED: [&str; 6] =
    ["list-cold", "start-open", "start-completion", "ping-pong", "memory", "memory-qps"];

/// `benches/bounds.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    operation: Vec<Operation>,
    counter: Vec<Operation>,
}

impl Bounds {
    fn read() -> Result<Self> {
        let path = host::workspace().join("benches/bounds.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// An operation, and at most how much of the reference's instructions it takes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    id: String,
    name: String,
    /// User and kernel together.
    bound: Option<f64>,
    /// Outside of the kernel.
    user: Option<f64>,
}

impl Operation {
    fn is_stepped(&self) -> bool {
        !NOT_STEPPED.contains(&self.id.as_str())
    }

    /// What is wrong with a measurement.
    fn passes(&self, run: &Run) -> Result<Option<String>> {
        for (bound, part, what) in [
            (self.bound, Part::Total, "instructions"),
            (self.user, Part::User, "instructions outside of the kernel"),
        ] {
            let Some(bound) = bound else { continue };
            let ratio = run.ratio(&self.id, part)?;
            if ratio > bound {
                let name = &self.name;
                return Ok(Some(format!(
                    "{name}: {ratio:.3} of the reference's {what}, the bound is {bound}"
                )));
            }
        }
        Ok(None)
    }
}

#[derive(Clone, Copy)]
enum Part {
    Total,
    User,
}

/// What `compare` says of a program.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Outcome {
    total: BTreeMap<String, f64>,
    user: BTreeMap<String, f64>,
}

impl Outcome {
    fn get(&self, id: &str, part: Part) -> Option<f64> {
        let numbers = match part {
            Part::Total => &self.total,
            Part::User => &self.user,
        };
        numbers.get(id).copied()
    }
}

/// What `compare` says.
#[derive(Debug, Deserialize)]
struct Report {
    kernel: String,
    programs: Vec<Outcome>,
}

/// What one machine showed.
#[derive(Debug, Serialize)]
struct Run {
    rdma_core: Outcome,
    uverbs: Outcome,
}

impl Run {
    /// The least of several runs, number by number.
    fn least(runs: &[Self]) -> Self {
        let least = |outcome: fn(&Self) -> &Outcome| {
            let mut least = Outcome::default();
            for outcome in runs.iter().map(outcome) {
                for (all, some) in [(&mut least.total, &outcome.total), (&mut least.user, &outcome.user)] {
                    for (id, number) in some {
                        let entry = all.entry(id.clone()).or_insert(*number);
                        *entry = entry.min(*number);
                    }
                }
            }
            least
        };
        Self { rdma_core: least(|run| &run.rdma_core), uverbs: least(|run| &run.uverbs) }
    }

    fn ratio(&self, id: &str, part: Part) -> Result<f64> {
        let number =
            |outcome: &Outcome| outcome.get(id, part).with_context(|| format!("{id} has not been measured"));
        Ok(number(&self.uverbs)? / number(&self.rdma_core)?)
    }
}

/// Both programs, ready to run in guests.
struct Programs {
    compare: PathBuf,
    ours: PathBuf,
    reference: PathBuf,
}

impl Programs {
    fn build() -> Result<Self> {
        let bin =
            |name| host::cargo_executable(&["build", "--release", "-p", "uverbs-benches", "--bin", name]);
        let source = host::workspace().join("benches/reference/operations.c");
        Ok(Self {
            compare: bin("compare")?,
            ours: bin("operations")?,
            reference: peer::get(&Cache::open()?, &source)?,
        })
    }

    /// A machine under the clock that counts instructions, which prints a report.
    fn vm(&self, kernel: Line, device: Device, timed: &[&str], stepped: &[&str], programs: &[&str]) -> Vm {
        let (timed, stepped) = (timed.join(","), stepped.join(","));
        let name = device.name().unwrap_or_default();
        let words = [COMPARE, name, &timed, &stepped].into_iter().chain(programs.iter().copied());
        let mut vm = Vm::command(kernel, words);
        vm.device = device;
        // It is nothing for a device outside of the machine.
        vm.icount = device != Device::Efa;
        for (host, guest) in [(&self.compare, COMPARE), (&self.ours, OURS), (&self.reference, REFERENCE)] {
            vm.files.push(Copy { host: host.clone(), guest: guest.to_owned() });
        }
        vm
    }

    /// Both, one after the other in the same machine.
    fn run(&self, kernel: Line, device: Device, timed: &[&str], stepped: &[&str]) -> Result<(Run, String)> {
        let mut vm = self.vm(kernel, device, timed, stepped, &[REFERENCE, OURS]);
        vm.reference = true;
        let report: Report = report(&mut vm)?;
        let [rdma_core, uverbs] =
            <[Outcome; 2]>::try_from(report.programs).ok().context("no two outcomes")?;
        Ok((Run { rdma_core, uverbs }, report.kernel))
    }
}

/// What is printed in a machine.
fn report<T: DeserializeOwned>(vm: &mut Vm) -> Result<T> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("report");
    vm.output = Some(path.clone());
    let status = tasks::patiently(vm)?;
    ensure!(status == 0, "the measurement ended with status {status}");
    let text = fs::read_to_string(path)?;
    serde_json::from_str(&text).with_context(|| format!("no report: {text}"))
}

pub(crate) use soft::compare as soft;
pub(crate) use wall_clock::compare as compare_time;

/// Fails if an operation that has a bound takes more.
pub(crate) fn check(kernel: Line) -> Result<()> {
    let Bounds { operation, counter } = Bounds::read()?;
    let programs = Programs::build()?;
    let bounded = |operation: &Operation| operation.bound.is_some() || operation.user.is_some();
    let operations: Vec<_> = operation.iter().filter(|operation| bounded(operation)).collect();
    let user: Vec<_> = operations.iter().copied().filter(|operation| operation.user.is_some()).collect();
    let (run, _) = programs.run(kernel, Device::Rxe, &ids(&operations), &ids(&user))?;
    print!("{}", table(&operations, std::slice::from_ref(&run))?);
    let mut failures = failures(&operations, &run)?;
    if kernel == Line::V7_3 {
        let counters: Vec<_> = counter.iter().filter(|counter| bounded(counter)).collect();
        let (run, _) = programs.run(kernel, Device::Efa, &[], &ids(&counters))?;
        print!("\n{}", counter_table(&counters, &run, None)?);
        failures.extend(self::failures(&counters, &run)?);
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn ids<'a>(operations: &[&'a Operation]) -> Vec<&'a str> {
    operations.iter().map(|operation| operation.id.as_str()).collect()
}

fn failures(operations: &[&Operation], run: &Run) -> Result<Vec<String>> {
    operations.iter().filter_map(|operation| operation.passes(run).transpose()).collect()
}

/// Everything, in several machines, into `docs/benchmarks`.
pub(crate) fn compare(kernel: Line, runs: usize) -> Result<()> {
    ensure!(runs > 0, "no runs: nothing is measured");
    let Bounds { operation, counter } = Bounds::read()?;
    let programs = Programs::build()?;
    let rows: Vec<_> = operation.iter().collect();
    let stepped: Vec<_> = rows.iter().copied().filter(|operation| operation.is_stepped()).collect();
    let (timed, stepped) = (ids(&rows), ids(&stepped));
    let (mut all, mut release) = (Vec::new(), String::new());
    for number in 1..=runs {
        host::progress(format_args!("run {number} of {runs}"));
        // Steps are the same in every run.
        let stepped = if number == 1 { &stepped[..] } else { &[] };
        let (run, kernel) = programs.run(kernel, Device::Rxe, &timed, stepped)?;
        all.push(run);
        release = kernel;
    }
    let versions = versions(&programs, &release)?;
    let mut json = serde_json::json!({ "versions": versions, "runs": all });
    let mut counters = String::new();
    // Older kernels have no counters.
    if kernel == Line::V7_3 {
        let rows: Vec<_> = counter.iter().collect();
        let (efa, rxe) = measure_counters(&programs, kernel, &ids(&rows))?;
        counters = counter_table(&rows, &efa, Some(&rxe))?;
        json["counters"] = serde_json::json!({ "efa": efa, "rxe": rxe });
    }
    let text = document(&table(&rows, &all)?, &counters, &versions, runs)?;
    write("instructions", &text, &chart(&rows, &all)?, &json)
}

/// Writes a result into `docs/benchmarks`, and prints it.
fn write(name: &str, text: &str, chart: &str, json: &serde_json::Value) -> Result<()> {
    let folder = host::workspace().join("docs/benchmarks");
    fs::create_dir_all(&folder)?;
    let json = serde_json::to_string_pretty(json)? + "\n";
    for (extension, content) in [("md", text), ("svg", chart), ("json", json.as_str())] {
        let path = folder.join(format!("{name}.{extension}"));
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{text}");
    Ok(())
}

/// What completion counters take: both on EFA, and ours on soft-RoCE.
fn measure_counters(programs: &Programs, kernel: Line, ids: &[&str]) -> Result<(Run, Outcome)> {
    let (efa, _) = programs.run(kernel, Device::Efa, &[], ids)?;
    let report: Report = report(&mut programs.vm(kernel, Device::RxeCounters, ids, ids, &[OURS]))?;
    let [rxe] = <[Outcome; 1]>::try_from(report.programs).ok().context("no outcome")?;
    Ok((efa, rxe))
}

/// The first line of what a program says of its version.
fn says(program: &str) -> Result<String> {
    let text = host::output(Command::new(program).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// What took part, by name.
fn versions(programs: &Programs, kernel: &str) -> Result<BTreeMap<&'static str, String>> {
    Ok(BTreeMap::from([
        ("cc", says("cc")?),
        ("Linux", kernel.to_owned()),
        ("QEMU", says(host::QEMU.0)?),
        ("rdma-core", peer::version(&programs.reference)?),
        ("rustc", says("rustc")?),
        ("uverbs", env!("CARGO_PKG_VERSION").to_owned()),
    ]))
}

/// A row for each operation: the least of all runs, and how far apart their ratios are.
fn table(operations: &[&Operation], runs: &[Run]) -> Result<String> {
    let all = Run::least(runs);
    let mut text = "| operation | rdma-core | uverbs | ratio | spread | bound | user: rdma-core | uverbs | ratio | bound |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
    for operation in operations {
        let id = &operation.id;
        let ratios = runs.iter().map(|run| run.ratio(id, Part::Total)).collect::<Result<Vec<_>>>()?;
        let (least, most) = ratios
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), ratio| (least.min(*ratio), most.max(*ratio)));
        write!(
            text,
            "| {} | {} | {} | {:.3} | {:.2} % | {} |",
            operation.name,
            shown(all.rdma_core.get(id, Part::Total)),
            shown(all.uverbs.get(id, Part::Total)),
            all.ratio(id, Part::Total)?,
            (most / least - 1.0) * 100.0,
            bound(operation.bound),
        )?;
        let user = all.ratio(id, Part::User).map(|ratio| format!("{ratio:.3}")).unwrap_or_default();
        writeln!(
            text,
            " {} | {} | {user} | {} |",
            shown(all.rdma_core.get(id, Part::User)),
            shown(all.uverbs.get(id, Part::User)),
            bound(operation.user),
        )?;
    }
    Ok(text)
}

/// A row for each operation of completion counters: outside of the kernel on EFA, and what soft-RoCE takes if that was measured.
fn counter_table(operations: &[&Operation], efa: &Run, rxe: Option<&Outcome>) -> Result<String> {
    let mut text = "| operation | EFA, user: rdma-core | uverbs | ratio | bound |".to_owned();
    text.push_str(if rxe.is_some() { " soft-RoCE: uverbs | user |\n" } else { "\n" });
    text.push_str("|---|--:|--:|--:|--:|");
    text.push_str(if rxe.is_some() { "--:|--:|\n" } else { "\n" });
    for Operation { id, name, user, .. } in operations {
        let (theirs, ours) = (efa.rdma_core.get(id, Part::User), efa.uverbs.get(id, Part::User));
        let (ratio, bound) =
            (efa.ratio(id, Part::User)?, user.map(|user| user.to_string()).unwrap_or_default());
        write!(text, "| {name} | {} | {} | {ratio:.3} | {bound} |", shown(theirs), shown(ours))?;
        if let Some(rxe) = rxe {
            write!(text, " {} | {} |", shown(rxe.get(id, Part::Total)), shown(rxe.get(id, Part::User)))?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// The ratios of the table, spread over those of the runs.
fn chart(operations: &[&Operation], runs: &[Run]) -> Result<String> {
    let all = Run::least(runs);
    let row = |operation: &&Operation| {
        let ratios =
            runs.iter().map(|run| run.ratio(&operation.id, Part::Total)).collect::<Result<Vec<_>>>()?;
        let least = ratios.iter().copied().reduce(f64::min);
        let most = ratios.iter().copied().reduce(f64::max);
        let total = Bar { value: all.ratio(&operation.id, Part::Total)?, spread: least.zip(most) };
        let user = all.ratio(&operation.id, Part::User).ok();
        let user = user.map(|value| Bar { value, spread: None });
        Ok((operation.name.clone(), vec![Some(total), user]))
    };
    let rows = operations.iter().map(row).collect::<Result<Vec<_>>>()?;
    chart::bars(
        "Instructions of uverbs for each of rdma-core's",
        "ratio: less is better",
        &["user and kernel", "user"],
        &rows,
    )
}

/// Whole instructions, and parts of them where there are few.
fn shown(number: Option<f64>) -> String {
    match number {
        None => String::new(),
        Some(number) if number < 1000.0 => format!("{number:.1}"),
        Some(number) => format!("{number:.0}"),
    }
}

fn document(table: &str, counters: &str, versions: &BTreeMap<&str, String>, runs: usize) -> Result<String> {
    let mut text = format!(
        "# Instructions\n\n\
         Made by `cargo xtask bench compare`: [what it does](../benchmarks.md). Numbers are instructions, if the name does not say \
         otherwise, the least of {runs} runs; the spread is how far the ratios of the runs are apart.\n\n\
         ![ratios](instructions.svg)\n\n{table}\n"
    );
    if !counters.is_empty() {
        write!(
            text,
            "Completion counters: on EFA's model, where the clock does not count what the kernel takes, and on the test bed's soft-RoCE \
             that has them, for which rdma-core has none.\n\n{counters}\n"
        )?;
    }
    for (name, version) in versions {
        writeln!(text, "* {name}: {version}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(total: f64, user: f64) -> Outcome {
        let numbers = |number| BTreeMap::from([("cq".to_owned(), number)]);
        Outcome { total: numbers(total), user: numbers(user) }
    }

    fn operation(bound: Option<f64>, user: Option<f64>) -> Operation {
        Operation { id: "cq".to_owned(), name: "create a CQ".to_owned(), bound, user }
    }

    #[test]
    fn bounds_are_on_ratios() {
        let run = Run { rdma_core: outcome(1000.0, 100.0), uverbs: outcome(900.0, 120.0) };
        assert_eq!(operation(Some(0.9), None).passes(&run).unwrap(), None);
        assert_eq!(operation(None, None).passes(&run).unwrap(), None);
        let failure = operation(Some(0.89), None).passes(&run).unwrap().unwrap();
        assert!(failure.contains("create a CQ: 0.900") && failure.contains("0.89"), "{failure}");
        let failure = operation(Some(0.9), Some(1.1)).passes(&run).unwrap().unwrap();
        assert!(failure.contains("1.200 of the reference's instructions outside of the kernel"), "{failure}");
        let unknown = Operation { id: "qp".to_owned(), ..operation(Some(1.0), None) };
        assert!(unknown.passes(&run).is_err());
    }

    #[test]
    fn the_spread_is_of_ratios() {
        let run = |ours| Run { rdma_core: outcome(1000.0, 100.0), uverbs: outcome(ours, 50.0) };
        let text = table(&[&operation(Some(1.0), None)], &[run(900.0), run(909.0), run(904.0)]).unwrap();
        let row = text.lines().last().unwrap();
        assert_eq!(row, "| create a CQ | 1000 | 900.0 | 0.900 | 1.00 % | 1 | 100.0 | 50.0 | 0.500 |  |");
    }

    #[test]
    fn the_file_of_bounds_is_good() {
        let Bounds { operation, counter } = Bounds::read().unwrap();
        let operations: Vec<_> = operation.into_iter().chain(counter).collect();
        let ids: std::collections::BTreeSet<_> = operations.iter().map(|operation| &operation.id).collect();
        assert_eq!(ids.len(), operations.len(), "an operation twice");
        for operation in &operations {
            assert!(operation.user.is_none() || operation.is_stepped(), "{operation:?}");
        }
        assert!(operations.iter().filter(|operation| operation.bound.is_some()).count() >= 12);
    }
}
