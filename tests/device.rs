//! Discovery: which devices there are, what is known of them, and what is said about those that cannot be opened.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Gid, Uid, setgid, setuid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use uverbs::{Device, ErrorKind, IpFamily, NodeType, PortState};
use uverbs_ioctl::netlink::Socket;

use crate::child::Process;
use crate::common::{PORT, Setup, device, device_name, own_gid, read_trimmed, refused, sysfs, wait_until};
use crate::soft::{SoftDevice, ip, port_state};

crate::cases! {
    Shared list_finds_the_device;
    Shared find_lists_the_names_there_are;
    Alone vb_25_without_netlink_sysfs_serves;
    Alone vb_25_without_sysfs_netlink_serves;
    Alone without_netlink_and_sysfs_there_is_no_device;
    Alone vb_25_a_device_without_node_is_left_out;
    Alone vb_25_one_hidden_node_does_not_hide_the_others;
    Alone permission_is_explained;
    Shared vb_28_every_list_is_a_new_one;
    Shared vb_28_a_successor_is_never_opened;
    Alone vb_28_a_successor_behind_the_same_node_is_never_opened;
    Shared a_node_whose_mode_changes_stays_the_same;
    Shared vb_27_a_renamed_device_keeps_working;
    Shared vb_27_names_swapped_after_listing;
    Shared vb_29_the_driver_counts_and_not_the_name;
    Part work_quietly;
    Shared vb_32_a_port_with_a_link_local_gid_only;
    Shared a_port_that_is_down_is_told;
}

fn names() -> Vec<String> {
    Device::list().unwrap().iter().map(|device| device.name().to_owned()).collect()
}

/// A GUID as sysfs writes it.
fn guid(text: &str) -> u64 {
    u64::from_str_radix(&text.replace(':', ""), 16).unwrap()
}

fn list_finds_the_device() {
    let list = Device::list().unwrap();
    let found = list.iter().find(|device| device.name() == device_name()).unwrap();
    assert_eq!(found.guid(), guid(&sysfs("node_guid")));
    assert_ne!(found.guid(), 0);
    assert_eq!(found.node_type(), NodeType::ChannelAdapter);
    assert_eq!(sysfs("node_type"), "1: CA");
    assert_eq!(found.provider(), Some("rxe"));
    assert_eq!(found.firmware(), "");
    let node = found.node().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(found.node().parent().unwrap(), Path::new("/dev/infiniband"));
    assert_eq!(read_trimmed(format!("/sys/class/infiniband_verbs/{node}/ibdev")), device_name());

    let core = Socket::open().unwrap().devices().unwrap();
    let core = core.iter().find(|device| device.name == found.name()).unwrap();
    assert_eq!(found.index(), Some(core.index));
    assert_eq!((core.node_guid, core.ports), (found.guid(), 1));
    assert_eq!(core.system_image_guid, guid(&sysfs("sys_image_guid")));
}

fn find_lists_the_names_there_are() {
    let error = Device::find("none7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    refused(Err::<(), _>(error), Errno::ENODEV, &["none7", &device_name()]);
}

/// Makes socket(AF_NETLINK, …) fail in this process, as sandboxes do.
pub(crate) fn refuse_netlink() {
    let family = u64::try_from(libc::AF_NETLINK).unwrap();
    let netlink = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family).unwrap();
    let rule = SeccompRule::new(vec![netlink]).unwrap();
    let filter = SeccompFilter::new(
        [(libc::SYS_socket, vec![rule])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EAFNOSUPPORT as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    assert_eq!(Socket::open().unwrap_err(), Errno::EAFNOSUPPORT);
}

/// A mount namespace of this process's own.
pub(crate) fn own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
}

pub(crate) fn hide_sysfs() {
    own_mounts();
    umount2("/sys", MntFlags::MNT_DETACH).unwrap();
    assert!(!Path::new("/sys/class").exists());
}

/// Leaves only copies of these devices' nodes in `/dev/infiniband`.
pub(crate) fn only_nodes_of(devices: &[&Device], mode: u32) {
    let numbers: Vec<_> = devices.iter().map(|device| fs::metadata(device.node()).unwrap().rdev()).collect();
    own_mounts();
    mount(Some("tmpfs"), "/dev/infiniband", Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).unwrap();
    for (device, number) in devices.iter().zip(numbers) {
        let number = makedev(libc::major(number).into(), libc::minor(number).into());
        mknod(device.node(), SFlag::S_IFCHR, Mode::from_bits_truncate(mode), number).unwrap();
    }
}

fn vb_25_without_netlink_sysfs_serves() {
    let before = device();
    refuse_netlink();
    let found = device();
    assert_eq!((found.index(), found.provider()), (None, None));
    assert_eq!((found.guid(), found.node()), (before.guid(), before.node()));
    assert_eq!(found.node_type(), before.node_type());
    assert!(names().contains(&device_name()));
    let context = found.open().unwrap();
    assert_eq!(context.provider(), "rxe");
    assert_eq!(context.query_pkey(PORT, 0).unwrap(), 0xffff);
    Setup::default().pair_in(&context).works();
}

fn vb_25_without_sysfs_netlink_serves() {
    hide_sysfs();
    assert!(names().contains(&device_name()));
    let context = device().open().unwrap();
    assert_eq!(context.device().provider(), Some("rxe"));
    Setup::default().pair_in(&context).works();
    let error = context.query_pkey(PORT, 0).unwrap_err();
    refused(Err::<(), _>(error), Errno::ENOENT, &[&format!("{}/ports/1/pkeys/0", device_name())]);
}

fn without_netlink_and_sysfs_there_is_no_device() {
    hide_sysfs();
    refuse_netlink();
    assert_eq!(names(), [""; 0]);
    refused(Device::find("rxe0"), Errno::ENODEV, &["there is no RDMA device"]);
}

fn vb_25_a_device_without_node_is_left_out() {
    only_nodes_of(&[], 0);
    assert_eq!(names(), [""; 0]);
    let found = device();
    let error = found.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    refused(Err::<(), _>(error), Errno::ENOENT, &[&device_name(), found.node().to_str().unwrap()]);
}

fn vb_25_one_hidden_node_does_not_hide_the_others() {
    let soft = SoftDevice::new();
    only_nodes_of(&[&soft.device()], 0o600);
    assert_eq!(names(), [soft.name()]);
    Setup::default().pair_in(&soft.device().open().unwrap()).works();
    refused(device().open(), Errno::ENOENT, &["device node"]);
}

fn permission_is_explained() {
    only_nodes_of(&[&device()], 0o600);
    device().open().unwrap();
    setgid(Gid::from_raw(65534)).unwrap();
    setuid(Uid::from_raw(65534)).unwrap();
    let found = device();
    let error = found.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let node = found.node().to_str().unwrap();
    refused(Err::<(), _>(error), Errno::EACCES, &[node, "mode 0600", "owner 0:0"]);
}

fn vb_28_every_list_is_a_new_one() {
    let soft = SoftDevice::without_address();
    for _ in 0..3 {
        assert!(names().contains(&soft.name().to_owned()));
        soft.delete();
        assert!(!names().contains(&soft.name().to_owned()));
        refused(Device::find(soft.name()), Errno::ENODEV, &[soft.name()]);
        soft.create();
    }
}

fn vb_28_a_successor_is_never_opened() {
    let soft = SoftDevice::without_address();
    let old = soft.device();
    old.open().unwrap();
    soft.delete();
    let error = old.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    soft.create();
    let new = soft.device();
    assert_eq!((old.name(), old.node()), (new.name(), new.node()));
    refused(old.open(), Errno::ENODEV, &[soft.name(), "replaced"]);
    new.open().unwrap();
}

/// In a container whose nodes nobody renews, the old node leads to the new device.
fn vb_28_a_successor_behind_the_same_node_is_never_opened() {
    let soft = SoftDevice::without_address();
    only_nodes_of(&[&soft.device()], 0o600);
    let old = soft.device();
    soft.delete();
    soft.create();
    let new = soft.device();
    // A device listed less than 100 ms ago is taken to be still there.
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(old.node(), new.node());
    assert_ne!(old.index(), new.index());
    refused(old.open(), Errno::ENODEV, &[soft.name(), "replaced"]);
    new.open().unwrap();
}

/// As udev does to a device that has just come.
fn a_node_whose_mode_changes_stays_the_same() {
    let soft = SoftDevice::without_address();
    let listed = soft.device();
    let mode = fs::metadata(listed.node()).unwrap().permissions();
    fs::set_permissions(listed.node(), fs::Permissions::from_mode(0o640)).unwrap();
    listed.open().unwrap();
    fs::set_permissions(listed.node(), mode).unwrap();
    listed.open().unwrap();
}

fn vb_27_a_renamed_device_keeps_working() {
    let mut soft = SoftDevice::new();
    let listed = soft.device();
    let context = listed.open().unwrap();
    let (port, gids) = (context.query_port(PORT).unwrap(), context.gid_table().unwrap());
    // As long as a name can be; one that looks like another driver's.
    for name in ["n".repeat(63), "weird0-name.x".to_owned(), format!("mlx5_{}", std::process::id())] {
        soft.rename(&name);
        assert_eq!(soft.device().node(), listed.node());
        assert_eq!(soft.device().provider(), Some("rxe"));
        assert_eq!(soft.device().index(), listed.index());
        listed.open().unwrap();
        assert_eq!(context.query_port(PORT).unwrap(), port);
        assert_eq!(context.gid_table().unwrap(), gids);
        assert_eq!(context.query_gid(PORT, own_gid(&context).index).unwrap(), own_gid(&context));
        assert_eq!(context.query_pkey(PORT, 0).unwrap(), 0xffff);
        Setup::default().pair_in(&context).works();
    }
}

fn vb_27_names_swapped_after_listing() {
    let mut soft = SoftDevice::new();
    let listed = soft.device();
    let old_name = soft.name().to_owned();
    soft.rename(&format!("{old_name}_moved"));
    // A second device takes the name.
    let other = format!("o{}", std::process::id());
    ip(&["link", "add", &other, "type", "dummy"]);
    uverbs::link::add(&old_name, "rxe", &other).unwrap();
    wait_until("the second device", || names().contains(&old_name));
    let opened = listed.open().unwrap().query_device().unwrap();
    let other_guid = Device::find(&old_name).unwrap().guid();
    ip(&["link", "del", &other]);
    assert_eq!(opened.node_guid, listed.guid());
    assert_ne!(opened.node_guid, other_guid);
}

/// Named as another driver's devices are. Nothing is printed.
fn vb_29_the_driver_counts_and_not_the_name() {
    let mut soft = SoftDevice::new();
    soft.rename("mlx5_7");
    let found = soft.device();
    assert_eq!((found.driver(), found.provider()), (Some("rxe"), Some("rxe")));
    let mut quiet = Process::start("device::work_quietly", &[("UVERBS_TEST_DEVICE", "mlx5_7")]);
    wait_until("the end of the other process", || quiet.0.try_wait().unwrap().is_some());
    let mut output = String::new();
    quiet.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!(output, "");
    assert!(quiet.0.wait().unwrap().success());
}

fn work_quietly() {
    // Whoever started this reads both.
    rustix::stdio::dup2_stderr(rustix::stdio::stdout()).unwrap();
    for netlink in [true, false] {
        if !netlink {
            refuse_netlink();
        }
        assert!(names().contains(&device_name()));
        let context = device().open().unwrap();
        assert_eq!((context.provider(), context.device().index().is_some()), ("rxe", netlink));
        Setup::default().pair_in(&context).works();
    }
}

fn vb_32_a_port_with_a_link_local_gid_only() {
    let soft = SoftDevice::without_address();
    let context = soft.device().open().unwrap();
    assert_eq!(context.gid_table().unwrap().len(), 1);
    let gid = context.routable_gid(PORT, None).unwrap();
    assert!(gid.gid.is_link_local() && gid.index == 0, "{gid:?}");
    assert_eq!(context.routable_gid(PORT, Some(IpFamily::V6)).unwrap(), gid);
    let text = gid.gid.to_string();
    refused(context.routable_gid(PORT, Some(IpFamily::V4)), Errno::ENODATA, &["IPv4", "0 (", &text]);
    Setup::default().pair_in(&context).works();
}

fn a_port_that_is_down_is_told() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    assert_eq!(context.query_port(PORT).unwrap().state, PortState::Active);
    assert_eq!(port_state(soft.name()), PortState::Active);
    soft.set_link(false);
    wait_until("port down", || context.query_port(PORT).unwrap().state == PortState::Down);
    assert_eq!(port_state(soft.name()), PortState::Down);
    soft.set_link(true);
    wait_until("port up", || context.query_port(PORT).unwrap().state == PortState::Active);
}
