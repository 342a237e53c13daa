//! The kernel's UDP socket of a socket of datagrams: it has the address, and the first message to each peer passes through it.
//!
//! All are system calls: a program may have put its own functions in the place of libc's, with this library behind them.

use crate::rdmacm::address;
use crate::rdmacm::errno::{Errno, last};
use libc::{sockaddr_storage, socklen_t};
use std::ffi::{c_int, c_long};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket of the kernel's.
pub(super) struct Kernel(OwnedFd);

const LONGEST: socklen_t = size_of::<sockaddr_storage>() as socklen_t;

fn checked(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last())
}

/// An address as the kernel reads it, with its length.
fn name(of: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all-zero bytes are an address, with room for either family.
    let mut whole: sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { address::write((&raw mut whole).cast(), of) };
    let length = if of.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    (whole, length as socklen_t)
}

impl Kernel {
    /// Creates one of `AF_INET` or `AF_INET6`. No call on it waits.
    pub(super) fn new(domain: c_int) -> Result<Self, Errno> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers.
        let descriptor = checked(unsafe { libc::syscall(libc::SYS_socket, domain, kind, 0) })?;
        // SAFETY: a fresh descriptor that no other object owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor as c_int) }))
    }

    pub(super) fn descriptor(&self) -> c_int {
        self.0.as_raw_fd()
    }

    pub(super) fn bind(&self, at: SocketAddr) -> Result<(), Errno> {
        self.with_name(libc::SYS_bind, at)
    }

    pub(super) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        self.with_name(libc::SYS_connect, to)
    }

    fn with_name(&self, call: c_long, of: SocketAddr) -> Result<(), Errno> {
        let (whole, length) = name(of);
        // SAFETY: the address is as long as said.
        checked(unsafe { libc::syscall(call, self.descriptor(), &raw const whole, length) }).map(|_| ())
    }

    /// Returns the socket's own address.
    pub(super) fn name(&self) -> Option<SocketAddr> {
        self.asked(libc::SYS_getsockname)
    }

    /// Returns the address that it is connected to.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.asked(libc::SYS_getpeername)
    }

    fn asked(&self, call: c_long) -> Option<SocketAddr> {
        // SAFETY: all-zero bytes are an address; there is as much room as said.
        unsafe {
            let (mut whole, mut length): (sockaddr_storage, _) = (std::mem::zeroed(), LONGEST);
            checked(libc::syscall(call, self.descriptor(), &raw mut whole, &raw mut length)).ok()?;
            address::read((&raw const whole).cast()).ok()
        }
    }

    /// Sends the parts as one message.
    pub(super) fn send(&self, to: SocketAddr, parts: [&[u8]; 2]) -> Result<(), Errno> {
        let (mut whole, length) = name(to);
        let mut pieces =
            parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: all-zero bytes are a message; what it names is alive and as long as said.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = ((&raw mut whole).cast(), length);
            (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len());
            let flags = libc::MSG_NOSIGNAL;
            checked(libc::syscall(libc::SYS_sendmsg, self.descriptor(), &raw const message, flags))
                .map(|_| ())
        }
    }

    /// Receives a message; returns its length and its sender, or `None` if there is none.
    pub(super) fn receive(&self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        // SAFETY: all-zero bytes are an address; there is as much room as said.
        unsafe {
            let (mut whole, mut length): (sockaddr_storage, _) = (std::mem::zeroed(), LONGEST);
            let came = libc::syscall(
                libc::SYS_recvfrom,
                self.descriptor(),
                into.as_mut_ptr(),
                into.len(),
                0,
                &raw mut whole,
                &raw mut length,
            );
            Some((checked(came).ok()?, address::read((&raw const whole).cast()).ok()?))
        }
    }

    /// Sets an option as the program passes it.
    pub(super) fn set(&self, (level, option): (c_int, c_int), value: &[u8]) -> Result<(), Errno> {
        // SAFETY: the value is as long as said.
        let set = unsafe {
            libc::syscall(
                libc::SYS_setsockopt,
                self.descriptor(),
                level,
                option,
                value.as_ptr(),
                value.len() as socklen_t,
            )
        };
        checked(set).map(|_| ())
    }
}
