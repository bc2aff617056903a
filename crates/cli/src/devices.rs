//! `uverbs devices`.

use anyhow::Result;
use serde::Serialize;
use uverbs::Device;

use crate::output;

#[derive(Serialize)]
struct Row {
    ifname: String,
    ifindex: Option<u32>,
    node_guid: String,
    node_type: String,
    driver: Option<&'static str>,
    node: String,
}

pub(crate) fn run(json: bool) -> Result<()> {
    // Also those of drivers without a provider: `info` says what is wrong with them.
    let rows: Vec<_> = Device::all()?
        .iter()
        .filter(|device| device.has_node())
        .map(|device| Row {
            ifname: device.name().to_owned(),
            ifindex: device.index(),
            node_guid: output::guid(device.guid()),
            node_type: device.node_type().to_string(),
            driver: device.driver(),
            node: device.node().display().to_string(),
        })
        .collect();
    output::print(json, &rows, |out, rows| {
        writeln!(out, "    {:<16}\t   node GUID", "device")?;
        writeln!(out, "    {:<16}\t----------------", "------")?;
        for row in rows {
            writeln!(out, "    {:<16}\t{}", row.ifname, row.node_guid.replace(':', ""))?;
        }
        Ok(())
    })
}
