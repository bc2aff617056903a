//! What a device needs of the machine that it sits in.

use std::fmt;

/// An access to an address where there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: usize,
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for {} bytes at {:#x}", self.length, self.address)
    }
}

impl std::error::Error for NoMemory {}

/// Memory by physical address. Nothing is read or written unless all of it is there.
pub trait GuestMemory {
    /// Reads bytes.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory>;

    /// Writes bytes.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory>;

    /// Writes bytes so that the one at `last` becomes visible after all others.
    fn publish(&mut self, address: u64, bytes: &[u8], last: usize) -> Result<(), NoMemory>;

    /// Stores 8 aligned bytes at once.
    fn store(&mut self, address: u64, value: u64) -> Result<(), NoMemory>;
}

/// Interrupts by message.
pub trait Interrupts {
    /// Raises the interrupt of a vector.
    fn raise(&mut self, vector: u8);
}
