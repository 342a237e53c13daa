//! Settings that create a queue pair, settings that each state transition takes, and a queue pair's report of itself.

use super::{Capabilities, Changes, State};
use crate::congestion::Congestion;
use crate::wire::{Mtu, Path, RnrTimer, Service};
use crate::{Access, CqId, PdId, Psn, QpFailure, Qpn, SrqId};
use cc::{Algorithm, CongestionController, HeardHop, Hpcc, Rate};
use core::time::Duration;

/// The settings that a queue pair is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// The transport service, for good.
    pub service: Service,
    /// Its regions must be of the same domain.
    pub pd: PdId,
    /// The completion queue of send requests.
    pub send_cq: CqId,
    /// The completion queue of receive requests.
    pub recv_cq: CqId,
    /// Depths and limits.
    pub capabilities: Capabilities,
    /// Every send request causes a completion, signalled or not.
    pub signal_all: bool,
    /// The shared receive queue that it takes receive requests from; none for a separate queue.
    pub srq: Option<SrqId>,
}

impl QpInit {
    /// The settings of an XRC target. It has no protection domain, no completion queues and no work queues: it uses those of the shared
    /// receive queue that a message names.
    pub const XRC_TARGET: Self = Self {
        service: Service::Xrc,
        pd: PdId(0),
        send_cq: CqId(u32::MAX),
        recv_cq: CqId(u32::MAX),
        capabilities: Capabilities {
            max_send: 0,
            max_recv: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
        },
        signal_all: false,
        srq: None,
    };
}

/// Local ACK timeout code, 0 to 31: 4.096 µs × 2^code, 0 for ever (IBA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Takes the low 5 bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time to wait; `None` means no limit.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

/// The settings that a queue pair takes on its way to RTR, all for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrSettings {
    /// The way to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub destination: Qpn,
    /// Payload bytes of a full packet; both sides the same.
    pub mtu: Mtu,
    /// The first PSN that the peer will send.
    pub receive_psn: Psn,
    /// READs and atomics that the peer may have outstanding here, 0 to 16: the responder keeps state for each.
    pub max_dest_rd_atomic: u8,
    /// The time that the peer is asked to wait if no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// The packets that are sent again after a loss, in both directions.
    pub loss_recovery: LossRecovery,
}

/// The packets that a reliable queue pair sends again after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossRecovery {
    /// Everything from the lost packet on, as IBA specifies. Selective repeat is neither offered nor accepted.
    GoBackN,
    /// As [`Self::GoBackN`] until a packet is lost. Then the sender offers selective repeat to its peer, and uses it if the peer
    /// accepts. Each direction changes by itself. Peers that do not know the offer drop it.
    Offered,
    /// Lost packets only, from the first packet on. Both sides must have agreed on it when they connected.
    SelectiveRepeat,
}

/// The settings that a queue pair takes on its way to RTS, all for sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RtsSettings {
    /// The first PSN that this side sends.
    pub send_psn: Psn,
    /// When an unanswered request is sent again.
    pub ack_timeout: AckTimeout,
    /// The number of retries, 0 to 7, before the queue pair fails.
    pub retry_count: u8,
    /// The number of retries after RNR NAKs, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// READs and atomics that this side may have outstanding at the peer, 0 to 16.
    pub max_rd_atomic: u8,
    /// The congestion control that paces sending.
    pub congestion: Congestion,
}

/// A state transition with all that it needs (IBA 10.3.1): what a transition takes can't be forgotten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Modify {
    /// To RESET from any state: everything outstanding is forgotten, without completions.
    Reset,
    /// RESET to INIT.
    Init {
        /// The operations that the peer may execute, as far as each region allows them.
        access: Access,
        /// P_Key that packets must carry.
        partition_key: u16,
    },
    /// INIT to RTR.
    ReadyToReceive(RtrSettings),
    /// RTR to RTS.
    ReadyToSend(RtsSettings),
    /// RESET to INIT, of a datagram queue pair.
    InitDatagram {
        /// Q_Key that packets must carry.
        queue_key: u32,
        /// P_Key that packets must carry.
        partition_key: u16,
    },
    /// INIT to RTR, of a datagram queue pair: it has no peer.
    ReadyToReceiveDatagrams {
        /// The longest message.
        mtu: Mtu,
    },
    /// RTR to RTS, of a datagram queue pair.
    ReadyToSendDatagrams {
        /// The first PSN that this side sends.
        send_psn: Psn,
        /// Without an algorithm that computes with telemetry, one pace for all that it sends. With one, each destination has a pace of its
        /// own, by probes that its host answers; all together leave at the line rate at most.
        congestion: Congestion,
    },
    /// RESET to INIT, of a raw packet queue pair.
    InitRaw,
    /// INIT to RTR, of a raw packet queue pair.
    ReadyToReceiveRaw {
        /// Bytes of the longest frame that it sends, without the FCS.
        longest: u32,
    },
    /// RTR to RTS, of a raw packet queue pair. No congestion control paces it.
    ReadyToSendRaw,
    /// RTS to SQD: messages that have begun are sent to their end, no other begins.
    Drain {
        /// An event reports when that is so.
        notify: bool,
    },
    /// SQD or SQE to RTS.
    Resume,
    /// Other settings, in the state that it is in: see [`Changes`]. All or none are taken.
    Change(Changes),
    /// Any state to ERR: everything outstanding is flushed.
    Error,
}

impl Modify {
    /// The state that it leads to, for people.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init { .. } => "INIT",
            Self::InitDatagram { .. } => "INIT with a Q_Key",
            Self::ReadyToReceive(_) => "RTR",
            Self::ReadyToReceiveDatagrams { .. } => "RTR without a peer",
            Self::ReadyToSend(_) => "RTS",
            Self::ReadyToSendDatagrams { .. } => "RTS without a peer",
            Self::InitRaw => "INIT of raw packets",
            Self::ReadyToReceiveRaw { .. } => "RTR of raw packets",
            Self::ReadyToSendRaw => "RTS of raw packets",
            Self::Drain { .. } => "SQD",
            Self::Resume => "RTS again",
            Self::Change(_) => "the same state",
            Self::Error => "ERR",
        }
    }
}

/// A queue pair's report of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpReport {
    /// State.
    pub state: State,
    /// The algorithm that runs, as [`CongestionAlgorithm::name`](crate::qp::CongestionAlgorithm::name) calls it; empty before RTS.
    pub algorithm: &'static str,
    /// Payload bytes sent and not acknowledged.
    pub in_flight: u64,
    /// The congestion controller's window, bytes.
    pub window: u64,
    /// The congestion controller's pacing rate.
    pub rate: Option<Rate>,
    /// The load of the path's busiest link, from telemetry and smoothed by HPCC++ (`U`). It is 1 if the link is as full as it may be
    /// without a queue, and before the first telemetry. `None` with algorithms that compute none.
    pub utilisation: Option<f64>,
    /// The busiest hop of the path, as telemetry said last; `None` before the first, and with algorithms that read none.
    pub busiest: Option<HeardHop>,
    /// The last round trip that an acknowledgement measured, and the shortest since RTS; `None` before the first.
    pub round_trip: Option<(Duration, Duration)>,
    /// Send requests that are not done.
    pub outstanding: u32,
    /// Receive requests that wait in the queue pair's own queue.
    pub receives: u32,
    /// The last PSN that the peer acknowledged; one before the first if it acknowledged none.
    pub acknowledged_psn: Psn,
    /// The next PSN to send for the first time.
    pub send_psn: Psn,
    /// The next PSN expected.
    pub expected_psn: Psn,
    /// The failure that moved it to ERR or SQE; `None` in other states, and if the program moved it there.
    pub failure: Option<QpFailure>,
}

impl QpReport {
    /// Returns a queue pair's report of its state and of the algorithm that paces it; the rest is 0.
    pub(super) fn new(state: State, algorithm: Option<&Algorithm>) -> Self {
        Self {
            state,
            algorithm: algorithm.map_or("", Algorithm::name),
            in_flight: 0,
            window: algorithm.map_or(0, CongestionController::window),
            rate: algorithm.and_then(CongestionController::pacing_rate),
            utilisation: algorithm.and_then(Algorithm::as_hpcc).map(Hpcc::utilisation),
            busiest: algorithm.and_then(busiest),
            round_trip: None,
            outstanding: 0,
            receives: 0,
            acknowledged_psn: Psn::new(0),
            send_psn: Psn::new(0),
            expected_psn: Psn::new(0),
            failure: None,
        }
    }
}

/// Returns the hop that was reported last; of several, the busiest. If a responder reports one hop at a time, it is the busiest.
pub(super) fn busiest(algorithm: &Algorithm) -> Option<HeardHop> {
    algorithm.hops().max_by_key(|hop| (hop.heard, hop.permille))
}
