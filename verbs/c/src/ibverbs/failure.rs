//! `ferroce.h`: the cause of a queue pair's failure.

use crate::abi::*;
use crate::errno::status;
use crate::ibverbs::header;
use crate::ibverbs::queue_pair::Qp;
use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use verbs::event::{FailureReason, QpFailure, Unreachable};
use verbs::observe::Discard;

/// `struct ferroce_cause`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FerroceCause {
    /// Size of the program's structure.
    pub size: u32,
    /// `enum ferroce_reason`; 0 if the queue pair has not failed.
    pub reason: u32,
    /// The QPN of the peer.
    pub peer_qpn: u32,
    /// The peer's address; IPv4 is mapped into IPv6. All 0 without a connection.
    pub peer: [u8; 16],
    /// The last PSN that the peer acknowledged.
    pub acknowledged_psn: u32,
    /// The next PSN to send for the first time.
    pub send_psn: u32,
    /// The next PSN expected from the peer.
    pub expected_psn: u32,
    /// Retries since the last acknowledgement.
    pub retries: u32,
    /// The position of the path's busiest hop, from 1; 0 without telemetry.
    pub busiest_hop: u32,
    /// Bytes in the egress queue of that hop.
    pub hop_queue: u32,
    /// Utilisation of the link of that hop, in thousandths; 0 if unknown.
    pub hop_permille: u32,
    /// Reserved for later versions; 0.
    pub reserved: [u32; 5],
    /// The text of the log line, NUL-terminated.
    pub text: [c_char; 512],
}

/// Size of the structure in the first version of the header.
const FIRST_SIZE: usize = 588;

const NONE: FerroceCause = FerroceCause {
    size: 0,
    reason: 0,
    peer_qpn: 0,
    peer: [0; 16],
    acknowledged_psn: 0,
    send_psn: 0,
    expected_psn: 0,
    retries: 0,
    busiest_hop: 0,
    hop_queue: 0,
    hop_permille: 0,
    reserved: [0; 5],
    text: [0; 512],
};

/// Returns the value in `enum ferroce_reason`.
const fn number(reason: FailureReason) -> u32 {
    match reason {
        FailureReason::NeverAnswered => 1,
        FailureReason::WentDark => 2,
        FailureReason::Unreachable(Unreachable::Address) => 3,
        FailureReason::Unreachable(Unreachable::Port) => 4,
        FailureReason::Unreachable(Unreachable::Prohibited) => 5,
        FailureReason::Unreachable(Unreachable::TooBig { .. }) => 6,
        FailureReason::LargePackets { .. } => 7,
        FailureReason::OneWay => 8,
        FailureReason::OtherPsns => 9,
        FailureReason::Loss => 10,
        FailureReason::NoReceive => 11,
        FailureReason::RemoteAccess { .. } => 12,
        FailureReason::RemoteRequest => 13,
        FailureReason::RemoteFailed => 14,
        FailureReason::BadAnswer => 15,
        FailureReason::LocalBuffer => 16,
        FailureReason::LocalRequest => 17,
        FailureReason::Refused(_) => 18,
        FailureReason::CompletionQueue => 19,
    }
}

/// The names of `enum ferroce_reason`, with the numbers that [`ferroce_qp_cause`] reports.
pub const FERROCE_REASONS: [(&str, u32); 20] = [
    ("FERROCE_NO_FAILURE", NONE.reason),
    ("FERROCE_NEVER_ANSWERED", number(FailureReason::NeverAnswered)),
    ("FERROCE_WENT_DARK", number(FailureReason::WentDark)),
    ("FERROCE_NO_ADDRESS", number(FailureReason::Unreachable(Unreachable::Address))),
    ("FERROCE_NO_PORT", number(FailureReason::Unreachable(Unreachable::Port))),
    ("FERROCE_PROHIBITED", number(FailureReason::Unreachable(Unreachable::Prohibited))),
    ("FERROCE_TOO_BIG", number(FailureReason::Unreachable(Unreachable::TooBig { mtu: 0 }))),
    ("FERROCE_LARGE_PACKETS", number(FailureReason::LargePackets { lost: 0, arrived: 0 })),
    ("FERROCE_ONE_WAY", number(FailureReason::OneWay)),
    ("FERROCE_OTHER_PSNS", number(FailureReason::OtherPsns)),
    ("FERROCE_LOSS", number(FailureReason::Loss)),
    ("FERROCE_NO_RECEIVE", number(FailureReason::NoReceive)),
    ("FERROCE_REMOTE_ACCESS", number(FailureReason::RemoteAccess { remote: None, length: 0 })),
    ("FERROCE_REMOTE_REQUEST", number(FailureReason::RemoteRequest)),
    ("FERROCE_REMOTE_FAILED", number(FailureReason::RemoteFailed)),
    ("FERROCE_BAD_ANSWER", number(FailureReason::BadAnswer)),
    ("FERROCE_LOCAL_BUFFER", number(FailureReason::LocalBuffer)),
    ("FERROCE_LOCAL_REQUEST", number(FailureReason::LocalRequest)),
    ("FERROCE_REFUSED", number(FailureReason::Refused(Discard::Icrc))),
    ("FERROCE_CQ_OVERFLOW", number(FailureReason::CompletionQueue)),
];

fn cause(failure: &QpFailure) -> FerroceCause {
    let mut cause = FerroceCause {
        reason: number(failure.reason),
        acknowledged_psn: failure.acknowledged.get(),
        send_psn: failure.send.get(),
        expected_psn: failure.expected.get(),
        retries: failure.retries.into(),
        ..NONE
    };
    if let Some((address, qpn)) = failure.peer {
        cause.peer_qpn = qpn.get();
        cause.peer = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
    }
    if let Some(hop) = failure.busiest {
        cause.busiest_hop = u32::from(hop.index) + 1;
        cause.hop_queue = hop.queue;
        cause.hop_permille = hop.permille.unwrap_or(0);
    }
    // The last byte stays 0 as the terminator.
    let room = cause.text.len() - 1;
    let line = failure.to_string();
    cause.text[..room].iter_mut().zip(line.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    cause
}

/// Reports the cause of a queue pair's failure (`ferroce.h`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_qp_cause(qp: *mut ibv_qp, into: *mut FerroceCause) -> c_int {
    status(|| {
        // SAFETY: the contract of the header.
        let whole = unsafe { Qp::find(qp) }?;
        let cause = whole.lock().qp.failure()?.as_ref().map_or(NONE, cause);
        // SAFETY: the contract of the header.
        unsafe { header::write(&cause, FIRST_SIZE, into) }
    })
}
