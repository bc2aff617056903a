//! How far a long run is.

use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_secs(1);

/// A line on standard error, if that is a terminal, from the third second on.
pub(crate) struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(is_wanted: bool) -> Self {
        let next = (is_wanted && stderr().is_terminal()).then(|| Instant::now() + FIRST);
        Self { next, shown: false }
    }

    /// Shows the line, but not more often than once a second.
    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        if let Some(due) = self.next
            && Instant::now() >= due
        {
            eprint!("\r{}", line());
            self.shown = true;
            self.next = Some(Instant::now() + BETWEEN);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprintln!();
        }
    }
}
