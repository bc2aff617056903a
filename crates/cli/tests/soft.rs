//! The program on devices inside its process, as anybody and anywhere.

use std::process::{Command, Output};

fn uverbs(arguments: &[&str]) -> Output {
    uverbs_with("2", arguments)
}

/// The program with as many devices in its lists.
fn uverbs_with(count: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.args(arguments).env("UVERBS_SOFT", count).output().unwrap()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = uverbs(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&succeeds(&[arguments, &["--json"]].concat())).unwrap()
}

#[test]
fn ping_pongs_of_all_kinds_check_every_message() {
    for kind in ["rc", "uc", "ud", "srq"] {
        for events in [&[][..], &["-e"]] {
            let arguments =
                [&["pingpong", kind, "-d", "soft1", "--loopback", "-c", "-n", "200"], events].concat();
            let report = json(&arguments);
            assert_eq!(report["ifname"], "soft1");
            // With an SRQ, each of its QPs finishes its round.
            assert!(report["checked"].as_u64() >= Some(400), "{report}");
        }
    }
}

#[test]
fn loopback_says_which_device_it_takes() {
    let shown = succeeds(&["pingpong", "rc", "--loopback"]);
    assert!(shown.starts_with("  device:         ") && shown.contains("1000 iters in "), "{shown}");
}

#[test]
fn devices_are_listed_and_shown() {
    let listed = json(&["devices"]);
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|row| row["ifname"].as_str().unwrap()).collect();
    assert!(names.ends_with(&["soft0", "soft1"]), "{names:?}");
    let shown = succeeds(&["info", "-d", "soft0"]);
    assert!(shown.contains("soft0") && shown.contains("PORT_ACTIVE"), "{shown}");
}

#[test]
fn completion_counters_count() {
    succeeds(&["counters", "caps", "-d", "soft0"]);
    succeeds(&["counters", "run", "-d", "soft0", "--errors"]);
}

#[test]
fn unknown_devices_are_named() {
    let output = uverbs(&["pingpong", "rc", "-d", "soft", "--loopback"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no device soft;"), "{text}");
}

#[test]
fn numbers_of_devices_that_make_no_sense_are_named() {
    let listed = |count| {
        let output = uverbs_with(count, &["devices", "--json"]);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    for count in ["two", "-1", "0x2", " 2", "1.0", "65", "1000000", "99999999999999999999999"] {
        let (status, text) = listed(count);
        assert_eq!(status, Some(1), "{count}: {text}");
        assert!(
            text.contains(&format!("UVERBS_SOFT={count:?} is no number of devices from 0 to 64")),
            "{text}"
        );
    }
    for (count, number) in [("", 0), ("0", 0), ("1", 1), ("64", 64)] {
        let (status, text) = listed(count);
        assert_eq!((status, text.matches("\"soft").count()), (Some(0), number), "{count}: {text}");
    }
}

#[test]
fn no_port_is_zero() {
    for arguments in [&["pingpong", "rc", "-p", "0", "127.0.0.1"][..], &["bench", "lat", "send", "-p", "0"]] {
        let output = uverbs(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}
