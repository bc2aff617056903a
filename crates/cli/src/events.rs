//! `uverbs events`.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use uverbs::{AsyncEvent, AsyncEventElement, AsyncEventType};

use crate::find_device;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Device; the first one if it is not given.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// End after so many events.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds, with status 1 if there were fewer events than --count says.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
}

pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<()> {
    let context = find_device(arguments.device.as_deref())?.open()?;
    let (events, name) = (context.async_events(), context.device().name());
    let deadline = arguments.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let mut seen = 0;
    while arguments.count.is_none_or(|count| seen < count) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let Some(event) = events.wait(left)? else { break };
        print(name, &event, json)?;
        seen += 1;
        if event.kind() == AsyncEventType::DeviceFatal {
            break;
        }
    }
    match arguments.count {
        Some(count) if seen < count => bail!("{seen} of {count} events"),
        _ => Ok(()),
    }
}

/// One line an event, with JSON as well: the next one may be long in coming.
fn print(device: &str, event: &AsyncEvent, json: bool) -> Result<()> {
    let (kind, element) = (event.kind(), event.element());
    let mut out = stdout().lock();
    if json {
        let mut value = serde_json::json!({
            "ifname": device,
            "event": kind.to_string(),
            "number": kind.number(),
        });
        match element {
            AsyncEventElement::Port(number) => value["port"] = number.into(),
            AsyncEventElement::Other(number) => value["element"] = number.into(),
            // This program has no objects that events could be of.
            _ => {}
        }
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{device}: {kind} ({}), {element}", kind.number())?;
    }
    Ok(out.flush()?)
}
