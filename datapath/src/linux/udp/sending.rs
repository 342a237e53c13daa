//! Sends a burst with as few system calls as possible. The kernel segments large datagrams into packets (udp(7), `UDP_SEGMENT`).

use super::address;
use super::control::ControlMessages;
use crate::io::{BURST, Burst, PacketBuf};
use crate::linux::datagrams::{Group, Headers, Outer};
use arrayvec::ArrayVec;
use roce::wire::{IcrcAmender, ROCE_PORT, SourceFields};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

struct Datagram {
    /// Number of its packets.
    count: usize,
    headers: Headers,
    outer: Outer,
    /// Payload bytes of each packet but the last, if there are several.
    segment: Option<u16>,
}

/// The datagrams at the front of a burst that are sent from one socket.
pub(super) struct Outgoing {
    datagrams: ArrayVec<Datagram, BURST>,
}

/// Returns the headers of a frame that a UDP socket can send, or `None` for other frames.
pub(super) fn sendable(frame: &[u8]) -> Option<Headers> {
    let headers = Headers::parse(frame).ok()?;
    (headers.is_untagged_to(frame, ROCE_PORT) && headers.describe(frame, frame.len())).then_some(headers)
}

impl Outgoing {
    /// Groups the frames at the front for which `is_next` returns true. Sets the source port of each to `port`, its identification to the
    /// one that the kernel will assign, and the ICRC to match both. Unless `large`, each frame is a datagram.
    ///
    /// The kernel numbers the packets of one datagram from 0 on, because "don't fragment" is set and the socket is not connected
    /// (`__ip_select_ident`, `inet_gso_segment`).
    pub(super) fn new<B: PacketBuf>(
        frames: &mut Burst<B>,
        port: u16,
        large: bool,
        amender: &mut IcrcAmender,
        mut is_next: impl FnMut(&[u8]) -> bool,
    ) -> Self {
        let count = frames.iter().take_while(|frame| is_next(frame)).count();
        let (mut datagrams, mut rest) = (ArrayVec::new(), &mut frames[..count]);
        let mut before: ArrayVec<SourceFields, BURST> = ArrayVec::new();
        for frame in &mut *rest {
            let Some(headers) = sendable(frame) else { break };
            before.push(headers.source_fields(frame));
            headers.set_source_port(frame, port);
        }
        let mut before = before.into_iter();
        while let Some(first) = rest.first() {
            let Some(headers) = sendable(first) else { break };
            let Some(outer) = headers.outer(first) else { break };
            let group = if large { Group::first_of_socket(rest) } else { None };
            let count = group.map_or(1, |group| group.count());
            datagrams.push(Datagram { count, headers, outer, segment: group.map(|group| group.size()) });
            let (own, others) = rest.split_at_mut(count);
            for ((identification, frame), before) in (0..).zip(own).zip(&mut before) {
                headers.renumber(frame, identification);
                // Fails only for a packet too short to have an ICRC, which every receiver drops.
                let _ = amender.amend(frame, before);
            }
            rest = others;
        }
        Self { datagrams }
    }

    /// Returns the number of frames of the first datagram.
    pub(super) fn first(&self) -> usize {
        self.datagrams.first().map_or(0, |datagram| datagram.count)
    }

    /// Sends the datagrams of `frames`, from which this value was created, through the interface with this index. Returns the number of
    /// frames that the kernel accepted, at least 1.
    ///
    /// # Errors
    /// Returns the kernel's error if it did not accept the first datagram.
    pub(super) fn send<B: PacketBuf>(
        &self,
        socket: RawFd,
        interface: u32,
        frames: &Burst<B>,
    ) -> io::Result<usize> {
        let mut pieces: ArrayVec<libc::iovec, BURST> = ArrayVec::new();
        let mut places: ArrayVec<([u8; address::ROOM], usize, ControlMessages), BURST> = ArrayVec::new();
        let mut messages: ArrayVec<libc::mmsghdr, BURST> = ArrayVec::new();
        let mut rest = &frames[..];
        for datagram in &self.datagrams {
            let (own, others) = rest.split_at(datagram.count);
            pieces.extend(own.iter().map(|frame| piece(&frame[datagram.headers.length()..])));
            let (name, length) =
                address::write(SocketAddr::new(datagram.outer.destination, ROCE_PORT), interface);
            places.push((name, length, datagram.control(interface)));
            rest = others;
        }
        let mut begin = 0;
        for (datagram, (name, length, control)) in self.datagrams.iter().zip(&mut places) {
            // SAFETY: all-zero bytes are a message without buffers.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = name.as_mut_ptr().cast();
            message.msg_hdr.msg_namelen = *length as libc::socklen_t;
            message.msg_hdr.msg_iov = pieces[begin..].as_mut_ptr();
            message.msg_hdr.msg_iovlen = datagram.count as _;
            message.msg_hdr.msg_control = control.as_mut_ptr();
            message.msg_hdr.msg_controllen = control.length() as _;
            messages.push(message);
            begin += datagram.count;
        }
        // SAFETY: each message points to its name, iovecs and control messages, in arrays that do not move, and each iovec to bytes that
        // outlive the call.
        let sent = unsafe {
            libc::sendmmsg(socket, messages.as_mut_ptr(), messages.len() as u32, libc::MSG_DONTWAIT)
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(self.datagrams[..sent].iter().map(|datagram| datagram.count).sum())
    }
}

impl Datagram {
    /// Returns the control messages: source address and interface, traffic class, hop limit, segment size.
    fn control(&self, interface: u32) -> ControlMessages {
        let mut control = ControlMessages::new();
        let Outer { source, traffic_class, hop_limit, .. } = self.outer;
        let (class, hops) =
            (libc::c_int::from(traffic_class).to_ne_bytes(), libc::c_int::from(hop_limit).to_ne_bytes());
        let index = interface.to_ne_bytes();
        match source {
            IpAddr::V4(source) => {
                // `struct in_pktinfo`: interface, source address, unused.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&index);
                info[4..8].copy_from_slice(&source.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                control.push(libc::IPPROTO_IP, libc::IP_TOS, &class);
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &hops);
            }
            IpAddr::V6(source) => {
                // `struct in6_pktinfo`: source address, interface.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                info[16..].copy_from_slice(&index);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
            }
        }
        if let Some(segment) = self.segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        control
    }
}

/// Returns an iovec from which the kernel only reads.
fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
