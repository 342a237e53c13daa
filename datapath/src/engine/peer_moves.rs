//! Follows peers whose Ethernet address changes while queue pairs use it: a standby takes over, a machine migrates, a router is replaced.
//!
//! A queue pair that times out reports its peer (`Endpoint::poll_suspected`), several retries before it fails. The core resolves the
//! address again. If the address has changed, it redirects all queue pairs of that peer. Acknowledged packets have no additional cost.

use super::other_cores::OtherCores;
use crate::neighbour::{Neighbours, Resolution};
use cc::Instant;
use roce::{CongestionNotice, Endpoint};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Most peers being resolved at a time. Others are reported again at their next timeout.
const MAX_PEERS: usize = 64;
/// Time after a resolution for which the peer is not resolved again. Under packet loss, every retransmission reports the peer.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Context<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) neighbours: &'a mut Neighbours,
    pub(super) other_cores: Option<&'a OtherCores>,
}

#[derive(Debug, Default)]
pub(super) struct PeerMoves {
    resolving: Vec<IpAddr>,
    /// Peers that were suspected since the last [`take_suspected`](Self::take_suspected): at most [`MAX_PEERS`].
    suspected: Vec<IpAddr>,
    /// Number of neighbour answers at the last check.
    answers_seen: u64,
    /// Peers resolved recently, and when each may be resolved again: oldest first, at most [`MAX_PEERS`].
    recently_resolved: VecDeque<(IpAddr, Instant)>,
}

impl PeerMoves {
    /// Resolves the reported peers again; called once a turn. Returns true if the next turn must continue.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant, around: Context<'_>) -> bool {
        while let Some(change) = around.endpoint.poll_congestion_change() {
            match change.notice {
                CongestionNotice::WrongBaseRtt { .. } | CongestionNotice::LongPath { .. } => {
                    tracing::warn!("{change}")
                }
                CongestionNotice::TelemetryMissing(_) | CongestionNotice::TelemetryRestored(_) => {
                    tracing::info!("{change}")
                }
            }
        }
        // Only core 0 resolves addresses. A worker core reports the peer to it.
        let resolves = around.other_cores.is_none_or(OtherCores::is_main);
        while let Some(peer) = around.endpoint.poll_suspected() {
            self.record(peer);
            if resolves {
                self.suspect(now, peer, around.neighbours);
            }
        }
        !self.resolving.is_empty()
            && self.answers_seen != around.neighbours.answers()
            && self.redirect_resolved(now, around)
    }

    /// Returns a peer that was suspected since the last call, for the port that sent the packets, and for core 0.
    #[inline]
    pub(super) fn take_suspected(&mut self) -> Option<IpAddr> {
        self.suspected.pop()
    }

    /// Records a peer whose packets may be lost, for [`take_suspected`](Self::take_suspected).
    #[cold]
    pub(super) fn record(&mut self, peer: IpAddr) {
        if self.suspected.len() < MAX_PEERS {
            self.suspected.push(peer);
        }
    }

    /// Resolves a peer again, unless it was resolved recently.
    #[cold]
    pub(super) fn suspect(&mut self, now: Instant, peer: IpAddr, neighbours: &mut Neighbours) {
        while self.recently_resolved.front().is_some_and(|&(_, until)| until <= now) {
            self.recently_resolved.pop_front();
        }
        if self.resolving.len() < MAX_PEERS
            && !self.resolving.contains(&peer)
            && !self.recently_resolved.iter().any(|&(resolved, _)| resolved == peer)
        {
            neighbours.resolve_again(now, peer);
            self.resolving.push(peer);
            // Makes the next check use an entry that is known already.
            self.answers_seen = neighbours.answers().wrapping_sub(1);
        }
    }

    #[cold]
    fn redirect_resolved(
        &mut self,
        now: Instant,
        Context { endpoint, neighbours, other_cores }: Context<'_>,
    ) -> bool {
        self.answers_seen = neighbours.answers();
        let (mut is_more, recently_resolved) = (false, &mut self.recently_resolved);
        self.resolving.retain(|&peer| {
            match neighbours.resolve(now, peer) {
                Ok(Resolution::Pending) => return true,
                Ok(Resolution::Resolved(mac)) => {
                    let changed = endpoint.redirect(peer, mac);
                    if let Some(other_cores) = other_cores {
                        other_cores.redirect(peer, mac);
                    }
                    if changed > 0 {
                        tracing::info!("{peer} has moved to {mac}");
                    }
                    if changed == Endpoint::REDIRECTS {
                        is_more = true;
                        return true;
                    }
                }
                // No answer. The next timeout tries again, until the queue pair fails.
                Err(_) => {}
            }
            if recently_resolved.len() == MAX_PEERS {
                recently_resolved.pop_front();
            }
            recently_resolved.push_back((peer, now + RESOLVE_INTERVAL));
            false
        });
        if is_more {
            self.answers_seen = self.answers_seen.wrapping_sub(1);
        }
        is_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_memory::HostMemory;
    use crate::neighbour::Address;
    use roce::qp::{
        AckTimeout, Capabilities, Congestion, CongestionAlgorithm, Data, Modify, QpInit, Remote, RtrSettings,
        RtsSettings, SendRequest,
    };
    use roce::wire::{Mac, Numbers, Path, Service};
    use roce::{Access, EndpointConfig, Qpn, Rkey};

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const MACS: [Mac; 3] = [Mac([2, 0, 0, 0, 1, 0]), Mac([2, 0, 0, 0, 1, 1]), Mac([2, 0, 0, 0, 1, 2])];

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    struct Scene {
        endpoint: Endpoint,
        neighbours: Neighbours,
        peer_moves: PeerMoves,
        peer: IpAddr,
        qpns: Vec<Qpn>,
    }

    impl Scene {
        fn new(count: u32) -> Self {
            let config = EndpointConfig {
                max_qps: count,
                max_cqs: 1,
                max_regions: 1,
                seed: [7; 32],
                process: 0,
                numbers: Numbers::DEFAULT,
            };
            let (mut endpoint, peer) = (Endpoint::new(config), IpAddr::from([10, 0, 0, 2]));
            let (pd, cq) = (endpoint.create_pd(), endpoint.create_cq(16).unwrap());
            let init = QpInit {
                service: Service::Rc,
                pd,
                send_cq: cq,
                recv_cq: cq,
                capabilities: Capabilities { max_send: 4, max_recv: 1, ..Capabilities::default() },
                signal_all: false,
                srq: None,
            };
            let path = Path::new((OURS, [10, 0, 0, 1].into()), (MACS[0], peer));
            let qpns = (0..count).map(|_| connect(&mut endpoint, init, path)).collect();
            let addresses = ["10.0.0.1/24".parse::<Address>().unwrap()];
            let neighbours = Neighbours::standalone(OURS, &addresses, None);
            Self { endpoint, neighbours, peer_moves: PeerMoves::default(), peer, qpns }
        }

        fn move_to(&mut self, mac: Mac) {
            self.neighbours.set(self.peer, mac).unwrap();
        }

        /// Runs timers at `now`: a request of the first queue pair was not answered.
        fn suspect(&mut self, now: Instant) {
            self.endpoint.on_timeout(now);
            self.transmit(now);
        }

        fn transmit(&mut self, now: Instant) {
            // SAFETY: these tests register no memory.
            let memory = unsafe { HostMemory::new() };
            while self.endpoint.poll_transmit(now, &memory, &mut [0; 2048]).is_some() {}
        }

        fn post(&mut self) {
            let remote = Remote { address: 0, rkey: Rkey::new(1) };
            let request = SendRequest::write(1, Data::empty(), remote);
            self.endpoint.post_send(Instant::ZERO, self.qpns[0], request).unwrap();
            self.transmit(Instant::ZERO);
        }

        fn turn(&mut self, now: Instant) -> bool {
            let Self { endpoint, neighbours, peer_moves, .. } = self;
            peer_moves.turn(now, Context { endpoint, neighbours, other_cores: None })
        }

        /// Redirects the queue pairs that send to another address than `mac`, and returns their number.
        fn redirected(&mut self, mac: Mac) -> usize {
            self.endpoint.redirect(self.peer, mac)
        }
    }

    fn connect(endpoint: &mut Endpoint, init: QpInit, path: Path) -> Qpn {
        let qpn = endpoint.create_qp(Instant::ZERO, init).unwrap();
        let congestion = Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 20, rate: None });
        // 1 ms, and 4 ms after timeouts.
        let sending = RtsSettings { ack_timeout: AckTimeout::new(8), ..RtsSettings::new(congestion) };
        for modify in [
            Modify::Init { access: Access::ALL, partition_key: 0xffff },
            Modify::ReadyToReceive(RtrSettings::new(path, Qpn::new(5))),
            Modify::ReadyToSend(sending),
        ] {
            endpoint.modify_qp(Instant::ZERO, qpn, modify).unwrap();
        }
        qpn
    }

    #[test]
    fn the_port_learns_of_each_suspected_peer_once() {
        let mut scene = Scene::new(1);
        scene.post();
        assert_eq!(scene.peer_moves.take_suspected(), None);
        scene.suspect(at(10));
        scene.turn(at(10));
        assert_eq!(scene.peer_moves.take_suspected(), Some(scene.peer));
        assert_eq!(scene.peer_moves.take_suspected(), None);
    }

    /// Every retransmission reports the peer, which is resolved once in [`RESOLVE_INTERVAL`].
    #[test]
    fn a_peer_is_resolved_once_per_interval() {
        let mut scene = Scene::new(1);
        scene.move_to(MACS[1]);
        scene.post();
        scene.suspect(at(10));
        assert!(!scene.turn(at(10)));
        assert_eq!(scene.redirected(MACS[1]), 0, "it was redirected");
        scene.move_to(MACS[2]);
        for millis in [20, 30, 109] {
            scene.suspect(at(millis));
            assert!(!scene.turn(at(millis)));
            assert_eq!(scene.peer_moves.resolving.len(), 0);
            assert_eq!(scene.redirected(MACS[1]), 0, "it is not resolved again at {millis} ms");
        }
        scene.suspect(at(120));
        scene.turn(at(120));
        assert_eq!(scene.redirected(MACS[2]), 0, "it was redirected again");
    }

    #[test]
    fn a_peer_with_many_queue_pairs_is_redirected_over_several_turns() {
        let mut scene = Scene::new(Endpoint::REDIRECTS as u32 + 10);
        scene.move_to(MACS[1]);
        scene.post();
        scene.suspect(at(10));
        assert!(scene.turn(at(10)), "there is more to do");
        assert!(!scene.turn(at(10)));
        assert_eq!(scene.redirected(MACS[1]), 0);
    }

    #[test]
    fn the_lists_of_peers_are_bounded() {
        let mut scene = Scene::new(1);
        for n in 0..200 {
            let peer = IpAddr::from([10, 0, 0, n]);
            scene.neighbours.set(peer, MACS[0]).unwrap();
            scene.peer_moves.suspect(at(1), peer, &mut scene.neighbours);
            scene.turn(at(1));
        }
        assert_eq!(
            (scene.peer_moves.recently_resolved.len(), scene.peer_moves.resolving.len()),
            (MAX_PEERS, 0)
        );
    }
}
