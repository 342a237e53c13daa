//! Error numbers by their names.

use std::ffi::c_int;
use std::fmt;

/// Defines the table of names from those of `libc`.
macro_rules! table {
    ($($name:ident)*) => {
        const TABLE: &[(&str, c_int)] = &[$((stringify!($name), libc::$name),)*];
    };
}

table! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES
    EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE ENOSPC EPIPE ERANGE
    ENOSYS EPROTO EOVERFLOW EMSGSIZE EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED
    ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS
    ECANCELED
}

/// An error number of errno(3) that a verb can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(c_int);

impl Errno {
    /// Returns the error number of this name, such as `ENOMEM`, or of this number, such as `12`.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        let number = text.parse().ok();
        let found = TABLE.iter().find(|(name, value)| *name == text || Some(*value) == number);
        found.map(|(_, number)| Self(*number))
    }

    /// Returns the names of all error numbers.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        TABLE.iter().map(|(name, _)| *name)
    }

    /// Returns the number, greater than 0.
    #[must_use]
    pub const fn number(self) -> c_int {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = TABLE.iter().find(|(_, number)| *number == self.0);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}
