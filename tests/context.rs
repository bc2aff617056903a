//! Contexts: what devices, ports, GIDs and partition keys are said to be, and closing.

use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use uverbs::{AccessFlags, ErrorKind, Gid, GidType, IpFamily, LinkLayer, Mtu, PortState, QueuePairInit};

use crate::common::{PORT, Setup, device, device_name, open, read_trimmed, refused, sysfs};

crate::cases! {
    Kernel query_device_agrees_with_sysfs;
    Kernel query_port_agrees_with_sysfs;
    Kernel gid_table_agrees_with_sysfs;
    Shared gid_errors_name_the_table;
    Shared partition_keys;
    Shared routable_gid_prefers_what_others_can_reach;
    Shared contexts_of_one_device_are_apart;
    Shared close_is_refused_while_something_is_there;
}

fn query_device_agrees_with_sysfs() {
    let context = open();
    let attributes = context.query_device().unwrap();
    let guid = |file: &str| u64::from_str_radix(&sysfs(file).replace(':', ""), 16).unwrap();
    assert_eq!(attributes.node_guid, guid("node_guid"));
    assert_eq!(attributes.node_guid, context.device().guid());
    assert_eq!(attributes.system_image_guid, guid("sys_image_guid"));
    assert_eq!(attributes.physical_ports, 1);
    // What soft-RoCE is built with.
    assert_eq!((attributes.max_cqe, attributes.max_sge, attributes.max_pkeys), (32767, 32, 64));
    assert_eq!((attributes.max_qp_rd_atom, attributes.max_mr_size), (128, u64::MAX));
    assert_eq!((attributes.vendor_id, attributes.atomic_cap), (0xff_ffff, 1));
    assert!(attributes.max_qp_wr >= 1 << 14 && attributes.max_qp > 0 && attributes.max_mr > 0);
    assert!(context.completion_vectors() >= 1);
}

fn query_port_agrees_with_sysfs() {
    let context = open();
    let port = context.query_port(PORT).unwrap();
    let number = |file: &str| sysfs(&format!("ports/1/{file}")).split(':').next().unwrap().parse::<u8>();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.state.number(), number("state").unwrap());
    assert_eq!(port.physical_state, number("phys_state").unwrap());
    assert_eq!(sysfs("ports/1/link_layer"), port.link_layer.to_string());
    assert_eq!(port.link_layer, LinkLayer::Ethernet);
    let hex = |file: &str| {
        u32::from_str_radix(sysfs(&format!("ports/1/{file}")).trim_start_matches("0x"), 16).unwrap()
    };
    assert_eq!(u32::from(port.lid), hex("lid"));
    assert_eq!(port.port_cap_flags, hex("cap_mask"));
    let entries = |folder: &str| {
        let path = format!("/sys/class/infiniband/{}/ports/1/{folder}", device_name());
        fs::read_dir(path).unwrap().count()
    };
    assert_eq!(port.gid_table_length as usize, entries("gids"));
    assert_eq!(port.pkey_table_length as usize, entries("pkeys"));
    // Over an Ethernet MTU of 1500.
    assert_eq!((port.active_mtu, port.max_mtu), (Some(Mtu::Bytes1024), Some(Mtu::Bytes4096)));
    // Linux 6.1 says 8 MiB.
    assert!([1 << 31, 1 << 23].contains(&port.max_message_size), "{}", port.max_message_size);

    for missing in [0, 2, 255] {
        let error = context.query_port(missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        refused(Err::<(), _>(error), Errno::EINVAL, &[&format!("no port {missing}"), "ports 1 to 1"]);
    }
}

fn gid_table_agrees_with_sysfs() {
    let context = open();
    let table = context.gid_table().unwrap();
    let folder = PathBuf::from(format!("/sys/class/infiniband/{}/ports/1", device_name()));
    for index in 0..context.query_port(PORT).unwrap().gid_table_length {
        let text = read_trimmed(folder.join(format!("gids/{index}")));
        let gid: Gid = text.parse().unwrap();
        let Some(entry) = table.iter().find(|entry| entry.index == index) else {
            assert_eq!(gid, Gid::default(), "index {index}");
            continue;
        };
        assert_eq!((entry.gid, entry.port), (gid, 1));
        assert_eq!(entry.kind, GidType::RoceV2);
        assert_eq!(read_trimmed(folder.join(format!("gid_attrs/types/{index}"))), entry.kind.to_string());
        let netdev = read_trimmed(folder.join(format!("gid_attrs/ndevs/{index}")));
        let netdev_index = read_trimmed(format!("/sys/class/net/{netdev}/ifindex"));
        assert_eq!(entry.netdev_index.to_string(), netdev_index);
        assert_eq!(context.query_gid(PORT, index).unwrap(), *entry);
    }
    assert!(!table.is_empty());
}

fn gid_errors_name_the_table() {
    let context = open();
    let length = context.query_port(PORT).unwrap().gid_table_length;
    let first = context.gid_table().unwrap()[0];
    let there = format!("{} ({})", first.index, first.gid);
    let error = context.query_gid(PORT, length - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let index = (length - 1).to_string();
    refused(Err::<(), _>(error), Errno::ENODATA, &[&index, "empty", &there]);
    let (index, length) = (length, length.to_string());
    refused(context.query_gid(PORT, index), Errno::EINVAL, &["out of range", &length]);
    refused(context.query_gid(PORT, u32::MAX), Errno::EINVAL, &["out of range", &length]);
    refused(context.query_gid(9, 0), Errno::EINVAL, &["no port 9", "ports 1 to 1"]);
}

fn partition_keys() {
    let context = open();
    assert_eq!(context.query_pkey(PORT, 0).unwrap(), 0xffff);
    let error = context.query_pkey(PORT, 9999).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    refused(Err::<(), _>(error), Errno::ENOENT, &["pkeys/9999"]);
    refused(context.query_pkey(7, 0), Errno::ENOENT, &["ports/7/pkeys/0"]);
}

fn routable_gid_prefers_what_others_can_reach() {
    let context = open();
    let table = context.gid_table().unwrap();
    let chosen = context.routable_gid(PORT, None).unwrap();
    assert_eq!(chosen.kind, GidType::RoceV2);
    assert_eq!(chosen.gid.is_link_local(), table.iter().all(|entry| entry.gid.is_link_local()));
    for family in [IpFamily::V4, IpFamily::V6] {
        let of_family = table.iter().filter(|entry| entry.gid.family() == family).count();
        match context.routable_gid(PORT, Some(family)) {
            Ok(entry) => assert!(entry.gid.family() == family && table.contains(&entry)),
            Err(error) => {
                assert_eq!((of_family, error.kind()), (0, ErrorKind::NotFound), "{error}");
            }
        }
    }
    refused(context.routable_gid(9, None), Errno::EINVAL, &["no port 9"]);
}

fn contexts_of_one_device_are_apart() {
    let (one, other) = (open(), device().open().unwrap());
    let channel = other.create_completion_channel().unwrap();
    refused(
        one.create_completion_queue(1, Some(&channel), 0),
        Errno::EINVAL,
        &["channel belongs to another context"],
    );
    let (own, foreign) = (
        one.create_completion_queue(1, None, 0).unwrap(),
        other.create_completion_queue(1, None, 0).unwrap(),
    );
    let domain = one.alloc_protection_domain().unwrap();
    let init = QueuePairInit { recv_cq: &foreign, ..QueuePairInit::reliable_connection(&own) };
    refused(domain.create_queue_pair(&init), Errno::EINVAL, &["CQ for the receive queue", "another context"]);
    let init = QueuePairInit { send_cq: &foreign, ..QueuePairInit::reliable_connection(&own) };
    refused(domain.create_queue_pair(&init), Errno::EINVAL, &["CQ for the send queue", "another context"]);
    // Closing one leaves the other alone.
    drop((channel, foreign));
    other.close().unwrap();
    Setup::default().pair_in(&one).works();
}

fn close_is_refused_while_something_is_there() {
    let mut context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let region = domain.allocate(4096, AccessFlags::empty()).unwrap();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.create_completion_queue(1, Some(&channel), 0).unwrap();
    let qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq)).unwrap();
    let copy = context.clone();
    let mut children: Vec<Box<dyn std::any::Any>> = vec![
        Box::new(domain),
        Box::new(channel),
        Box::new(cq),
        Box::new(qp),
        Box::new(region),
        Box::new(copy),
    ];
    while !children.is_empty() {
        let error = context.close().unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::Busy);
        refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["objects or copies are still there"]);
        context = error.into_inner();
        // It works as before.
        context.query_port(PORT).unwrap();
        children.pop();
    }
    context.close().unwrap();
}
