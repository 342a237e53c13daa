//! Packets that may not have arrived: requests, and the answers to READs and atomics.

use crate::qp::wqe::Wqe;

/// Packet that may not have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) number: u64,
    /// Payload bytes that the window counts while the packet is in flight; 0 for answers.
    pub(super) bytes: u32,
    pub(super) is_answer: bool,
}

/// Returns the packets of `wqe` from `from` to before `end`: its request packets, or its answers if the peer has executed the request.
#[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
pub(super) fn missing_of(
    wqe: &Wqe,
    mtu: u32,
    is_executed: bool,
    from: u64,
    end: u64,
) -> impl DoubleEndedIterator<Item = Missing> {
    let (first, last) = match (wqe.is_answered(), is_executed) {
        (false, _) | (true, true) => (from.max(wqe.first), end.min(wqe.end())),
        // The request of a READ or atomic is one packet.
        (true, false) => (from.max(wqe.first), end.min(wqe.first + 1)),
    };
    (first..last.max(first)).map(move |number| Missing {
        is_answer: wqe.is_answered() && is_executed,
        ..packet_of(wqe, number, mtu)
    })
}

/// Returns request packet `number`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "packet numbers stay far below 2^64; byte counts never go back"
)]
pub(super) fn packet_of(wqe: &Wqe, number: u64, mtu: u32) -> Missing {
    let bytes = (wqe.stream_at(number + 1, mtu) - wqe.stream_at(number, mtu)) as u32;
    Missing { number, bytes, is_answer: false }
}
