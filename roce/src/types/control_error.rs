//! The errors of control calls.

use super::{CqId, SrqId, State, XrcdId};
use crate::wire::Format;
use crate::{Lkey, Qpn, Rkey};
use cc::ConfigError;
use core::net::IpAddr;
use thiserror::Error;

/// Error of a control call.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ControlError {
    #[error("{what}: the limit of {limit} is reached")]
    Limit { what: &'static str, limit: u32 },
    #[error(
        "queue pair numbers: all {numbers} of the core are in use, or were within the last 4 s; create queue pairs at a lower rate"
    )]
    NumbersQuarantined { numbers: u32 },
    #[error("QP {0}: it does not exist")]
    NoQp(Qpn),
    #[error("CQ {}: it does not exist", .0.0)]
    NoCq(CqId),
    #[error("lkey {0}: no memory region has it")]
    NoRegion(Lkey),
    #[error("rkey {0}: no memory window has it")]
    NoWindow(Rkey),
    #[error(
        "memory region with lkey {lkey}: {windows} memory windows are bound to it; invalidate them first"
    )]
    RegionBusy { lkey: Lkey, windows: u32 },
    #[error("QP {qpn}: it cannot change from {from:?} to {to}")]
    Transition { qpn: Qpn, from: State, to: &'static str },
    #[error("QP {qpn}: its {setting} cannot change in {state:?}")]
    Setting { qpn: Qpn, state: State, setting: &'static str },
    #[error(
        "QP {qpn}: its {setting} cannot change before it is drained; wait for the event, or for the last completion"
    )]
    NotDrained { qpn: Qpn, setting: &'static str },
    #[error("{what} = {value}: out of range; the limit is {limit}")]
    Value { what: &'static str, value: u64, limit: u64 },
    #[error("CQ {}: {qps} queue pairs still use it; destroy them first", .cq.0)]
    CqBusy { cq: CqId, qps: u32 },
    #[error("CQ {}: a depth of {depth} has no room for the {waiting} completions that wait or are due for posted sends; poll first", .cq.0)]
    CqFull { cq: CqId, waiting: usize, depth: usize },
    #[error("source {from}, destination {to}: the address families differ; use two addresses of one family")]
    Families { from: IpAddr, to: IpAddr },
    #[error("shared receive queue {}: it does not exist", .0.0)]
    NoSrq(SrqId),
    #[error("shared receive queue {}: {qps} queue pairs still use it; destroy them first", .srq.0)]
    SrqBusy { srq: SrqId, qps: u32 },
    #[error("shared receive queue {}: it belongs to another protection domain; create both in one domain", .srq.0)]
    SrqDomain { srq: SrqId },
    #[error("shared receive queue {}: it belongs to an XRC domain, whose targets alone use it; create one without an XRC domain", .srq.0)]
    SrqOfXrc { srq: SrqId },
    #[error("an XRC initiator receives nothing; create it without a shared receive queue")]
    InitiatorReceives,
    #[error("XRC domain {}: it does not exist", .0.0)]
    NoXrcd(XrcdId),
    #[error("XRC domain {}: {users} targets and shared receive queues still use it; destroy them first", .domain.0)]
    XrcdBusy { domain: XrcdId, users: u32 },
    #[error("multicast: QP {0} is not a UD queue pair; only those join groups")]
    NotDatagrams(Qpn),
    #[error("multicast: {0} is not a group's address; use one of 224.0.0.0/4 or ff00::/8")]
    NoGroup(IpAddr),
    #[error("multicast: QP {qpn} is not attached to {group}")]
    NotAttached { qpn: Qpn, group: IpAddr },
    #[error("flow rule: QP {0} is not a raw packet queue pair; only those take frames by rules")]
    NotRaw(Qpn),
    #[error("the address handle does not exist")]
    NoAddress,
    #[error("congestion control: {0}")]
    Congestion(ConfigError),
    #[error("congestion control: line_rate: the port reports none; set line_rate")]
    LineRate,
    #[error("telemetry format {format}: it needs IPv6, but the peer is {address}; use hpcc, int-md or ifa")]
    Format { format: Format, address: IpAddr },
    #[error("congestion control {algorithm} on UD QP {qpn}: {reason}")]
    Datagrams { qpn: Qpn, algorithm: &'static str, reason: &'static str },
    #[error("spray on QP {qpn}: {reason}")]
    Spray { qpn: Qpn, reason: &'static str },
}
