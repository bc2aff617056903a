//! Errors.

use std::fmt;

use uverbs_ioctl::Errno;

/// Result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a program can do about an error. The exact number is in [`Error::errno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel, the driver or this provider does not have it: `EOPNOTSUPP`, `EPROTONOSUPPORT`, `ENOTTY`, `ENOSYS`.
    Unsupported,
    /// An argument, or the state of the object, is wrong: `EINVAL`, `ERANGE`, `E2BIG`, `EFAULT`.
    InvalidInput,
    /// No such device, port, entry or object: `ENOENT`, `ENODEV`, `ENODATA`.
    NotFound,
    /// The object is in use: `EBUSY`.
    Busy,
    /// A limit is reached: `ENOMEM`, `ENOSPC`, `EMFILE`, `ENFILE`.
    OutOfResources,
    /// Permission: `EACCES`, `EPERM`.
    PermissionDenied,
    /// The file is non-blocking and has no event: `EAGAIN`.
    WouldBlock,
    /// A signal came first: `EINTR`.
    Interrupted,
    /// Nothing answered in time: `ETIMEDOUT`, `ETIME`.
    TimedOut,
    /// The device has been removed: `EIO`, `ENXIO`.
    DeviceGone,
    /// Something else.
    Other,
}

/// Why a verb failed: which verb, the kernel's error number, and what is known about the reason.
///
/// ```text
/// create_cq: EINVAL (Invalid argument): 40000 entries, rxe0 allows 32767
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    verb: &'static str,
    errno: Errno,
    detail: Option<Box<str>>,
}

impl Error {
    /// An error of `verb` with nothing to add to the number.
    #[cold]
    pub(crate) fn new(verb: &'static str, errno: Errno) -> Self {
        Self { verb, errno, detail: None }
    }

    /// An error of `verb` with what is known about the reason and, where there is something, what to do.
    #[cold]
    pub(crate) fn with(verb: &'static str, errno: Errno, detail: impl Into<String>) -> Self {
        Self { verb, errno, detail: Some(detail.into().into_boxed_str()) }
    }

    /// The same error with another reason, if there is none yet.
    pub(crate) fn or_detail(mut self, detail: impl FnOnce() -> Option<String>) -> Self {
        if self.detail.is_none() {
            self.detail = detail().map(String::into_boxed_str);
        }
        self
    }

    /// The verb that failed, by its name in libibverbs without the prefix: `create_cq`.
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// The kernel's error number, positive: `EINVAL` is 22.
    pub fn errno(&self) -> i32 {
        self.errno as i32
    }

    /// What is known beyond the number.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self.errno {
            Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ENOTTY | Errno::ENOSYS => {
                ErrorKind::Unsupported
            }
            Errno::EINVAL | Errno::ERANGE | Errno::E2BIG | Errno::EFAULT => ErrorKind::InvalidInput,
            Errno::ENOENT | Errno::ENODEV | Errno::ENODATA => ErrorKind::NotFound,
            Errno::EBUSY => ErrorKind::Busy,
            Errno::ENOMEM | Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE => ErrorKind::OutOfResources,
            Errno::EACCES | Errno::EPERM => ErrorKind::PermissionDenied,
            Errno::EAGAIN => ErrorKind::WouldBlock,
            Errno::EINTR => ErrorKind::Interrupted,
            Errno::ETIMEDOUT | Errno::ETIME => ErrorKind::TimedOut,
            Errno::EIO | Errno::ENXIO => ErrorKind::DeviceGone,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} ({})", self.verb, self.errno, self.errno.desc())?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    /// Keeps the kind; the text is that of the error.
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno()).kind(), error)
    }
}

/// An object that could not be destroyed, or not be put to another use, with the reason. Dropping it destroys the object in silence, if
/// that is possible.
pub struct DestroyError<T> {
    object: Box<T>,
    error: Error,
}

impl<T> DestroyError<T> {
    pub(crate) fn new(object: T, error: Error) -> Self {
        Self { object: Box::new(object), error }
    }

    /// Why it failed: [`Busy`](ErrorKind::Busy) while something else uses the object.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The object, as usable as before.
    pub fn into_inner(self) -> T {
        *self.object
    }
}

impl<T> fmt::Debug for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for DestroyError<T> {}

impl<T> From<DestroyError<T>> for Error {
    fn from(error: DestroyError<T>) -> Self {
        error.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_kept() {
        let error = Error::with("create_cq", Errno::EINVAL, "40000 entries, rxe0 allows 32767");
        assert_eq!(
            error.to_string(),
            "create_cq: EINVAL (Invalid argument): 40000 entries, rxe0 allows 32767"
        );
        assert_eq!((error.errno(), error.kind()), (22, ErrorKind::InvalidInput));
        let io = std::io::Error::from(error.clone());
        assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput);
        assert_eq!(io.to_string(), error.to_string());
        assert_eq!(
            Error::new("reg_mr", Errno::EOPNOTSUPP).to_string(),
            "reg_mr: EOPNOTSUPP (Operation not supported on transport endpoint)"
        );
    }
}
