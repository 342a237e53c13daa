//! The kernel's UDP socket of a datagram socket. It has the address, and sends the first message to each peer.
//!
//! All calls are direct system calls, because a program may replace libc's functions by its own, which call this library.

use crate::rdmacm::address;
use crate::rdmacm::errno::{Errno, last};
use libc::{sockaddr_storage, socklen_t};
use std::ffi::{c_int, c_long};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(super) struct Kernel(OwnedFd);

const LONGEST: socklen_t = size_of::<sockaddr_storage>() as socklen_t;

fn checked(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last())
}

/// Returns an address in the kernel's format, with its length.
fn name(of: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all-zero bytes are a valid address, with room for either family.
    let mut whole: sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { address::write((&raw mut whole).cast(), of) };
    let length = if of.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    (whole, length as socklen_t)
}

impl Kernel {
    /// Creates a non-blocking socket of `AF_INET` or `AF_INET6`.
    pub(super) fn new(domain: c_int) -> Result<Self, Errno> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call has only numbers as arguments.
        let descriptor = checked(unsafe { libc::syscall(libc::SYS_socket, domain, kind, 0) })?;
        // SAFETY: a new descriptor that no other object owns.
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
        // SAFETY: `length` is the length of the address.
        checked(unsafe { libc::syscall(call, self.descriptor(), &raw const whole, length) }).map(|_| ())
    }

    /// Returns the socket's own address.
    pub(super) fn name(&self) -> Option<SocketAddr> {
        self.asked(libc::SYS_getsockname)
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.asked(libc::SYS_getpeername)
    }

    fn asked(&self, call: c_long) -> Option<SocketAddr> {
        // SAFETY: all-zero bytes are a valid address, and `length` is the size of its room.
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
        // SAFETY: all-zero bytes are a valid message; the memory that it refers to is alive and has the stated lengths.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = ((&raw mut whole).cast(), length);
            (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len());
            let flags = libc::MSG_NOSIGNAL;
            checked(libc::syscall(libc::SYS_sendmsg, self.descriptor(), &raw const message, flags))
                .map(|_| ())
        }
    }

    /// Receives a message. Returns its length and its sender, or `None` if there is none.
    pub(super) fn receive(&self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        // SAFETY: all-zero bytes are a valid address; `into` and the address have the room that is passed.
        unsafe {
            let (mut whole, mut length): (sockaddr_storage, _) = (std::mem::zeroed(), LONGEST);
            let received = libc::syscall(
                libc::SYS_recvfrom,
                self.descriptor(),
                into.as_mut_ptr(),
                into.len(),
                0,
                &raw mut whole,
                &raw mut length,
            );
            Some((checked(received).ok()?, address::read((&raw const whole).cast()).ok()?))
        }
    }

    pub(super) fn set(&self, (level, option): (c_int, c_int), value: &[u8]) -> Result<(), Errno> {
        // SAFETY: the value has `value.len()` bytes.
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
