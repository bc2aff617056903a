//! siw, the kernel's iWARP in software: there is no provider for it, which must be said, and must not be in the way of others.

use nix::errno::Errno;
use uverbs::{Device, ErrorKind, NodeType, link};

use crate::cli::{fails, succeeds};
use crate::common::{Setup, device, device_name, refused, wait_until};
use crate::device::refuse_netlink;
use crate::soft::{SoftDevice, ip};

crate::cases! {
    Siw it_is_listed_by_the_program;
    Siw opening_names_the_driver;
    SiwAlone opening_names_the_driver_without_netlink;
    Siw it_does_not_hide_others;
    Siw links_of_siw;
}

fn it_is_listed_by_the_program() {
    let (name, found) = (device_name(), device());
    let guid = format!("{:016x}", found.guid());
    let listed = succeeds(&["devices"]);
    assert!(listed.lines().any(|line| line.contains(&name) && line.ends_with(&guid)), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&succeeds(&["devices", "--json"])).unwrap();
    let entry = json.as_array().unwrap().iter().find(|entry| entry["ifname"] == *name).unwrap();
    assert_eq!(entry["driver"], "siw");
    assert_eq!(entry["node_type"], "iWARP NIC");
    assert_eq!(entry["node"], found.node().to_str().unwrap());
    let line = format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev d0");
    assert!(succeeds(&["link", "list"]).lines().any(|shown| shown == line), "{line}");
}

fn opening_names_the_driver() {
    let (name, found) = (device_name(), device());
    assert_eq!((found.driver(), found.provider(), found.node_type()), (Some("siw"), None, NodeType::Rnic));
    assert!(found.has_node());
    assert!(!Device::list().unwrap().iter().any(|device| device.name() == name));
    let error = found.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let wanted = [format!("no provider for siw, the driver of {name}"), "there are rxe, efa".to_owned()];
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    refused(Err::<(), _>(error), Errno::EOPNOTSUPP, &wanted);
    for arguments in [
        &["info", "-d", &name][..],
        &["info", "-v", "-d", &name],
        &["pingpong", "rc", "-d", &name, "--loopback"],
        &["counters", "caps", "-d", &name],
        &["counters", "run", "-d", &name],
    ] {
        fails(arguments, &[&["EOPNOTSUPP"], &wanted[..]].concat());
    }
}

/// sysfs does not say which driver it is: the kernel is asked for each.
fn opening_names_the_driver_without_netlink() {
    refuse_netlink();
    let (name, found) = (device_name(), device());
    assert_eq!(found.driver(), None);
    let wanted = format!("no provider for siw, the driver of {name}");
    refused(found.open(), Errno::EOPNOTSUPP, &[&wanted]);
    fails(&["info", "-d", &name], &["EOPNOTSUPP", &wanted]);
}

fn it_does_not_hide_others() {
    let soft = SoftDevice::new();
    Setup::default().pair_in(&soft.device().open().unwrap()).works();
    let json: serde_json::Value = serde_json::from_str(&succeeds(&["info", "--json"])).unwrap();
    let names: Vec<_> = json.as_array().unwrap().iter().map(|entry| &entry["ifname"]).collect();
    assert_eq!(names, [soft.name()]);
    // Of its own choice: the one that can be used.
    succeeds(&["pingpong", "rc", "--loopback", "-n", "20"]);
}

fn links_of_siw() {
    let netdev = "siwnet0";
    ip(&["link", "add", netdev, "type", "dummy"]);
    ip(&["link", "set", netdev, "up"]);
    succeeds(&["link", "add", "siw7", "type", "siw", "netdev", netdev]);
    wait_until("device", || succeeds(&["devices"]).contains("siw7"));
    assert_eq!(Device::find("siw7").unwrap().driver(), Some("siw"));
    let links = link::list().unwrap();
    let link = links.iter().find(|link| link.device == "siw7").unwrap();
    assert_eq!((link.port, link.netdev.as_deref()), (1, Some(netdev)));
    fails(&["link", "add", "siw8", "type", "siw", "netdev", netdev], &["EEXIST", netdev, "siw"]);
    fails(&["link", "add", "siw7", "type", "siw", "netdev", "lo"], &["ENFILE", "siw7"]);
    fails(&["link", "add", "siw8", "type", "siw", "netdev", "nonesuch"], &["ENODEV", "nonesuch"]);
    succeeds(&["link", "del", "siw7"]);
    assert!(!succeeds(&["link", "list"]).contains("siw7"));
    ip(&["link", "del", netdev]);
}
