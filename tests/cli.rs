//! The program `uverbs`: what it prints, and how it ends when something is wrong.
//!
//! It is taken from the search path, where `cargo xtask` puts it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
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
    Shared message_sizes_and_qp_counts_beyond_the_limits;
    Shared nobody_listens;
    Shared garbage_on_the_tcp_port;
    Shared silence_on_the_tcp_port;
    Shared peer_with_another_message_size;
    Shared peer_with_another_mtu;
    Shared peer_with_another_number_of_qps;
    Shared peer_of_another_kind;
    Shared peer_gone_half_way;
    Shared counters_are_not_supported;
    Shared events_are_printed_as_they_come;
    Unplugging events_end_with_the_device;
}

/// How long the program may take to end, on the busiest machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new("uverbs");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program uverbs in the search path")
}

pub(crate) fn finish(mut child: Child) -> Output {
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

pub(crate) fn uverbs(arguments: &[&str]) -> Output {
    finish(start(arguments))
}

pub(crate) fn text(bytes: &[u8]) -> String {
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
pub(crate) fn failed(output: &Output, wanted: &[&str]) {
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

/// Every kind of ping-pong.
const KINDS: [&str; 4] = ["rc", "uc", "ud", "srq"];

fn ping(more: &[&str]) -> Vec<String> {
    ping_of("rc", more)
}

fn ping_of(kind: &str, more: &[&str]) -> Vec<String> {
    let device = device_name();
    ["pingpong", kind, "-d", &device].iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A TCP port that nobody else uses.
pub(crate) fn free_port() -> String {
    // Each is given out once, and the kernel gives none of these to connections.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 1000) as u16 * 10;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).is_ok()).unwrap().to_string()
}

/// A server that listens already.
fn server(port: &str, more: &[&str]) -> Child {
    server_of("rc", port, more)
}

fn server_of(kind: &str, port: &str, more: &[&str]) -> Child {
    listening(start(&words(&ping_of(kind, &[&["-p", port], more].concat()))), port)
}

/// The program, when it listens on a TCP port.
pub(crate) fn listening(child: Child, port: &str) -> Child {
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
    assert_eq!(json[0]["atomic_cap"], "ATOMIC_HCA");
    assert_eq!(json[0]["transport"], "InfiniBand");
    let attributes = device().open().unwrap().query_device().unwrap();
    assert_eq!(json[0]["device_cap_flags"], attributes.device_cap_flags as u32);
    assert_eq!(json[0]["device_cap_flags_ex"], attributes.device_cap_flags);
    assert!(json[0]["device_cap_flags_names"].as_array().unwrap().contains(&"SRQ_RESIZE".into()));
    assert_eq!(json[0]["uc_odp_caps"], serde_json::json!([]));
    let can_page = attributes.odp_transport_caps[0] != 0;
    let caps = json[0]["rc_odp_caps"].as_array().unwrap();
    assert_eq!(caps.contains(&"SUPPORT_SRQ".into()), can_page, "{caps:?}");
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
    for kind in KINDS {
        let most = if kind == "ud" { "1024" } else { "70000" };
        for (size, iters, events) in
            [("0", 20, false), ("1", 50, true), ("1000", 50, false), (most, 10, true)]
        {
            let iterations = iters.to_string();
            let mut arguments = ping_of(kind, &["--loopback", "-c", "--json", "-s", size, "-n", &iterations]);
            arguments.extend(events.then(|| "-e".to_owned()));
            let json: serde_json::Value = serde_json::from_str(&succeeds(&words(&arguments))).unwrap();
            let (num_qp, checked) = (json["num_qp"].as_u64().unwrap(), json["checked"].as_u64().unwrap());
            assert_eq!(num_qp, if kind == "srq" { 16 } else { 1 });
            // When there are enough, the other QPs may each be about to exchange one more.
            let expected = 2 * iters..=2 * (iters + num_qp - 1);
            assert!(expected.contains(&checked), "{kind}: {checked} checked, expected {expected:?}");
            assert_eq!(json["bytes"].as_u64().unwrap(), size.parse::<u64>().unwrap() * iters * 2);
            assert_eq!(json["events"], events);
            // Of its own choice: not the link-local one.
            assert_eq!(json["gid_index"], 1);
        }
    }
}

fn two_processes_agree() {
    for (kind, more, qps) in
        [("rc", &[][..], 1), ("uc", &[], 1), ("ud", &["-s", "512"], 1), ("srq", &["-q", "3"], 3)]
    {
        let port = free_port();
        let options = [&["-e", "-c", "-n", "50"], more].concat();
        let server = server_of(kind, &port, &options);
        let client = ping_of(kind, &[&["127.0.0.1", "-p", &port], &options[..]].concat());
        let shown = succeeds(&words(&client));
        let output = finish(server);
        assert!(output.status.success(), "{output:?}");
        let addresses = |shown: &str, which: &str| -> Vec<String> {
            let of_end = |line: &str| Some(line.trim_start().strip_prefix(which)?.trim_start().to_owned());
            shown.lines().filter_map(of_end).collect()
        };
        let other = text(&output.stdout);
        let [local, remote] = ["local address:", "remote address:"].map(|end| addresses(&shown, end));
        assert_eq!((local.len(), remote.len()), (qps, qps), "{shown}");
        assert!(
            local.iter().chain(&remote).all(|address| address.starts_with("LID 0x0000, QPN 0x")),
            "{shown}"
        );
        assert_eq!(
            (local, remote),
            (addresses(&other, "remote address:"), addresses(&other, "local address:"))
        );
        let bytes = if kind == "ud" { "51200 bytes in " } else { "409600 bytes in " };
        assert!(shown.contains(bytes) && shown.contains("50 iters in "), "{shown}");
    }
}

fn wrong_usage_is_status_2() {
    for wrong in [
        &["pingpong", "rc", "-m", "1000"][..],
        &["pingpong", "rc", "-n", "0"],
        &["pingpong", "ud", "-m", "1024"],
        &["pingpong", "uc", "-q", "2"],
        &["pingpong", "srq", "-q", "0"],
        &["pingpong", "srq", "-q", "256"],
        &["pingpong", "rc", "-i", "0"],
        &["pingpong", "rc", "host", "--loopback"],
        &["pingpong", "rc", "--loopback", "--timeout", "18446744073709551615"],
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
    for arguments in [&["pingpong", "rc"][..], &["info"], &["info", "-d", &name]] {
        fails(arguments, &["ENOENT", "/dev/infiniband/"]);
    }
    let shown = succeeds(&["pingpong", "rc", "--loopback"]);
    assert!(
        shown.starts_with("  device:         soft0, inside this process, because open_device: ENOENT"),
        "{shown}"
    );
    assert_eq!(succeeds(&["devices", "--json"]).trim(), "[]");
    hide_sysfs();
    refuse_netlink();
    for arguments in [&["pingpong", "rc"][..], &["info"]] {
        fails(arguments, &["ENODEV", "no RDMA device", "link add"]);
    }
    let shown = succeeds(&["pingpong", "ud", "--loopback", "-c"]);
    assert!(shown.contains("soft0, inside this process, because there is no RDMA device\n"), "{shown}");
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

fn message_sizes_and_qp_counts_beyond_the_limits() {
    let loopback = |kind, more: &[&str]| ping_of(kind, &[&["--loopback"], more].concat());
    fails(&words(&loopback("ud", &["-s", "1025"])), &["EINVAL", "--size 1025", "active MTU of port 1, 1024"]);
    let most = device().open().unwrap().query_port(1).unwrap().max_message_size;
    let most = format!("largest message of port 1, {most}");
    for kind in ["rc", "uc", "srq"] {
        let wanted = ["EINVAL", "--size 4294967295", &most];
        fails(&words(&loopback(kind, &["-s", "4294967295"])), &wanted);
    }
    fails(&words(&loopback("srq", &["-q", "9", "-r", "8"])), &["EINVAL", "--rx-depth 8", "--num-qp 9"]);
    fails(&words(&loopback("srq", &["-r", "40000"])), &["create_cq: EINVAL", "40016", "32767"]);
    // As many as there are receives: every one is posted again at once.
    succeeds(&words(&loopback("srq", &["-q", "8", "-r", "8", "-n", "100", "-c"])));
    succeeds(&words(&loopback("srq", &["-q", "255", "-r", "255", "-n", "600", "-s", "64", "-c"])));
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
    for kind in KINDS {
        for (own, theirs) in [("1000", "64"), ("64", "1000")] {
            let port = free_port();
            let server = server_of(kind, &port, &["-s", own, "--timeout", "2"]);
            let client = ping_of(kind, &["127.0.0.1", "-p", &port, "-s", theirs, "--timeout", "2"]);
            let client = uverbs(&words(&client));
            // UC and UD drop what is too long.
            failed(&finish(server), &["--size"]);
            assert_eq!(client.status.code(), Some(1), "{kind}: {client:?}");
        }
    }
}

fn peer_with_another_number_of_qps() {
    let port = free_port();
    let server = server_of("srq", &port, &["-q", "3", "--timeout", "2"]);
    let client = ping_of("srq", &["127.0.0.1", "-p", &port, "-q", "4", "--timeout", "2"]);
    failed(&uverbs(&words(&client)), &["closed the connection"]);
    failed(&finish(server), &["the peer has 4 QPs, this end 3", "--num-qp"]);
}

fn peer_of_another_kind() {
    let run = |own, theirs| {
        let port = free_port();
        let server = server_of(own, &port, &["-s", "64", "--timeout", "2"]);
        let client = ping_of(theirs, &["127.0.0.1", "-p", &port, "-s", "64", "--timeout", "2"]);
        let client = uverbs(&words(&client));
        (finish(server), client)
    };
    // They tell different numbers of addresses.
    let (server, client) = run("srq", "rc");
    failed(&server, &["1 of 256 addresses", "another kind"]);
    failed(&client, &[]);
    let (server, client) = run("rc", "srq");
    failed(&server, &["another kind", "0000:"]);
    failed(&client, &[]);
    // They tell the same, and then nobody hears.
    for (own, theirs) in [("rc", "uc"), ("uc", "rc"), ("ud", "rc"), ("uc", "ud")] {
        let (server, client) = run(own, theirs);
        failed(&server, &["another kind"]);
        failed(&client, &["another kind"]);
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
