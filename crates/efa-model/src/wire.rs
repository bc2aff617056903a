//! Devices that reach each other.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::config::Gid;
use crate::device::Device;
use crate::host::{GuestMemory, Interrupts};
use crate::packet::Packet;

/// Devices on one wire. A packet for an address that no device has is lost.
#[derive(Debug)]
pub struct Wire<M, I> {
    devices: Vec<(Gid, Mutex<Device<M, I>>)>,
    clock: OnceLock<Thread>,
}

impl<M: GuestMemory, I: Interrupts> Wire<M, I> {
    /// Connects devices.
    pub fn new(devices: impl IntoIterator<Item = Device<M, I>>) -> Self {
        let devices = devices.into_iter().map(|device| (device.config().gid(), Mutex::new(device)));
        Self { devices: devices.collect(), clock: OnceLock::new() }
    }

    fn lock(device: &Mutex<Device<M, I>>) -> MutexGuard<'_, Device<M, I>> {
        device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a device and carries what it sends to its peers.
    ///
    /// # Panics
    /// If there is no device with this index.
    pub fn with<T>(&self, index: usize, act: impl FnOnce(&mut Device<M, I>) -> T) -> T {
        // One device is locked at a time, so there is no order to keep.
        let (result, mut packets) = self.act(&self.devices[index].1, act);
        while let Some(packet) = packets.pop_front() {
            match self.devices.iter().find(|(gid, _)| *gid == packet.destination) {
                Some((_, device)) => {
                    let receive = |device: &mut Device<M, I>| device.receive(Instant::now(), packet);
                    packets.extend(self.act(device, receive).1);
                }
                None => log::debug!("packet for {}, which is not on the wire", packet.destination),
            }
        }
        result
    }

    fn act<T>(
        &self,
        device: &Mutex<Device<M, I>>,
        act: impl FnOnce(&mut Device<M, I>) -> T,
    ) -> (T, VecDeque<Packet>) {
        let mut device = Self::lock(device);
        let before = device.poll_timeout();
        let result = act(&mut device);
        let packets = iter::from_fn(|| device.poll_transmit()).collect();
        let after = device.poll_timeout();
        if after.is_some_and(|after| before.is_none_or(|before| after < before))
            && let Some(clock) = self.clock.get()
        {
            clock.unpark();
        }
        (result, packets)
    }

    /// When [`Wire::handle_timeouts`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.devices.iter().filter_map(|(_, device)| Self::lock(device).poll_timeout()).min()
    }

    /// Lets all devices do what is to be done by now.
    pub fn handle_timeouts(&self, now: Instant) {
        for index in 0..self.devices.len() {
            self.with(index, |device| device.handle_timeout(now));
        }
    }

    /// Keeps the devices' time, for ever.
    pub fn run_clock(&self) -> ! {
        // Whoever comes first keeps it; a second clock does no harm.
        let _ = self.clock.set(thread::current());
        loop {
            match self.poll_timeout() {
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
            self.handle_timeouts(Instant::now());
        }
    }
}
