//! A datagram that the kernel queued because it is longer than a slot of the receive ring.

use crate::linux::datagrams::{HEADROOM, VNET_LENGTH};
use std::io;
use std::os::fd::AsRawFd;

#[derive(Debug)]
pub(super) struct QueuedDatagram {
    vnet: [u8; VNET_LENGTH],
    /// [`HEADROOM`] bytes, followed by room for the longest datagram.
    room: Box<[u8]>,
    /// Received bytes of the current datagram.
    length: Option<usize>,
}

impl QueuedDatagram {
    pub(super) fn new(longest: usize) -> Self {
        Self { vnet: [0; VNET_LENGTH], room: vec![0; HEADROOM + longest].into(), length: None }
    }

    /// Returns the virtio header of the socket's first queued datagram, and [`HEADROOM`] bytes followed by the datagram. Reads it from the
    /// socket unless an earlier call did so. `length` is the length in its slot. If no queued datagram has that length, returns only the
    /// headroom.
    #[inline]
    pub(super) fn receive(&mut self, socket: &impl AsRawFd, length: usize) -> ([u8; VNET_LENGTH], &mut [u8]) {
        let received = match self.length {
            Some(received) => received,
            None => self.read_until(socket, length),
        };
        self.length = Some(received);
        (self.vnet, &mut self.room[..HEADROOM + received])
    }

    /// Ends the use of the current datagram.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.length = None;
    }

    /// Reads datagrams until one has `length` bytes. Returns its length, or 0 if there is none.
    ///
    /// Slots and queued datagrams have the same order, so it is the first, unless a datagram was left in the queue before.
    fn read_until(&mut self, socket: &impl AsRawFd, length: usize) -> usize {
        let mut has_failed = false;
        loop {
            match self.read(socket) {
                Ok(received) if received == VNET_LENGTH + length => return length,
                Ok(_) => {}
                // An interface that went down leaves its error to one call. The queue keeps its datagrams.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && !has_failed => has_failed = true,
                Err(_) => return 0,
            }
        }
    }

    fn read(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        let mut pieces = [&mut self.vnet[..], &mut self.room[HEADROOM..]]
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
        // SAFETY: all-zero bytes are a message without buffers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the message points to two iovecs, and they to buffers of this value, all of which outlive the call.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}
