//! Queue pairs of all services: states, work queues, and the packets that they send and receive.

mod async_events;
mod buffers;
mod changes;
mod common;
mod context;
mod early;
mod identity;
mod local;
mod operation;
mod posting;
mod queue_pair;
mod receive_queue;
mod reliable;
mod send_queue;
mod settings;
mod unreliable;
mod waiting;
mod wqe;

pub use crate::congestion::{
    Congestion, CongestionAlgorithm, FeedbackKey, PathChoice, Unknown, Upgrade, When,
};
pub use crate::source_port::{
    CORE_BITS, udp_source_port, udp_source_port_of_datagrams, udp_source_port_of_flow,
};
pub use crate::types::{
    Capabilities, Completion, CompletionOpcode, CompletionStatus, Data, Datagram, PostError, RecvRequest,
    Remote, RequestFailed, SendOperation, SendRequest, Sge, State,
};
pub use crate::wire::Reverse;
pub use changes::Changes;
pub(crate) use early::EarlyMemory;
pub use posting::{CheckedRecv, CheckedSend, PostRules, RecvRules, SendRules};
pub use settings::{AckTimeout, LossRecovery, Modify, QpInit, QpReport, RtrSettings, RtsSettings};
pub use waiting::{Waiting, WaitingTimes};

pub(crate) use common::Peer;
pub(crate) use context::Context;
pub(crate) use identity::{Identity, Receives};
pub(crate) use queue_pair::{QueuePair, Sent};
pub(crate) use waiting::Account;
