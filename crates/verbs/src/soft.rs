//! Devices inside the process, with the feature `soft`: no RDMA in the kernel, no hardware and no privileges are needed.
//!
//! They answer as soft-RoCE of the kernel does, errors included, and reach each other, but no other process.
//! With `UVERBS_SOFT=2` in the environment [`Device::list`](crate::Device::list) has `soft0` and `soft1` too. The number is at most 64; 0, nothing, and
//! no such variable are the same.
//!
//! ```
//! # fn main() -> uverbs::Result<()> {
//! let context = uverbs::soft::device("soft0")?.open()?;
//! assert_eq!(context.query_port(1)?.state, uverbs::PortState::Active);
//! # Ok(())
//! # }
//! ```

use uverbs_ioctl::Errno;

pub use uverbs_soft::{Device, Faults, Limits, Wire};

use crate::error::{Error, Result};

/// How many devices lists have.
const VARIABLE: &str = "UVERBS_SOFT";

/// The devices that lists have.
pub(crate) fn listed() -> Result<Vec<Device>> {
    let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let Some(value) = value else { return Ok(Vec::new()) };
    let devices = value.to_str().and_then(|count| count.parse().ok()).and_then(uverbs_soft::devices);
    devices.ok_or_else(|| {
        let most = uverbs_soft::MOST;
        let detail = format!("{VARIABLE}={value:?} is no number of devices from 0 to {most}");
        Error::with("get_device_list", Errno::EINVAL, detail)
    })
}

/// The device of that name, `soft0` to `soft63`: one wire connects them, and all of the process shares them.
///
/// # Errors
/// [`NotFound`](crate::ErrorKind::NotFound) for another name.
pub fn device(name: &str) -> Result<crate::Device> {
    let device = uverbs_soft::device(name).map(crate::Device::from);
    device.ok_or_else(|| {
        Error::with("find_device", Errno::ENODEV, format!("no device {name}; there are soft0 to soft63"))
    })
}
