//! Receives datagrams from a socket, several with one system call (recvmmsg(2)).

use super::address;
use super::control::{ControlMessages, number};
use super::identification::Identifications;
use super::rebuild::{DatagramInfo, EthernetAddresses, LONGEST};
use crate::fork::CloseOnFork;
use crate::linux::datagrams::{self, DatagramSlot, Front, HEADROOM, Segmentation, VnetHeader};
use crate::neighbour::Address;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Most datagrams that one system call receives.
const MAX_DATAGRAMS: usize = 16;
/// Offset of the payload in the buffer: room for the headers that are written before it.
const PAYLOAD: usize = 128;
const _: () = assert!(PAYLOAD >= HEADROOM + LONGEST);

#[derive(Debug)]
pub(super) struct ReceivedDatagram {
    room: Box<[u8]>,
    length: usize,
    name: [u8; address::ROOM],
    control: ControlMessages,
    /// Whether the kernel delivered the datagram and its control messages without truncation.
    is_whole: bool,
}

impl ReceivedDatagram {
    pub(super) fn new() -> Self {
        Self {
            room: vec![0; PAYLOAD + datagrams::LONGEST].into_boxed_slice(),
            length: 0,
            name: [0; address::ROOM],
            control: ControlMessages::new(),
            is_whole: false,
        }
    }

    /// Fills the buffer as the kernel does.
    pub(super) fn put(&mut self, name: &[u8; address::ROOM], control: &ControlMessages, payload: &[u8]) {
        self.length = payload.len().min(datagrams::LONGEST);
        self.room[PAYLOAD..PAYLOAD + self.length].copy_from_slice(&payload[..self.length]);
        self.name = *name;
        self.control.fill(control.bytes());
        self.is_whole = true;
    }

    /// Passes the frames of the datagram to `take` until `take` refuses one. `is_resumed` is true if it has refused one of this datagram
    /// before. `own` are the port's addresses. Returns true if none is left.
    pub(super) fn pass(
        &mut self,
        (ethernet, own): (EthernetAddresses, &[Address]),
        (identifications, is_resumed): (&mut Identifications, bool),
        front: &mut Front,
        take: &mut impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let Some((info, slot)) = self.slot(ethernet, own) else {
            front.counters.malformed += 1;
            return true;
        };
        let is_v4 = info.source.is_ipv4();
        if is_v4 && !is_resumed {
            identifications.begin(info.source);
        }
        let complete = |number, frame: &mut [u8]| {
            if is_v4 {
                identifications.complete(number, frame);
            }
        };
        front.pass(slot, complete, take)
    }

    /// Returns the kernel's information about the datagram, and the datagram after the headers that this writes. Returns `None` if
    /// something is missing.
    fn slot(
        &mut self,
        ethernet: EthernetAddresses,
        own: &[Address],
    ) -> Option<(DatagramInfo, DatagramSlot<'_>)> {
        let Self { room, length, name, control, is_whole } = self;
        let info = DatagramInfo::read(name, control).filter(|_| *is_whole)?;
        let is_own = own.iter().any(|own| own.ip == info.source.ip());
        let begin = PAYLOAD - info.headers();
        if !info.write(ethernet, is_own, *length, &mut room[begin..PAYLOAD]) {
            return None;
        }
        let vnet = info.segment.map_or(VnetHeader::FRAME, |size| VnetHeader {
            segmentation: Segmentation::Udp(size),
            checksum: None,
        });
        let length = PAYLOAD - begin + *length;
        let room = &mut room[begin - HEADROOM..begin + length];
        Some((info, DatagramSlot { vnet, room, length, tag: None }))
    }
}

#[derive(Debug)]
pub(super) struct ReceiveSocket {
    socket: CloseOnFork,
    places: Box<[ReceivedDatagram]>,
    first: usize,
    filled: usize,
    /// Number of datagrams that the socket has dropped.
    dropped: u32,
}

impl ReceiveSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let places = std::iter::repeat_with(ReceivedDatagram::new).take(MAX_DATAGRAMS).collect();
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

    /// Receives the queued datagrams, unless earlier ones are left. Returns true if there are datagrams.
    #[inline]
    pub(super) fn fill(&mut self) -> bool {
        if !self.is_filled() {
            (self.first, self.filled) = (0, self.receive());
        }
        self.is_filled()
    }

    fn receive(&mut self) -> usize {
        let mut pieces: [libc::iovec; MAX_DATAGRAMS] = std::array::from_fn(|at| {
            let payload = &mut self.places[at].room[PAYLOAD..];
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() }
        });
        let mut messages: [libc::mmsghdr; MAX_DATAGRAMS] = std::array::from_fn(|at| {
            // SAFETY: all-zero bytes are a message without buffers.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            let place = &mut self.places[at];
            message.msg_hdr.msg_name = place.name.as_mut_ptr().cast();
            message.msg_hdr.msg_namelen = place.name.len() as libc::socklen_t;
            message.msg_hdr.msg_iov = &raw mut pieces[at];
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = place.control.as_mut_ptr();
            message.msg_hdr.msg_controllen = ControlMessages::ROOM as _;
            message
        });
        // SAFETY: each message points to a name, an iovec and control messages of its own place, all of which outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                MAX_DATAGRAMS as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        for (place, message) in self.places.iter_mut().zip(&messages[..count]) {
            let truncated = libc::MSG_TRUNC | libc::MSG_CTRUNC;
            place.length = (message.msg_len as usize).min(datagrams::LONGEST);
            place.control.set_length(message.msg_hdr.msg_controllen as _);
            place.is_whole = message.msg_hdr.msg_flags & truncated == 0;
            self.dropped = dropped(&place.control).unwrap_or(self.dropped);
        }
        count
    }

    /// Returns the buffer of the first datagram, if one is left.
    #[inline]
    pub(super) fn front(&mut self) -> Option<&mut ReceivedDatagram> {
        self.places[self.first..self.filled].first_mut()
    }

    /// Frees the buffer of the first datagram.
    #[inline]
    pub(super) fn release(&mut self) {
        self.first += 1;
    }
}

/// Returns the number of datagrams that the socket has dropped, if the kernel reports it (`SO_RXQ_OVFL`). It does so with the next datagram
/// after a drop.
fn dropped(control: &ControlMessages) -> Option<u32> {
    let is_count =
        |(level, kind): (libc::c_int, libc::c_int)| (level, kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    let (.., data) = control.messages().find(|(level, kind, _)| is_count((*level, *kind)))?;
    number(data).map(libc::c_int::cast_unsigned)
}
