//! Files of events: completion channels, and files of asynchronous events.
//!
//! A file is one end of a socket pair that keeps messages apart, so that a read gives one event. When the device drops its end, the
//! reader sees the end of the file, which stands for a device that is gone.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::user_verbs::{AsyncEventDesc, CompEventDesc};
use zerocopy::IntoBytes;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Completions,
    Asynchronous,
}

/// The device's end of a file.
#[derive(Debug)]
pub(crate) struct EventFile {
    pub(crate) context: u32,
    pub(crate) kind: Use,
    socket: OwnedFd,
    /// Which file the user's end is: a number that is not used again while it is open.
    inode: u64,
    /// CQs that report to it.
    pub(crate) users: u32,
    /// Events that did not fit.
    backlog: VecDeque<Vec<u8>>,
}

impl EventFile {
    /// A file, and the user's end.
    pub(crate) fn new(context: u32, kind: Use) -> Result<(Self, OwnedFd)> {
        let errno = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let (socket, user) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(errno)?;
        let inode = fstat(&user).map_err(errno)?.st_ino;
        Ok((Self { context, kind, socket, inode, users: 0, backlog: VecDeque::new() }, user))
    }

    /// Whether this number of a file of the process is the user's end.
    pub(crate) fn is(&self, fd: RawFd) -> bool {
        if fd < 0 {
            return false;
        }
        // SAFETY: the number is looked at during this call only; one that is not open gives an error.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fstat(fd).is_ok_and(|stat| stat.st_ino == self.inode && is_socket(stat.st_mode))
    }

    /// Whether the user has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut polled, Some(&now)).is_ok_and(|_| polled[0].revents().contains(PollFlags::HUP))
    }

    pub(crate) fn completion(&mut self, user_handle: u64) {
        self.queue(CompEventDesc { cq_handle: user_handle }.as_bytes());
    }

    pub(crate) fn asynchronous(&mut self, element: u64, event_type: u32) {
        self.queue(AsyncEventDesc { element, event_type, reserved: 0 }.as_bytes());
    }

    fn queue(&mut self, event: &[u8]) {
        if !self.flush() || !self.write(event) {
            self.backlog.push_back(event.to_vec());
        }
    }

    /// Says whether the reader does not have to make room first.
    fn write(&self, event: &[u8]) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // Nobody misses what goes into a file that has been closed.
        !matches!(send(&self.socket, event, flags), Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS))
    }

    /// Writes what did not fit before. Says whether nothing is left.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(event) = self.backlog.front() {
            if !self.write(event) {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }
}

fn is_socket(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode).is_socket()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use uverbs_ioctl::events::{read_async_event, read_completion_event};

    #[test]
    fn events_are_read_one_by_one_and_none_is_lost() {
        let (mut file, user) = EventFile::new(0, Use::Completions).unwrap();
        assert!(file.is(user.as_raw_fd()) && !file.is(file.socket.as_raw_fd()) && !file.is(-1));
        for number in 0..5000 {
            file.completion(number);
        }
        assert!(!file.flush());
        for number in 0..5000 {
            assert_eq!(read_completion_event(&user), Ok(number));
            file.flush();
        }
        assert!(file.flush() && !file.is_closed());
        file.asynchronous(3, 7);
        let event = read_async_event(&user).unwrap();
        assert_eq!((event.element, event.event_type), (3, 7));
        drop(file);
        assert_eq!(read_completion_event(&user), Err(Errno::EIO));
    }

    #[test]
    fn a_file_that_the_user_has_closed_is_noticed() {
        let (mut file, user) = EventFile::new(0, Use::Completions).unwrap();
        drop(user);
        assert!(file.is_closed());
        file.completion(1);
        assert!(file.flush());
    }
}
