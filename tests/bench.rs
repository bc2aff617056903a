//! `uverbs bench` on devices of the kernel, in one process and in two. Times are not asserted, numbers of operations are.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::cli::{failed, fails, finish, free_port, listening, start, succeeds, text, uverbs};
use crate::common::device_name;

crate::cases! {
    Shared latency_over_every_connection;
    Shared bandwidth_over_every_connection;
    Shared both_ends_print_the_same;
    Shared ends_that_differ_say_in_what;
    Shared others_on_the_tcp_port;
    Shared a_peer_that_goes_is_missed;
    Shared an_interrupted_client_leaves_nothing;
    Shared more_than_a_thousand_queue_pairs;
    Shared limits_are_named;
    Efa latency_on_efa;
    Efa bandwidth_on_efa;
    Efa two_processes_on_efa;
    Efa limits_on_efa_are_named;
    FewEfa writes_that_efa_lacks_are_refused;
}

/// As words: the test, the device, and options.
fn words(line: &str, more: &[&str]) -> Vec<String> {
    let device = device_name();
    let mut line = line.split_whitespace();
    let test = [line.next().unwrap(), line.next().unwrap()];
    let words =
        ["bench"].into_iter().chain(test).chain(["-d", &device]).chain(line).chain(more.iter().copied());
    words.map(str::to_owned).collect()
}

fn run(line: &str, more: &[&str]) -> Output {
    let words = words(line, more);
    uverbs(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn begin(line: &str, more: &[&str]) -> Child {
    let words = words(line, more);
    start(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn loopback(line: &str) -> Value {
    let words = words(line, &["--loopback", "--json"]);
    serde_json::from_str(&succeeds(&words.iter().map(String::as_str).collect::<Vec<_>>())).unwrap()
}

#[track_caller]
fn refused(line: &str, wanted: &[&str]) {
    let words = words(line, &["--loopback"]);
    fails(&words.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
}

fn server(line: &str, port: &str, more: &[&str]) -> Child {
    listening(begin(line, &[&["-p", port], more].concat()), port)
}

/// Runs one end in one process and one in another: what both print.
fn two_processes(client: &str, on_server: &str) -> [Output; 2] {
    let port = free_port();
    let server = server(on_server, &port, &["--json"]);
    let client = run(client, &["127.0.0.1", "-p", &port, "--json"]);
    [client, finish(server)]
}

/// The result of the only size, with what all have.
#[track_caller]
fn one_result(json: &Value, size: u64, iterations: u64) -> Value {
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 1, "{json}");
    assert_eq!(results[0]["MsgSize"], size, "{json}");
    assert_eq!(results[0]["n_iterations"], iterations, "{json}");
    results[0].clone()
}

#[track_caller]
fn check_latency(line: &str, size: u64) {
    let json = loopback(&format!("{line} -n 30 -s {size}"));
    let result = one_result(&json, size, 30);
    let keys = ["t_min", "t_typical", "percentile_99", "percentile_99.9", "t_max"];
    let quantiles = keys.map(|key| result[key].as_f64().unwrap());
    assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{line}: {result}");
}

#[track_caller]
fn check_bandwidth(line: &str, size: u64) {
    let json = loopback(&format!("{line} -n 150 -s {size} -q 2"));
    let result = one_result(&json, size, 300);
    let rate = |key: &str| result[key].as_f64().unwrap();
    assert!(rate("BW_average") > 0.0 && rate("BW_peak") >= rate("BW_average"), "{line}: {result}");
}

const CARRIED: [(&str, &[&str]); 4] =
    [("send", &["RC", "UC", "UD"]), ("write", &["RC", "UC"]), ("read", &["RC"]), ("atomic", &["RC"])];

fn latency_over_every_connection() {
    for (verb, connections) in CARRIED {
        for connection in connections {
            check_latency(&format!("lat {verb} -c {connection}"), if verb == "atomic" { 8 } else { 300 });
            if verb != "write" {
                let json = loopback(&format!("lat {verb} -c {connection} -e -s 8 -n 20"));
                one_result(&json, 8, 20);
                assert_eq!(json["test_info"]["Events"], true);
            }
        }
    }
    // Longer than a packet, and than what goes inline.
    check_latency("lat write", 3000);
    check_latency("lat send", 3000);
}

fn bandwidth_over_every_connection() {
    for (verb, connections) in CARRIED {
        for connection in connections {
            let size = if verb == "atomic" { 8 } else { 1000 };
            check_bandwidth(&format!("bw {verb} -c {connection}"), size);
            let json = loopback(&format!("bw {verb} -c {connection} -e -b -s {size} -n 60 -t 16 -l 3"));
            one_result(&json, size, 60);
        }
    }
    check_bandwidth("bw send -r 4 -Q 7 -t 20", 5000);
    let json = loopback("bw read -D 1 -s 4096");
    assert!(json["results"][0]["n_iterations"].as_u64() > Some(0), "{json}");
    let json = loopback("lat send -D 1 --histogram");
    let counts = json["results"][0]["histogram"].as_array().unwrap().iter();
    let sum: u64 = counts.map(|bucket| bucket["count"].as_u64().unwrap()).sum();
    assert_eq!(json["results"][0]["n_iterations"], sum, "{json}");
}

#[track_caller]
fn check_same(client: &str, on_server: &str, sizes: usize) -> Value {
    let ends = two_processes(client, on_server);
    let [client, server] = ends.each_ref().map(|output| {
        assert!(output.status.success() && output.stderr.is_empty(), "{client}: {ends:?}");
        serde_json::from_str::<Value>(&text(&output.stdout)).unwrap()
    });
    assert_eq!(client["results"].as_array().unwrap().len(), sizes, "{client}");
    assert_eq!(client["results"], server["results"]);
    assert_eq!(client["test_info"]["Number_of_qps"], server["test_info"]["Number_of_qps"]);
    client
}

fn both_ends_print_the_same() {
    for (line, iterations) in [
        ("lat send -n 20", 20),
        ("lat send -c UC -n 20 -e", 20),
        ("lat send -c UD -n 20", 20),
        ("lat write -n 20 -m 512 -s 2000", 20),
        ("lat read -n 20", 20),
        ("lat atomic -n 20", 20),
        ("bw send -n 100 -s 2000", 100),
        ("bw send -n 100 -c UD -s 512", 100),
        ("bw send -n 50 -q 3 -b -s 64", 150),
        ("bw write -n 100 -l 4 -s 64 -e", 100),
        ("bw read -n 100 -s 64", 100),
        ("bw atomic -n 100", 100),
    ] {
        let test = line.split(" -").next().unwrap();
        let client = check_same(line, test, 1);
        assert_eq!(client["results"][0]["n_iterations"], iterations, "{line}");
    }
    // The same options at both ends, as perftest wants it.
    let line = "bw write -s 4096 -n 50 -q 2 -c UC -m 1024";
    let client = check_same(line, line, 1);
    assert_eq!(client["test_info"]["Mtu"], 1024);
    let client = check_same("lat send -c UD -n 5 -a", "lat send", 10);
    assert_eq!(client["results"][9]["MsgSize"], 1024);
    let client = check_same("bw write -D 1 -s 64", "bw write", 1);
    assert!(client["results"][0]["n_iterations"].as_u64() > Some(0));
}

fn ends_that_differ_say_in_what() {
    for (client, on_server, wanted) in [
        ("lat send", "lat write", "the client runs lat send, the server lat write"),
        ("bw send -s 64", "bw send -s 65", "the client has --size 64, the server 65"),
        ("bw send -n 10", "bw send -n 11", "the client has --iters 10, the server 11"),
        ("bw read", "bw read -q 2", "the client has --qp 1, the server 2"),
        ("lat send -c UC", "lat send -c UD", "the client has --connection UC, the server UD"),
        // What the server alone cannot.
        ("lat send", "lat send -I 100000", "--inline_size 100000"),
        ("bw send -q 1000 -s 64", "bw send -r 512", "--qp 1000 with --rx-depth 512"),
    ] {
        let [client, server] = two_processes(client, on_server);
        failed(&server, &[wanted]);
        // It hears the reason.
        failed(&client, &["127.0.0.1", wanted]);
    }
}

fn others_on_the_tcp_port() {
    let port = free_port();
    let one = server("lat send", &port, &[]);
    TcpStream::connect(format!("127.0.0.1:{port}")).unwrap().write_all(&[b'x'; 200]).unwrap();
    failed(&finish(one), &["no uverbs bench", "xxxx"]);

    let port = free_port();
    let one = server("lat send", &port, &["--timeout", "1"]);
    let silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    failed(&finish(one), &["sends nothing"]);
    drop(silent);

    let port = free_port();
    let one = server("lat send", &port, &[]);
    TcpStream::connect(format!("127.0.0.1:{port}"))
        .unwrap()
        .write_all(b"uverbs bench 7 00000002\n{}")
        .unwrap();
    failed(&finish(one), &["version \"7\""]);

    // A ping-pong sends its address, and hears nothing that it knows.
    let port = free_port();
    let one = server("lat send", &port, &[]);
    let device = device_name();
    let pingpong = uverbs(&["pingpong", "rc", "-d", &device, "127.0.0.1", "-p", &port, "--timeout", "2"]);
    failed(&pingpong, &["another protocol"]);
    failed(&finish(one), &["no uverbs bench", "0000:"]);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let client = begin("bw write", &["127.0.0.1", "-p", &port]);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[b'y'; 200]).unwrap();
    failed(&finish(client), &["no uverbs bench", "yyyy"]);

    let port = free_port();
    failed(&run("lat send", &["127.0.0.1", "-p", &port]), &["127.0.0.1", &port, "refused"]);
}

/// A client that has begun to send.
fn running_client(line: &str, port: &str) -> Child {
    let mut client = begin(line, &["127.0.0.1", "-p", port, "--timeout", "5"]);
    let mut lines = BufReader::new(client.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with(" #bytes")), "no table");
    thread::sleep(Duration::from_millis(200));
    client
}

const TESTS: [&str; 6] = ["lat send", "lat write", "lat read", "bw send", "bw write", "bw send -b"];

fn a_peer_that_goes_is_missed() {
    for line in TESTS {
        let test = line.trim_end_matches(" -b");
        for server_goes in [false, true] {
            let port = free_port();
            let mut server = server(test, &port, &["--timeout", "5"]);
            let mut client = running_client(&format!("{line} -D 1000 -s 64"), &port);
            let (goes, stays) = if server_goes { (&mut server, client) } else { (&mut client, server) };
            goes.kill().unwrap();
            goes.wait().unwrap();
            let output = finish(stays);
            assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
            let reason = text(&output.stderr);
            assert!(reason.contains("closed the connection"), "{line}: {reason}");
        }
    }
}

fn an_interrupted_client_leaves_nothing() {
    let port = free_port();
    let one = server("bw write", &port, &[]);
    let mut client = running_client("bw write -D 1000 -s 64", &port);
    kill(Pid::from_raw(client.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(client.wait().unwrap().code(), None);
    failed(&finish(one), &["closed the connection"]);
}

/// linux-rdma/perftest#54: more than a thousand QPs overran the CQ that they shared.
fn more_than_a_thousand_queue_pairs() {
    let json = loopback("bw send -q 1001 -n 40 -s 64 --timeout 60");
    let result = one_result(&json, 64, 40 * 1001);
    assert!(result["BW_average"].as_f64() > Some(0.0), "{json}");
    refused("bw send -q 1001 -s 64 -r 512", &["EINVAL", "--qp 1001 with --rx-depth 512", "32767"]);
}

fn limits_are_named() {
    let name = device_name();
    refused("lat send -I 100000", &["--inline_size 100000", "create_qp: EINVAL", &name]);
    refused("lat send -c UD -s 1025", &["EINVAL", "--size 1025", "1024"]);
    refused("lat send -m 4096", &["EINVAL", "--mtu 4096", "1024"]);
    refused("lat send -c SRD", &["EOPNOTSUPP", "--connection SRD", &name]);
    refused("bw send -t 100000000", &["EINVAL", "--tx-depth 100000000", &name]);
    refused("lat send -x 60", &["ENODATA", "GID index 60"]);
    refused("lat send -i 2", &["EINVAL", "port 2"]);
    let output = run("lat send", &["-t", "2", "--loopback"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

const CARRIED_BY_EFA: [(&str, &[&str]); 3] =
    [("send", &["SRD", "UD"]), ("write", &["SRD"]), ("read", &["SRD"])];

fn latency_on_efa() {
    for (verb, connections) in CARRIED_BY_EFA {
        for connection in connections {
            for size in [8, 3000] {
                check_latency(&format!("lat {verb} -c {connection}"), size);
            }
            let json = loopback(&format!("lat {verb} -c {connection} -e -n 20"));
            one_result(&json, 2, 20);
        }
    }
    let about = &loopback("lat send -n 5")["test_info"];
    assert_eq!(about["Connection_type"], "SRD");
    assert_eq!((&about["Max_inline_data"], &about["TX_depth"]), (&32.into(), &1.into()));
    assert_eq!(loopback("lat write -n 5")["test_info"]["test"], "RDMA_Write_imm Latency Test");
}

fn bandwidth_on_efa() {
    for (verb, connections) in CARRIED_BY_EFA {
        for connection in connections {
            check_bandwidth(&format!("bw {verb} -c {connection}"), 1000);
            let json = loopback(&format!("bw {verb} -c {connection} -e -b -s 64 -n 60 -t 16 -l 3"));
            one_result(&json, 64, 60);
        }
    }
    check_bandwidth("bw write", 1 << 20);
    let json = loopback("bw send -D 1 -s 64");
    assert!(json["results"][0]["n_iterations"].as_u64() > Some(0), "{json}");
}

fn two_processes_on_efa() {
    for line in ["lat send -n 20", "lat write -n 20", "bw read -n 50 -s 64", "bw send -c UD -n 50 -b -s 64"] {
        let test = line.split(" -").next().unwrap();
        check_same(line, test, 1);
    }
}

fn limits_on_efa_are_named() {
    let name = device_name();
    refused("lat atomic", &["EINVAL", "--connection SRD", "atomic goes over RC"]);
    refused("lat send -c RC", &["EOPNOTSUPP", "--connection RC", &name]);
    let most = crate::common::open().query_port(1).unwrap().max_message_size;
    let line = format!("bw send -s {}", most + 1);
    refused(&line, &["EINVAL", "largest message", &most.to_string()]);
    refused("lat send -I 33000", &["--inline_size 33000", "EINVAL"]);
    refused("bw send -s 64 -Q 2", &["EINVAL", "--cq-mod 2", &name]);
    refused("lat read -c UD", &["EINVAL", "--connection UD", "read goes over RC or SRD"]);
}

fn writes_that_efa_lacks_are_refused() {
    refused("bw write", &["write over SRD", "EOPNOTSUPP"]);
    refused("lat write", &["write over SRD", "EOPNOTSUPP"]);
}
