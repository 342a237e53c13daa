//! Asynchronous events (IBA 11.6.3).

use crate::wire::IN_BAND_ROOM;
use crate::wire::telemetry::MAX_HOPS;
use crate::{CqId, QpFailure, Qpn, SrqId, Unreachable};
use alloc::collections::VecDeque;
use cc::Instant;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

/// Asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first packet arrived while the queue pair was in RTR: the peer is in RTS.
    CommunicationEstablished(Qpn),
    /// All begun messages have completed: the queue pair in SQD may be changed.
    SendQueueDrained(Qpn),
    /// The queue pair uses no further requests of its shared receive queue.
    LastReceive(Qpn),
    /// The queue pair went to ERR without a request of the program.
    QpFailed(QpFailure),
    /// A send request of an unreliable queue pair failed, and the queue pair went to SQE. IBA has no event for it, only the completion.
    SendQueueFailed(QpFailure),
    /// A shared receive queue has fewer requests than the limit that was armed.
    SharedReceivesLow(SrqId),
    /// A completion queue lost completions, and its queue pairs failed.
    CqOverflowed(CqId),
}

impl Event {
    /// Returns the queue pair of the event, if it has one.
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

/// Change that the congestion control of a queue pair reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionChange {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Destination of the datagrams to which the change applies; `None` for the queue pair's only peer.
    pub destination: Option<IpAddr>,
    /// Change.
    pub notice: CongestionNotice,
}

/// Change of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionNotice {
    /// Telemetry is missing, and this algorithm runs from now on.
    TelemetryMissing(&'static str),
    /// Telemetry has returned, and this algorithm runs from now on.
    TelemetryRestored(&'static str),
    /// Data packets have no room for the telemetry of this many switches, or probes have none for more. Reported once.
    LongPath {
        /// Switches that a probe counted, at most [`MAX_HOPS`](crate::wire::telemetry::MAX_HOPS).
        switches: u8,
    },
    /// The configured base round trip differs from that of the empty path. Reported once.
    WrongBaseRtt {
        /// Configured value.
        configured: Duration,
        /// Measured round trip of the empty path.
        measured: Duration,
    },
}

/// Writes one line for a log.
impl fmt::Display for CongestionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destination {
            Some(destination) => write!(f, "QP {} to {destination}: ", self.qpn)?,
            None => write!(f, "QP {}: ", self.qpn)?,
        }
        let (why, algorithm) = match self.notice {
            CongestionNotice::TelemetryMissing(algorithm) => ("no telemetry comes back", algorithm),
            CongestionNotice::TelemetryRestored(algorithm) => ("telemetry comes back again", algorithm),
            CongestionNotice::LongPath { switches: MAX_HOPS } => {
                return write!(
                    f,
                    "the path has {MAX_HOPS} switches or more, and telemetry counts no more: queues behind them are not seen"
                );
            }
            CongestionNotice::LongPath { switches } => {
                return write!(
                    f,
                    "the path has {switches} switches, and data packets have room for the telemetry of {IN_BAND_ROOM}: probes carry it from now on"
                );
            }
            CongestionNotice::WrongBaseRtt { configured, measured } => {
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

/// Events that were not polled yet, oldest first.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    lost: u64,
    suspected: VecDeque<IpAddr>,
    changes: VecDeque<CongestionChange>,
    /// Last ICMP message about packets to each peer, with its time.
    unreachable: VecDeque<(IpAddr, Instant, Unreachable)>,
}

impl Default for Events {
    /// Allocates room for all changes, so that recording one allocates nothing.
    fn default() -> Self {
        let changes = VecDeque::with_capacity(Self::CHANGES);
        Self {
            queue: VecDeque::new(),
            lost: 0,
            suspected: VecDeque::new(),
            changes,
            unreachable: VecDeque::new(),
        }
    }
}

impl Events {
    /// Limit of the pending events.
    const LIMIT: usize = 1 << 16;
    /// Limit of the pending suspected peers. Others are reported the next time that they do not answer.
    const MAX_SUSPECTED: usize = 64;
    /// Limit of the pending changes. Beyond it the oldest is dropped.
    const CHANGES: usize = 64;
    /// Limit of the peers whose last ICMP message is kept. Beyond it the oldest is discarded.
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

    pub(crate) fn forget(&mut self, is_destroyed: impl Fn(&Event) -> bool) {
        self.queue.retain(|event| !is_destroyed(event));
    }

    /// Removes the changes of a destroyed queue pair, whose number may be reused.
    pub(crate) fn forget_changes(&mut self, qpn: Qpn) {
        self.changes.retain(|change| change.qpn != qpn);
    }

    /// Records that packets to this address may not arrive, once until it is polled.
    #[cold]
    pub(crate) fn suspect(&mut self, peer: IpAddr) {
        if self.suspected.len() < Self::MAX_SUSPECTED && !self.suspected.contains(&peer) {
            self.suspected.push_back(peer);
        }
    }

    pub(crate) fn pop_suspected(&mut self) -> Option<IpAddr> {
        self.suspected.pop_front()
    }

    #[cold]
    pub(crate) fn change(&mut self, change: CongestionChange) {
        // Drops the oldest change.
        if self.changes.len() == Self::CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    pub(crate) fn pop_change(&mut self) -> Option<CongestionChange> {
        self.changes.pop_front()
    }

    #[cold]
    pub(crate) fn record_unreachable(&mut self, now: Instant, peer: IpAddr, what: Unreachable) {
        self.unreachable.retain(|&(address, ..)| address != peer);
        if self.unreachable.len() == Self::UNREACHABLE {
            self.unreachable.pop_front();
        }
        self.unreachable.push_back((peer, now, what));
    }

    pub(crate) fn unreachable(&self, peer: IpAddr) -> Option<(Instant, Unreachable)> {
        let found = self.unreachable.iter().find(|&&(address, ..)| address == peer);
        found.map(|&(_, at, what)| (at, what))
    }

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }
}
