//! Printing.

use std::io::{Write, stdout};

use anyhow::Result;
use serde::Serialize;

/// Prints a value as JSON, or as the text that `plain` writes.
pub(crate) fn print<T: Serialize>(
    json: bool,
    value: &T,
    plain: impl FnOnce(&mut dyn Write, &T) -> std::io::Result<()>,
) -> Result<()> {
    let mut out = stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    } else {
        plain(&mut out, value)?;
    }
    Ok(out.flush()?)
}

/// A GUID in four groups of four digits.
pub(crate) fn guid(guid: u64) -> String {
    let digits = format!("{guid:016x}");
    [&digits[..4], &digits[4..8], &digits[8..12], &digits[12..]].join(":")
}
