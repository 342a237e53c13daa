//! Queue pair 1: management datagrams (MADs) between ports (IBA 13.5.1), which connection managers exchange.
//!
//! A core without a connection manager drops them. The memory that a peer can occupy here is bounded.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use crate::event_fd::EventFd;
use crate::neighbour::Neighbours;
use roce::wire::{self, Bth, Header, Mac, Path};
use roce::{Psn, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes of a management datagram (IBA 13.4.2).
pub const MAD_LENGTH: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LENGTH];

/// The queue pair of general services (QP1) and its well-known Q_Key (IBA 10.2.5, 10.5.5).
const QUEUE_PAIR: Qpn = Qpn::new(1);
const QUEUE_KEY: u32 = 0x8001_0000;
/// UDP source port of management datagrams: the one that Linux computes for queue pair 1 to queue pair 1.
pub const MAD_UDP_SOURCE: u16 = 0xd872;
/// Most datagrams queued in each direction. Senders repeat lost ones.
const DEPTH: usize = 256;

#[derive(Clone, Copy)]
struct Sender {
    ip: IpAddr,
    mac: Mac,
}

/// The management queue pair of a port. Without an `event_fd` it only sends.
pub(super) struct Management {
    rx_queue: VecDeque<(Sender, Mad)>,
    tx_queue: VecDeque<(Path, Mad)>,
    last_sender: Option<Sender>,
    /// Counts received datagrams.
    event_fd: Option<Arc<EventFd>>,
    psn: Psn,
    identification: u16,
}

impl Management {
    pub(super) fn new(event_fd: Option<Arc<EventFd>>) -> Self {
        Self {
            rx_queue: VecDeque::with_capacity(DEPTH),
            tx_queue: VecDeque::with_capacity(DEPTH),
            last_sender: None,
            event_fd,
            psn: Psn::new(0),
            identification: 0,
        }
    }

    /// Wakes the threads that wait for datagrams, because none will arrive.
    pub(super) fn wake_waiters(&self) {
        if let Some(event_fd) = &self.event_fd {
            event_fd.signal();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.event_fd.is_some()
    }

    /// Handles a frame. Returns false if it is not a management datagram, or this queue pair does not accept it.
    pub(super) fn on_frame(&mut self, frame: &[u8], neighbours: &Neighbours) -> bool {
        let Some(event_fd) = self.event_fd.as_ref().filter(|_| is_for_management(frame)) else {
            return false;
        };
        let Ok(frame) = wire::parse(frame) else { return false };
        let Header::Datagram { bth, queue_key: QUEUE_KEY, source, .. } = frame.header else { return false };
        let Ok(mad) = Mad::try_from(frame.payload) else { return true };
        // Queue pair 0 is for subnet management alone (IBA 13.5.1).
        let is_general = bth.destination == QUEUE_PAIR && source != Qpn::new(0);
        let sender = Sender { ip: frame.network.source(), mac: frame.network.path().source_mac };
        if is_general && neighbours.is_source(sender.ip, sender.mac) && self.rx_queue.len() < DEPTH {
            self.rx_queue.push_back((sender, mad));
            event_fd.signal();
        }
        true
    }

    pub(super) fn receive(&mut self) -> Option<(IpAddr, Mad)> {
        let (sender, mad) = self.rx_queue.pop_front()?;
        self.last_sender = Some(sender);
        Some((sender.ip, mad))
    }

    /// Returns the Ethernet address of the last datagram's sender, if that is `ip`.
    pub(super) fn sender_mac(&self, ip: IpAddr) -> Option<Mac> {
        self.last_sender.filter(|last_sender| last_sender.ip == ip).map(|last_sender| last_sender.mac)
    }

    /// Queues a datagram. Returns false if the queue is full.
    pub(super) fn send(&mut self, path: Path, mad: Mad) -> bool {
        let room = self.tx_queue.len() < DEPTH;
        if room {
            self.tx_queue.push_back((path, mad));
        }
        room
    }

    #[inline]
    pub(super) fn may_transmit(&self) -> bool {
        !self.tx_queue.is_empty()
    }

    pub(super) fn poll_transmit(&mut self, frame: &mut [u8]) -> Option<usize> {
        let (path, mad) = self.tx_queue.pop_front()?;
        self.psn = self.psn.plus(1);
        self.identification = self.identification.wrapping_add(1);
        let bth = Bth::new(QUEUE_PAIR, self.psn);
        let header = Header::Datagram { bth, queue_key: QUEUE_KEY, source: QUEUE_PAIR, immediate: None };
        // Fails only for a path with addresses of two families; the buffer is large enough for any packet.
        let mut draft = wire::emit(&path, self.identification, &header, mad.len(), frame).ok()?;
        draft.payload().copy_from_slice(&mad);
        Some(draft.seal())
    }
}

/// Checks opcode and destination at their offsets in a frame without VLAN tag and IP options. Data packets pay for this check only.
#[expect(clippy::arithmetic_side_effects, reason = "the sum is an offset in the frame and 8 bytes")]
fn is_for_management(frame: &[u8]) -> bool {
    let bth = match (frame.get(12..14), frame.get(14)) {
        (Some([0x08, 0x00]), Some(0x45)) => 42,
        (Some([0x86, 0xdd]), _) => 62,
        _ => return false,
    };
    // UD SEND Only (IBA 9.2.1), to queue pair 1.
    frame.get(bth) == Some(&0x64) && frame.get(bth + 5..bth + 8) == Some(&[0, 0, 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::wire::Mac;

    fn management() -> Management {
        Management::new(Some(Arc::new(EventFd::new(0).unwrap())))
    }

    const HERE: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn neighbours() -> Neighbours {
        let addresses = ["10.0.0.2/24", "fd00::2/64"].map(|address| address.parse().unwrap());
        Neighbours::with_kernel(HERE, &addresses)
    }

    fn path(source: &str, destination: &str) -> Path {
        Path {
            udp_source: 0xd872,
            ..Path::new(
                (Mac([2, 0, 0, 0, 0, 1]), source.parse().unwrap()),
                (HERE, destination.parse().unwrap()),
            )
        }
    }

    /// IBA 13.4.2, 13.5.1: a MAD has 256 bytes, and is sent from queue pair 1 to queue pair 1.
    #[test]
    fn a_datagram_arrives_as_it_was_sent() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (mut here, mut there) = (management(), management());
            let mad: Mad = std::array::from_fn(|n| n as u8);
            assert!(here.send(path(source, destination), mad));
            let mut frame = [0; 512];
            let length = here.poll_transmit(&mut frame).unwrap();
            assert!(there.on_frame(&frame[..length], &neighbours()));
            let last_sender = source.parse().unwrap();
            assert_eq!(there.sender_mac(last_sender), None, "not before it is received");
            assert_eq!(there.receive(), Some((last_sender, mad)));
            assert_eq!(there.sender_mac(last_sender), Some(Mac([2, 0, 0, 0, 0, 1])));
            assert_eq!(there.sender_mac(destination.parse().unwrap()), None);
            assert_eq!((there.receive(), here.poll_transmit(&mut frame)), (None, None));
        }
    }

    #[test]
    fn datagrams_beyond_the_queue_depth_are_dropped() {
        let (mut here, mut there) = (management(), management());
        let mut frame = [0; 512];
        for _ in 0..2 * DEPTH {
            here.send(path("10.0.0.1", "10.0.0.2"), [7; MAD_LENGTH]);
            let length = here.poll_transmit(&mut frame).unwrap();
            assert!(there.on_frame(&frame[..length], &neighbours()));
        }
        assert_eq!(std::iter::from_fn(|| there.receive()).count(), DEPTH);
    }

    /// IBA 13.5.1: queue pair 0 sends subnet management, which is not for queue pair 1.
    #[test]
    fn a_datagram_of_queue_pair_0_is_dropped() {
        for (source, is_received) in [(0, false), (1, true), (0x1234, true)] {
            let header = Header::Datagram {
                bth: Bth::new(QUEUE_PAIR, Psn::new(1)),
                queue_key: QUEUE_KEY,
                source: Qpn::new(source),
                immediate: None,
            };
            let mut frame = [0; 512];
            let mut draft =
                wire::emit(&path("10.0.0.1", "10.0.0.2"), 1, &header, MAD_LENGTH, &mut frame).unwrap();
            draft.payload().copy_from_slice(&[7; MAD_LENGTH]);
            let length = draft.seal();
            let mut there = management();
            assert!(there.on_frame(&frame[..length], &neighbours()));
            assert_eq!(there.receive().is_some(), is_received, "source queue pair {source}");
        }
    }

    /// An answer to such a datagram would be sent to a group or to this host.
    #[test]
    fn a_datagram_from_a_martian_source_is_dropped() {
        let peer = Mac([2, 0, 0, 0, 0, 1]);
        let table = [
            ("10.0.0.1", peer, true),
            ("fd00::1", peer, true),
            ("10.0.0.2", HERE, true),
            ("10.0.0.2", peer, false),
            ("fd00::2", peer, false),
            ("10.0.0.1", Mac([0xff; 6]), false),
            ("10.0.0.1", Mac([1, 0, 0x5e, 0, 0, 1]), false),
            ("10.0.0.255", peer, false),
            ("224.0.0.1", peer, false),
            ("255.255.255.255", peer, false),
            ("127.0.0.1", peer, false),
            ("0.0.0.0", peer, false),
            ("ff02::1", peer, false),
            ("::1", peer, false),
        ];
        for (source, mac, is_received) in table {
            let destination = if source.contains(':') { "fd00::2" } else { "10.0.0.2" };
            let mut path = path(source, destination);
            path.source_mac = mac;
            let (mut here, mut there) = (management(), management());
            assert!(here.send(path, [7; MAD_LENGTH]));
            let mut frame = [0; 512];
            let length = here.poll_transmit(&mut frame).unwrap();
            assert!(there.on_frame(&frame[..length], &neighbours()));
            assert_eq!(there.receive().is_some(), is_received, "{source} from {mac}");
        }
    }

    #[test]
    fn other_frames_are_not_management_datagrams() {
        let mut management = management();
        for length in 0..80 {
            assert!(!management.on_frame(&vec![0x45; length], &neighbours()));
        }
    }
}
