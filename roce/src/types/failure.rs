//! The failure of a queue pair: its certain cause, and its likely reason. The core records one [`QpFailure`] when the failure occurs, from
//! state that it keeps for other purposes.

use super::{CompletionStatus, Remote};
use crate::wire::NakCode;
use crate::{Discard, Psn, Qpn};
use cc::RecordedHop;
use core::fmt;
use core::net::IpAddr;

/// Failure of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFailure {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Event that caused the failure.
    pub cause: FailureCause,
    /// Likely reason.
    pub reason: FailureReason,
    /// Address and number of the connected peer; `None` for datagrams.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Last PSN that the peer acknowledged; one before the first if it acknowledged none.
    pub acknowledged: Psn,
    /// Next PSN to send for the first time.
    pub send: Psn,
    /// Next PSN expected from the peer.
    pub expected: Psn,
    /// Retries since the last acknowledgement, after timeouts, NAKs and RNR NAKs.
    pub retries: u8,
    /// Busiest hop in the last telemetry; `None` without telemetry.
    pub busiest: Option<RecordedHop>,
}

/// Writes one line for a log: queue pair, peer, PSNs, cause, likely reason, and remedy.
impl fmt::Display for QpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {} failed", self.qpn)?;
        if let Some((address, qpn)) = self.peer {
            write!(f, ", peer {address} QP {qpn}")?;
        }
        let Self { acknowledged, send, expected, retries, cause, reason, .. } = self;
        write!(f, ", last ACK {acknowledged}, next PSN {send}, expected PSN {expected}, retries {retries}")?;
        if let Some(RecordedHop { index, queue, .. }) = self.busiest {
            write!(f, ", busiest hop {index} with {queue} B queued")?;
        }
        f.write_str(": ")?;
        write!(f, "{cause}; likely reason: {reason}; {}", reason.remedy())
    }
}

/// Event that caused a queue pair's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The oldest send request completed with this status.
    Request(CompletionStatus),
    /// A request of the peer was refused with this NAK, and its packet dropped for this reason.
    Refused(NakCode, Discard),
    /// A received message could not be placed, on a service without NAKs. Or it was to invalidate a key of no window of this queue pair.
    Receive(CompletionStatus),
    /// One of its completion queues overflowed (IBA 10.2.6).
    CompletionQueue,
}

impl FailureCause {
    /// Returns the reason as far as the cause alone shows it. For requests to a peer, the requester has more evidence.
    pub(crate) const fn reason(self) -> FailureReason {
        match self {
            // The buffer belongs to a receive request.
            Self::Refused(NakCode::RemoteOperationalError, Discard::LocalProtection) => {
                FailureReason::LocalBuffer
            }
            Self::Refused(_, discard) => FailureReason::Refused(discard),
            Self::CompletionQueue => FailureReason::CompletionQueue,
            Self::Request(status) | Self::Receive(status) => match status {
                CompletionStatus::LocalProtection => FailureReason::LocalBuffer,
                CompletionStatus::Success
                | CompletionStatus::Flushed
                | CompletionStatus::LocalLength
                | CompletionStatus::LocalQpOperation
                | CompletionStatus::Bind => FailureReason::LocalRequest,
                CompletionStatus::BadResponse => FailureReason::BadAnswer,
                CompletionStatus::RemoteInvalidRequest => FailureReason::RemoteRequest,
                CompletionStatus::RemoteAccess => FailureReason::RemoteAccess { remote: None, length: 0 },
                CompletionStatus::RemoteOperation => FailureReason::RemoteFailed,
                CompletionStatus::RetryExceeded => FailureReason::NeverAnswered,
                CompletionStatus::RnrRetryExceeded => FailureReason::NoReceive,
            },
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(status) => write!(f, "its oldest request: {status}"),
            Self::Refused(code, _) => write!(f, "the peer's request was refused, {code}"),
            Self::Receive(status) => write!(f, "a received message: {status}"),
            Self::CompletionQueue => f.write_str("its completion queue overflowed"),
        }
    }
}

/// Likely reason of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The peer has never answered.
    NeverAnswered,
    /// The peer acknowledged packets before, but does not respond any more.
    WentDark,
    /// The peer does not respond, and an ICMP message about packets to its address arrived during the last retries.
    Unreachable(Unreachable),
    /// The oldest packet is longer than all packets that arrived at the peer: a link of the path has a smaller MTU.
    LargePackets {
        /// Payload bytes of the oldest packet.
        lost: u32,
        /// Most payload bytes of a packet that is known to have arrived; 0 if only packets without payload did.
        arrived: u32,
    },
    /// The peer's packets arrive, but it acknowledges nothing.
    OneWay,
    /// The peer acknowledges only packets that this connection never sent: the PSNs of both sides differ.
    OtherPsns,
    /// The peer requests the same packet repeatedly.
    Loss,
    /// The peer had no receive request posted.
    NoReceive,
    /// The peer refused a key, a range, or the access.
    RemoteAccess {
        /// Remote range of the request, if it has one.
        remote: Option<Remote>,
        /// Bytes of the request.
        length: u32,
    },
    /// The peer's queue pair does not accept the request, or its receive request is too short.
    RemoteRequest,
    /// The peer's queue pair failed for a reason of its own.
    RemoteFailed,
    /// The peer's answer does not fit the request.
    BadAnswer,
    /// A local buffer is outside its region, or the region does not allow the access.
    LocalBuffer,
    /// The request is not valid for this queue pair in its state.
    LocalRequest,
    /// The peer sent a request that is not allowed; its packet was dropped for this reason.
    Refused(Discard),
    /// A completion queue was not polled in time.
    CompletionQueue,
}

impl FailureReason {
    /// Returns whether packets exceed the MTU of a link of the path.
    #[must_use]
    pub const fn is_path_mtu(&self) -> bool {
        matches!(self, Self::LargePackets { .. } | Self::Unreachable(Unreachable::TooBig { .. }))
    }

    /// Returns the remedy for the program or its user.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::NeverAnswered => CompletionStatus::RetryExceeded.remedy(),
            Self::WentDark => "check that the peer still runs, and the links on the way to it",
            Self::Unreachable(Unreachable::Address) => "check the peer's address, and the routes to it",
            Self::Unreachable(Unreachable::Port) => "start the peer's program, or find out why it ended",
            Self::Unreachable(Unreachable::Prohibited) => "open UDP port 4791 in the firewalls on the way",
            Self::Unreachable(Unreachable::TooBig { .. }) | Self::LargePackets { .. } => {
                "raise the MTU of every link to 4200, or set mtu = 1024: ferroce doctor --peer finds out"
            }
            Self::OneWay => "check firewalls and routes in the direction to the peer",
            Self::OtherPsns => "connect both sides anew, each with the PSN that the other sends first",
            Self::Loss => "look for the link that loses packets, or use selective repeat",
            Self::NoReceive => CompletionStatus::RnrRetryExceeded.remedy(),
            Self::RemoteAccess { .. } => CompletionStatus::RemoteAccess.remedy(),
            Self::RemoteRequest => CompletionStatus::RemoteInvalidRequest.remedy(),
            Self::RemoteFailed => CompletionStatus::RemoteOperation.remedy(),
            Self::BadAnswer => CompletionStatus::BadResponse.remedy(),
            Self::LocalBuffer => CompletionStatus::LocalProtection.remedy(),
            Self::LocalRequest => CompletionStatus::LocalQpOperation.remedy(),
            Self::Refused(_) => "check the key, range, rights and length that the peer's program uses",
            Self::CompletionQueue => "create a deeper completion queue, or poll it more often",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NeverAnswered => "the peer has never answered",
            Self::WentDark => "the peer answered before, and then went silent",
            Self::Unreachable(what) => return what.fmt(f),
            Self::LargePackets { lost, arrived: 0 } => {
                return write!(
                    f,
                    "the path's MTU is too small: packets of {lost} B are lost, small ones arrive"
                );
            }
            Self::LargePackets { lost, arrived } => {
                return write!(
                    f,
                    "the path's MTU is too small: packets of {lost} B are lost, of up to {arrived} B arrive"
                );
            }
            Self::OneWay => "the peer's packets arrive here, but this side's packets do not arrive there",
            Self::OtherPsns => "the peer expects other PSNs",
            Self::Loss => "the peer answers, and one packet is lost each time",
            Self::NoReceive => "the peer had no receive posted",
            Self::RemoteAccess { remote: Some(Remote { address, rkey }), length } => {
                return write!(f, "the peer refuses rkey {rkey} at {address:#x}, {length} B");
            }
            Self::RemoteAccess { remote: None, .. } => "the peer refuses the key",
            Self::RemoteRequest => "the peer does not accept this request, or its receive is too short",
            Self::RemoteFailed => "the peer's queue pair failed by itself",
            Self::BadAnswer => "the peer's answer does not fit the request",
            Self::LocalBuffer => {
                "a local buffer is outside its region, or the region does not allow this access"
            }
            Self::LocalRequest => "the request does not fit the queue pair",
            Self::Refused(discard) => return write!(f, "the peer's packet had an error, {discard}"),
            Self::CompletionQueue => "completions came faster than the program polled them",
        };
        f.write_str(text)
    }
}

/// Cause in an ICMP message about packets that did not arrive (RFC 792, RFC 4443 3.1, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// There is no route to the address, or no host has it.
    Address,
    /// The host runs, but UDP port 4791 is not open.
    Port,
    /// A firewall rejected the packets.
    Prohibited,
    /// The packets exceed the MTU of a link.
    TooBig {
        /// MTU of the link in bytes, with the IP header; 0 if the message does not contain it.
        mtu: u16,
    },
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("ICMP says that the peer's address is unreachable"),
            Self::Port => f.write_str("ICMP says that the peer's host has nothing at UDP port 4791"),
            Self::Prohibited => f.write_str("ICMP says that a firewall prohibits the packets"),
            Self::TooBig { mtu: 0 } => f.write_str("ICMP says that a link of the path has a smaller MTU"),
            Self::TooBig { mtu } => write!(f, "ICMP says that a link of the path has an MTU of {mtu}"),
        }
    }
}
