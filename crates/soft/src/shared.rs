//! The devices that all of the process shares.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::device::Device;
use crate::wire::Wire;

/// Name of the environment variable that says how many devices there are to be in lists.
pub const VARIABLE: &str = "UVERBS_SOFT";

/// More than this are not listed.
const MOST: usize = 64;

#[derive(Debug, Default)]
struct Shared {
    wire: Wire,
    devices: Mutex<Vec<Device>>,
}

impl Shared {
    fn get() -> &'static Self {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(Self::default)
    }

    /// The first `count` devices, made if they are not there yet.
    fn first(&self, count: usize) -> Vec<Device> {
        let mut devices = self.devices.lock();
        for index in devices.len()..count {
            devices.push(Device::new(&self.wire, &format!("soft{index}")));
        }
        devices[..count].to_vec()
    }
}

/// The devices `soft0`, `soft1` and so on that lists have: as many as the [environment variable](VARIABLE) says, up to 64. None without it.
pub fn devices() -> Vec<Device> {
    let count = std::env::var(VARIABLE).ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    Shared::get().first(MOST.min(count))
}

/// The device of that name, `soft0` to `soft63`, whether lists have it or not.
pub fn device(name: &str) -> Option<Device> {
    let index: usize = name.strip_prefix("soft")?.parse().ok().filter(|index| *index < MOST)?;
    let device = Shared::get().first(index + 1).pop()?;
    (device.name() == name).then_some(device)
}
