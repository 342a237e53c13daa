//! Records evidence when acknowledgements are missing, and infers why the peer does not send them.

use super::Requester;
use super::diagnosis::Evidence;
use crate::qp::SendOperation;
use crate::qp::wqe::Wqe;
use crate::{FailureReason, Psn, Unreachable};
use cc::Instant;

/// Payload bytes that fit any path: the least MTU of IPv6 is 1280 (RFC 8200 5), that of Ethernet 1500.
const ANY_PATH: u32 = 1024;

/// Requests from which the recent packet sizes are computed.
const RECENT_REQUESTS: u32 = 8;

/// Retries after which the loss of a packet is systematic.
const MANY_RETRIES: u8 = 3;

impl Requester {
    /// Records an answer with this PSN, which matches no packet in flight. Returns whether it answers a keep-alive. The ACK of a keep-alive
    /// has the PSN of a SEND or WRITE, while the packet that the keep-alive repeats may be a READ.
    #[cold]
    pub(in crate::qp) fn record_stale(&mut self, psn: Psn) -> bool {
        let una = self.sequence.una;
        let is_answer = psn.distance(self.acknowledged_psn()) <= 0 && self.diagnosis.record_duplicate(una);
        if !is_answer {
            self.diagnosis.record_stale(una);
        }
        is_answer
    }

    #[cold]
    pub(in crate::qp) fn record_timeout(&mut self, expected: Psn) {
        self.diagnosis.record_timeout(self.sequence.una, expected);
        // A keep-alive shows nothing new if the oldest packet fits any path.
        if self.oldest_length() > ANY_PATH {
            self.control.request_keep_alive();
        }
    }

    /// Returns the PSN of a due keep-alive: a duplicate of the last acknowledged packet, which a responder acknowledges again and does not
    /// execute (IBA 9.7.5.1). If the peer answers it and acknowledges nothing else, the path loses large packets.
    #[cold]
    pub(in crate::qp) fn take_keep_alive(&mut self) -> Option<Psn> {
        if !self.control.take_keep_alive() || self.is_answered() {
            return None;
        }
        self.diagnosis.record_keep_alive(self.sequence.una);
        Some(self.acknowledged_psn())
    }

    /// Returns the payload bytes of the oldest packet, or of its answer.
    #[expect(clippy::arithmetic_side_effects, reason = "an offset is at most the length")]
    fn oldest_length(&self) -> u32 {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.sequence.una);
        oldest.map_or(0, |oldest| {
            (oldest.length - oldest.offset(self.sequence.una, self.queue.mtu())).min(self.queue.mtu())
        })
    }

    /// Returns the likely reason why the peer does not answer. `icmp_error` is an ICMP error for the peer, with its time. `first` and
    /// `expected` are the first and the next PSN expected from the peer.
    #[expect(clippy::arithmetic_side_effects, reason = "hours times 15 are far below the longest Duration")]
    pub(in crate::qp) fn why_unanswered(
        &self,
        now: Instant,
        icmp_error: Option<(Instant, Unreachable)>,
        [first, expected]: [Psn; 2],
    ) -> FailureReason {
        let Evidence { nak, stale, timeout, alive, expected: then, .. } = self.diagnosis.evidence();
        // The last timeout is the longest.
        let silence = self.timers.retransmission.wait().unwrap_or_default() * (u32::from(self.retries()) + 1);
        let is_reported_missing = nak == self.sequence.una
            || self.recovery.selective().is_some_and(|it| it.scoreboard.highest_sacked() > self.sequence.una);
        // A peer that requests packets is reachable.
        let icmp_error =
            icmp_error.filter(|&(at, _)| !is_reported_missing && now.saturating_since(at) <= silence);
        if let Some((_, what)) = icmp_error {
            return FailureReason::Unreachable(what);
        }
        let is_new = self.sequence.una == 0;
        if is_new && stale == 0 {
            return FailureReason::OtherPsns;
        }
        let sends = timeout == self.sequence.una && expected != then;
        if alive == self.sequence.una || is_reported_missing && self.ends_short() {
            return self
                .large_packets()
                .unwrap_or(FailureReason::LargePackets { lost: self.oldest_length(), arrived: 0 });
        }
        let is_alive = !is_new || is_reported_missing || expected != first;
        if let Some(reason) = self.large_packets().filter(|_| is_alive) {
            return reason;
        }
        match (is_reported_missing, is_new) {
            (true, _) => FailureReason::Loss,
            (false, _) if sends => FailureReason::OneWay,
            (false, true) if expected != first => FailureReason::OneWay,
            (false, true) => FailureReason::NeverAnswered,
            (false, false) => FailureReason::WentDark,
        }
    }

    /// Returns whether a full packet is lost each time, while the last of its message, which fits any path, arrives after it.
    fn ends_short(&self) -> bool {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.sequence.una);
        let last = oldest.and_then(|oldest| oldest.length.checked_rem(self.queue.mtu())).unwrap_or(0);
        self.retries() >= MANY_RETRIES
            && self.oldest_length() == self.queue.mtu()
            && (1..=ANY_PATH).contains(&last)
    }

    /// Returns that the path loses large packets, if the oldest packet is certainly larger than all that arrived recently.
    #[expect(clippy::arithmetic_side_effects, reason = "the kept requests are few")]
    fn large_packets(&self) -> Option<FailureReason> {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.sequence.una)?;
        let lost = self.oldest_length();
        // The packets before it in its own message have the same length.
        if lost <= ANY_PATH || self.sequence.una > oldest.first {
            return None;
        }
        let is_alike = |wqe: &&Wqe| !wqe.is_local() && wqe.is_answered() == oldest.is_answered();
        let before = self.queue.forgotten().filter(is_alike).map(|wqe| wqe.length.min(self.queue.mtu()));
        let (count, largest) =
            before.fold((0, 0), |(count, largest), length| (count + 1, length.max(largest)));
        let arrived = match count {
            RECENT_REQUESTS.. => largest,
            // No packet is larger than all bytes that arrived.
            _ if !oldest.is_answered() => u32::try_from(self.queue.bytes_before(self.sequence.una)).ok()?,
            _ => return None,
        };
        (lost > arrived).then_some(FailureReason::LargePackets { lost, arrived })
    }

    pub(in crate::qp) fn why_refused(&self) -> FailureReason {
        let remote = self.queue.front().and_then(|wqe| match wqe.request.operation {
            SendOperation::Write { remote, .. }
            | SendOperation::Read { remote }
            | SendOperation::FetchAdd { remote, .. }
            | SendOperation::CompareSwap { remote, .. }
            | SendOperation::AtomicWrite { remote }
            | SendOperation::Flush { remote, .. } => Some(remote),
            SendOperation::Send { .. }
            | SendOperation::SendInvalidate { .. }
            | SendOperation::SendTo { .. }
            | SendOperation::Bind(_)
            | SendOperation::LocalInvalidate { .. } => None,
        });
        FailureReason::RemoteAccess { remote, length: self.queue.front().map_or(0, |wqe| wqe.length) }
    }
}
