//! Peers that lose large datagrams, and therefore get each packet singly.
//!
//! A socket that receives frame by frame at the other end of a veth pair loses every datagram that nothing has split. The sender sees only
//! that requests time out, as they do on any path that loses packets. So a suspected peer gets the next packets singly, for a trial. If
//! these arrive, and large datagrams are lost again afterwards, several times in a row, the peer loses large datagrams. Much later, they are
//! tried again, as path MTU discovery without ICMP tries larger packets again.

use std::net::IpAddr;

/// Most peers observed at a time. Others are added when they are suspected again.
const MAX_PEERS: usize = 64;
/// Packets of a trial: those that would have been sent in large datagrams.
const TRIAL: u32 = 1024;
/// A peer that is suspected after this many packets of a trial loses single packets too.
const ANSWERED: u32 = TRIAL / 4;
/// Large datagrams after a trial within which a peer that loses them is suspected again: more than fit a window.
const WATCH: u32 = 256;
/// Trials in a row, each followed by lost large datagrams, after which the peer is known to lose them.
const TRIALS: u8 = 3;
/// Packets for a peer that is known to lose large datagrams, before they are tried again: at least half a minute at full speed.
const SINGLES: u32 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Packets are sent singly: this many more.
    Trial(u32),
    /// Large datagrams are sent again: this many so far.
    Watch(u32),
    /// The peer loses large datagrams. This many more packets are sent singly.
    Single(u32),
}

#[derive(Clone, Copy, Debug)]
struct SuspectedPeer {
    address: IpAddr,
    phase: Phase,
    /// Consecutive times that the peer was suspected while it got large datagrams, and not while it got single packets.
    lost: u8,
}

/// The suspected peers of a port.
#[derive(Debug, Default)]
pub(in crate::linux) struct SinglePeers(Vec<SuspectedPeer>);

impl SinglePeers {
    /// Takes note that packets of `interface` to a peer may be lost. Writes a line to the log if it is known from now on that the peer loses
    /// large datagrams.
    #[cold]
    pub(in crate::linux) fn suspect(&mut self, peer: IpAddr, interface: &str) {
        if self.is_confirmed_by(peer) {
            tracing::warn!(
                "{interface}: {peer} loses large datagrams, so each packet to it leaves singly; its port may be DPDK's af_packet on a veth"
            );
        }
    }

    /// As [`suspect`](Self::suspect). Returns true if it is known from now on that the peer loses large datagrams.
    fn is_confirmed_by(&mut self, address: IpAddr) -> bool {
        let Some(peer) = self.0.iter_mut().find(|peer| peer.address == address) else {
            if self.0.len() < MAX_PEERS {
                self.0.push(SuspectedPeer { address, phase: Phase::Trial(TRIAL), lost: 1 });
            }
            return false;
        };
        match peer.phase {
            Phase::Trial(left) if left > TRIAL - ANSWERED => {}
            Phase::Trial(_) => peer.lost = 0,
            Phase::Watch(_) if peer.lost + 1 < TRIALS => {
                (peer.phase, peer.lost) = (Phase::Trial(TRIAL), peer.lost + 1);
            }
            Phase::Watch(_) => {
                peer.phase = Phase::Single(SINGLES);
                return true;
            }
            Phase::Single(_) => {}
        }
        false
    }

    /// Returns true if the next packets to a peer, `count` of them, must be sent singly instead of as one datagram.
    #[inline]
    pub(in crate::linux) fn must_split(
        &mut self,
        count: usize,
        destination: impl FnOnce() -> Option<IpAddr>,
    ) -> bool {
        !self.0.is_empty() && destination().is_some_and(|address| self.advance(address, count as u32))
    }

    #[cold]
    fn advance(&mut self, address: IpAddr, count: u32) -> bool {
        let Some(at) = self.0.iter().position(|peer| peer.address == address) else { return false };
        let peer = &mut self.0[at];
        match &mut peer.phase {
            Phase::Trial(left) | Phase::Single(left) if *left > count => {
                *left -= count;
                return true;
            }
            Phase::Trial(_) | Phase::Single(_) => peer.phase = Phase::Watch(0),
            Phase::Watch(sent) if *sent < WATCH => *sent += 1,
            Phase::Watch(_) => _ = self.0.swap_remove(at),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    /// Sends datagrams of 64 packets until one leaves whole. Returns how many left as single packets before.
    fn singles(peers: &mut SinglePeers) -> u32 {
        (0..).find(|_| !peers.must_split(64, || Some(PEER))).unwrap()
    }

    #[test]
    fn a_peer_that_loses_only_large_datagrams_gets_single_packets_after_three_trials() {
        let mut peers = SinglePeers::default();
        let known: Vec<bool> = (0..TRIALS)
            .map(|_| {
                let known = peers.is_confirmed_by(PEER);
                if !known {
                    assert_eq!(singles(&mut peers), TRIAL / 64 - 1);
                }
                known
            })
            .collect();
        assert_eq!(known, [false, false, true]);
        assert_eq!(singles(&mut peers), SINGLES / 64 - 1);
        assert!(
            peers.is_confirmed_by(PEER),
            "the trial after {SINGLES} packets did not tell that nothing has changed"
        );
    }

    #[test]
    fn a_path_that_loses_single_packets_too_keeps_large_datagrams() {
        let mut peers = SinglePeers::default();
        for _ in 0..100 {
            assert!(!peers.is_confirmed_by(PEER));
            for _ in 0..8 {
                assert!(peers.must_split(64, || Some(PEER)));
            }
            assert!(!peers.is_confirmed_by(PEER));
            singles(&mut peers);
        }
    }

    #[test]
    fn suspicions_of_other_queue_pairs_at_the_begin_of_a_trial_tell_nothing() {
        let mut peers = SinglePeers::default();
        let known: Vec<bool> = (0..TRIALS)
            .map(|_| {
                let known = peers.is_confirmed_by(PEER);
                assert!(!peers.is_confirmed_by(PEER));
                singles(&mut peers);
                known
            })
            .collect();
        assert_eq!(known, [false, false, true]);
    }

    #[test]
    fn a_peer_is_forgotten_after_large_datagrams_that_arrived() {
        let mut peers = SinglePeers::default();
        peers.is_confirmed_by(PEER);
        singles(&mut peers);
        for _ in 0..=WATCH {
            assert!(!peers.must_split(64, || Some(PEER)));
        }
        assert!(peers.0.is_empty());
    }

    #[test]
    fn other_peers_keep_large_datagrams() {
        let mut peers = SinglePeers::default();
        peers.is_confirmed_by(PEER);
        assert!(!peers.must_split(64, || Some(OTHER)));
        assert!(!peers.must_split(64, || None));
    }

    #[test]
    fn at_most_64_peers_are_observed() {
        let mut peers = SinglePeers::default();
        for last in 0..=255 {
            peers.is_confirmed_by(IpAddr::from([192, 0, 2, last]));
        }
        assert_eq!(peers.0.len(), MAX_PEERS);
    }
}
