//! `uverbs bench` on devices inside its process, as anybody and anywhere. Times are not asserted, numbers of operations are.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn bench(line: &str) -> Output {
    // The operation is named before the options.
    let (test, options) = line.split_at(line.match_indices(' ').nth(1).map_or(line.len(), |(at, _)| at));
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.arg("bench").args(test.split_whitespace()).args(["-d", "soft0", "--loopback"]);
    command.args(options.split_whitespace());
    command.output().unwrap()
}

fn succeeds(line: &str) -> String {
    let output = bench(line);
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(line: &str) -> Value {
    serde_json::from_str(&succeeds(&format!("{line} --json"))).unwrap()
}

/// The only result.
fn result(line: &str) -> Value {
    let json = json(line);
    assert_eq!(json["results"].as_array().unwrap().len(), 1, "{line}: {json}");
    json["results"][0].clone()
}

#[track_caller]
fn fails(line: &str, wanted: &[&str]) {
    let output = bench(line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}: {text}");
    assert!(text.starts_with("uverbs: ") && text.lines().count() == 1, "{line}: {text:?}");
    for wanted in wanted {
        assert!(text.contains(wanted), "{line}: {text:?} does not name {wanted:?}");
    }
}

/// Every operation and what carries it.
const CARRIED: [(&str, &[&str]); 4] =
    [("send", &["RC", "UC", "UD"]), ("write", &["RC", "UC"]), ("read", &["RC"]), ("atomic", &["RC"])];

fn for_all(mut check: impl FnMut(&str, &str)) {
    for (verb, connections) in CARRIED {
        connections.iter().for_each(|connection| check(verb, connection));
    }
}

#[test]
fn latency_of_every_operation_over_every_connection() {
    for_all(|verb, connection| {
        let size = if verb == "atomic" { 8 } else { 700 };
        let json = json(&format!("lat {verb} -c {connection} -n 200 -s {size}"));
        assert_eq!(json["test_info"]["Connection_type"], connection);
        assert_eq!(json["test_info"]["Device"], "soft0");
        let result = &json["results"][0];
        assert_eq!((&result["MsgSize"], &result["n_iterations"]), (&size.into(), &200.into()));
        let time = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        let quantiles = ["t_min", "t_typical", "percentile_99", "percentile_99.9", "t_max"].map(time);
        assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{result}");
        assert!(time("t_avg") >= time("t_min") && time("t_stdev") >= 0.0, "{result}");
    });
}

#[test]
fn bandwidth_of_every_operation_over_every_connection() {
    for_all(|verb, connection| {
        let size = if verb == "atomic" { 8 } else { 512 };
        let json = json(&format!("bw {verb} -c {connection} -n 500 -s {size} -q 3"));
        assert_eq!(json["test_info"]["Number_of_qps"], 3);
        let result = &json["results"][0];
        assert_eq!((&result["MsgSize"], &result["n_iterations"]), (&size.into(), &1500.into()));
        let rate = |key: &str| result[key].as_f64().unwrap();
        assert!(rate("BW_average") > 0.0 && rate("BW_peak") >= rate("BW_average"), "{result}");
        let bandwidth = rate("MsgRate") * 1e6 * f64::from(size) / f64::from(1 << 20);
        assert!((rate("BW_average") / bandwidth - 1.0).abs() < 1e-6, "{result}");
        // What may be lost is told.
        let received = result.get("n_received").map(|received| received.as_u64().unwrap());
        match (verb, connection) {
            ("send", "UC" | "UD") => {
                assert_eq!(result["n_sent"], 1500);
                assert!((1..=1500).contains(&received.unwrap()), "{result}");
            }
            _ => assert_eq!(received, None),
        }
    });
}

#[test]
fn events_instead_of_polling() {
    for_all(|verb, connection| {
        let bandwidth = result(&format!("bw {verb} -c {connection} -n 300 -e -s 8"));
        assert_eq!(bandwidth["n_iterations"], 300, "{verb} {connection}");
        if verb != "write" {
            let latency = result(&format!("lat {verb} -c {connection} -n 50 -e -s 8"));
            assert_eq!(latency["n_iterations"], 50, "{verb} {connection}");
        }
    });
}

/// What is lost is counted in both directions, and so is what was sent.
#[test]
fn losses_in_both_directions_are_told() {
    let numbers = |line: &str| {
        let result = result(line);
        ["n_iterations", "n_sent", "n_received"].map(|key| result[key].as_u64().unwrap())
    };
    for connection in ["UC", "UD"] {
        let line = format!("bw send -c {connection} -b -n 3000 -s 64 -r 1 -l 64");
        let [iterations, sent, received] = numbers(&line);
        assert_eq!((iterations, sent), (3000, 6000), "{line}");
        // Of a list, which is posted at once, one receive takes one.
        assert!((1..6000).contains(&received), "{line}: {received}");
        let [iterations, sent, received] = numbers(&format!("bw send -c {connection} -b -D 1 -s 64"));
        assert!(0 < iterations && iterations < sent && received <= sent, "{iterations} {sent} {received}");
    }
    let shown = succeeds("bw send -c UD -b -n 3000 -s 64 -r 1 -l 64");
    let told =
        shown.lines().find_map(|line| line.strip_suffix(" messages were received, the others were lost"));
    let (received, sent) = told.unwrap_or_else(|| panic!("{shown}")).trim().split_once(" of ").unwrap();
    assert!(sent == "6000" && received.parse::<u64>().unwrap() < 6000, "{shown}");
}

/// However lists and moderation divide the queue, nothing waits for a completion that there is not.
#[test]
fn lists_and_moderation_of_any_size_come_to_an_end() {
    for line in [
        "-t 1",
        "-t 2 -Q 2",
        "-t 5 -l 3 -Q 4",
        "-t 5 -l 5 -Q 5",
        "-t 128 -l 64 -Q 100",
        "-t 128 -l 127 -Q 128",
        "-t 128 -l 7",
        "-t 100 -Q 99",
        "-t 3 -l 2 -Q 1 -q 5",
        "-t 600",
        "-I 64",
        "-b -t 7 -l 2 -Q 3",
    ] {
        check_count("send", line);
        check_count("write", line);
    }
    for receives in ["-r 1", "-r 2 -q 2", "-b -q 3 -r 5"] {
        check_count("send", receives);
    }
}

#[track_caller]
fn check_count(verb: &str, line: &str) {
    let json = json(&format!("bw {verb} -s 64 -n 333 {line}"));
    let qps = json["test_info"]["Number_of_qps"].as_u64().unwrap();
    assert_eq!(json["results"][0]["n_iterations"], 333 * qps, "{verb} {line}");
}

#[test]
fn durations_end_with_everything_complete() {
    for line in
        ["bw send -D 1", "bw write -D 1 -s 64 -q 3 -l 5 -Q 13", "bw send -D 1 -b -s 64", "bw read -D 1 -s 8"]
    {
        let json = json(line);
        assert_eq!(json["test_info"]["Duration"], 1);
        let result = &json["results"][0];
        assert!(
            result["n_iterations"].as_u64() > Some(0) && result["BW_average"].as_f64() > Some(0.0),
            "{result}"
        );
        assert_eq!(result["BW_peak"], 0.0);
    }
    for line in ["lat send -D 1", "lat write -D 1", "lat atomic -D 1", "lat send -c UD -D 1"] {
        let result = result(line);
        let number = |key: &str| result[key].as_f64().unwrap();
        assert!(number("n_iterations") > 0.0 && result.get("t_typical").is_none(), "{result}");
        let parts = if line.contains("atomic") { 1.0 } else { 2.0 };
        assert!((number("tps_average") * number("t_avg") * parts / 1e6 - 1.0).abs() < 1e-6, "{result}");
    }
}

#[test]
fn all_sizes_up_to_the_largest() {
    for (line, largest) in
        [("bw write -n 3", 1 << 23), ("lat send -n 3 -c UD", 1024), ("lat write -n 3", 1 << 23)]
    {
        let json = json(&format!("{line} -a"));
        let sizes: Vec<_> =
            json["results"].as_array().unwrap().iter().map(|row| row["MsgSize"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = (1..).map(|power| 1 << power).take_while(|size| *size <= largest).collect();
        assert_eq!(sizes, expected, "{line}");
        assert!(json["results"].as_array().unwrap().iter().all(|row| row["n_iterations"] == 3), "{json}");
    }
}

#[test]
fn histograms_count_every_latency() {
    for line in ["lat send -n 300 --histogram", "lat read -D 1 --histogram"] {
        let result = result(line);
        let buckets = result["histogram"].as_array().unwrap();
        let counts = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap());
        assert_eq!(Some(counts.sum()), result["n_iterations"].as_u64(), "{result}");
        let bounds: Vec<_> = buckets.iter().map(|bucket| bucket["up_to_usec"].as_f64().unwrap()).collect();
        assert!(bounds.is_sorted(), "{result}");
    }
    assert_eq!(result("lat send -n 10").get("histogram"), None);
    let shown = succeeds("lat send -n 300 -s 16 --histogram");
    let (_, histogram) = shown.split_once("\n 16 bytes\n up to[usec]       count\n").unwrap();
    let counts = histogram.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 300, "{shown}");
}

#[test]
fn tables_have_the_columns_of_perftest() {
    let columns = |line: &str| {
        let shown = succeeds(line);
        let mut lines = shown.lines().skip_while(|line| !line.starts_with(" #bytes"));
        let names: Vec<_> =
            lines.next().unwrap().split("  ").filter(|name| !name.is_empty()).map(str::trim).collect();
        let values: Vec<_> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(names.len(), values.len(), "{shown}");
        (names.join(","), values.join(","))
    };
    let (names, values) = columns("lat send -n 20");
    assert_eq!(
        names,
        "#bytes,#iterations,t_min[usec],t_max[usec],t_typical[usec],t_avg[usec],t_stdev[usec],\
         99% percentile[usec],99.9% percentile[usec]"
    );
    assert!(values.starts_with("2,20,"), "{values}");
    assert_eq!(columns("lat send -D 1").0, "#bytes,#iterations,t_avg[usec],tps average");
    let (names, values) = columns("bw write -n 20 -s 4096");
    assert_eq!(names, "#bytes,#iterations,BW peak[MiB/sec],BW average[MiB/sec],MsgRate[Mpps]");
    assert!(values.starts_with("4096,20,"), "{values}");
    let (names, _) = columns("bw write -n 20 --report_gbits");
    assert_eq!(names, "#bytes,#iterations,BW peak[Gb/sec],BW average[Gb/sec],MsgRate[Mpps]");
    assert!(succeeds("bw send -b -l 2 -n 4").contains(" Send Bidirectional Post List BW Test\n"));
    assert!(succeeds("lat atomic -n 4").contains(" Atomic FETCH_AND_ADD Latency Test\n"));
    // 10^9 bits in place of 2^20 bytes.
    let gigabits = result("bw write -n 100 -N -s 65536 --report_gbits");
    let (average, rate) = (gigabits["BW_average"].as_f64().unwrap(), gigabits["MsgRate"].as_f64().unwrap());
    assert!((average / (rate * 65536.0 * 8.0 / 1e3) - 1.0).abs() < 1e-6, "{gigabits}");
    assert_eq!(gigabits["BW_peak"], 0.0);
}

/// One CQ of a benchmark was overrun by more than a thousand QPs: linux-rdma/perftest#54.
#[test]
fn a_thousand_queue_pairs_on_one_cq_lose_nothing() {
    for line in ["bw send -n 40 -s 64", "bw write -n 40 -s 64 -Q 8 -t 16", "bw send -n 20 -s 64 -b"] {
        let result = result(&format!("{line} -q 1001"));
        let count: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert_eq!(result["n_iterations"], count * 1001, "{line}");
    }
    let wanted = ["EINVAL", "--qp 1001 with --rx-depth 512", "a CQ of soft0 has 32767"];
    fails("bw send -q 1001 -s 64 -r 512", &wanted);
    fails("bw write -q 1001 -s 64 -Q 1", &["EINVAL", "--qp 1001", "--tx-depth 128 and --cq-mod 1", "32767"]);
}

#[test]
fn what_the_device_cannot_is_refused() {
    fails("lat send -I 100000", &["--inline_size 100000", "EINVAL", "soft0"]);
    fails("lat send -c UD -s 1025", &["EINVAL", "--size 1025", "1024"]);
    fails("lat send -x 60", &["ENODATA", "GID index 60"]);
    fails("lat send -i 2", &["EINVAL", "port 2"]);
    fails("bw send -c SRD", &["EOPNOTSUPP", "soft0"]);
}

/// One message of the exchange over TCP, to a peer that answers in time.
fn receive(stream: &mut TcpStream) -> Value {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut head = [0; 24];
    stream.read_exact(&mut head).unwrap();
    let length = std::str::from_utf8(&head).unwrap().trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn send(stream: &mut TcpStream, message: &Value) {
    let body = message.to_string();
    stream.write_all(format!("uverbs bench 2 {:08}\n{body}", body.len()).as_bytes()).unwrap();
}

/// A client that meets a server which does as it is told from then on.
fn client_of(line: &str, mut serve: impl FnMut(TcpStream)) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.arg("bench").args(line.split_whitespace()).args(["-d", "soft0", "-p", &port, "127.0.0.1"]);
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let hello = receive(&mut stream);
    send(&mut stream, &json!({ "Welcome": hello["Hello"]["end"] }));
    serve(stream);
    client.wait_with_output().unwrap()
}

/// A server, and a client of it that is ready.
fn server_of(line: &str, test: &Value) -> (Child, TcpStream) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.arg("bench").args(line.split_whitespace()).args(["-d", "soft0", "-p", &port.to_string()]);
    let server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    // That of soft0 in the process of the server.
    let endpoint = json!({ "lid": 0, "qp_num": 17, "psn": 0, "gid": "::ffff:192.168.77.1" });
    let end = json!({ "endpoints": [endpoint], "mtu": 1024, "address": 0, "rkey": 0, "reads": 1 });
    send(&mut stream, &json!({ "Hello": { "test": test, "end": end } }));
    let welcome = receive(&mut stream);
    assert!(welcome["Welcome"].is_object(), "{welcome}");
    send(&mut stream, &json!("Ready"));
    (server, stream)
}

/// A server with nothing to poll misses a client that is there and says nothing, and waits for one that says that it is alive.
#[test]
fn a_client_that_falls_silent_is_missed() {
    thread::scope(|scope| {
        for (kind, verb) in [("bw", "write"), ("bw", "read"), ("lat", "read"), ("lat", "atomic")] {
            scope.spawn(move || check_silence(kind, verb));
        }
    });
}

fn check_silence(kind: &str, verb: &str) {
    let test = json!({
        "kind": kind, "verb": verb, "connection": "RC", "sizes": [8], "iters": 10, "duration": null,
        "mtu": null, "num_qp": 1, "bidirectional": false,
    });
    let (mut server, mut stream) = server_of(&format!("{kind} {verb} --timeout 2"), &test);
    assert_eq!(receive(&mut stream), json!({ "Sent": { "messages": 0 } }));
    for _ in 0..30 {
        thread::sleep(Duration::from_millis(100));
        send(&mut stream, &json!("Alive"));
    }
    assert_eq!(server.try_wait().unwrap(), None);
    let failed = receive(&mut stream);
    let reason = failed["Failed"]["reason"].as_str().unwrap();
    let output = server.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wanted = format!(":{} sends nothing", stream.local_addr().unwrap().port());
    assert!(reason.contains("127.0.0.1") && reason.contains(&wanted), "{reason}");
}

/// An end that measures shows that it is alive.
#[test]
fn a_client_that_measures_says_so() {
    let output = client_of("bw send -c UD -D 2 -s 64", |mut stream| {
        assert_eq!(receive(&mut stream), "Ready");
        let mut heard = vec![receive(&mut stream)];
        while heard.last().unwrap() == "Alive" {
            heard.push(receive(&mut stream));
        }
        assert!((3..=9).contains(&heard.len()) && heard.last().unwrap()["Sent"].is_object(), "{heard:?}");
    });
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Nobody is told to connect to a port on which another program listens.
#[test]
fn a_server_without_its_port_waits_for_nobody() {
    let other = TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0))).unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    let output = command.args(["bench", "lat", "send", "-d", "soft0", "-p", &port]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), [].as_slice()), "{text}");
    assert!(text.contains(&format!("cannot listen on TCP port {port}")), "{text}");
}

/// What a client gets to know of a server that leaves, whenever it does.
#[test]
fn a_server_that_leaves_is_an_error() {
    for line in ["bw send -c UD -n 200 -s 64", "bw send -c UC -D 1 -s 64", "lat send -c UD"] {
        let output = client_of(line, drop);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {text}");
        assert!(text.starts_with("uverbs: 127.0.0.1:") && text.contains("closed the connection"), "{text}");
        let output = client_of(line, |mut stream| {
            assert_eq!(receive(&mut stream), "Ready");
            send(&mut stream, &json!({ "Failed": { "reason": "EINVAL: some reason" } }));
        });
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {text}");
        assert!(text.ends_with("EINVAL: some reason\n"), "{text}");
    }
}
