//! `uverbs info -v` beside `ibv_devinfo -v`: what both print has to be the same.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;

/// What `uverbs` alone may print, some of it because `ibv_devinfo` leaves it out at times or has another form for zeros.
const OURS: [&str; 9] = [
    "node_type",
    "driver",
    "completion_timestamp_mask",
    "hca_core_clock",
    "raw_packet_caps",
    "max_cq_count",
    "max_cq_period",
    "max_dm_size",
    "phys_state",
];

/// What a provider of libibverbs may tell, and not the kernel, with the heads of its lists; and the speed of a port, which is that
/// of a lane times its width.
const THEIRS: [&str; 9] = [
    "tso_caps",
    "max_tso",
    "rss_caps",
    "rx_hash_function",
    "rx_hash_fields_mask",
    "packet_pacing_caps",
    "qp_rate_limit_min",
    "qp_rate_limit_max",
    "effective_speed",
];

/// How many properties of the device are the same, or which are not.
pub(super) fn compare(device: &str) -> Result<usize> {
    let ours = host::output(Command::new("uverbs").args(["info", "-v", "-d", device]))?;
    let theirs = host::output(Command::new("ibv_devinfo").args(["-v", "-d", device]))?;
    compare_texts(&ours, &theirs)
        .with_context(|| format!("uverbs info -v says\n{ours}and ibv_devinfo -v\n{theirs}"))
}

fn compare_texts(ours: &str, theirs: &str) -> Result<usize> {
    let (mut ours, mut theirs) = (properties(ours), properties(theirs));
    ours.retain(|name, _| theirs.contains_key(name) || !OURS.contains(&name.as_str()));
    theirs.retain(|name, _| ours.contains_key(name) || !THEIRS.contains(&name.as_str()));
    // libibverbs has no names for most of these bits.
    for properties in [&mut ours, &mut theirs] {
        if let Some(flags) = properties.get_mut("device_cap_flags_ex") {
            flags.truncate(1);
        }
    }
    let names: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    let differ = names.iter().find(|name| ours.get(**name) != theirs.get(**name));
    if let Some(name) = differ {
        anyhow::bail!("{name} is {:?}, and {:?} of libibverbs", ours.get(*name), theirs.get(*name));
    }
    ensure!(!ours.is_empty(), "nothing to compare");
    Ok(ours.len())
}

/// Values by name: what stands beside it, and then what its bits are called.
fn properties(text: &str) -> BTreeMap<String, Vec<String>> {
    const BIT: &str = "\t\t\t\t\t";
    let mut properties: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = None;
    for line in text.lines() {
        if let Some(bit) = line.strip_prefix(BIT) {
            let values = last.as_ref().and_then(|name| properties.get_mut(name));
            values.into_iter().for_each(|values: &mut Vec<String>| values.push(bit.trim().to_owned()));
        } else if let Some((name, value)) = line.split_once(':') {
            let values = Some(value.trim()).filter(|value| !value.is_empty()).map(str::to_owned);
            properties.insert(name.trim().to_owned(), values.into_iter().collect());
            last = Some(name.trim().to_owned());
        }
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "hca_id:\trxe0\n\tdriver:   rxe\n\tflags:    0x3\n\t\t\t\t\tONE\n\t\t\t\t\tTWO\n\t\tport:\t1\n\t\t\t\
                        GID[  0]:   fe80::1, RoCE v2\n\n";

    #[test]
    fn the_same_in_another_form() {
        let theirs = "hca_id:\trxe0\n\tflags:\t\t\t0x3\n\t\t\t\t\tONE\n\t\t\t\t\tTWO\n\tcore clock not supported\n\t\
                      tso_caps:\n\t\tmax_tso:\t\t0\n\t\tport:\t1\n\t\t\tGID[  0]:\t\tfe80::1, RoCE v2\n";
        assert_eq!(compare_texts(OURS, theirs).unwrap(), 4);
        for (from, to) in
            [("0x3", "0x2"), ("TWO\n", "FOUR\n"), ("fe80::1", "fe80::2"), ("\t\tport:\t1\n", "")]
        {
            let error = compare_texts(OURS, &theirs.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(" is ") && error.contains("of libibverbs"), "{error}");
        }
        assert!(compare_texts("", "").is_err());
    }
}
