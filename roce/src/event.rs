//! Events that are not completions: asynchronous events (IBA 11.6.3).

use crate::{CqId, QpFailure, Qpn, SrqId, Unreachable};
use alloc::collections::VecDeque;
use cc::Instant;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

/// Something happened that the application may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first packet came while the queue pair was in RTR: the peer is in RTS.
    CommunicationEstablished(Qpn),
    /// All that had begun is done: the queue pair in SQD may be changed.
    SendQueueDrained(Qpn),
    /// The queue pair takes no more from its shared receive queue.
    LastReceive(Qpn),
    /// The queue pair went to ERR, and nothing here had requested it.
    QpFailed(QpFailure),
    /// A send request of an unreliable queue pair failed, which went to SQE: IBA has only the completion for it.
    SendQueueFailed(QpFailure),
    /// Fewer requests wait than the limit that was armed.
    SharedReceivesLow(SrqId),
    /// Completions were lost; the queue pairs that it serves failed.
    CqOverflowed(CqId),
}

impl Event {
    /// The queue pair that it is about.
    #[must_use]
    pub const fn qpn(&self) -> Option<Qpn> {
        match self {
            Self::CommunicationEstablished(qpn) | Self::SendQueueDrained(qpn) | Self::LastReceive(qpn) => {
                Some(*qpn)
            }
            Self::QpFailed(failure) | Self::SendQueueFailed(failure) => Some(failure.qpn),
            Self::SharedReceivesLow(_) | Self::CqOverflowed(_) => None,
        }
    }
}

/// A change that a queue pair's congestion control reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionChange {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The destination of the datagrams that it is about; none if it is about the queue pair's only peer.
    pub destination: Option<IpAddr>,
    /// The change.
    pub news: CongestionNews,
}

/// News of the path that congestion control reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionNews {
    /// Telemetry is missed, and this algorithm runs from now on.
    Missed(&'static str),
    /// Telemetry is back, and this algorithm runs from now on.
    Back(&'static str),
    /// The configured base round trip is not what the empty path takes. Told once.
    WrongBaseRtt {
        /// The configured value.
        configured: Duration,
        /// The time that the empty path takes.
        measured: Duration,
    },
}

/// One line for a log.
impl fmt::Display for CongestionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destination {
            Some(destination) => write!(f, "QP {} to {destination}: ", self.qpn)?,
            None => write!(f, "QP {}: ", self.qpn)?,
        }
        let (why, algorithm) = match self.news {
            CongestionNews::Missed(algorithm) => ("no telemetry comes back", algorithm),
            CongestionNews::Back(algorithm) => ("telemetry comes back again", algorithm),
            CongestionNews::WrongBaseRtt { configured, measured } => {
                let short = if measured > configured { "too short" } else { "too long" };
                return write!(
                    f,
                    "base_rtt {configured:?} is {short}: the empty path takes {measured:?}; leave base_rtt out, and it is measured"
                );
            }
        };
        write!(f, "{why}, congestion control is {algorithm} from now on")
    }
}

/// Events that were not taken yet, oldest first.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    lost: u64,
    doubted: VecDeque<IpAddr>,
    changes: VecDeque<CongestionChange>,
    /// ICMP messages about packets to a peer, with the time of each.
    unreachable: VecDeque<(IpAddr, Instant, Unreachable)>,
}

impl Default for Events {
    /// Room for all changes: while packets come and go, nothing is allocated.
    fn default() -> Self {
        let changes = VecDeque::with_capacity(Self::CHANGES);
        Self {
            queue: VecDeque::new(),
            lost: 0,
            doubted: VecDeque::new(),
            changes,
            unreachable: VecDeque::new(),
        }
    }
}

impl Events {
    /// An application that does not take them costs no more room than this.
    const LIMIT: usize = 1 << 16;
    /// The limit on peers that wait to be reported: more are reported the next time that they do not answer.
    const DOUBTS: usize = 64;
    /// The limit on changes that wait to be reported: beyond it the oldest is dropped.
    const CHANGES: usize = 64;
    /// Peers of which it is known what ICMP said last: beyond that the oldest is forgotten.
    const UNREACHABLE: usize = 16;

    pub(crate) fn push(&mut self, event: Event) {
        if self.queue.len() < Self::LIMIT {
            self.queue.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// Removes the events of an object that is destroyed.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Event) -> bool) {
        self.queue.retain(|event| !gone(event));
    }

    /// The queue pair is gone: its number may come to be another's.
    pub(crate) fn forget_changes(&mut self, qpn: Qpn) {
        self.changes.retain(|change| change.qpn != qpn);
    }

    /// Notes that packets to this address may not arrive. An address that waits already is noted once.
    #[cold]
    pub(crate) fn doubt(&mut self, peer: IpAddr) {
        if self.doubted.len() < Self::DOUBTS && !self.doubted.contains(&peer) {
            self.doubted.push_back(peer);
        }
    }

    pub(crate) fn pop_doubt(&mut self) -> Option<IpAddr> {
        self.doubted.pop_front()
    }

    #[cold]
    pub(crate) fn change(&mut self, change: CongestionChange) {
        // The newest count.
        if self.changes.len() == Self::CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    pub(crate) fn pop_change(&mut self) -> Option<CongestionChange> {
        self.changes.pop_front()
    }

    /// ICMP says why packets for `peer` do not arrive.
    #[cold]
    pub(crate) fn note_unreachable(&mut self, now: Instant, peer: IpAddr, what: Unreachable) {
        self.unreachable.retain(|&(address, ..)| address != peer);
        if self.unreachable.len() == Self::UNREACHABLE {
            self.unreachable.pop_front();
        }
        self.unreachable.push_back((peer, now, what));
    }

    /// Returns what ICMP said last of packets for `peer`, and when.
    pub(crate) fn unreachable(&self, peer: IpAddr) -> Option<(Instant, Unreachable)> {
        let found = self.unreachable.iter().find(|&&(address, ..)| address == peer);
        found.map(|&(_, at, what)| (at, what))
    }

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }
}
