//! Runs pairs of perftest and `uverbs bench` on the same device, with the same options, and prints what both measured as JSON: `wall-clock DEVICE
//! PAIRS`. Who is first changes from pair to pair.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

const GID_INDEX: &str = "1";
const PERFTEST_PORT: u16 = 18515;
const UVERBS_PORT: u16 = 18516;
const PERFTEST_RESULT: &str = "/tmp/perftest.json";
const ATTEMPTS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// A program of perftest, what `uverbs bench` calls the same, the options of both, and the key of the result.
struct Test {
    perftest: &'static str,
    uverbs: [&'static str; 2],
    options: &'static str,
    result: &'static str,
}

const TYPICAL: &str = "t_typical";
const AVERAGE: &str = "BW_average";

const fn latency(perftest: &'static str, verb: &'static str, options: &'static str) -> Test {
    Test { perftest, uverbs: ["lat", verb], options, result: TYPICAL }
}

const fn bandwidth(perftest: &'static str, verb: &'static str, options: &'static str) -> Test {
    Test { perftest, uverbs: ["bw", verb], options, result: AVERAGE }
}

const TESTS: [Test; 8] = [
    latency("ib_send_lat", "send", "-s 64 -n 500 -I 0 -e"),
    latency("ib_write_lat", "write", "-s 64 -n 500 -I 0"),
    latency("ib_read_lat", "read", "-s 64 -n 500 -e"),
    latency("ib_atomic_lat", "atomic", "-n 500 -e"),
    bandwidth("ib_send_bw", "send", "-s 64 -n 2000"),
    bandwidth("ib_send_bw", "send", "-s 65536 -n 200"),
    bandwidth("ib_write_bw", "write", "-s 65536 -n 200"),
    bandwidth("ib_read_bw", "read", "-s 65536 -n 200"),
];

#[derive(Serialize)]
struct Report {
    kernel: String,
    perftest: String,
    tests: Vec<Outcome>,
}

/// Microseconds or MiB/s, pair by pair.
#[derive(Serialize)]
struct Outcome {
    name: String,
    unit: &'static str,
    perftest: Vec<f64>,
    uverbs: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [device, pairs] = &arguments[..] else { bail!("usage: wall-clock DEVICE PAIRS") };
    let pairs: usize = pairs.parse().with_context(|| format!("{pairs} is no number of pairs"))?;
    let tests = TESTS.iter().map(|test| test.measure(device, pairs)).collect::<Result<_>>()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    let version = Command::new(TESTS[0].perftest).arg("--version").output()?;
    let perftest = String::from_utf8(version.stdout)?.trim().trim_start_matches("Version: ").to_owned();
    println!("{}", serde_json::to_string(&Report { kernel, perftest, tests })?);
    Ok(())
}

impl Test {
    /// Now and then perftest says zero, when its clock has not been good. Whoever does is asked again.
    fn positive(&self, measure: impl Fn() -> Result<f64>) -> Result<f64> {
        for _ in 0..ATTEMPTS {
            let result = measure()?;
            if result > 0.0 {
                return Ok(result);
            }
        }
        bail!("{} or its counterpart has measured zero {ATTEMPTS} times", self.perftest)
    }

    fn measure(&self, device: &str, pairs: usize) -> Result<Outcome> {
        let name = format!("{} {}", self.perftest, self.options);
        let unit = if self.result == TYPICAL { "µs" } else { "MiB/s" };
        let mut outcome = Outcome { name, unit, perftest: Vec::new(), uverbs: Vec::new() };
        for pair in 0..pairs {
            for turn in 0..2 {
                if (pair + turn) % 2 == 0 {
                    outcome.perftest.push(self.positive(|| self.perftest(device))?);
                } else {
                    outcome.uverbs.push(self.positive(|| self.uverbs(device))?);
                }
            }
            eprintln!("{} {} of {pairs}", outcome.name, pair + 1);
        }
        Ok(outcome)
    }

    fn command(&self, program: &str, words: &[&str], device: &str) -> Command {
        let mut command = Command::new(program);
        command.args(words).args(["-d", device, "-x", GID_INDEX]).args(self.options.split(' '));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn perftest(&self, device: &str) -> Result<f64> {
        // One that stayed from before would not be told from a new one.
        let _ = fs::remove_file(PERFTEST_RESULT);
        // It is not to mind that the clock of the processor may change its rate.
        let server = self.command(self.perftest, &["-F"], device);
        let mut client = self.command(self.perftest, &["-F", "--out_json"], device);
        client.arg(format!("--out_json_file={PERFTEST_RESULT}"));
        run(server, client, PERFTEST_PORT)?;
        self.result(&fs::read_to_string(PERFTEST_RESULT).context("perftest has written no result")?)
    }

    fn uverbs(&self, device: &str) -> Result<f64> {
        let [kind, verb] = self.uverbs;
        let port = UVERBS_PORT.to_string();
        let words = ["bench", kind, verb, "--json", "-p", &port];
        let output =
            run(self.command("uverbs", &words, device), self.command("uverbs", &words, device), UVERBS_PORT)?;
        self.result(&output)
    }

    fn result(&self, text: &str) -> Result<f64> {
        let json: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
        // An object, or a list with one for each size.
        let results = json.pointer("/results/0").unwrap_or(&json["results"]);
        results[self.result].as_f64().with_context(|| format!("no {}: {text}", self.result))
    }
}

/// Runs both ends until they are through. What the client prints.
fn run(mut server: Command, mut client: Command, port: u16) -> Result<String> {
    let mut child = server.spawn().with_context(|| format!("{server:?}"))?;
    let output = await_listener(&mut child, port)
        .and_then(|()| client.arg("127.0.0.1").output().with_context(|| format!("{client:?}")));
    if !output.as_ref().is_ok_and(|output| output.status.success()) {
        // It waits for another client, or has ended.
        let _ = child.kill();
    }
    let server_output = child.wait_with_output()?;
    let output = output?;
    for (command, output) in [(&client, &output), (&server, &server_output)] {
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Until somebody listens on a port.
fn await_listener(server: &mut Child, port: u16) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            // Local address and port, the other end's, and the state: LISTEN is 0A.
            let listens = |line: &str| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.len() > 3 && words[1].ends_with(&format!(":{port:04X}")) && words[3] == "0A"
            };
            if fs::read_to_string(table).unwrap_or_default().lines().any(listens) {
                return Ok(());
            }
        }
        ensure!(server.try_wait()?.is_none(), "the server has ended");
        ensure!(Instant::now() < deadline, "nobody listens on port {port}");
        thread::sleep(Duration::from_millis(5));
    }
}
