//! Options, and what becomes of them on a device.

use clap::Parser;
use uverbs::Mtu;

use crate::connect::{Endpoint, Route};

use super::agreed::{Role, Test};
use super::end::End;
use super::limits::Limits;
use super::options::{Command, Connection, Kind, Verb};
use super::plan::Plan;

#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

fn parse(line: &str) -> Result<Command, clap::Error> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    Program::try_parse_from(words).map(|program| program.command)
}

fn limits() -> Limits {
    Limits {
        name: "some0".to_owned(),
        is_efa: false,
        port: 1,
        mtu: Mtu::Bytes2048,
        max_message: 1 << 30,
        max_qp: 5000,
        max_qp_wr: 16384,
        max_cqe: 32767,
        has_atomics: true,
        reads: [16, 16],
    }
}

fn efa() -> Limits {
    Limits { is_efa: true, max_message: 8928, has_atomics: false, mtu: Mtu::Bytes4096, ..limits() }
}

fn plan_on(limits: &Limits, line: &str, role: Role) -> Result<Plan, String> {
    let command = parse(line).map_err(|error| error.to_string())?;
    let test = Test::new(&command, limits);
    let plan = test.and_then(|test| Plan::new(test, &command, limits, role));
    plan.map_err(|error| format!("{error:#}"))
}

/// What a client with these options asks for.
pub(super) fn test(line: &str) -> Test {
    Test::new(&parse(line).unwrap(), &limits()).unwrap()
}

fn plan(line: &str) -> Plan {
    plan_on(&limits(), line, Role::Client).unwrap()
}

fn served(line: &str) -> Plan {
    plan_on(&limits(), line, Role::Server).unwrap()
}

#[track_caller]
fn refused(limits: &Limits, line: &str, wanted: &[&str]) {
    let error = plan_on(limits, line, Role::Client).unwrap_err();
    assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{line}: {error:?}, wanted {wanted:?}");
}

#[test]
fn defaults_are_those_of_perftest() {
    let lat = plan("lat send");
    let Test { kind, verb, connection, sizes, iters, duration, num_qp, .. } = lat.test.clone();
    assert_eq!((kind, verb, connection), (Kind::Lat, Verb::Send, Connection::Rc));
    assert_eq!((sizes, iters, duration, num_qp), (vec![2], 1000, None, 1));
    assert_eq!((lat.tx_depth, lat.rx_depth, lat.inline, lat.peak), (1, 512, 236, false));
    assert_eq!(
        (plan("lat write").inline, plan("lat send -c ud").inline, plan("lat read").inline),
        (220, 188, 0)
    );
    let bw = plan("bw write");
    assert_eq!((bw.test.sizes.as_slice(), bw.test.iters), ([65536].as_slice(), 5000));
    assert_eq!((bw.tx_depth, bw.rx_depth, bw.post_list, bw.inline, bw.peak), (128, 0, 1, 0, true));
    assert_eq!(plan("bw read").test.iters, 1000);
    assert_eq!(plan("bw atomic").test.sizes, [8]);
    // As large as a datagram can be.
    assert_eq!(plan("bw send -c UD").test.sizes, [2048]);
    let all = plan("lat send -a").test.sizes;
    assert_eq!((all.len(), all[0], all[22]), (23, 2, 1 << 23));
    assert_eq!(plan("lat send -c UD -a").test.sizes.last(), Some(&2048));
    assert_eq!(plan_on(&efa(), "bw send", Role::Client).unwrap().test.connection, Connection::Srd);
}

#[test]
fn completions_are_moderated_as_far_as_the_queue_allows() {
    for (line, cq_mod) in [
        ("bw send", 1),
        ("bw send -s 8192", 100),
        ("bw send -s 8193", 1),
        ("bw send -a", 100),
        ("bw send -s 64 -t 10", 10),
        ("bw send -s 64 -l 16", 16),
        ("bw send -Q 7", 7),
        ("lat send", 1),
    ] {
        assert_eq!(plan(line).cq_mod, cq_mod, "{line}");
    }
    assert_eq!(plan_on(&efa(), "bw send -s 64", Role::Client).unwrap().cq_mod, 1);
}

#[test]
fn peaks_are_looked_for_among_few() {
    assert!(plan("bw send -n 20000").peak && plan("bw send -n 20000 -q 20").peak);
    for line in
        ["bw send -n 20001", "bw send -n 20000 -q 51", "bw send -N", "bw send -D 1", "bw send --no-peak"]
    {
        assert!(!plan(line).peak, "{line}");
    }
}

#[test]
fn one_queue_has_room_for_all_completions() {
    // 128 operations of which every 100th completes, and the last: at most 4 at once, of 1000 QPs; and 64 that are being looked at.
    assert_eq!(plan("bw write -s 64 -q 1000").completions, 4064);
    assert_eq!(plan("bw write -s 64 -q 1000").rx_depth, 0);
    // As many receives as fit.
    let server = served("bw send -s 64 -q 1000");
    assert_eq!((server.rx_depth, server.completions), (32, 32064));
    let both = plan("bw send -s 64 -q 1000 -b");
    assert_eq!((both.rx_depth, both.completions), (28, 32064));
    let wanted = ["EINVAL", "--qp 1000 with --tx-depth 128 and --cq-mod 1 ", "128064", "32767"];
    refused(&limits(), "bw write -q 1000", &wanted);
    let wanted = ["--tx-depth 16, --cq-mod 16 and --rx-depth 512", "32767"];
    refused(&limits(), "bw send -b -q 1000 -t 16 -s 64 -r 512", &wanted);
    refused(&limits(), "bw write -q 5001", &["EINVAL", "--qp 5001", "5000"]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let here = limits();
    for (line, wanted) in [
        ("lat read -c UD", ["EINVAL", "--connection UD", "read goes over RC or SRD"]),
        ("bw read -c UC", ["EINVAL", "--connection UC", "read goes over RC or SRD"]),
        ("bw write -c UD", ["EINVAL", "--connection UD", "write goes over RC or UC or SRD"]),
        ("lat atomic -c UC", ["EINVAL", "--connection UC", "atomic goes over RC"]),
        ("lat send -c SRD", ["EOPNOTSUPP", "--connection SRD", "some0 has RC, UC and UD"]),
        ("lat atomic -s 4", ["EINVAL", "--size 4", "8 bytes"]),
        ("lat atomic -a", ["EINVAL", "--all", "8 bytes"]),
        ("lat send -c UD -s 2049", ["EINVAL", "--size 2049", "datagram, 2048"]),
        ("lat send -c UD -m 256 -s 257", ["EINVAL", "--size 257", "datagram, 256"]),
        ("bw write -s 1073741825", ["EINVAL", "--size 1073741825", "1073741824"]),
        ("bw write -m 4096", ["EINVAL", "--mtu 4096", "2048"]),
        ("lat write -e", ["EINVAL", "--events", "write"]),
        ("lat read -I 1", ["EINVAL", "--inline_size 1", "read"]),
        ("bw send -t 16385", ["EINVAL", "--tx-depth 16385", "16384"]),
        ("lat send -r 16385", ["EINVAL", "--rx-depth 16385", "16384"]),
        ("bw write -r 1", ["EINVAL", "--rx-depth", "write"]),
        ("bw send -t 4 -l 5", ["EINVAL", "--post_list 5", "--tx-depth 4"]),
        ("bw send -t 4 -Q 5", ["EINVAL", "--cq-mod 5", "--tx-depth 4"]),
    ] {
        refused(&here, line, &wanted);
    }
    refused(&Limits { has_atomics: false, ..here }, "bw atomic", &["EOPNOTSUPP", "some0 has no atomics"]);
    for (line, wanted) in [
        ("bw atomic", ["EINVAL", "--connection SRD", "atomic goes over RC"]),
        ("lat send -c RC", ["EOPNOTSUPP", "--connection RC", "some0 has SRD and UD"]),
        ("bw send -s 8929", ["EINVAL", "--size 8929", "8928"]),
        ("bw send -s 64 -Q 2", ["EINVAL", "--cq-mod 2", "some0"]),
    ] {
        refused(&efa(), line, &wanted);
    }
    // What needs no receive there, and a size that only RDMA has.
    plan_on(&efa(), "lat write -e -s 65536", Role::Client).unwrap();
}

#[test]
fn wrong_usage_is_told_by_the_parser() {
    for line in [
        "lat",
        "lat recv",
        "lat send -q 2",
        "lat send -t 2",
        "bw send --histogram",
        "bw send -n 0",
        "bw send -s 0",
        "bw send -t 0",
        "bw send -Q 0",
        "bw send -D 0",
        "bw send -D 1 -n 1",
        "bw send -s 4 -a",
        "bw send -m 1000",
        "bw send -c XRC",
        "bw send host --loopback",
        "bw send -p 0",
        "bw send --timeout 0",
        "bw send --timeout 18446744073709551615",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("bw send host -c uc -N --report_gbits -b -l 2 -S 3 -x 1 -i 1 -p 1").is_ok());
}

#[test]
fn a_server_agrees_to_the_same_or_to_anything() {
    let agree = |client: &str, server: &str| {
        test(client).agree(&parse(server).unwrap()).map_err(|error| error.to_string())
    };
    let client = "bw send -s 64 -n 10 -q 2 -c UC -m 1024 -b";
    assert_eq!(agree(client, client), Ok(()));
    assert_eq!(agree(client, "bw send -t 5 -r 10"), Ok(()));
    assert_eq!(agree("lat send -a -D 3", "lat send -a -D 3"), Ok(()));
    for (client, server, wanted) in [
        (client, "lat send", "the client runs bw send, the server lat send"),
        (client, "bw read", "the client runs bw send, the server bw read"),
        (client, "bw send -s 65", "the client has --size 64, the server 65"),
        (client, "bw send -a", "the client has --size 64, the server all"),
        ("bw send -a", "bw send -s 64", "the client has --size all, the server 64"),
        (client, "bw send -n 11", "the client has --iters 10, the server 11"),
        (client, "bw send -D 1", "the client has --duration none, the server 1"),
        ("bw send -D 1", "bw send -n 1000", "the client has --iters none, the server 1000"),
        (client, "bw send -q 1", "the client has --qp 2, the server 1"),
        (client, "bw send -c RC", "the client has --connection UC, the server RC"),
        (client, "bw send -m 256", "the client has --mtu 1024, the server 256"),
        ("bw send", "bw send -m 256", "the client has --mtu none, the server 256"),
        ("bw send", "bw send -b", "the server has --bidirectional, the client has not"),
    ] {
        let error = agree(client, server).unwrap_err();
        assert!(error.starts_with(wanted), "{client}; {server}: {error:?}");
    }
}

#[test]
fn a_server_is_not_fooled() {
    let command = parse("bw send").unwrap();
    let sound = Test::new(&command, &limits()).unwrap();
    for wrong in [
        Test { sizes: vec![], ..sound.clone() },
        Test { sizes: vec![4, 0], ..sound.clone() },
        Test { num_qp: 0, ..sound.clone() },
        Test { duration: Some(u64::MAX), ..sound.clone() },
        Test { mtu: Some(1000), ..sound.clone() },
    ] {
        let error = wrong.agree(&command).unwrap_err().to_string();
        assert!(error.starts_with("EINVAL: the client asks for what cannot be"), "{error}");
    }
    // It checks all else as a client does.
    let served = |test| Plan::new(test, &command, &limits(), Role::Server).map_err(|error| error.to_string());
    assert!(served(sound.clone()).is_ok());
    assert!(
        served(Test { verb: Verb::Read, connection: Connection::Ud, ..sound.clone() })
            .unwrap_err()
            .contains("UD")
    );
    assert!(served(Test { num_qp: u32::MAX, ..sound.clone() }).unwrap_err().contains("--qp 4294967295"));
    assert!(
        served(Test { sizes: vec![u32::MAX], ..sound.clone() }).unwrap_err().contains("--size 4294967295")
    );
    assert!(served(Test { mtu: Some(4096), ..sound }).unwrap_err().contains("--mtu 4096"));
}

/// What arrives after a run is not counted in the next.
#[test]
fn stragglers_are_not_counted() {
    let plans = [plan("bw send -c UD -s 64"), served("bw send -c UD -s 64")];
    let context = uverbs::soft::device("soft0").unwrap().open().unwrap();
    let domain = context.alloc_protection_domain().unwrap();
    let gid = context.query_gid(1, 1).unwrap();
    let mut ends = plans.each_ref().map(|plan| End::new(plan, &context, &domain).unwrap());
    let [one, other] = ends
        .each_ref()
        .map(|end| end.qp_nums().map(|number| Endpoint::new(0, gid.gid, number)).collect::<Vec<_>>());
    let route = Route { port: 1, gid, service_level: 0, mtu: Mtu::Bytes1024, reads: [0, 0] };
    let target = ends[0].target();
    ends[0].connect(&one, &other, target, &route).unwrap();
    ends[1].connect(&other, &one, target, &route).unwrap();
    let [client, server] = &mut ends;
    client.post(0, 64, 5, None).unwrap();
    while client.sent < 5 {
        client.poll().unwrap();
    }
    server.begin().unwrap();
    assert!(!server.poll().unwrap());
    assert_eq!(server.received, 0);
}
