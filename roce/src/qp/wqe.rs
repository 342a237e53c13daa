//! A send request in its queue, and its packet numbers.

use super::{CompletionOpcode, Data, SendOperation, SendRequest};

/// Longest message, bytes (IBA 9.7.4.1.6).
pub(super) const MAX_MESSAGE: u32 = 1 << 31;

/// Returns the number of PSNs of a message, or of a READ's response: at least one, even for no bytes.
#[inline]
pub(super) fn packets(length: u32, mtu: u32) -> u32 {
    // Most messages are one packet: no division for them.
    if length <= mtu { 1 } else { length.div_ceil(mtu) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    pub(super) const fn of(index: u32, packets: u32) -> Self {
        match (index == 0, index + 1 == packets) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// Send request in its queue, and its packet numbers.
///
/// Packet numbers count PSNs from the start of the connection and never wrap: the low 24 bits plus the initial PSN are the PSN. A received
/// PSN is extended once, on arrival; everything else is plain arithmetic.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) request: SendRequest,
    /// Bytes of the message.
    pub(super) length: u32,
    pub(super) first: u64,
    /// PSNs used; for a READ those of its responses (IBA 9.7.3.1).
    pub(super) packets: u32,
    /// Payload bytes that all earlier requests send.
    pub(super) stream: u64,
    pub(super) is_done: bool,
    /// Cached from `request`, because they are read several times for each packet.
    is_answered: bool,
    is_local: bool,
}

impl Wqe {
    pub(super) fn new() -> Self {
        let request = SendRequest::send(0, Data::empty());
        let (is_done, is_answered, is_local) = (false, false, false);
        Self { request, length: 0, first: 0, packets: 0, stream: 0, is_done, is_answered, is_local }
    }

    /// Assigns the packet numbers of a request whose `request` and `length` are set. Returns the payload bytes that it sends.
    #[inline]
    pub(super) fn begin(&mut self, first: u64, packets: u32, stream: u64) -> u32 {
        let operation = &self.request.operation;
        (self.is_answered, self.is_local) = (operation.is_answered(), operation.is_local());
        (self.first, self.packets, self.stream) = (first, packets, stream);
        self.is_done = false;
        self.sends()
    }

    pub(super) const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Returns whether the peer's response completes the request, rather than an acknowledgement.
    pub(super) const fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns whether no packet carries the request; it then has no PSN.
    pub(super) const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns whether an acknowledgement of its packets completes the request.
    #[inline]
    pub(super) const fn is_plain(&self) -> bool {
        !self.is_answered && !self.is_local
    }

    pub(super) const fn is_pending(&self) -> bool {
        self.is_local() && !self.is_done
    }

    /// Returns whether the response carries the data, rather than the request.
    pub(super) const fn is_fetched(&self) -> bool {
        self.is_answered() && !matches!(self.request.operation, SendOperation::AtomicWrite { .. })
    }

    /// Returns the payload bytes that count in the window; 0 for requests that a response completes.
    pub(super) const fn sends(&self) -> u32 {
        if self.is_answered() { 0 } else { self.length }
    }

    pub(super) fn offset(&self, number: u64, mtu: u32) -> u32 {
        debug_assert!((self.first..=self.end()).contains(&number));
        ((number - self.first) * u64::from(mtu)).min(u64::from(self.length)) as u32
    }

    /// Returns the payload bytes sent before packet `number`, since the start of the connection.
    pub(super) fn stream_at(&self, number: u64, mtu: u32) -> u64 {
        self.stream + u64::from(self.offset(number, mtu).min(self.sends()))
    }

    pub(super) const fn opcode(&self) -> CompletionOpcode {
        self.request.operation.opcode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::Remote;
    use crate::{Lkey, Rkey};

    #[test]
    fn two_gibibytes_use_half_the_psn_space() {
        let length = 1 << 31;
        let sge = crate::qp::Sge { address: 0, length, lkey: Lkey::new(1) };
        let remote = Remote { address: 0, rkey: Rkey::new(1) };
        let packets = packets(length, 256);
        assert_eq!(packets, 1 << 23);
        let mut wqe = Wqe { request: SendRequest::write(1, sge, remote), length, ..Wqe::new() };
        assert_eq!(wqe.begin(5, packets, 7), length);
        assert_eq!(wqe.offset(wqe.end() - 1, 256), length - 256);
        assert_eq!(wqe.stream_at(wqe.end(), 256), 7 + (1 << 31));
        assert_eq!(Position::of(packets - 1, packets), Position::Last);
    }

    #[test]
    fn a_message_without_bytes_is_one_packet() {
        assert_eq!(packets(0, 4096), 1);
        assert_eq!(packets(4096, 4096), 1);
        assert_eq!(packets(4097, 4096), 2);
        assert_eq!(Position::of(0, 1), Position::Only);
    }
}
