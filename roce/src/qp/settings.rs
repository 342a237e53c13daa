//! Settings that create a queue pair, settings of each state transition, and the report on a queue pair.

use super::{Capabilities, Changes, State};
use crate::congestion::{Congestion, FeedbackKey};
use crate::wire::{Mtu, Path, RnrTimer, Service};
use crate::{Access, CqId, PdId, Psn, QpFailure, Qpn, SrqId};
use cc::{Algorithm, CongestionController, Hpcc, Rate, RecordedHop};
use core::time::Duration;

/// Settings that create a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Transport service, which never changes.
    pub service: Service,
    /// Protection domain; regions must be of the same one.
    pub pd: PdId,
    /// Completion queue of send requests.
    pub send_cq: CqId,
    /// Completion queue of receive requests.
    pub recv_cq: CqId,
    /// Depths and limits of the work queues.
    pub capabilities: Capabilities,
    /// Whether every send request completes with a CQE, signalled or not.
    pub signal_all: bool,
    /// Shared receive queue; `None` for its own receive queue.
    pub srq: Option<SrqId>,
}

impl QpInit {
    /// Settings of an XRC target. It has no protection domain, completion queues or work queues: it uses those of the shared receive queue
    /// that a message names.
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

/// Local ACK timeout code, 0 to 31: 4.096 µs × 2^code; 0 never expires (IBA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Creates a timeout from the low 5 bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// Returns the code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the timeout; `None` if it never expires.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }
}

/// Settings of the transition to RTR, all for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrSettings {
    /// Path to the peer.
    pub path: Path,
    /// Number of the peer's queue pair.
    pub destination: Qpn,
    /// Path MTU: payload bytes of a full packet, the same on both sides.
    pub mtu: Mtu,
    /// First PSN that the peer will send.
    pub receive_psn: Psn,
    /// READs and atomics that the peer may have outstanding here, 0 to 16; the responder keeps state for each.
    pub max_dest_rd_atomic: u8,
    /// RNR timer that NAKs carry: how long the peer waits if no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// Loss recovery in both directions.
    pub loss_recovery: LossRecovery,
    /// Key that seals answers to the peer's telemetry until RTS. In RTS the key of [`RtsSettings::congestion`] replaces it.
    pub feedback_key: Option<FeedbackKey>,
}

impl RtrSettings {
    /// Returns the settings of a connection with a path MTU of 1024, first PSN 0, one READ or atomic, an RNR timer of 10 µs, and go-back-N.
    #[must_use]
    pub const fn new(path: Path, destination: Qpn) -> Self {
        Self {
            path,
            destination,
            mtu: Mtu::M1024,
            receive_psn: Psn::new(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(1),
            loss_recovery: LossRecovery::GoBackN,
            feedback_key: None,
        }
    }
}

/// Loss recovery of a reliable queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossRecovery {
    /// Sends everything from the lost packet on again, as IBA specifies. Selective repeat is neither offered nor accepted.
    GoBackN,
    /// Go-back-N until a packet is lost. Then the sender offers selective repeat, and uses it if the peer accepts. Each direction changes
    /// independently. Peers that do not support it drop the offer.
    Offered,
    /// Retransmits only lost packets, from the start of the connection. Both sides must agree on it when they connect.
    SelectiveRepeat,
}

/// Settings of the transition to RTS, all for sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RtsSettings {
    /// First PSN that this side sends.
    pub send_psn: Psn,
    /// Timeout after which an unacknowledged request is retransmitted.
    pub ack_timeout: AckTimeout,
    /// Retries after timeouts and sequence NAKs, 0 to 7, before the queue pair fails.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// READs and atomics that this side may have outstanding at the peer, 0 to 16.
    pub max_rd_atomic: u8,
    /// Congestion control that paces sending.
    pub congestion: Congestion,
}

impl RtsSettings {
    /// Returns the settings of a connection with first PSN 0, a timeout of 67 ms, 7 retries, any number of RNR retries, and one READ or
    /// atomic.
    #[must_use]
    pub const fn new(congestion: Congestion) -> Self {
        Self {
            send_psn: Psn::new(0),
            ack_timeout: AckTimeout::new(14),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            congestion,
        }
    }
}

/// State transition with its settings (IBA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Modify {
    /// To RESET from any state: drops everything outstanding, without completions.
    Reset,
    /// RESET to INIT.
    Init {
        /// Remote operations that the peer may execute, if the region allows them as well.
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
    /// INIT to RTR, of a datagram queue pair, which has no peer.
    ReadyToReceiveDatagrams {
        /// Path MTU: payload bytes of the longest message.
        mtu: Mtu,
        /// Key that seals answers to probes until RTS. From then on that of the congestion settings does.
        feedback_key: Option<FeedbackKey>,
    },
    /// RTR to RTS, of a datagram queue pair.
    ReadyToSendDatagrams {
        /// First PSN that this side sends.
        send_psn: Psn,
        /// Congestion control. An algorithm that computes with telemetry paces each destination separately, by probes that its host
        /// answers; all destinations together get at most the line rate. Any other algorithm paces all datagrams as one flow.
        congestion: Congestion,
    },
    /// RESET to INIT, of a raw packet queue pair.
    InitRaw,
    /// INIT to RTR, of a raw packet queue pair.
    ReadyToReceiveRaw {
        /// Longest frame that is sent, in bytes without the FCS.
        longest: u32,
    },
    /// RTR to RTS, of a raw packet queue pair, which has no congestion control.
    ReadyToSendRaw,
    /// RTS to SQD: sends begun messages to their end, and begins no other.
    Drain {
        /// Whether an event reports that the queue is drained.
        notify: bool,
    },
    /// SQD or SQE to RTS.
    Resume,
    /// Changes settings in the current state, all or none: see [`Changes`].
    Change(Changes),
    /// Any state to ERR: flushes everything outstanding.
    Error,
}

impl Modify {
    /// Returns the target state, for error messages.
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

/// Report on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpReport {
    /// State of the queue pair.
    pub state: State,
    /// Name of the algorithm in use, as [`CongestionAlgorithm::name`](crate::qp::CongestionAlgorithm::name) returns it; empty before RTS.
    pub algorithm: &'static str,
    /// Payload bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Congestion window, bytes.
    pub window: u64,
    /// Pacing rate of the congestion controller.
    pub rate: Option<Rate>,
    /// Rate of the sender's link, which the pacing rate does not exceed; with a fixed window the rate set for it.
    pub line_rate: Option<Rate>,
    /// Path MTU, bytes; 0 without a connection.
    pub mtu: u32,
    /// Payload bytes of SENDs and WRITEs that the peer acknowledged since the connection started; 0 on UC and UD.
    pub acknowledged_bytes: u64,
    /// Smoothed utilisation `U` of the busiest link of the path, which HPCC++ computes from telemetry. It is 1 if the link is as full as it
    /// may be without a queue, and before the first telemetry. `None` with algorithms that compute none.
    pub utilisation: Option<f64>,
    /// Busiest hop in the last telemetry; `None` before the first, and with algorithms that read none.
    pub busiest: Option<RecordedHop>,
    /// Last round trip that an acknowledgement measured, and the shortest since RTS; `None` before the first.
    pub round_trip: Option<(Duration, Duration)>,
    /// Send requests that are not done.
    pub outstanding: u32,
    /// Receive requests in the queue pair's own queue.
    pub receives: u32,
    /// Last PSN that the peer acknowledged; one before the first PSN if it acknowledged none.
    pub acknowledged_psn: Psn,
    /// Next PSN to send for the first time.
    pub send_psn: Psn,
    /// Next PSN expected from the peer.
    pub expected_psn: Psn,
    /// Cause of ERR or SQE; `None` in other states, and if the program requested the transition.
    pub failure: Option<QpFailure>,
}

impl QpReport {
    /// Creates a report with the state and the algorithm's values; the rest is 0 or `None`.
    pub(super) fn new(state: State, algorithm: Option<&Algorithm>) -> Self {
        Self {
            state,
            algorithm: algorithm.map_or("", Algorithm::name),
            in_flight: 0,
            window: algorithm.map_or(0, CongestionController::window),
            rate: algorithm.and_then(CongestionController::pacing_rate),
            line_rate: algorithm.and_then(Algorithm::line_rate),
            mtu: 0,
            acknowledged_bytes: 0,
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

/// Returns the hop with the newest telemetry; of several, the busiest. A responder that reports one hop at a time reports the busiest.
pub(super) fn busiest(algorithm: &Algorithm) -> Option<RecordedHop> {
    algorithm.hops().max_by_key(|hop| (hop.recorded_at, hop.permille))
}
