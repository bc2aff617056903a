//! Devices served over vfio-user: as PCI devices to QEMU, for one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_BAR1_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
};

use crate::config::Config;
use crate::device::Device;
use crate::host::{GuestMemory, Interrupts, NoMemory};
use crate::registers::DoorbellPages;
use crate::wire::Wire;

/// PCI vendor.
const VENDOR: u16 = 0x1d0f;

/// Ethernet controller, as the real device says.
const CLASS: [u8; 3] = [0x00, 0x00, 0x02];

const CONFIG_SPACE_SIZE: usize = 256;

/// BAR 1 holds the table of interrupt vectors, and in its second page the bits of pending ones.
const VECTOR_BAR_SIZE: u64 = 0x2000;
const PENDING_OFFSET: u32 = 0x1000;
const VECTOR_BAR: u32 = 1;

mod config_space {
    pub(super) const COMMAND: usize = 0x04;
    pub(super) const STATUS: usize = 0x06;
    pub(super) const CLASS: usize = 0x09;
    pub(super) const BAR_2: usize = 0x18;
    pub(super) const SUBSYSTEM: usize = 0x2c;
    pub(super) const CAPABILITIES: usize = 0x34;
    pub(super) const INTERRUPT_LINE: usize = 0x3c;
    pub(super) const MSIX: usize = 0x40;
    pub(super) const MSIX_CONTROL_HIGH: usize = MSIX + 3;
    pub(super) const HAS_CAPABILITIES: u8 = 1 << 4;
    pub(super) const BAR_64_BIT_PREFETCHABLE: u8 = 0xc;
    pub(super) const MSIX_ID: u8 = 0x11;
    /// Enable, and mask all.
    pub(super) const MSIX_WRITABLE: u8 = 0xc0;
}

/// Memory that vfio-user clients have shared, or of the device itself.
#[derive(Debug, Default)]
pub struct MappedMemory {
    regions: GuestMemoryMmap,
}

impl MappedMemory {
    fn map(&mut self, address: u64, size: u64, file: File, offset: u64) -> Result<()> {
        let size = usize::try_from(size)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), size)?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(address)).context("address out of range")?;
        self.regions = self.regions.insert_region(Arc::new(region))?;
        Ok(())
    }

    /// Forgets all regions inside a range.
    fn unmap(&mut self, address: u64, size: u64) {
        use vm_memory::GuestMemoryRegion;
        let end = address.saturating_add(size);
        let gone: Vec<(GuestAddress, u64)> = self
            .regions
            .iter()
            .map(|region| (region.start_addr(), region.len()))
            .filter(|(start, length)| start.0 >= address && start.0.saturating_add(*length) <= end)
            .collect();
        for (start, length) in gone {
            match self.regions.remove_region(start, length) {
                Ok((rest, _)) => self.regions = rest,
                Err(error) => log::warn!("cannot unmap {:#x}: {error}", start.0),
            }
        }
    }

    /// Fails unless all of a range is there: nothing is read or written by halves.
    fn check(&self, address: u64, length: usize) -> Result<GuestAddress, NoMemory> {
        let address_there = GuestAddress(address);
        if self.regions.check_range(address_there, length) {
            Ok(address_there)
        } else {
            Err(NoMemory { address, length })
        }
    }
}

impl GuestMemory for MappedMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory> {
        let at = self.check(address, bytes.len())?;
        self.regions.read_slice(bytes, at).map_err(|_| NoMemory { address, length: bytes.len() })
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        let at = self.check(address, bytes.len())?;
        self.regions.write_slice(bytes, at).map_err(|_| NoMemory { address, length: bytes.len() })
    }

    fn publish(&mut self, address: u64, bytes: &[u8], last: usize) -> Result<(), NoMemory> {
        self.check(address, bytes.len())?;
        let (before, rest) = bytes.split_at(last);
        let Some((flag, after)) = rest.split_first() else { return self.write(address, bytes) };
        self.write(address, before)?;
        let place = address + last as u64;
        if !after.is_empty() {
            self.write(place + 1, after)?;
        }
        self.regions
            .store(*flag, GuestAddress(place), Ordering::Release)
            .map_err(|_| NoMemory { address, length: bytes.len() })
    }

    fn store(&mut self, address: u64, value: u64) -> Result<(), NoMemory> {
        self.regions
            .store(value.to_le(), GuestAddress(address), Ordering::Release)
            .map_err(|_| NoMemory { address, length: size_of::<u64>() })
    }
}

/// Interrupts by event descriptors that the client has given.
#[derive(Debug, Default)]
pub struct EventFds {
    vectors: Vec<Option<File>>,
}

impl Interrupts for EventFds {
    fn raise(&mut self, vector: u8) {
        if let Some(Some(file)) = self.vectors.get_mut(usize::from(vector))
            && let Err(error) = file.write_all(&1u64.to_ne_bytes())
        {
            log::warn!("interrupt {vector}: {error}");
        }
    }
}

/// A device that vfio-user can serve.
pub type ServedDevice = Device<MappedMemory, EventFds>;

/// Makes a device and the file of its BAR 2.
pub fn device(config: Config) -> Result<(ServedDevice, File)> {
    let size = config.llq_size();
    let file = File::from(memfd_create("efa-llq", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, size)?;
    let mut llq = MappedMemory::default();
    llq.map(0, size, file.try_clone()?, 0).context("cannot map the memory of send queues")?;
    let device = Device::new(Instant::now(), config, MappedMemory::default(), llq, EventFds::default());
    Ok((device, file))
}

/// Serves a device of a wire on a socket, to one client after the other, for ever.
pub fn serve(socket: &Path, wire: &Wire<MappedMemory, EventFds>, index: usize, llq: &File) -> Result<()> {
    clear(socket)?;
    let (config_space, vectors, regions) = wire.with(index, |device| {
        let config = device.config();
        (ConfigSpace::new(config), config.vectors(), regions(config, llq.as_raw_fd()))
    });
    let server = Server::new(socket, true, interrupts(vectors), regions)
        .map_err(|error| anyhow!("cannot serve on {}: {error}", socket.display()))?;
    log::info!("{}: waiting for a client", socket.display());
    loop {
        let mut backend = Backend { config_space: config_space.clone(), wire, index };
        let end = server.run(&mut backend);
        wire.with(index, |device| {
            device.reset();
            *device.memory_mut() = MappedMemory::default();
            *device.interrupts_mut() = EventFds::default();
        });
        match end {
            Ok(()) => log::info!("{}: client gone", socket.display()),
            Err(error) => log::warn!("{}: {error}", socket.display()),
        }
    }
}

/// Removes the socket of a server that is gone.
fn clear(socket: &Path) -> Result<()> {
    let Ok(data) = fs::symlink_metadata(socket) else { return Ok(()) };
    if !data.file_type().is_socket() {
        bail!("{} exists and is no socket: give another path", socket.display());
    }
    if UnixStream::connect(socket).is_ok() {
        bail!("{} is served by another process: end it or give another path", socket.display());
    }
    fs::remove_file(socket).with_context(|| format!("cannot remove the old socket {}", socket.display()))
}

fn interrupts(vectors: u32) -> Vec<IrqInfo> {
    let interrupt = |index| match index {
        VFIO_PCI_MSIX_IRQ_INDEX => {
            IrqInfo { index, count: vectors, flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE }
        }
        _ => IrqInfo { index, count: 0, flags: 0 },
    };
    (0..VFIO_PCI_NUM_IRQS).map(interrupt).collect()
}

fn regions(config: &Config, llq: RawFd) -> Vec<ServerRegion> {
    const READ_WRITE: u32 = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    let region = |index| {
        let (size, flags) = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => (CONFIG_SPACE_SIZE as u64, READ_WRITE),
            VFIO_PCI_BAR0_REGION_INDEX => (DoorbellPages::new(&config.limits).bar_size(), READ_WRITE),
            VFIO_PCI_BAR1_REGION_INDEX => (VECTOR_BAR_SIZE, READ_WRITE),
            VFIO_PCI_BAR2_REGION_INDEX => (config.llq_size(), READ_WRITE | VFIO_REGION_INFO_FLAG_MMAP),
            _ => (0, 0),
        };
        // Programs write requests straight into this memory, with no message to us.
        let mapped = index == VFIO_PCI_BAR2_REGION_INDEX;
        let area = SparseArea { area: vfio_region_sparse_mmap_area { offset: 0, size } };
        ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                flags,
                index,
                size,
                ..vfio_region_info::default()
            },
            sparse_areas: if mapped { vec![area] } else { Vec::new() },
            mmap_fd: mapped.then_some(llq),
        }
    };
    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}

/// PCI configuration space.
#[derive(Clone, Debug)]
struct ConfigSpace([u8; CONFIG_SPACE_SIZE]);

impl ConfigSpace {
    fn new(config: &Config) -> Self {
        let mut space = [0; CONFIG_SPACE_SIZE];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        let mut id = VENDOR.to_le_bytes().to_vec();
        id.extend(config.device_id.to_le_bytes());
        put(0, &id);
        put(config_space::STATUS, &[config_space::HAS_CAPABILITIES]);
        put(config_space::CLASS, &CLASS);
        put(config_space::BAR_2, &[config_space::BAR_64_BIT_PREFETCHABLE]);
        put(config_space::SUBSYSTEM, &id);
        put(config_space::CAPABILITIES, &[config_space::MSIX as u8]);
        put(config_space::MSIX, &[config_space::MSIX_ID, 0]);
        put(config_space::MSIX + 2, &(config.vectors() as u16 - 1).to_le_bytes());
        put(config_space::MSIX + 4, &VECTOR_BAR.to_le_bytes());
        put(config_space::MSIX + 8, &(PENDING_OFFSET | VECTOR_BAR).to_le_bytes());
        Self(space)
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = self.0.get(offset + place).copied().unwrap_or(0);
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            let at = offset + place;
            let writable = match at {
                config_space::INTERRUPT_LINE => 0xff,
                config_space::MSIX_CONTROL_HIGH => config_space::MSIX_WRITABLE,
                _ if (config_space::COMMAND..config_space::STATUS).contains(&at) => 0xff,
                _ => continue,
            };
            self.0[at] = self.0[at] & !writable | byte & writable;
        }
    }
}

/// One client's view of a device.
struct Backend<'a> {
    config_space: ConfigSpace,
    wire: &'a Wire<MappedMemory, EventFds>,
    index: usize,
}

impl Backend<'_> {
    fn device<T>(&self, act: impl FnOnce(&mut ServedDevice) -> T) -> T {
        self.wire.with(self.index, act)
    }
}

impl ServerBackend for Backend<'_> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config_space.read(offset as usize, data),
            VFIO_PCI_BAR0_REGION_INDEX => match <&mut [u8; 4]>::try_from(data) {
                Ok(word) => *word = self.device(|device| device.read_register(offset)).to_le_bytes(),
                Err(_) => log::warn!("read at {offset:#x} of registers that is not of 4 bytes"),
            },
            VFIO_PCI_BAR2_REGION_INDEX => {
                if let Err(error) = self.device(|device| device.llq().read(offset, data)) {
                    log::warn!("BAR 2: {error}");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config_space.write(offset as usize, data),
            VFIO_PCI_BAR0_REGION_INDEX => match <[u8; 4]>::try_from(data) {
                Ok(word) => self.device(|device| {
                    device.write_register(Instant::now(), offset, u32::from_le_bytes(word));
                }),
                Err(_) => log::warn!("write at {offset:#x} of registers that is not of 4 bytes"),
            },
            VFIO_PCI_BAR2_REGION_INDEX => {
                if let Err(error) = self.device(|device| device.llq_mut().write(offset, data)) {
                    log::warn!("BAR 2: {error}");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let Some(file) = file else {
            // The memory of other devices, or a guest without `share=on`.
            log::debug!("{size:#x} bytes at {address:#x} are not shared, so DMA cannot reach them");
            return Ok(());
        };
        log::debug!("DMA reaches {size:#x} bytes at {address:#x}");
        self.device(|device| device.memory_mut().map(address, size, file, offset)).map_err(io::Error::other)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let (address, size) =
            if flags.contains(DmaUnmapFlags::UNMAP_ALL) { (0, u64::MAX) } else { (address, size) };
        log::debug!("DMA no longer reaches {size:#x} bytes at {address:#x}");
        self.device(|device| device.memory_mut().unmap(address, size));
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        log::info!("device reset by the client");
        self.device(Device::reset);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index == VFIO_PCI_MSIX_IRQ_INDEX {
            self.device(|device| {
                let vectors = device.config().vectors() as usize;
                let fds = &mut device.interrupts_mut().vectors;
                fds.resize_with(vectors, || None);
                if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
                    fds.fill_with(|| None);
                }
                for (vector, file) in (start as usize..).zip(files) {
                    if let Some(place) = fds.get_mut(vector) {
                        *place = Some(file);
                    }
                }
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(address: u64, size: u64) -> MappedMemory {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, size).unwrap();
        let mut memory = MappedMemory::default();
        memory.map(address, size, file, 0).unwrap();
        memory
    }

    #[test]
    fn memory_is_reached_inside_of_regions_only() {
        let mut memory = memory(0x1_0000, 0x2000);
        memory.write(0x1_0ffe, &[1, 2, 3, 4]).unwrap();
        memory.publish(0x1_1ff8, &[9; 8], 3).unwrap();
        memory.store(0x1_0008, 0x1122).unwrap();
        let mut bytes = [0; 4];
        memory.read(0x1_0ffe, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        memory.read(0x1_1ffc, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 4]);
        memory.read(0x1_0008, &mut bytes).unwrap();
        assert_eq!(bytes, [0x22, 0x11, 0, 0]);
        assert!(memory.write(0x1_1ffe, &[0xff; 4]).is_err());
        memory.read(0x1_1ffc, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 4], "nothing is written by halves");
        assert!(memory.read(u64::MAX - 1, &mut bytes).is_err());
        memory.unmap(0x1_0000, 0x1000);
        assert!(memory.read(0x1_0000, &mut bytes).is_ok());
        memory.unmap(0, u64::MAX);
        assert!(memory.read(0x1_0000, &mut bytes).is_err());
    }

    #[test]
    fn configuration_space_names_the_device() {
        let mut space = ConfigSpace::new(&Config::new(0));
        let mut bytes = [0; 4];
        space.read(0, &mut bytes);
        assert_eq!(bytes, [0x0f, 0x1d, 0xa3, 0xef]);
        space.write(0, &[0; 4]);
        space.write(config_space::MSIX + 2, &[0xff, 0xff]);
        space.read(config_space::MSIX, &mut bytes);
        assert_eq!(bytes, [0x11, 0, 8, 0xc0]);
        space.read(CONFIG_SPACE_SIZE - 2, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }
}
