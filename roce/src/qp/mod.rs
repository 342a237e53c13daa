//! Queue pairs: what is asked of them and what they answer.

mod alarms;
mod buffers;
mod build;
mod changes;
mod common;
mod early;
mod outcome;
mod posting;
mod queue_pair;
mod receive_queue;
mod reliable;
mod request;
mod send_queue;
mod settings;
mod source_port;
mod unreliable;
mod waiting;
mod wqe;

pub use crate::congestion::{
    Congestion, CongestionAlgorithm, FeedbackKey, PathChoice, Unknown, Upgrade, When,
};
pub use crate::wire::Reverse;
pub use changes::Changes;
pub(crate) use early::EarlyMemory;
pub use outcome::RequestFailed;
pub use posting::{CheckedRecv, CheckedSend, PostRules, RecvRules, SendRules};
pub use request::{
    Completion, CompletionOpcode, CompletionStatus, Data, Datagram, PostError, RecvRequest, Remote,
    SendOperation, SendRequest, Sge,
};
pub use settings::{
    AckTimeout, Capabilities, LossRecovery, Modify, QpInit, QpReport, RtrSettings, RtsSettings, State,
};
pub use source_port::{CORE_BITS, udp_source_port, udp_source_port_of_datagrams, udp_source_port_of_flow};
pub use waiting::{Waiting, WaitingTimes};

pub(crate) use common::Peer;
pub(crate) use queue_pair::{QueuePair, Sent};
pub(crate) use waiting::Account;

use crate::address::AddressTable;
use crate::cq::CompletionQueues;
use crate::event::Events;
use crate::srq::SharedQueues;
use crate::wire::{Numbers, Service};
use crate::{Counters, CqId, PdId, Qpn, RegionTable, SrqId, XrcdId};
use cc::{ActiveFlows, Instant};

/// The properties of a queue pair that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) qpn: Qpn,
    pub(crate) pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) signal_all: bool,
    pub(crate) receives: Receives,
    pub(crate) capabilities: Capabilities,
}

impl Identity {
    pub(crate) const fn new(qpn: Qpn, init: &QpInit, receives: Receives) -> Self {
        let QpInit { pd, send_cq, recv_cq, capabilities, signal_all, .. } = *init;
        Self { qpn, pd, send_cq, recv_cq, signal_all, receives, capabilities }
    }
}

/// The queue that a queue pair takes its receive requests from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// The queue pair's own queue.
    Own,
    /// One that it shares.
    Shared(SrqId),
    /// An XRC initiator takes no messages.
    Never,
    /// An XRC target: whichever queue of the domain a message names.
    Named(XrcdId),
}

impl Receives {
    /// Of a reliable queue pair: the service of its packets.
    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Own | Self::Shared(_) => Service::Rc,
            Self::Never | Self::Named(_) => Service::Xrc,
        }
    }
}

/// The context of one call: what all queue pairs of an endpoint share, lent by its `Commons` for as long as the call takes, and the
/// time that it happens at.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) regions: &'a mut RegionTable,
    pub(crate) addresses: &'a AddressTable,
    pub(crate) shared: &'a mut SharedQueues,
    pub(crate) cqs: &'a mut CompletionQueues,
    pub(crate) counters: &'a mut Counters,
    pub(crate) flows: &'a mut ActiveFlows,
    pub(crate) events: &'a mut Events,
    pub(crate) numbers: Numbers,
    pub(crate) early: &'a mut EarlyMemory,
}
