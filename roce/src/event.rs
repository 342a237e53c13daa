//! What no completion tells: asynchronous events (IBA 11.6.3).

use crate::qp::CompletionStatus;
use crate::wire::NakCode;
use crate::{CqId, Psn, Qpn, SrqId};
use alloc::collections::VecDeque;
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
    /// The queue pair went to ERR, and nobody here had asked for it.
    QpFailed(QpFailure),
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
            Self::QpFailed(failure) => Some(failure.qpn),
            Self::SharedReceivesLow(_) | Self::CqOverflowed(_) => None,
        }
    }
}

/// How a queue pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFailure {
    /// Its number.
    pub qpn: Qpn,
    /// Why.
    pub cause: FailureCause,
    /// Whom it was connected to; `None` for datagrams.
    pub peer: Option<(IpAddr, Qpn)>,
    /// The last PSN that the peer acknowledged: one before the first, where it acknowledged nothing.
    pub acknowledged: Psn,
    /// The PSN that would have been sent next for the first time.
    pub send: Psn,
    /// The PSN that was expected from the peer.
    pub expected: Psn,
}

/// One line for a log: who, with whom, how far both had come, and why.
impl fmt::Display for QpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {} failed", self.qpn)?;
        if let Some((address, qpn)) = self.peer {
            write!(f, ", peer {address} QP {qpn}")?;
        }
        let Self { acknowledged, send, expected, cause, .. } = self;
        write!(f, ", last ACK {acknowledged}, next PSN {send}, expected PSN {expected}: {cause}")
    }
}

/// Why a queue pair went to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The oldest send request ended so.
    Request(CompletionStatus),
    /// The peer's request was refused so.
    Refused(NakCode),
    /// A message that came could not be placed, on a service that refuses nothing, or took back what is no window of this
    /// queue pair.
    Receive(CompletionStatus),
    /// A completion queue of it overflowed (IBA 10.2.6).
    CompletionQueue,
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(status) => write!(f, "its oldest request: {status}"),
            Self::Refused(code) => write!(f, "the peer's request was refused, {code}"),
            Self::Receive(status) => write!(f, "a message that came: {status}"),
            Self::CompletionQueue => f.write_str("its completion queue overflowed"),
        }
    }
}

/// What a queue pair's congestion control found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionChange {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// What it is.
    pub news: CongestionNews,
}

/// What congestion control found out of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionNews {
    /// Telemetry is missed, and this algorithm runs from now on.
    Missed(&'static str),
    /// Telemetry is back, and this algorithm runs from now on.
    Back(&'static str),
    /// The configured base round trip is not what the empty path takes. Told once.
    WrongBaseRtt {
        /// What is configured.
        configured: Duration,
        /// What the empty path takes.
        measured: Duration,
    },
}

/// One line for a log.
impl fmt::Display for CongestionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}: ", self.qpn)?;
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

/// Events that nobody took yet, oldest first.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    lost: u64,
    doubted: VecDeque<IpAddr>,
    changes: VecDeque<CongestionChange>,
}

impl Default for Events {
    /// Room for all changes: while packets come and go, nothing is allocated.
    fn default() -> Self {
        let changes = VecDeque::with_capacity(Self::CHANGES);
        Self { queue: VecDeque::new(), lost: 0, doubted: VecDeque::new(), changes }
    }
}

impl Events {
    /// Whoever doesn't take them costs no more room than this.
    const LIMIT: usize = 1 << 16;
    /// Peers that wait to be told of: more are told of the next time that they don't answer.
    const DOUBTS: usize = 64;
    /// Changes that wait to be told: beyond that the oldest is dropped.
    const CHANGES: usize = 64;

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

    /// What is gone tells no more.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Event) -> bool) {
        self.queue.retain(|event| !gone(event));
    }

    /// The queue pair is gone: its number may come to be another's.
    pub(crate) fn forget_changes(&mut self, qpn: Qpn) {
        self.changes.retain(|change| change.qpn != qpn);
    }

    /// What leaves for this address may not arrive. Who waits already is told once.
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

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }
}
