//! Reading events from the files that channels and contexts hand out.
//!
//! One event is read at a time, so that a readiness report on the file always stands for an event that is still there.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uverbs_uapi::user_verbs::{AsyncEventDesc, CompEventDesc};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{Errno, Result, errno};

/// The next completion event: the user handle of the CQ that it is for.
///
/// # Errors
/// `EAGAIN` if the file is non-blocking and has none; `EINTR` if a signal arrived first; `EIO` if the device is gone.
pub fn read_completion_event(file: impl AsFd) -> Result<u64> {
    read_event::<CompEventDesc>(file).map(|event| event.cq_handle)
}

/// The next asynchronous event.
///
/// # Errors
/// As [`read_completion_event`].
pub fn read_async_event(file: impl AsFd) -> Result<AsyncEventDesc> {
    read_event(file)
}

fn read_event<T: FromBytes + FromZeros + IntoBytes>(file: impl AsFd) -> Result<T> {
    let mut event = T::new_zeroed();
    match rustix::io::read(file, event.as_mut_bytes()).map_err(errno)? {
        size if size == size_of::<T>() => Ok(event),
        _ => Err(Errno::EIO),
    }
}

/// Makes reads of events give `EAGAIN` where they would wait.
///
/// # Errors
/// As `ioctl(2)`.
pub fn set_nonblocking(file: impl AsFd) -> Result<()> {
    rustix::io::ioctl_fionbio(file, true).map_err(errno)
}

/// Waits until an event can be read or `deadline` has passed; `None` waits for ever. Says whether one can be read.
///
/// Signals do not end the wait.
///
/// # Errors
/// As `poll(2)`.
pub fn wait_readable(file: impl AsFd, deadline: Option<Instant>) -> Result<bool> {
    loop {
        let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(left) => Some(timespec(left)?),
            None => None,
        };
        // POLLERR, a device that is gone, counts as readable: the read tells.
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
}

fn timespec(duration: Duration) -> Result<Timespec> {
    Timespec::try_from(duration).map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn one_event_a_read() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all([5_u64, 6].as_bytes()).unwrap();
        assert_eq!(read_completion_event(&reader), Ok(5));
        assert_eq!(wait_readable(&reader, Some(Instant::now())), Ok(true));
        assert_eq!(read_completion_event(&reader), Ok(6));
        assert_eq!(wait_readable(&reader, Some(Instant::now() + Duration::from_millis(1))), Ok(false));
    }

    #[test]
    fn a_short_event_is_an_error_not_garbage() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[1, 2, 3]).unwrap();
        assert_eq!(read_completion_event(&reader), Err(Errno::EIO));
        writer.write_all([1_u64, 2].as_bytes()).unwrap();
        assert_eq!(read_async_event(&reader).unwrap().element, 1);
    }

    #[test]
    fn an_empty_nonblocking_file_is_eagain() {
        let (reader, _writer) = std::io::pipe().unwrap();
        set_nonblocking(&reader).unwrap();
        assert_eq!(read_completion_event(&reader), Err(Errno::EAGAIN));
    }
}
