//! `uverbs info`.

use std::fmt::LowerHex;
use std::io::{self, Write};

use anyhow::Result;
use bitflags::Flags;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use uverbs::{
    Context, Device, DeviceAttributes, GidEntry, GidType, LinkLayer, Mtu, NodeType, PortAttributes,
};
use uverbs_uapi::user_verbs::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};

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
    value: Option<Value>,
    /// What its bits are called, on lines of their own.
    bits: Option<Vec<String>>,
}

impl Property {
    fn new(name: &'static str, text: String, value: Value) -> Self {
        Self { name, text, value: Some(value), bits: None }
    }

    fn with_bits(self, bits: DeviceCapFlags) -> Self {
        Self { bits: Some(bit_names(bits, |name| name.to_owned())), ..self }
    }

    /// Lines of text, indented as a device or a port is.
    fn write(&self, out: &mut dyn Write, indent: &str, width: usize) -> io::Result<()> {
        let line = format!("{indent}{:<width$} {}", format!("{}:", self.name), self.text);
        writeln!(out, "{}", line.trim_end())?;
        self.bits.iter().flatten().try_for_each(|bit| writeln!(out, "\t\t\t\t\t{bit}"))
    }
}

/// The names of bits, and what is left.
fn bit_names<F: Flags>(bits: F, named: impl Fn(&str) -> String) -> Vec<String>
where
    F::Bits: LowerHex,
{
    let mut names = bits.iter_names();
    let mut list: Vec<_> = names.by_ref().map(|(name, _)| named(name)).collect();
    let unknown = names.remaining();
    if !unknown.is_empty() {
        list.push(format!("unknown {:#x}", unknown.bits()));
    }
    list
}

fn number(name: &'static str, value: impl Into<u64>) -> Property {
    let value = value.into();
    Property::new(name, value.to_string(), value.into())
}

fn hex(name: &'static str, digits: usize, value: impl Into<u64>) -> Property {
    let value = value.into();
    Property::new(name, format!("0x{value:0digits$x}"), value.into())
}

fn text(name: &'static str, value: impl Into<String>) -> Property {
    let text = value.into();
    Property::new(name, text.clone(), text.into())
}

/// A name with its number, `PORT_ACTIVE (4)`.
fn named(name: &'static str, value: impl ToString, number: impl Into<u64>) -> Property {
    let (value, number) = (value.to_string(), number.into());
    Property::new(name, format!("{value} ({number})"), value.into())
}

/// Nothing but the names of bits.
fn list(name: &'static str, bits: Vec<String>) -> Property {
    Property { name, text: String::new(), value: None, bits: Some(bits) }
}

/// Of what devices need not have zero says just that.
fn or_unsupported(property: Property) -> Property {
    match &property.value {
        Some(value) if *value == 0 => Property { text: "not supported".to_owned(), ..property },
        _ => property,
    }
}

/// What a device can page on demand.
fn paging(name: &'static str, caps: u32) -> Property {
    let caps = OdpTransportCaps::from_bits_retain(caps);
    let named = |name: &str| format!("SUPPORT_{}", if name == "SRQ_RECV" { "SRQ" } else { name });
    let text = if caps.is_empty() { "NO SUPPORT" } else { "" };
    Property { text: text.to_owned(), ..list(name, bit_names(caps, named)) }
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
    /// As `ibv_devinfo` writes it.
    #[serde(skip)]
    text: String,
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
    let (transport, transport_number) = transport(device.node_type());
    let mut properties = vec![
        text("hca_id", device.name()),
        Property::new("transport", format!("{transport} ({transport_number})"), transport.into()),
        text("node_type", device.node_type().to_string()),
        text("driver", context.provider()),
        text("fw_ver", firmware(context, attributes)),
        text("node_guid", output::guid(attributes.node_guid)),
        text("sys_image_guid", output::guid(attributes.system_image_guid)),
        hex("vendor_id", 4, attributes.vendor_id),
        number("vendor_part_id", attributes.vendor_part_id),
        Property::new(
            "hw_ver",
            format!("0x{:X}", attributes.hardware_version),
            attributes.hardware_version.into(),
        ),
        number("phys_port_cnt", attributes.physical_ports),
    ];
    if verbose {
        properties.extend(limits(attributes));
        if let Ok(caps) = context.completion_counter_capabilities() {
            let bits = bit_names(caps.operations, |name| format!("QP_ATTACH_{name}"));
            properties.extend([number("max_comp_cntr", caps.max_counters), list("comp_cntr_caps", bits)]);
        }
        properties.extend(abilities(attributes));
        properties.push(number("num_comp_vectors", context.completion_vectors()));
    }
    properties
}

/// The firmware's version: as the kernel tells it, or its number as the provider of libibverbs writes it.
fn firmware(context: &Context, attributes: &DeviceAttributes) -> String {
    let number = attributes.firmware_version;
    let part = |shift: u32| (number >> shift) & 0xffff;
    match (context.device().firmware(), context.provider()) {
        ("", "efa") => {
            let [a, b, c, d, ..] = number.to_ne_bytes();
            format!("{a}.{b}.{c}.{d}")
        }
        ("", _) => format!("{}.{}.{}", part(32), part(16), part(0)),
        (known, _) => known.to_owned(),
    }
}

/// `enum ibv_transport_type` by name and number.
fn transport(node_type: NodeType) -> (&'static str, i8) {
    match node_type {
        NodeType::ChannelAdapter | NodeType::Switch | NodeType::Router => ("InfiniBand", 0),
        NodeType::Rnic => ("iWARP", 1),
        NodeType::Usnic => ("usNIC", 2),
        NodeType::UsnicUdp => ("usNIC UDP", 3),
        NodeType::Unspecified => ("unspecified", 4),
        _ => ("invalid transport", -1),
    }
}

fn limits(attributes: &DeviceAttributes) -> Vec<Property> {
    let flags = u64::from(attributes.device_cap_flags as u32);
    let mut properties = vec![
        hex("max_mr_size", 0, attributes.max_mr_size),
        hex("page_size_cap", 0, attributes.page_size_cap),
        number("max_qp", attributes.max_qp),
        number("max_qp_wr", attributes.max_qp_wr),
        hex("device_cap_flags", 8, flags).with_bits(DeviceCapFlags::from_bits_retain(flags)),
        number("max_sge", attributes.max_sge),
        number("max_sge_rd", attributes.max_sge_rd),
        number("max_cq", attributes.max_cq),
        number("max_cqe", attributes.max_cqe),
        number("max_mr", attributes.max_mr),
        number("max_pd", attributes.max_pd),
        number("max_qp_rd_atom", attributes.max_qp_rd_atom),
        number("max_ee_rd_atom", attributes.max_ee_rd_atom),
        number("max_res_rd_atom", attributes.max_res_rd_atom),
        number("max_qp_init_rd_atom", attributes.max_qp_init_rd_atom),
        number("max_ee_init_rd_atom", attributes.max_ee_init_rd_atom),
        named("atomic_cap", atomic_capability(attributes.atomic_cap), attributes.atomic_cap),
        number("max_ee", attributes.max_ee),
        number("max_rdd", attributes.max_rdd),
        number("max_mw", attributes.max_mw),
        number("max_raw_ipv6_qp", attributes.max_raw_ipv6_qp),
        number("max_raw_ethy_qp", attributes.max_raw_ethy_qp),
        number("max_mcast_grp", attributes.max_mcast_grp),
        number("max_mcast_qp_attach", attributes.max_mcast_qp_attach),
        number("max_total_mcast_qp_attach", attributes.max_total_mcast_qp_attach),
        number("max_ah", attributes.max_ah),
        number("max_fmr", attributes.max_fmr),
    ];
    if attributes.max_fmr > 0 {
        properties.push(number("max_map_per_fmr", attributes.max_map_per_fmr));
    }
    properties.push(number("max_srq", attributes.max_srq));
    if attributes.max_srq > 0 {
        properties.push(number("max_srq_wr", attributes.max_srq_wr));
        properties.push(number("max_srq_sge", attributes.max_srq_sge));
    }
    properties.push(number("max_pkeys", attributes.max_pkeys));
    properties
}

fn abilities(attributes: &DeviceAttributes) -> Vec<Property> {
    let flags = attributes.device_cap_flags;
    let extended = DeviceCapFlags::from_bits_retain(flags & !u64::from(u32::MAX));
    let general = OdpGeneralCaps::from_bits_retain(attributes.odp_general_caps);
    let [rc, uc, ud, xrc] = attributes.odp_transport_caps;
    vec![
        number("local_ca_ack_delay", attributes.local_ca_ack_delay),
        list("general_odp_caps", bit_names(general, |name| format!("ODP_{name}"))),
        paging("rc_odp_caps", rc),
        paging("uc_odp_caps", uc),
        paging("ud_odp_caps", ud),
        paging("xrc_odp_caps", xrc),
        or_unsupported(hex("completion_timestamp_mask", 16, attributes.completion_timestamp_mask)),
        or_unsupported(Property::new(
            "hca_core_clock",
            format!("{}kHZ", attributes.hca_core_clock),
            attributes.hca_core_clock.into(),
        )),
        list(
            "raw_packet_caps",
            bit_names(RawPacketCaps::from_bits_retain(attributes.raw_packet_caps), str::to_owned),
        ),
        Property::new("device_cap_flags_ex", format!("0x{flags:X}"), flags.into()).with_bits(extended),
        number("max_rwq_indirection_tables", attributes.max_rwq_indirection_tables),
        number("max_rwq_indirection_table_size", attributes.max_rwq_indirection_table_size),
        number("max_wq_type_rq", attributes.max_wq_type_rq),
        number("max_cq_count", attributes.max_cq_moderation_count),
        Property::new(
            "max_cq_period",
            format!("{} us", attributes.max_cq_moderation_period),
            attributes.max_cq_moderation_period.into(),
        ),
        number("max_dm_size", attributes.max_dm_size),
    ]
}

fn port_report(context: &Context, port: u8, verbose: bool) -> Result<PortReport> {
    let attributes = context.query_port(port)?;
    let mut gids = Vec::new();
    if verbose {
        let of_port = |entry: &uverbs::GidEntry| entry.port == u32::from(port);
        gids.extend(context.gid_table()?.into_iter().filter(of_port).map(|entry| Gid {
            index: entry.index,
            gid: entry.gid.to_string(),
            text: gid_text(&entry, attributes.link_layer),
            r#type: entry.kind.to_string(),
            netdev_index: entry.netdev_index,
        }));
    }
    Ok(PortReport { properties: port_properties(port, &attributes, verbose), gids })
}

/// Only RoCE v2 has GIDs that are written as addresses, and only Ethernet has several types.
fn gid_text(entry: &GidEntry, link_layer: LinkLayer) -> String {
    let gid = match entry.kind {
        GidType::RoceV2 => entry.gid.to_string(),
        _ => entry.gid.to_ipv6().segments().map(|group| format!("{group:04x}")).join(":"),
    };
    match link_layer {
        LinkLayer::Ethernet => format!("{gid}, {}", entry.kind),
        _ => gid,
    }
}

fn port_properties(port: u8, attributes: &PortAttributes, verbose: bool) -> Vec<Property> {
    let mtu = |name, mtu: Option<Mtu>| match mtu {
        Some(mtu) => Property::new(name, format!("{mtu} ({})", mtu as u8), mtu.bytes().into()),
        None => Property::new(name, "invalid MTU".to_owned(), Value::Null),
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
            Property::new(
                "max_vl_num",
                format!("{} ({})", virtual_lanes(attributes.max_vl_number), attributes.max_vl_number),
                attributes.max_vl_number.into(),
            ),
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

fn virtual_lanes(number: u8) -> &'static str {
    match number {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
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
    fn json(&self) -> Value {
        let mut map = to_map(&self.properties);
        let ports = self.ports.iter().map(|port| {
            let mut map = to_map(&port.properties);
            if !port.gids.is_empty() {
                map.insert("gids".to_owned(), serde_json::json!(port.gids));
            }
            Value::Object(map)
        });
        map.insert("ports".to_owned(), ports.collect());
        // The same key as in the other commands.
        if let Some(name) = map.remove("hca_id") {
            map.insert("ifname".to_owned(), name);
        }
        Value::Object(map)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut properties = self.properties.iter();
        if let Some(first) = properties.next() {
            writeln!(out, "{}:\t{}", first.name, first.text)?;
        }
        properties.try_for_each(|property| property.write(out, "\t", 31))?;
        for port in &self.ports {
            let mut properties = port.properties.iter();
            if let Some(first) = properties.next() {
                writeln!(out, "\t\t{}:\t{}", first.name, first.text)?;
            }
            properties.try_for_each(|property| property.write(out, "\t\t\t", 23))?;
            for gid in &port.gids {
                writeln!(out, "\t\t\t{:<23} {}", format!("GID[{:3}]:", gid.index), gid.text)?;
            }
        }
        writeln!(out)
    }
}

/// Values by name. What bits are called is the value if there is no other.
fn to_map(properties: &[Property]) -> serde_json::Map<String, Value> {
    let mut map = serde_json::Map::new();
    for Property { name, value, bits, .. } in properties {
        match (value, bits) {
            (Some(value), None) => map.insert((*name).to_owned(), value.clone()),
            (Some(value), Some(bits)) => {
                map.insert((*name).to_owned(), value.clone());
                map.insert(format!("{name}_names"), bits.clone().into())
            }
            (None, bits) => map.insert((*name).to_owned(), bits.clone().unwrap_or_default().into()),
        };
    }
    map
}
