//! Tests and parts of tests in processes of their own.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CASE: &str = "UVERBS_TEST_CASE";
const LIMIT: Duration = Duration::from_secs(60);

/// The case that this process is to run, if it is a child.
pub(crate) fn wanted() -> Option<String> {
    std::env::var(CASE).ok()
}

/// This program, to run a case.
fn command(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CASE, case).stdin(Stdio::null());
    command
}

/// A child process that runs a case, with its standard output for us. It is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(case: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = command(case);
        Self(command.envs(environment.iter().copied()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a case in a child process, which has to succeed in time.
pub(crate) fn run(case: &str) {
    let mut child = command(case).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let output = std::thread::spawn(move || {
        let mut output = Vec::new();
        // What could be read is worth showing whatever happens then.
        let _ = stderr.read_to_end(&mut output);
        String::from_utf8_lossy(&output).into_owned()
    });
    // One may wait for those tests that last as long as they are told to.
    let limit = LIMIT + crate::stress::duration().0 + crate::differential::allowance();
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            // A process that the kernel does not let go of would hold up the wait for it, and its output.
            panic!("the child did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = output.join().unwrap();
    assert!(status.success(), "the child ended with {status}:\n{output}");
}
