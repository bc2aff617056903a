//! The device inside the process beside soft-RoCE, in turns.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::report;
use crate::host;
use crate::kernel::Line;
use crate::vm::Vm;

/// How many times as fast as soft-RoCE the device inside the process has to be.
const LEAST: f64 = 10.0;

const PING_PONG: &str = "pingpong rc --loopback --json -s 64";

/// What `uverbs pingpong --json` says.
#[derive(Debug, Deserialize)]
struct PingPong {
    ifname: String,
    usec_per_iter: f64,
}

/// Runs ping-pongs of 64 bytes between QPs of one process on both, in turns in the same machine. On the host the device inside the process
/// is faster by as much as the machine's processor is emulated.
pub(crate) fn compare(kernel: Line, turns: usize) -> Result<()> {
    ensure!(turns > 0, "no turns: nothing is measured");
    let turn =
        format!("uverbs {PING_PONG} -d rxe0 -n 3000 && echo , && uverbs {PING_PONG} -d soft0 -n 30000");
    let all = vec![turn.as_str(); turns].join(" && echo , && ");
    let script = format!("echo [ && {all} && echo ]");
    let there: Vec<PingPong> = report(&mut Vm::command(kernel, ["sh", "-c", &script]))?;
    let program = host::cargo_executable(&["build", "--release", "-p", "uverbs-cli", "--bin", "uverbs"])?;
    let mut command = Command::new(program);
    command.args(PING_PONG.split(' ')).args(["-d", "soft0", "-n", "300000"]);
    let name = kernel.name();
    println!(
        "| round trips per second | rxe0, Linux {name} | soft0 there | ratio | soft0 on the host | ratio |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    let mut least = f64::MAX;
    for (number, pair) in (1..).zip(there.chunks(2)) {
        let text = host::output(&mut command)?;
        let host: PingPong = serde_json::from_str(&text).with_context(|| format!("no ping-pong: {text}"))?;
        let [rxe, soft] = pair else { bail!("not two of each: {there:?}") };
        ensure!((rxe.ifname.as_str(), soft.ifname.as_str()) == ("rxe0", "soft0"), "not in turns: {there:?}");
        let [rxe, soft, host] = [rxe, soft, &host].map(|run| 1e6 / run.usec_per_iter);
        let ratios = [soft / rxe, host / rxe];
        println!(
            "| turn {number} | {rxe:.0} | {soft:.0} | {:.0} | {host:.0} | {:.0} |",
            ratios[0], ratios[1]
        );
        least = least.min(ratios[0]);
    }
    ensure!(
        least >= LEAST,
        "the device inside the process is {least:.1} times as fast as soft-RoCE, which is not {LEAST}"
    );
    Ok(())
}
