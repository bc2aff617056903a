//! The program `uverbs`: what it prints, and how it ends when something is wrong.
//!
//! It is taken from the search path, where `cargo xtask` puts it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::{Gid, Uid, chroot, setgid, setuid};

use crate::common::{device, device_name, wait_until};
use crate::device::{hide_sysfs, only_nodes_of, own_mounts, refuse_netlink};
use crate::lifetime::kernel_version;
use crate::soft::{SoftDevice, ip};

crate::cases! {
    Shared devices_are_listed;
    Shared info_shows_device_and_port;
    Shared links_are_made_listed_and_removed;
    Shared loopback_checks_every_message;
    Shared two_processes_agree;
    Shared wrong_usage_is_status_2;
    Shared unknown_device_lists_the_known;
    Alone no_device_says_how_to_get_one;
    Alone node_without_permission;
    Alone nothing_but_the_node;
    Alone locked_memory_limit_is_named;
    Shared gid_index_that_is_empty_or_out_of_range;
    Shared cq_and_qp_beyond_the_limits;
    Shared port_and_mtu_beyond_the_limits;
    Shared nobody_listens;
    Shared garbage_on_the_tcp_port;
    Shared silence_on_the_tcp_port;
    Shared peer_with_another_message_size;
    Shared peer_with_another_mtu;
    Shared peer_gone_half_way;
    Shared counters_are_not_supported;
    Shared events_are_printed_as_they_come;
    Unplugging events_end_with_the_device;
}

/// How long the program may take to end, on the busiest machine.
const LIMIT: Duration = Duration::from_secs(120);

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new("uverbs");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program uverbs in the search path")
}

fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the program hangs: {:?}", child.wait_with_output().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn uverbs(arguments: &[&str]) -> Output {
    finish(start(arguments))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = uverbs(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

/// Ended with status 1 and one line that names all of these.
#[track_caller]
fn failed(output: &Output, wanted: &[&str]) {
    let line = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.starts_with("uverbs: ") && line.trim_end().lines().count() == 1, "{line:?}");
    for wanted in wanted {
        assert!(line.contains(wanted), "{line:?} does not name {wanted:?}");
    }
}

#[track_caller]
pub(crate) fn fails(arguments: &[&str], wanted: &[&str]) {
    failed(&uverbs(arguments), wanted);
}

fn ping(more: &[&str]) -> Vec<String> {
    let device = device_name();
    ["pingpong", "rc", "-d", &device].iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A TCP port that nobody else uses.
fn free_port() -> String {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// A server that listens already.
fn server(port: &str, more: &[&str]) -> Child {
    let child = start(&words(&ping(&[&["-p", port], more].concat())));
    let number: u16 = port.parse().unwrap();
    // As /proc/net/tcp6 has it: the local port in upper-case digits, and the state LISTEN.
    let entry = format!(":{number:04X} 00000000000000000000000000000000:0000 0A");
    wait_until("server on its TCP port", || fs::read_to_string("/proc/net/tcp6").unwrap().contains(&entry));
    child
}

fn devices_are_listed() {
    let listed = succeeds(&["devices"]);
    let guid = format!("{:016x}", device().guid());
    assert!(listed.lines().any(|line| line.contains(&device_name()) && line.ends_with(&guid)), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&succeeds(&["devices", "--json"])).unwrap();
    let named = |entry: &&serde_json::Value| entry["ifname"] == device_name();
    let entry = json.as_array().unwrap().iter().find(named).unwrap();
    assert_eq!(entry["driver"], "rxe");
    assert_eq!(entry["node"], device().node().to_str().unwrap());
}

fn info_shows_device_and_port() {
    let name = device_name();
    let shown = succeeds(&["info", "-d", &name]);
    assert!(shown.starts_with(&format!("hca_id:\t{name}\n")), "{shown}");
    assert!(shown.contains("PORT_ACTIVE (4)") && shown.contains("Ethernet"), "{shown}");
    let json = succeeds(&["info", "-d", &name, "-v", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["max_cqe"], 32767);
    assert_eq!(json[0]["ports"][0]["active_mtu"], 1024);
    assert_eq!(json[0]["ports"][0]["gids"][1]["type"], "RoCE v2");
    fails(&["info", "-d", &name, "-i", "3"], &["port 3", "1 to 1"]);
}

fn links_are_made_listed_and_removed() {
    let soft = SoftDevice::without_address();
    fails(&["link", "add", "other", "type", "rxe", "netdev", soft.netdev()], &["EEXIST", soft.netdev()]);
    fails(&["link", "add", soft.name(), "type", "rxe", "netdev", "lo"], &["ENFILE", soft.name()]);
    fails(&["link", "add", "other", "type", "nonesuch", "netdev", soft.netdev()], &["EINVAL", "nonesuch"]);
    fails(&["link", "add", "other", "type", "rxe", "netdev", "nonesuch"], &["ENODEV", "nonesuch"]);
    fails(&["link", "add", "a%d", "type", "rxe", "netdev", soft.netdev()], &["EINVAL", "a%d"]);
    fails(&["link", "del", "nonesuch"], &["ENODEV", "nonesuch", soft.name()]);
    let line = format!("link {}/1 state ACTIVE physical_state LINK_UP netdev {}", soft.name(), soft.netdev());
    assert!(succeeds(&["link", "list"]).lines().any(|shown| shown == line), "{line}");
    succeeds(&["link", "del", soft.name()]);
    assert!(!succeeds(&["link", "list"]).contains(soft.name()));
    succeeds(&["link", "add", soft.name(), "type", "rxe", "netdev", soft.netdev()]);
    wait_until("device", || succeeds(&["devices"]).contains(soft.name()));
}

fn loopback_checks_every_message() {
    for (size, iters, events) in [("0", 20, false), ("1", 50, true), ("4096", 50, false), ("70000", 10, true)]
    {
        let iterations = iters.to_string();
        let mut arguments = ping(&["--loopback", "-c", "--json", "-s", size, "-n", &iterations]);
        arguments.extend(events.then(|| "-e".to_owned()));
        let json: serde_json::Value = serde_json::from_str(&succeeds(&words(&arguments))).unwrap();
        assert_eq!(json["checked"], 2 * iters);
        assert_eq!(json["bytes"].as_u64().unwrap(), size.parse::<u64>().unwrap() * iters * 2);
        assert_eq!(json["events"], events);
        // Of its own choice: not the link-local one.
        assert_eq!(json["gid_index"], 1);
    }
}

fn two_processes_agree() {
    let port = free_port();
    let server = server(&port, &["-e", "-c", "-n", "50"]);
    let shown = succeeds(&words(&ping(&["127.0.0.1", "-p", &port, "-e", "-c", "-n", "50"])));
    let output = finish(server);
    assert!(output.status.success(), "{output:?}");
    let address = |shown: &str, which: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(which)).unwrap();
        line.split_once("LID").unwrap().1.to_owned()
    };
    let other = text(&output.stdout);
    assert_eq!(address(&shown, "local address:"), address(&other, "remote address:"));
    assert_eq!(address(&shown, "remote address:"), address(&other, "local address:"));
    assert!(shown.contains("409600 bytes in ") && shown.contains("50 iters in "), "{shown}");
}

fn wrong_usage_is_status_2() {
    for wrong in [
        &["pingpong", "rc", "-m", "1000"][..],
        &["pingpong", "rc", "-n", "0"],
        &["pingpong", "rc", "-i", "0"],
        &["pingpong", "rc", "host", "--loopback"],
        &["link", "add", "x", "rxe", "eth0"],
        &["nonesuch"],
    ] {
        let output = uverbs(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(text(&output.stderr).starts_with("error: "));
    }
}

fn unknown_device_lists_the_known() {
    fails(&["pingpong", "rc", "-d", "none7", "--loopback"], &["ENODEV", "none7", &device_name()]);
    fails(&["info", "-d", "none7"], &["ENODEV", "none7", &device_name()]);
}

fn no_device_says_how_to_get_one() {
    let name = device_name();
    only_nodes_of(&[], 0);
    for arguments in [&["pingpong", "rc", "--loopback"][..], &["info"], &["info", "-d", &name]] {
        fails(arguments, &["ENOENT", "/dev/infiniband/"]);
    }
    assert_eq!(succeeds(&["devices", "--json"]).trim(), "[]");
    hide_sysfs();
    refuse_netlink();
    for arguments in [&["pingpong", "rc", "--loopback"][..], &["info"]] {
        fails(arguments, &["ENODEV", "no RDMA device", "link add"]);
    }
    fails(&["info", "-d", &name], &["ENODEV", &name]);
}

fn become_nobody() {
    setgid(Gid::from_raw(65534)).unwrap();
    setuid(Uid::from_raw(65534)).unwrap();
}

fn node_without_permission() {
    only_nodes_of(&[&device()], 0o600);
    become_nobody();
    let node = device().node().to_str().unwrap().to_owned();
    fails(&words(&ping(&["--loopback"])), &["EACCES", &node, "mode 0600"]);
    fails(&["link", "add", "x", "type", "rxe", "netdev", "lo"], &["EPERM", "CAP_NET_ADMIN"]);
}

/// As in a container without `/sys`, `/proc`, `/etc` and libraries.
fn nothing_but_the_node() {
    let (device, program) = (device(), which("uverbs"));
    let number = fs::metadata(device.node()).unwrap().rdev();
    own_mounts();
    // It goes with this process.
    mount(Some("none"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let node = Path::new("/tmp").join(device.node().strip_prefix("/").unwrap());
    fs::create_dir_all(node.parent().unwrap()).unwrap();
    mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), number).unwrap();
    fs::copy(program, "/tmp/uverbs").unwrap();
    chroot("/tmp").unwrap();
    std::env::set_current_dir("/").unwrap();
    for arguments in [&["pingpong", "rc", "--loopback", "-n", "20", "-c"][..], &["devices"], &["info", "-v"]]
    {
        // A pipe, as there is no `/dev/null`.
        let output = Command::new("/uverbs").args(arguments).stdin(Stdio::piped()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

/// Where a program is in the search path.
fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file()).unwrap()
}

fn locked_memory_limit_is_named() {
    setrlimit(Resource::RLIMIT_MEMLOCK, 65536, 65536).unwrap();
    become_nobody();
    fails(
        &words(&ping(&["--loopback", "-s", "1000000"])),
        &["reg_mr: ENOMEM", "2000000 bytes", "RLIMIT_MEMLOCK is 65536 bytes"],
    );
    succeeds(&words(&ping(&["--loopback", "-s", "64", "-n", "5"])));
}

fn gid_index_that_is_empty_or_out_of_range() {
    fails(&words(&ping(&["--loopback", "-g", "60"])), &["ENODATA", "GID index 60", "192.168.77.1"]);
    let output = uverbs(&words(&ping(&["--loopback", "-g", "300"])));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

fn cq_and_qp_beyond_the_limits() {
    fails(&words(&ping(&["--loopback", "-r", "40000"])), &["create_cq: EINVAL", "40001", "32767"]);
    fails(&words(&ping(&["--loopback", "-r", "4294967295"])), &["create_cq: EINVAL", "32767"]);
}

fn port_and_mtu_beyond_the_limits() {
    fails(&words(&ping(&["--loopback", "-i", "2"])), &["EINVAL", "port 2", "1 to 1"]);
    fails(&words(&ping(&["--loopback", "-m", "4096"])), &["4096", "1024"]);
}

fn nobody_listens() {
    let port = free_port();
    fails(&words(&ping(&["127.0.0.1", "-p", &port])), &["127.0.0.1", &port, "refused"]);
}

fn garbage_on_the_tcp_port() {
    let port = free_port();
    let server = server(&port, &[]);
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(&[b'x'; 200]).unwrap();
    failed(&finish(server), &["another protocol", "xxxx"]);

    // The same for a client, whose server is no ping-pong.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let client = start(&words(&ping(&["127.0.0.1", "-p", &port])));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[b'y'; 200]).unwrap();
    failed(&finish(client), &["another protocol", "yyyy"]);
}

fn silence_on_the_tcp_port() {
    let port = free_port();
    let one = server(&port, &["--timeout", "1"]);
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    failed(&finish(one), &["sends nothing"]);
    drop(stream);
    let other = server(&port, &[]);
    drop(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
    failed(&finish(other), &["closed the connection"]);
}

fn peer_with_another_message_size() {
    for (own, theirs) in [("4096", "64"), ("64", "4096")] {
        let port = free_port();
        let server = server(&port, &["-s", own, "--timeout", "2"]);
        let client = uverbs(&words(&ping(&["127.0.0.1", "-p", &port, "-s", theirs, "--timeout", "2"])));
        failed(&finish(server), &["same --size"]);
        assert_eq!(client.status.code(), Some(1), "{client:?}");
    }
}

fn peer_with_another_mtu() {
    let port = free_port();
    let server = server(&port, &["-m", "1024", "--timeout", "2"]);
    let client = uverbs(&words(&ping(&["127.0.0.1", "-p", &port, "-m", "256", "--timeout", "2"])));
    let server = finish(server);
    if kernel_version() == (6, 1) {
        // This one takes packets of any length.
        assert!(client.status.success() && server.status.success(), "{client:?} {server:?}");
    } else {
        failed(&client, &["--mtu", "status 9"]);
        assert_eq!(server.status.code(), Some(1));
    }
}

fn peer_gone_half_way() {
    let port = free_port();
    let server = server(&port, &["-n", "100000000", "-e", "--timeout", "2"]);
    let mut client = start(&words(&ping(&["127.0.0.1", "-p", &port, "-n", "100000000", "-e"])));
    // It tells the addresses when it is about to begin.
    let mut line = [0; 16];
    client.stdout.take().unwrap().read_exact(&mut line).unwrap();
    thread::sleep(Duration::from_millis(200));
    client.kill().unwrap();
    client.wait().unwrap();
    failed(&finish(server), &["peer"]);
}

fn counters_are_not_supported() {
    let name = device_name();
    if device().open().unwrap().completion_counter_capabilities().is_ok() {
        // The patched soft-RoCE of the test bed.
        return;
    }
    fails(&["counters", "caps", "-d", &name], &["EOPNOTSUPP", "completion counters", &name]);
    fails(&["counters", "run", "-d", &name], &["EOPNOTSUPP", "completion counters"]);
}

/// The program, printing events of a device already.
fn watcher(more: &[&str]) -> Child {
    let child = start(&[&["events"], more].concat());
    let files = format!("/proc/{}/fd", child.id());
    let is_event_file = |file: fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy().contains("infinibandevent"))
    };
    let has_opened = || fs::read_dir(&files).unwrap().any(|file| file.is_ok_and(is_event_file));
    wait_until("file of events", has_opened);
    child
}

fn events_are_printed_as_they_come() {
    let soft = SoftDevice::new();
    let child = watcher(&["-d", soft.name(), "-n", "1", "--timeout", "60"]);
    let json = watcher(&["-d", soft.name(), "-n", "1", "--json"]);
    ip(&["address", "add", "192.168.80.1/24", "dev", soft.netdev()]);
    let output = finish(child);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), format!("{}: GID table change (18), port 1\n", soft.name()));
    let line = text(&finish(json).stdout);
    assert_eq!(line.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let expected =
        serde_json::json!({"ifname": soft.name(), "event": "GID table change", "number": 18, "port": 1});
    assert_eq!(value, expected);

    assert_eq!(succeeds(&["events", "-d", soft.name(), "--timeout", "0"]), "");
    fails(&["events", "-d", soft.name(), "--timeout", "0", "-n", "2"], &["0 of 2 events"]);
    fails(&["events", "-d", "nonesuch"], &["nonesuch"]);
    assert_eq!(uverbs(&["events", "-n", "0"]).status.code(), Some(2));
}

fn events_end_with_the_device() {
    let soft = SoftDevice::new();
    let child = watcher(&["-d", soft.name()]);
    soft.delete();
    let output = finish(child);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).ends_with("local catastrophic error (8), device\n"), "{output:?}");
    soft.create();
}
