//! A packet socket that sends frames from an interface and receives none. A process can pass it to another one that lacks CAP_NET_RAW.

use crate::fork::CloseOnFork;
use crate::linux::packet::support::{address, bind_to, take_error};
use crate::socket_filter;
use roce::wire::Mac;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The EtherType to which the socket is bound, for local experiments (IEEE 802). An unbound socket does not report that the interface is
/// gone.
const PROTOCOL: libc::c_int = 0x88b5;

#[derive(Debug)]
pub(crate) struct SendSocket(CloseOnFork);

impl SendSocket {
    /// Opens a socket on the interface with this index.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` without CAP_NET_RAW.
    pub(crate) fn open(interface: u32) -> io::Result<Self> {
        // SAFETY: socket takes integers.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        socket_filter::drop_all(&socket)?;
        bind_to(&socket, interface, PROTOCOL)?;
        Ok(Self(socket.into()))
    }

    /// Returns the index and the Ethernet address of the interface, or `None` if the interface is gone or this is no packet socket.
    pub(crate) fn interface(&self) -> Option<(u32, Mac)> {
        let mut found = address(0, 0);
        let mut length = size_of_val(&found) as libc::socklen_t;
        // SAFETY: there is room for the address of a packet socket, and `length` is that room.
        let named = unsafe { libc::getsockname(self.0.as_raw_fd(), (&raw mut found).cast(), &mut length) };
        let is_packet = named == 0 && i32::from(found.sll_family) == libc::AF_PACKET;
        let mac = *found.sll_addr.first_chunk()?;
        (is_packet && usize::from(found.sll_halen) == mac.len())
            .then_some((found.sll_ifindex as u32, Mac(mac)))
    }

    /// Clears the error that ends a wait for the socket.
    pub(crate) fn clear_error(&self) {
        take_error(&self.0);
    }

    /// Sends a frame. Its EtherType determines the protocol.
    ///
    /// # Errors
    /// Returns the kernel's error: `ENETDOWN` or `ENXIO` if the interface is down or gone.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let (interface, _) = self.interface().ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))?;
        let to = address(interface, 0);
        // SAFETY: the bytes and the address have the lengths that are passed.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl From<OwnedFd> for SendSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket.into())
    }
}

impl AsFd for SendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
