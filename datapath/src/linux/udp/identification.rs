//! Determines the IPv4 identification of received packets. The ICRC covers it, and a UDP socket does not deliver it.
//!
//! The expected identification of a packet is that of the previous packet plus one. If its ICRC does not match that, the identification is
//! computed from the ICRC, which then has 16 bits left to detect damage ([`solve_identification`]). So a computed identification must be
//! below 64 (`MAX_SEGMENTS`) in two cases:
//!
//! - Linux numbers the packets of a UDP socket from 0 in each datagram. A peer that has sent many packets with a small number in a row has
//!   such a socket.
//! - The packets of a large datagram are numbered consecutively, because one system call sent them, or GRO joined consecutive ones. Only
//!   the start of another call has a different number, which is small.

use crate::linux::datagrams::{MAX_SEGMENTS, renumber};
use roce::wire::solve_identification;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

const PEERS: usize = 256;
/// Consecutive packets with a small identification after which a peer is known to use a UDP socket. A queue pair on another port has
/// [`MAX_SEGMENTS`] of them at its start.
const PACKETS_TO_KNOW: u16 = 1024;
/// Consecutive refused packets after which a known peer is unknown again, because it may be another program. Fewer than the tries of a
/// queue pair.
const REFUSALS_TO_FORGET: u16 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    hash: u64,
    last: u16,
    small: u16,
    refused: u16,
}

#[derive(Debug)]
pub(super) struct Identifications {
    hasher: RandomState,
    /// Indexed by the lowest bits of the hash of address and port. A peer with the same bits replaces the earlier one.
    peers: Box<[Peer; PEERS]>,
    peer: usize,
    /// Number of the datagram's last packet with a valid ICRC, and its identification.
    right: Option<(usize, u16)>,
}

impl Identifications {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), peers: Box::new([Peer::default(); PEERS]), peer: 0, right: None }
    }

    pub(super) fn begin(&mut self, source: SocketAddr) {
        let hash = self.hasher.hash_one((source.ip(), source.port()));
        self.peer = hash as usize % PEERS;
        self.right = None;
        if self.peers[self.peer].hash != hash {
            self.peers[self.peer] = Peer { hash, last: u16::MAX, ..Peer::default() };
        }
    }

    /// Sets the identification of packet `number` of the datagram to the one with which its ICRC is valid. A damaged packet has an
    /// identification for which it is not.
    pub(super) fn complete(&mut self, number: usize, frame: &mut [u8]) {
        let peer = &mut self.peers[self.peer];
        let is_known = peer.small >= PACKETS_TO_KNOW;
        let expected = match self.right {
            Some((before, identification)) => identification.wrapping_add((number - before) as u16),
            None if is_known => 0,
            None => peer.last.wrapping_add(1),
        };
        renumber(frame, expected);
        let Some(found) = solve_identification(frame) else { return Self::refuse(peer) };
        let is_small = usize::from(found) < MAX_SEGMENTS;
        let may_be_any = !is_known && self.right.is_none();
        if found != expected && !is_small && !may_be_any {
            return Self::refuse(peer);
        }
        if found != expected {
            renumber(frame, found);
        }
        (peer.last, peer.refused) = (found, 0);
        peer.small = if is_small { peer.small.saturating_add(1) } else { 0 };
        self.right = Some((number, found));
    }

    fn refuse(peer: &mut Peer) {
        peer.refused += 1;
        if peer.refused >= REFUSALS_TO_FORGET {
            (peer.refused, peer.small) = (0, 0);
        }
    }
}
