//! Finding devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::{Errno, NodeStamp, Result, io_errno, netlink};

/// Where the character devices are.
const NODES: &str = "/dev/infiniband";

/// A device of this host, whether or not this process can open it.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// What the kernel's core says of it.
    pub device: netlink::Device,
    /// Whether `device.index` is known. It is not where the device was found by sysfs.
    pub has_index: bool,
    /// The driver, if the kernel told: sysfs does not.
    pub driver_id: Option<u32>,
    /// Version of the driver's user ABI.
    pub abi_version: u32,
    /// Path of the character device, `/dev/infiniband/uverbs0`. Its name has nothing to do with the device's.
    pub node: PathBuf,
    /// What was there when the device was found, or why nothing was: `ENOENT` in a container that has no such node,
    /// `ENODEV` if the node is of another device.
    pub stamp: Result<NodeStamp>,
    /// When it was found.
    pub found_at: Instant,
}

/// All devices that the kernel shows to this process: by RDMA netlink, or by sysfs where netlink cannot be had.
///
/// It scans anew each time. No device is not an error.
///
/// # Errors
/// Those of sysfs, if both ways fail for another reason than that there is nothing.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    by_netlink().or_else(|_| by_sysfs(Path::new("/sys/class")))
}

fn by_netlink() -> Result<Vec<DeviceInfo>> {
    let mut socket = netlink::Socket::open()?;
    let mut found = Vec::new();
    for device in socket.devices()? {
        // A device that went away since, or that has no verbs.
        let Ok(character_device) = socket.character_device(device.index) else { continue };
        let node = Path::new(NODES).join(&character_device.name);
        found.push(DeviceInfo {
            stamp: stamp(&node, character_device.number),
            driver_id: character_device.driver_id,
            abi_version: character_device.abi_version,
            has_index: true,
            found_at: Instant::now(),
            device,
            node,
        });
    }
    Ok(found)
}

fn stamp(node: &Path, number: u64) -> Result<NodeStamp> {
    let stamp = NodeStamp::of(node)?;
    if stamp.device_number == number { Ok(stamp) } else { Err(Errno::ENODEV) }
}

fn by_sysfs(class: &Path) -> Result<Vec<DeviceInfo>> {
    let entries = match fs::read_dir(class.join("infiniband_verbs")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_errno(&error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| io_errno(&error))?;
        let read = |name: &str| read_trimmed(&entry.path().join(name));
        // Files beside the devices, such as abi_version of the class, and devices that went away since.
        let (Some(name), Some(number)) =
            (read("ibdev"), read("dev").and_then(|dev| parse_device_number(&dev)))
        else {
            continue;
        };
        let of_device = class.join("infiniband").join(&name);
        let guid = |file: &str| {
            read_trimmed(&of_device.join(file))
                .and_then(|guid| u64::from_str_radix(&guid.replace(':', ""), 16).ok())
                .unwrap_or_default()
        };
        let node = Path::new(NODES).join(entry.file_name());
        found.push(DeviceInfo {
            stamp: stamp(&node, number),
            driver_id: None,
            abi_version: read("abi_version").and_then(|version| version.parse().ok()).unwrap_or_default(),
            has_index: false,
            found_at: Instant::now(),
            device: netlink::Device {
                index: 0,
                node_guid: guid("node_guid"),
                system_image_guid: guid("sys_image_guid"),
                node_type: read_trimmed(&of_device.join("node_type"))
                    .and_then(|kind| kind.split(':').next()?.parse().ok())
                    .unwrap_or_default(),
                firmware: read_trimmed(&of_device.join("fw_ver")).unwrap_or_default(),
                ports: fs::read_dir(of_device.join("ports")).map_or(0, Iterator::count) as u32,
                protocol: String::new(),
                name,
            },
            node,
        });
    }
    found.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(found)
}

fn read_trimmed(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn parse_device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn sysfs_tree_is_read() {
        let class = std::env::temp_dir().join(format!("uverbs-sysfs-{}", std::process::id()));
        write(&class.join("infiniband_verbs/abi_version"), "6\n");
        write(&class.join("infiniband_verbs/uverbs7/ibdev"), "weird0-name\n");
        write(&class.join("infiniband_verbs/uverbs7/dev"), "231:199\n");
        write(&class.join("infiniband_verbs/uverbs7/abi_version"), "2\n");
        write(&class.join("infiniband/weird0-name/node_guid"), "5054:00ff:fe12:3456\n");
        write(&class.join("infiniband/weird0-name/node_type"), "1: CA\n");
        write(&class.join("infiniband/weird0-name/ports/1/state"), "4: ACTIVE\n");
        let found = by_sysfs(&class).unwrap();
        fs::remove_dir_all(&class).unwrap();
        assert_eq!(found.len(), 1);
        let found = &found[0];
        assert_eq!(found.device.name, "weird0-name");
        assert_eq!(found.device.node_guid, 0x5054_00ff_fe12_3456);
        assert_eq!((found.device.node_type, found.device.ports, found.abi_version), (1, 1, 2));
        assert_eq!(found.node, Path::new("/dev/infiniband/uverbs7"));
        assert_eq!(found.driver_id, None);
    }

    #[test]
    fn no_rdma_at_all_is_an_empty_list() {
        assert!(by_sysfs(Path::new("/nonexistent")).unwrap().is_empty());
    }
}
