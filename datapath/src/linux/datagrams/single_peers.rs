//! Peers that lose large datagrams, and therefore get each packet singly.
//!
//! A socket that receives frame by frame at the other end of a veth pair loses every datagram that nothing has split. The sender sees only
//! that requests time out, as they do on any path that loses packets. So a suspected peer gets the next packets singly, for a trial. If
//! these arrive, and large datagrams are lost again afterwards, several times in a row, the peer loses large datagrams. Much later, they are
//! tried again, as path MTU discovery without ICMP tries larger packets again.

use cc::Instant;
use std::net::IpAddr;
use std::time::Duration;

/// Most peers observed at a time. A further one replaces the oldest.
const MAX_PEERS: usize = 64;
/// Least packets of a trial: those that would have been sent in large datagrams.
const TRIAL: u32 = 1024;
/// Least time of a trial, in which the peer is not suspected again: other queue pairs time out because of datagrams that were lost before
/// the trial. The usual timeout is 67 ms (`timeout` 14).
const TRIAL_TIME: Duration = Duration::from_millis(100);
/// Large datagrams after a trial within which a peer that loses them is suspected again: more than fit a window.
const WATCH: u32 = 256;
/// Trials in a row, each followed by lost large datagrams, after which the peer is known to lose them.
const TRIALS: u8 = 3;
/// Packets for a peer that is known to lose large datagrams, before they are tried again: at least half a minute at full speed.
const SINGLES: u32 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Packets are sent singly: at least this many more, and at least until this time.
    Trial(u32, Instant),
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
    /// Records that packets of `interface` to a peer may be lost. Writes a line to the log if that confirms that the peer loses large
    /// datagrams.
    #[cold]
    pub(in crate::linux) fn suspect(&mut self, now: Instant, peer: IpAddr, interface: &str) {
        if self.is_confirmed_by(now, peer) {
            tracing::warn!(
                "{interface}: {peer} loses large datagrams, so each packet to it leaves singly; its port may be DPDK's af_packet on a veth"
            );
        }
    }

    /// As [`suspect`](Self::suspect). Returns true if that confirms that the peer loses large datagrams.
    fn is_confirmed_by(&mut self, now: Instant, address: IpAddr) -> bool {
        let trial = Phase::Trial(TRIAL, now + TRIAL_TIME);
        let Some(peer) = self.0.iter_mut().find(|peer| peer.address == address) else {
            if self.0.len() == MAX_PEERS {
                self.0.remove(0);
            }
            self.0.push(SuspectedPeer { address, phase: trial, lost: 1 });
            return false;
        };
        match peer.phase {
            Phase::Trial(_, end) if now < end => {}
            // The peer loses single packets too.
            Phase::Trial(..) => peer.lost = 0,
            Phase::Watch(_) if peer.lost + 1 < TRIALS => (peer.phase, peer.lost) = (trial, peer.lost + 1),
            Phase::Watch(_) => {
                peer.phase = Phase::Single(SINGLES);
                return true;
            }
            Phase::Single(_) => {}
        }
        false
    }

    /// Returns true if all peers get large datagrams, and none is observed.
    #[inline]
    pub(in crate::linux) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if packets to this peer must be sent singly instead of as one datagram.
    #[cold]
    pub(in crate::linux) fn must_split(&self, address: IpAddr) -> bool {
        self.0.iter().any(|peer| peer.address == address && !matches!(peer.phase, Phase::Watch(_)))
    }

    /// Records that `count` packets to a peer, which fit into one datagram, were sent: singly if [`must_split`](Self::must_split) returned
    /// true.
    #[cold]
    pub(in crate::linux) fn on_sent(&mut self, now: Instant, address: IpAddr, count: usize) {
        let Some(at) = self.0.iter().position(|peer| peer.address == address) else { return };
        let (peer, count) = (&mut self.0[at], count as u32);
        match &mut peer.phase {
            Phase::Trial(left, end) if *left > count || now < *end => *left = left.saturating_sub(count),
            Phase::Single(left) if *left > count => *left -= count,
            Phase::Trial(..) | Phase::Single(_) => peer.phase = Phase::Watch(0),
            Phase::Watch(sent) if *sent < WATCH => *sent += 1,
            Phase::Watch(_) => _ = self.0.remove(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    const END: Instant = Instant::from_nanos(TRIAL_TIME.as_nanos() as u64);

    /// Sends datagrams of 64 packets, the first of a trial at its begin and the others at its end, until one leaves whole. Returns how many
    /// left as single packets before.
    fn singles(peers: &mut SinglePeers, begin: Instant) -> u32 {
        let mut count = 0;
        while peers.must_split(PEER) {
            peers.on_sent(if count == 0 { begin } else { begin + TRIAL_TIME }, PEER, 64);
            count += 1;
        }
        count
    }

    /// Runs trials in sequence. In each, the peer is suspected at the begin, and again after `early` packets. Returns after which trials it
    /// is known to lose large datagrams.
    fn confirmations(peers: &mut SinglePeers, early: u32) -> Vec<bool> {
        let mut now = Instant::ZERO;
        let mut suspect = || {
            let known = peers.is_confirmed_by(now, PEER);
            if !known {
                (0..early / 64).for_each(|_| peers.on_sent(now, PEER, 64));
                assert!(!peers.is_confirmed_by(now, PEER));
                singles(peers, now);
            }
            now = now + TRIAL_TIME;
            known
        };
        (0..TRIALS).map(|_| suspect()).collect()
    }

    #[test]
    fn a_peer_that_loses_only_large_datagrams_gets_single_packets_after_three_trials() {
        let mut peers = SinglePeers::default();
        assert_eq!(confirmations(&mut peers, 0), [false, false, true]);
        assert_eq!(singles(&mut peers, END), SINGLES / 64);
        assert!(
            peers.is_confirmed_by(END, PEER),
            "the trial after {SINGLES} packets did not tell that nothing has changed"
        );
    }

    #[test]
    fn a_trial_has_1024_packets_and_takes_100_ms() {
        let mut peers = SinglePeers::default();
        peers.is_confirmed_by(Instant::ZERO, PEER);
        assert_eq!(singles(&mut peers, Instant::ZERO), TRIAL / 64);
        peers.is_confirmed_by(END, PEER);
        (0..2 * TRIAL / 64).for_each(|_| peers.on_sent(END, PEER, 64));
        assert!(peers.must_split(PEER));
        peers.on_sent(END + TRIAL_TIME, PEER, 64);
        assert!(!peers.must_split(PEER));
    }

    #[test]
    fn a_path_that_loses_single_packets_too_keeps_large_datagrams() {
        let mut peers = SinglePeers::default();
        for _ in 0..100 {
            assert!(!peers.is_confirmed_by(Instant::ZERO, PEER));
            assert!(!peers.is_confirmed_by(END, PEER));
            singles(&mut peers, END);
        }
    }

    #[test]
    fn suspicions_of_other_queue_pairs_early_in_a_trial_are_ignored() {
        for packets in [0, TRIAL / 2, 2 * TRIAL] {
            assert_eq!(confirmations(&mut SinglePeers::default(), packets), [false, false, true]);
        }
    }

    #[test]
    fn a_peer_is_forgotten_after_large_datagrams_that_arrived() {
        let mut peers = SinglePeers::default();
        peers.is_confirmed_by(Instant::ZERO, PEER);
        singles(&mut peers, Instant::ZERO);
        for _ in 0..=WATCH {
            assert!(!peers.must_split(PEER));
            peers.on_sent(END, PEER, 64);
        }
        assert!(peers.is_empty());
    }

    #[test]
    fn other_peers_keep_large_datagrams() {
        let mut peers = SinglePeers::default();
        peers.is_confirmed_by(Instant::ZERO, PEER);
        assert!(!peers.must_split(OTHER));
    }

    #[test]
    fn the_64_latest_peers_are_observed() {
        let mut peers = SinglePeers::default();
        for last in 0..=255 {
            peers.is_confirmed_by(Instant::ZERO, IpAddr::from([192, 0, 2, last]));
        }
        assert_eq!(peers.0.len(), MAX_PEERS);
        assert!(peers.must_split(IpAddr::from([192, 0, 2, 255])));
    }
}
