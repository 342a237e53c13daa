//! Unix sockets that preserve message boundaries (`SOCK_SEQPACKET`), for memif and for the processes that share an interface. Names are
//! paths, or abstract if they begin with a zero byte.

use crate::errno::check;
use crate::unix_address;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Creates a socket. `flags` is 0 or `SOCK_NONBLOCK`.
pub(crate) fn socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: socket takes integers, and the descriptor is new and has no other owner.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?)) }
}

pub(crate) fn bind(socket: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let (address, length) = unix_address(name)?;
    // SAFETY: the address is readable for its length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

pub(crate) fn connect(socket: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let (address, length) = unix_address(name)?;
    // SAFETY: the address is readable for its length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

/// Listens, with up to `queue` connections that wait to be accepted.
pub(crate) fn listen(socket: &OwnedFd, queue: libc::c_int) -> io::Result<()> {
    // SAFETY: listen takes integers.
    check(unsafe { libc::listen(socket.as_raw_fd(), queue) }).map(drop)
}

/// Accepts the next connection. `flags` is as for [`socket`], and applies to the new descriptor.
pub(crate) fn accept(listener: &impl AsRawFd, flags: libc::c_int) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | flags;
    // SAFETY: null pointers request no address, and the descriptor is new and has no other owner.
    unsafe {
        let accepted = libc::accept4(listener.as_raw_fd(), null_mut(), null_mut(), flags);
        Ok(OwnedFd::from_raw_fd(check(accepted)?))
    }
}
