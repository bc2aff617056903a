//! Memory to register.

use std::fs::File;

use memmap2::{MmapOptions, MmapRaw};
use uverbs_ioctl::Errno;

use crate::error::{Error, Result};

const VERB: &str = "alloc_buf";

/// A stretch of memory of its own, page-aligned and zeroed, that only its owner and devices reach.
///
/// There is never a Rust reference into it, because a device may write it at any time.
///
/// ```no_run
/// use uverbs::{AccessFlags, Device, Memory};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let region = domain.register(Memory::huge_pages(2 << 20)?, AccessFlags::LOCAL_WRITE)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Memory(MmapRaw);

impl Memory {
    /// `length` bytes of ordinary memory.
    ///
    /// # Errors
    /// `EINVAL` if `length` is zero, `ENOMEM`.
    pub fn anonymous(length: usize) -> Result<Self> {
        Self::map(length, |options| Ok(options.map_anon()?.into()))
    }

    /// `length` bytes in huge pages of 2 MiB, which `length` is a multiple of.
    ///
    /// # Errors
    /// `EINVAL` if `length` is zero or no multiple; `ENOMEM` if there are too few huge pages: `/proc/sys/vm/nr_hugepages` sets them
    /// aside.
    pub fn huge_pages(length: usize) -> Result<Self> {
        const SHIFT: u8 = 21;
        // A mapping of another length could not be unmapped.
        if !length.is_multiple_of(1 << SHIFT) {
            let detail = format!("{length} bytes are no multiple of 2 MiB");
            return Err(Error::with(VERB, Errno::EINVAL, detail));
        }
        Self::map(length, |options| Ok(options.huge(Some(SHIFT)).map_anon()?.into()))
    }

    /// The first `length` bytes of a file, shared with it. Access beyond the end of the file raises `SIGBUS`, as with any mapping.
    ///
    /// # Errors
    /// `EINVAL` if `length` is zero, `EACCES` if the file is not open for reading and writing.
    pub fn file(file: &File, length: usize) -> Result<Self> {
        Self::map(length, |options| options.map_raw(file))
    }

    fn map(length: usize, map: impl FnOnce(&mut MmapOptions) -> std::io::Result<MmapRaw>) -> Result<Self> {
        if length == 0 {
            return Err(Error::with(VERB, Errno::EINVAL, "a length of zero"));
        }
        map(MmapOptions::new().len(length)).map(Self).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw);
            Error::with(VERB, errno, format!("{length} bytes"))
        })
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
