//! One command of the ioctl interface, built on the stack.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use uverbs_uapi::ioctl::{Attr, AttrFlags, IoctlHdr};
use uverbs_uapi::ioctl_cmds::attr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Errno, Result, Transport};

/// The most attributes a command can have. The widest method of Linux 7.3, creation of a QP, takes 20.
pub const MAX_ATTRIBUTES: usize = 20;

/// What the kernel reads: `struct ib_uverbs_ioctl_hdr` and its attributes.
///
/// Only [`Command`] makes one, so that the pointers and lengths in it are those of live borrows. Tests that need a wrong one lay out the same
/// bytes, and see to that themselves.
#[repr(C)]
pub struct Packet {
    header: IoctlHdr,
    attributes: [Attr; MAX_ATTRIBUTES],
}

impl Packet {
    /// The header, with `length`, `num_attrs` and `driver_id` filled in.
    pub fn header(&self) -> &IoctlHdr {
        &self.header
    }

    /// The attributes in use.
    pub fn attributes(&self) -> &[Attr] {
        &self.attributes[..usize::from(self.header.num_attrs)]
    }

    /// The attributes in use, for a transport to write new handles and `VALID_OUTPUT` flags into.
    pub fn attributes_mut(&mut self) -> &mut [Attr] {
        &mut self.attributes[..usize::from(self.header.num_attrs)]
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("header", &self.header)
            .field("attributes", &self.attributes())
            .finish()
    }
}

/// Builds and issues one method call on one kind of object.
///
/// Each setter names an attribute by its id in that method and borrows what the kernel will read or write for as long as the
/// command lives. All attributes are marked mandatory, so a kernel that does not know one refuses the command
/// (`EPROTONOSUPPORT`) instead of ignoring it; [`optional`](Command::optional) lifts that for the last one added.
///
/// ```
/// # use uverbs_ioctl::{Command, Errno, Packet, Result, Transport};
/// # use uverbs_ioctl::uapi::ioctl_cmds::{attr, method, object};
/// # fn query(transport: &dyn Transport) -> Result<u32> {
/// let mut vectors = 0_u32;
/// let mut command = Command::new(object::DEVICE, method::device::GET_CONTEXT);
/// command.output(attr::get_context::NUM_COMP_VECTORS, &mut vectors);
/// // SAFETY: the method defines that attribute as an output of 32 bits.
/// unsafe { command.issue(transport) }?;
/// # Ok(vectors)
/// # }
/// ```
#[derive(Debug)]
pub struct Command<'a> {
    packet: Packet,
    /// Attributes asked for, which may be more than fit, and whether a value was too long for its 16-bit length.
    count: usize,
    too_long: bool,
    borrows: PhantomData<&'a mut [u8]>,
}

impl<'a> Command<'a> {
    /// A command without attributes.
    pub fn new(object: u16, method: u16) -> Self {
        Self {
            packet: Packet {
                header: IoctlHdr { object_id: object, method_id: method, ..Default::default() },
                attributes: [Attr::default(); MAX_ATTRIBUTES],
            },
            count: 0,
            too_long: false,
            borrows: PhantomData,
        }
    }

    /// A handle of an existing object.
    pub fn handle(&mut self, id: u16, handle: u32) -> &mut Self {
        self.push(id, 0, u64::from(handle))
    }

    /// Room for the handle of a new object: [`new_handle`](Self::new_handle) reads it.
    pub fn create(&mut self, id: u16) -> &mut Self {
        self.push(id, 0, 0)
    }

    /// An open file: of an event channel, or a raw one such as a dma-buf.
    pub fn fd(&mut self, id: u16, fd: BorrowedFd<'a>) -> &mut Self {
        self.push(id, 0, u64::from(fd.as_raw_fd().cast_unsigned()))
    }

    /// A value of up to 64 bits that the method defines as constant or enumeration.
    pub fn constant(&mut self, id: u16, value: u64) -> &mut Self {
        self.push(id, 8, value)
    }

    /// A flag word. An unknown bit is `EINVAL`.
    pub fn flags(&mut self, id: u16, value: u32) -> &mut Self {
        self.constant(id, u64::from(value))
    }

    /// A value that the kernel reads. Up to 8 bytes travel inside the attribute.
    pub fn input<T: IntoBytes + Immutable + ?Sized>(&mut self, id: u16, value: &'a T) -> &mut Self {
        self.input_bytes(id, value.as_bytes())
    }

    /// A value that the kernel writes. It is never inline, however small.
    pub fn output<T: FromBytes + IntoBytes + ?Sized>(&mut self, id: u16, value: &'a mut T) -> &mut Self {
        let bytes = value.as_mut_bytes();
        let length = self.length(bytes.len());
        self.push(id, length, bytes.as_mut_ptr().expose_provenance() as u64)
    }

    /// Handles of existing objects.
    pub fn handles(&mut self, id: u16, handles: &'a [u32]) -> &mut Self {
        self.input_bytes(id, handles.as_bytes())
    }

    /// What the driver, not the core, reads: `UVERBS_ATTR_UHW_IN`. No attribute if it has no bytes.
    pub fn driver_input<T: IntoBytes + Immutable>(&mut self, value: &'a T) -> &mut Self {
        if size_of::<T>() > 0 { self.input(attr::uhw::IN, value) } else { self }
    }

    /// What the driver, not the core, writes: `UVERBS_ATTR_UHW_OUT`. No attribute if it has no bytes.
    pub fn driver_output<T: FromBytes + IntoBytes>(&mut self, value: &'a mut T) -> &mut Self {
        if size_of::<T>() > 0 { self.output(attr::uhw::OUT, value) } else { self }
    }

    /// Lets a kernel that does not know the attribute added last ignore it.
    pub fn optional(&mut self) -> &mut Self {
        if let Some(last) = self.packet.attributes[..self.count.min(MAX_ATTRIBUTES)].last_mut() {
            last.flags &= !AttrFlags::MANDATORY.bits();
        }
        self
    }

    /// Issues the command.
    ///
    /// # Safety
    /// Each attribute was given by the setter for the kind that the method's definition in the kernel gives it, with a value
    /// of the type that it names. (The kernel writes through an attribute that the method defines as an output, whichever
    /// setter it came from.) No value contains a pointer that the kernel would write through.
    ///
    /// # Errors
    /// The transport's, or `E2BIG` if there are more than [`MAX_ATTRIBUTES`] attributes or a value is longer than 65 535
    /// bytes.
    pub unsafe fn issue(&mut self, transport: &dyn Transport) -> Result<()> {
        if self.count > MAX_ATTRIBUTES || self.too_long {
            return Err(Errno::E2BIG);
        }
        let header = &mut self.packet.header;
        header.num_attrs = self.count as u16;
        header.length = (size_of::<IoctlHdr>() + self.count * size_of::<Attr>()) as u16;
        header.driver_id = transport.driver_id();
        transport.issue(&mut self.packet)
    }

    /// The handle of the object that the issued command created. It means nothing if the command failed.
    pub fn new_handle(&self, id: u16) -> u32 {
        self.find(id).map_or(0, |attribute| attribute.data as u32)
    }

    /// The file that the issued command created, or nothing if it returned none.
    ///
    /// # Safety
    /// The command has succeeded, `id` is an attribute of it that creates a file, and nothing has taken the file before.
    pub unsafe fn new_fd(&self, id: u16) -> Option<OwnedFd> {
        let fd = RawFd::try_from(self.find(id)?.data).ok()?;
        // SAFETY: the caller vouches that the kernel made this descriptor for us and that we are its only owner.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Whether the kernel says that it has written this output.
    pub fn is_written(&self, id: u16) -> bool {
        self.find(id).is_some_and(|attribute| attribute.flags & AttrFlags::VALID_OUTPUT.bits() != 0)
    }

    fn find(&self, id: u16) -> Option<&Attr> {
        self.packet.attributes().iter().find(|attribute| attribute.attr_id == id)
    }

    fn length(&mut self, bytes: usize) -> u16 {
        u16::try_from(bytes).unwrap_or_else(|_| {
            self.too_long = true;
            u16::MAX
        })
    }

    fn input_bytes(&mut self, id: u16, bytes: &'a [u8]) -> &mut Self {
        let length = self.length(bytes.len());
        let mut inline = [0; 8];
        let data = match inline.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                u64::from_ne_bytes(inline)
            }
            None => bytes.as_ptr().expose_provenance() as u64,
        };
        self.push(id, length, data)
    }

    fn push(&mut self, id: u16, length: u16, data: u64) -> &mut Self {
        if let Some(slot) = self.packet.attributes.get_mut(self.count) {
            *slot = Attr {
                attr_id: id,
                len: length,
                flags: AttrFlags::MANDATORY.bits(),
                data,
                ..Default::default()
            };
        }
        self.count += 1;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Doorbell;
    use memmap2::MmapRaw;

    /// Records the packet and answers as told.
    #[derive(Debug)]
    struct Recorder(std::sync::Mutex<Vec<Attr>>);

    // SAFETY: it writes nothing through the attributes and maps nothing.
    unsafe impl Transport for Recorder {
        fn driver_id(&self) -> u32 {
            14
        }
        fn issue(&self, packet: &mut Packet) -> Result<()> {
            assert_eq!(usize::from(packet.header().length), 24 + 16 * packet.attributes().len());
            assert_eq!(packet.header().driver_id, 14);
            *self.0.lock().unwrap() = packet.attributes().to_vec();
            if let Some(first) = packet.attributes_mut().first_mut() {
                first.data = 7;
                first.flags |= AttrFlags::VALID_OUTPUT.bits();
            }
            Ok(())
        }
        fn doorbell(&self, _: Doorbell) -> Result<()> {
            Err(Errno::EINVAL)
        }
        fn map(&self, _: u64, _: usize) -> Result<MmapRaw> {
            Err(Errno::EINVAL)
        }
    }

    fn issue(command: &mut Command<'_>, transport: &dyn Transport) -> Result<()> {
        // SAFETY: nothing here writes through attributes.
        unsafe { command.issue(transport) }
    }

    fn recorder() -> Recorder {
        Recorder(std::sync::Mutex::new(Vec::new()))
    }

    #[test]
    fn values_up_to_eight_bytes_travel_inline() {
        let transport = recorder();
        let (four, eight, nine) = ([1_u8, 2, 3, 4], 0x0102_0304_0506_0708_u64, [9_u8; 9]);
        let mut command = Command::new(3, 0);
        command.input(0, &four).input(1, &eight).input(2, &nine).input(3, &[0_u8; 0]);
        issue(&mut command, &transport).unwrap();
        let seen = transport.0.lock().unwrap();
        assert_eq!((seen[0].len, seen[0].data.to_ne_bytes()), (4, [1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!((seen[1].len, seen[1].data), (8, eight));
        assert_eq!((seen[2].len, seen[2].data), (9, nine.as_ptr() as u64));
        assert_eq!((seen[3].len, seen[3].data), (0, 0));
        assert!(seen.iter().all(|a| a.flags == AttrFlags::MANDATORY.bits()));
    }

    #[test]
    fn sp_7_values_of_no_bytes_and_as_many_attributes_as_fit() {
        let transport = recorder();
        let (nothing, none, mut driver): ([u8; 0], [u32; 0], ()) = ([], [], ());
        let mut command = Command::new(3, 0);
        command.input(0, &nothing).handles(1, &none).driver_input(&()).driver_output(&mut driver);
        issue(&mut command, &transport).unwrap();
        // No pointer where there is nothing to read, and no attribute for a driver that is given nothing.
        let seen: Vec<_> = transport.0.lock().unwrap().iter().map(|a| (a.attr_id, a.len, a.data)).collect();
        assert_eq!(seen, [(0, 0, 0), (1, 0, 0)]);

        let mut command = Command::new(3, 0);
        (0..MAX_ATTRIBUTES).for_each(|id| _ = command.constant(id as u16, id as u64));
        issue(&mut command, &transport).unwrap();
        let seen: Vec<_> = transport.0.lock().unwrap().iter().map(|a| a.data).collect();
        assert!(seen.into_iter().eq(0..MAX_ATTRIBUTES as u64));
        assert_eq!(issue(command.constant(99, 0), &transport), Err(Errno::E2BIG));
    }

    #[test]
    fn outputs_are_pointers_however_small() {
        let transport = recorder();
        let mut byte = 0_u8;
        let address = &raw mut byte as u64;
        issue(Command::new(0, 0).output(5, &mut byte).optional(), &transport).unwrap();
        let seen = transport.0.lock().unwrap();
        assert_eq!((seen[0].attr_id, seen[0].len, seen[0].flags, seen[0].data), (5, 1, 0, address));
    }

    #[test]
    fn replies_are_read_by_attribute() {
        let mut command = Command::new(3, 0);
        issue(command.create(4).constant(1, 1), &recorder()).unwrap();
        assert_eq!(command.new_handle(4), 7);
        assert!(command.is_written(4));
        assert!(!command.is_written(1));
        assert!(!command.is_written(9));
        assert_eq!(command.new_handle(9), 0);
    }

    #[test]
    fn too_many_attributes_and_too_long_values_are_refused() {
        let mut command = Command::new(3, 0);
        for id in 0..=MAX_ATTRIBUTES {
            command.constant(id as u16, 0);
        }
        assert_eq!(issue(&mut command, &recorder()), Err(Errno::E2BIG));
        let long = vec![0_u8; 65_536];
        assert_eq!(issue(Command::new(3, 0).input(0, &long[..]), &recorder()), Err(Errno::E2BIG));
        assert_eq!(issue(Command::new(3, 0).input(0, &long[1..]), &recorder()), Ok(()));
    }
}
