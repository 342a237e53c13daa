//! Receives datagrams of a socket, several with one system call (recvmmsg(2)).

use super::address;
use super::control::Control;
use super::rebuild::{Envelope, LONGEST, Stations};
use crate::fork::Own;
use crate::linux::datagrams::{HEADROOM, Segmentation, Slot, VnetHeader};
use crate::neighbour::Address;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Most datagrams that one system call receives.
const PLACES: usize = 16;
/// Bytes of the longest datagram.
const LENGTH: usize = 64 << 10;
/// Offset of the payload in a place: room for the headers that are written before it.
const PAYLOAD: usize = 128;
const _: () = assert!(PAYLOAD >= HEADROOM + LONGEST);
/// Offset of the UDP header from the end of the headers.
const UDP: usize = 8;

/// A received datagram.
#[derive(Debug)]
struct Place {
    room: Box<[u8]>,
    length: usize,
    name: [u8; address::ROOM],
    control: Control,
    /// Whether the kernel delivered it and its control messages whole.
    is_whole: bool,
}

/// A socket with the datagrams that were received from it.
#[derive(Debug)]
pub(super) struct Receiving {
    socket: Own,
    places: Box<[Place]>,
    first: usize,
    filled: usize,
    /// Number of datagrams that the socket has dropped.
    dropped: u32,
}

impl Receiving {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let place = || Place {
            room: vec![0; PAYLOAD + LENGTH].into_boxed_slice(),
            length: 0,
            name: [0; address::ROOM],
            control: Control::new(),
            is_whole: false,
        };
        let places = std::iter::repeat_with(place).take(PLACES).collect();
        Self { socket: socket.into(), places, first: 0, filled: 0, dropped: 0 }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) const fn dropped(&self) -> u32 {
        self.dropped
    }

    #[inline]
    pub(super) const fn is_filled(&self) -> bool {
        self.first < self.filled
    }

    /// Receives the datagrams that wait, unless earlier ones are left. Returns true if there are datagrams.
    #[inline]
    pub(super) fn fill(&mut self) -> bool {
        if !self.is_filled() {
            (self.first, self.filled) = (0, self.receive());
        }
        self.is_filled()
    }

    fn receive(&mut self) -> usize {
        let mut pieces: [libc::iovec; PLACES] = std::array::from_fn(|at| {
            let payload = &mut self.places[at].room[PAYLOAD..];
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() }
        });
        let mut messages: [libc::mmsghdr; PLACES] = std::array::from_fn(|at| {
            // SAFETY: all-zero bytes are a message without buffers.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            let place = &mut self.places[at];
            message.msg_hdr.msg_name = place.name.as_mut_ptr().cast();
            message.msg_hdr.msg_namelen = place.name.len() as libc::socklen_t;
            message.msg_hdr.msg_iov = &raw mut pieces[at];
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = place.control.as_mut_ptr();
            message.msg_hdr.msg_controllen = Control::ROOM as _;
            message
        });
        // SAFETY: each message points to a name, an iovec and control messages of its own place, all of which outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                PLACES as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        for (place, message) in self.places.iter_mut().zip(&messages[..count]) {
            let truncated = libc::MSG_TRUNC | libc::MSG_CTRUNC;
            place.length = (message.msg_len as usize).min(LENGTH);
            place.control.set_length(message.msg_hdr.msg_controllen as usize);
            place.is_whole = message.msg_hdr.msg_flags & truncated == 0;
        }
        count
    }

    /// Returns what the kernel says of the first datagram, and the datagram behind the headers that this writes; `None` if something is
    /// missing.
    pub(super) fn front(&mut self, stations: Stations, own: &[Address]) -> Option<(Envelope, Slot<'_>)> {
        let Place { room, length, name, control, is_whole } = &mut self.places[self.first];
        let envelope = Envelope::read(name, control).filter(|_| *is_whole)?;
        self.dropped = envelope.dropped.unwrap_or(self.dropped);
        let is_own = own.iter().any(|own| own.ip == envelope.source.ip());
        let begin = PAYLOAD - envelope.headers();
        if !envelope.write(stations, is_own, *length, &mut room[begin..PAYLOAD]) {
            return None;
        }
        let vnet = envelope.segment.map_or(VnetHeader::FRAME, |size| VnetHeader {
            segmentation: Segmentation::Udp(size),
            ..VnetHeader::of_datagram((envelope.headers() - UDP) as u16, size)
        });
        let length = PAYLOAD - begin + *length;
        let room = &mut room[begin - HEADROOM..begin + length];
        Some((envelope, Slot { vnet, room, length, tag: None }))
    }

    /// Frees the place of the first datagram.
    #[inline]
    pub(super) fn release(&mut self) {
        self.first += 1;
    }
}
