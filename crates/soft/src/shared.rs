//! The devices that all of the process shares.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::device::Device;
use crate::wire::Wire;

/// How many devices there can be.
pub const MOST: usize = 64;

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

/// The first `count` of the devices `soft0`, `soft1` and so on. `None` if that is more than [`MOST`].
pub fn devices(count: usize) -> Option<Vec<Device>> {
    (count <= MOST).then(|| Shared::get().first(count))
}

/// The device of that name, `soft0` to `soft63`.
pub fn device(name: &str) -> Option<Device> {
    let index: usize = name.strip_prefix("soft")?.parse().ok().filter(|index| *index < MOST)?;
    let device = Shared::get().first(index + 1).pop()?;
    (device.name() == name).then_some(device)
}
