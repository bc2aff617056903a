//! `uverbs info`.

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use uverbs::{Context, Device, DeviceAttributes, Mtu, PortAttributes};

use crate::{find_device, link, output};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Device; all if it is not given.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Port; all if it is not given.
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,
    /// Show all properties.
    #[arg(short, long)]
    verbose: bool,
}

/// A property by its name in `ibv_devinfo`, its value there, and its value as JSON has it.
struct Property {
    name: &'static str,
    text: String,
    value: serde_json::Value,
}

fn number(name: &'static str, value: impl Into<u64>) -> Property {
    let value = value.into();
    Property { name, text: value.to_string(), value: value.into() }
}

fn hex(name: &'static str, digits: usize, value: impl Into<u64>) -> Property {
    let value = value.into();
    Property { name, text: format!("0x{value:0digits$x}"), value: value.into() }
}

fn text(name: &'static str, value: impl Into<String>) -> Property {
    let text = value.into();
    Property { name, value: text.clone().into(), text }
}

/// A name with its number, `PORT_ACTIVE (4)`.
fn named(name: &'static str, value: impl ToString, number: impl Into<u64>) -> Property {
    let (value, number) = (value.to_string(), number.into());
    Property { name, text: format!("{value} ({number})"), value: value.into() }
}

struct DeviceReport {
    properties: Vec<Property>,
    ports: Vec<PortReport>,
}

struct PortReport {
    properties: Vec<Property>,
    gids: Vec<Gid>,
}

#[derive(Serialize)]
struct Gid {
    index: u32,
    gid: String,
    r#type: String,
    netdev_index: u32,
}

pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<()> {
    let mut devices = match &arguments.device {
        Some(name) => vec![Device::find(name)?],
        None => Device::list()?,
    };
    if devices.is_empty() {
        // There is one that says what is wrong with it, or the error says how to get one.
        devices.push(find_device(None)?);
    }
    // One that cannot be opened does not hide the others.
    let (mut reports, mut failure) = (Vec::new(), None);
    for device in &devices {
        match report(device, arguments) {
            Ok(report) => reports.push(report),
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    eprintln!("uverbs: {earlier:#}");
                }
            }
        }
    }
    if reports.is_empty()
        && let Some(error) = failure
    {
        return Err(error);
    }
    let values: Vec<_> = reports.iter().map(DeviceReport::json).collect();
    output::print(json, &values, |out, _| reports.iter().try_for_each(|report| report.write(out)))?;
    failure.map_or(Ok(()), Err)
}

fn report(device: &Device, arguments: &Arguments) -> Result<DeviceReport> {
    let context = device.open()?;
    let attributes = context.query_device()?;
    let wanted = arguments.port.map_or(1..=attributes.physical_ports, |port| port..=port);
    Ok(DeviceReport {
        properties: device_properties(&context, &attributes, arguments.verbose),
        ports: wanted.map(|port| port_report(&context, port, arguments.verbose)).collect::<Result<_>>()?,
    })
}

fn device_properties(context: &Context, attributes: &DeviceAttributes, verbose: bool) -> Vec<Property> {
    let device = context.device();
    let mut properties = vec![
        text("hca_id", device.name()),
        text("node_type", device.node_type().to_string()),
        text("driver", context.provider()),
        text("node_guid", output::guid(attributes.node_guid)),
        text("sys_image_guid", output::guid(attributes.system_image_guid)),
        hex("vendor_id", 4, attributes.vendor_id),
        number("vendor_part_id", attributes.vendor_part_id),
        hex("hw_ver", 0, attributes.hardware_version),
        number("phys_port_cnt", attributes.physical_ports),
    ];
    if !device.firmware().is_empty() {
        properties.insert(3, text("fw_ver", device.firmware()));
    }
    if verbose {
        properties.extend([
            hex("max_mr_size", 0, attributes.max_mr_size),
            hex("page_size_cap", 0, attributes.page_size_cap),
            number("max_qp", attributes.max_qp),
            number("max_qp_wr", attributes.max_qp_wr),
            hex("device_cap_flags", 8, attributes.device_cap_flags),
            number("max_sge", attributes.max_sge),
            number("max_sge_rd", attributes.max_sge_rd),
            number("max_cq", attributes.max_cq),
            number("max_cqe", attributes.max_cqe),
            number("max_mr", attributes.max_mr),
            number("max_pd", attributes.max_pd),
            number("max_qp_rd_atom", attributes.max_qp_rd_atom),
            number("max_res_rd_atom", attributes.max_res_rd_atom),
            number("max_qp_init_rd_atom", attributes.max_qp_init_rd_atom),
            named("atomic_cap", atomic_capability(attributes.atomic_cap), attributes.atomic_cap),
            number("max_mw", attributes.max_mw),
            number("max_mcast_grp", attributes.max_mcast_grp),
            number("max_mcast_qp_attach", attributes.max_mcast_qp_attach),
            number("max_total_mcast_qp_attach", attributes.max_total_mcast_qp_attach),
            number("max_ah", attributes.max_ah),
            number("max_srq", attributes.max_srq),
            number("max_srq_wr", attributes.max_srq_wr),
            number("max_srq_sge", attributes.max_srq_sge),
            number("max_pkeys", attributes.max_pkeys),
            number("local_ca_ack_delay", attributes.local_ca_ack_delay),
            hex("odp_general_caps", 0, attributes.odp_general_caps),
            hex("odp_rc_caps", 0, attributes.odp_transport_caps[0]),
            hex("odp_uc_caps", 0, attributes.odp_transport_caps[1]),
            hex("odp_ud_caps", 0, attributes.odp_transport_caps[2]),
            hex("completion_timestamp_mask", 16, attributes.completion_timestamp_mask),
            number("hca_core_clock", attributes.hca_core_clock),
            number("max_dm_size", attributes.max_dm_size),
            number("num_comp_vectors", context.completion_vectors()),
        ]);
    }
    properties
}

fn port_report(context: &Context, port: u8, verbose: bool) -> Result<PortReport> {
    let attributes = context.query_port(port)?;
    let mut gids = Vec::new();
    if verbose {
        let of_port = |entry: &uverbs::GidEntry| entry.port == u32::from(port);
        gids.extend(context.gid_table()?.into_iter().filter(of_port).map(|entry| Gid {
            index: entry.index,
            gid: entry.gid.to_string(),
            r#type: entry.kind.to_string(),
            netdev_index: entry.netdev_index,
        }));
    }
    Ok(PortReport { properties: port_properties(port, &attributes, verbose), gids })
}

fn port_properties(port: u8, attributes: &PortAttributes, verbose: bool) -> Vec<Property> {
    let mtu = |name, mtu: Option<Mtu>| match mtu {
        Some(mtu) => Property { name, text: format!("{mtu} ({})", mtu as u8), value: mtu.bytes().into() },
        None => Property { name, text: "invalid MTU".to_owned(), value: serde_json::Value::Null },
    };
    let mut properties = vec![
        number("port", port),
        named("state", attributes.state, attributes.state.number()),
        mtu("max_mtu", attributes.max_mtu),
        mtu("active_mtu", attributes.active_mtu),
        number("sm_lid", attributes.sm_lid),
        number("port_lid", attributes.lid),
        hex("port_lmc", 2, attributes.lmc),
        text("link_layer", attributes.link_layer.to_string()),
    ];
    if verbose {
        properties.extend([
            hex("max_msg_sz", 0, attributes.max_message_size),
            hex("port_cap_flags", 8, attributes.port_cap_flags),
            hex("port_cap_flags2", 4, attributes.port_cap_flags2),
            number("max_vl_num", attributes.max_vl_number),
            hex("bad_pkey_cntr", 0, attributes.bad_pkey_counter),
            hex("qkey_viol_cntr", 0, attributes.qkey_violation_counter),
            number("sm_sl", attributes.sm_sl),
            number("pkey_tbl_len", attributes.pkey_table_length),
            number("gid_tbl_len", attributes.gid_table_length),
            number("subnet_timeout", attributes.subnet_timeout),
            number("init_type_reply", attributes.init_type_reply),
            named("active_width", width(attributes.active_width), attributes.active_width),
            named("active_speed", speed(attributes.active_speed), attributes.active_speed),
            named("phys_state", link::physical_state(attributes.physical_state), attributes.physical_state),
        ]);
    }
    properties
}

fn atomic_capability(number: u32) -> &'static str {
    match number {
        0 => "ATOMIC_NONE",
        1 => "ATOMIC_HCA",
        2 => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}

fn width(number: u8) -> &'static str {
    match number {
        1 => "1X",
        2 => "4X",
        4 => "8X",
        8 => "12X",
        16 => "2X",
        _ => "invalid width",
    }
}

fn speed(number: u32) -> &'static str {
    match number {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        256 => "200.0 Gbps",
        _ => "invalid speed",
    }
}

impl DeviceReport {
    fn json(&self) -> serde_json::Value {
        let mut map = to_map(&self.properties);
        let ports = self.ports.iter().map(|port| {
            let mut map = to_map(&port.properties);
            if !port.gids.is_empty() {
                map.insert("gids".to_owned(), serde_json::json!(port.gids));
            }
            serde_json::Value::Object(map)
        });
        map.insert("ports".to_owned(), ports.collect());
        // The same key as in the other commands.
        if let Some(name) = map.remove("hca_id") {
            map.insert("ifname".to_owned(), name);
        }
        serde_json::Value::Object(map)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut properties = self.properties.iter();
        if let Some(first) = properties.next() {
            writeln!(out, "{}:\t{}", first.name, first.text)?;
        }
        for Property { name, text, .. } in properties {
            writeln!(out, "\t{:<31} {text}", format!("{name}:"))?;
        }
        for port in &self.ports {
            let mut properties = port.properties.iter();
            if let Some(first) = properties.next() {
                writeln!(out, "\t\t{}:\t{}", first.name, first.text)?;
            }
            for Property { name, text, .. } in properties {
                writeln!(out, "\t\t\t{:<23} {text}", format!("{name}:"))?;
            }
            for gid in &port.gids {
                writeln!(out, "\t\t\t{:<23} {}, {}", format!("GID[{:3}]:", gid.index), gid.gid, gid.r#type)?;
            }
        }
        writeln!(out)
    }
}

fn to_map(properties: &[Property]) -> serde_json::Map<String, serde_json::Value> {
    properties.iter().map(|property| (property.name.to_owned(), property.value.clone())).collect()
}
