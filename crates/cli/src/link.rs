//! `uverbs link`.

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use uverbs::PortState;

use crate::output;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a soft device over a network interface: `uverbs link add rxe0 type rxe netdev eth0`.
    Add {
        /// Name of the new device.
        name: String,
        /// The word `type`.
        #[arg(value_name = "type", value_parser = ["type"], hide_possible_values = true)]
        type_keyword: String,
        /// Kind of device: `rxe` (soft-RoCE) or `siw` (soft iWARP).
        kind: String,
        /// The word `netdev`.
        #[arg(value_name = "netdev", value_parser = ["netdev"], hide_possible_values = true)]
        netdev_keyword: String,
        /// Network interface.
        netdev: String,
    },
    /// Remove a soft device.
    #[command(visible_alias = "delete")]
    Del {
        /// Name of the device.
        name: String,
    },
    /// List the ports of all devices.
    #[command(visible_alias = "show")]
    List,
}

#[derive(Serialize)]
struct Row {
    ifname: String,
    port: u32,
    state: String,
    physical_state: &'static str,
    netdev: Option<String>,
    netdev_index: Option<u32>,
}

pub(crate) fn run(command: &Command, json: bool) -> Result<()> {
    match command {
        Command::Add { name, kind, netdev, .. } => Ok(uverbs::link::add(name, kind, netdev)?),
        Command::Del { name } => Ok(uverbs::link::delete(name)?),
        Command::List => list(json),
    }
}

fn list(json: bool) -> Result<()> {
    let rows: Vec<_> = uverbs::link::list()?
        .into_iter()
        .map(|link| Row {
            ifname: link.device,
            port: link.port,
            state: state(link.state),
            physical_state: physical_state(link.physical_state),
            netdev: link.netdev,
            netdev_index: link.netdev_index,
        })
        .collect();
    output::print(json, &rows, |out, rows| {
        for row in rows {
            write!(
                out,
                "link {}/{} state {} physical_state {}",
                row.ifname, row.port, row.state, row.physical_state
            )?;
            match &row.netdev {
                Some(netdev) => writeln!(out, " netdev {netdev}")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    })
}

/// The state as iproute2 writes it.
fn state(state: PortState) -> String {
    state.to_string().trim_start_matches("PORT_").to_owned()
}

/// The physical state as iproute2 writes it.
pub(crate) fn physical_state(number: u8) -> &'static str {
    match number {
        0 => "NOP",
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION_TRAINING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVER",
        7 => "PHY_TEST",
        _ => "UNKNOWN",
    }
}
