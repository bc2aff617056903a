//! The path MTU follows the active MTU of the port, never the largest that the device can do.

use serde_json::Value;
use uverbs::Mtu;

use crate::cli::{fails, succeeds};
use crate::common::{PORT, Setup, wait_until};
use crate::soft::{SoftDevice, ip};

crate::cases! {
    Kernel vb_33_the_path_mtu_is_at_most_the_active_one;
}

fn vb_33_the_path_mtu_is_at_most_the_active_one() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    // 1500 bytes are room for 1024 and the headers of RoCE.
    for (netdev, active, chosen) in [
        (1500, Mtu::Bytes1024, 1024),
        (700, Mtu::Bytes512, 512),
        (400, Mtu::Bytes256, 256),
        (9000, Mtu::Bytes4096, 1024),
        (1500, Mtu::Bytes1024, 1024),
    ] {
        ip(&["link", "set", soft.netdev(), "mtu", &netdev.to_string()]);
        let port = || context.query_port(PORT).unwrap();
        wait_until("the new MTU", || port().active_mtu == Some(active));
        assert_eq!(port().max_mtu, Some(Mtu::Bytes4096));
        // As the examples of libibverbs: not more than 1024 unless told to.
        let run = ["pingpong", "rc", "-d", soft.name(), "--loopback", "-c", "-s", "10000", "-n", "3"];
        let report: Value = serde_json::from_str(&succeeds(&[&run[..], &["--json"]].concat())).unwrap();
        assert_eq!((&report["mtu"], &report["checked"]), (&chosen.into(), &6.into()), "{netdev} bytes");
        let more = (2 * active.bytes()).to_string();
        if active == Mtu::Bytes4096 {
            succeeds(&[&run[..], &["-m", "4096"]].concat());
        } else {
            fails(
                &[&run[..], &["-m", &more]].concat(),
                &["EINVAL", &more, "active MTU", &active.to_string()],
            );
        }
        Setup::default().pair_in(&context).works();
    }
}
