//! Why a peer did not acknowledge: what a requester notes when something is wrong, and what it concludes once it gives up. A requester
//! that gets its acknowledgements notes nothing.

use super::Requester;
use super::suspicion::{NEVER, Suspicion};
use crate::qp::SendOperation;
use crate::qp::wqe::Wqe;
use crate::{FailureReason, Psn, Unreachable};
use cc::Instant;

/// The longest payload that any path carries: the smallest MTU of IPv6 is 1280 (RFC 8200 5), of Ethernet 1500.
const ANY_PATH: u32 = 1024;

/// The number of requests that show which packets arrived lately.
const LATELY: u32 = 8;

/// The number of retries of a packet after which it is not lost by chance.
const OFTEN: u8 = 3;

impl Requester {
    /// Returns the retries since something was acknowledged.
    #[expect(clippy::arithmetic_side_effects, reason = "retries of either kind are at most 7")]
    pub(in crate::qp) const fn retries(&self) -> u8 {
        self.retry_count.saturating_sub(self.retries_left) + self.rnr_retry.saturating_sub(self.rnr_left)
    }

    fn suspicion(&mut self) -> &mut Suspicion {
        self.suspicion.get_or_insert_default()
    }

    /// The peer asks for the oldest packet.
    #[cold]
    pub(super) fn note_nak(&mut self) {
        self.suspicion().nak = self.una;
    }

    /// An answer, with this PSN, is about no packet in flight. Returns whether it answers a question: the ACK has the PSN of a SEND or WRITE,
    /// and the packet that the question repeats may be a READ.
    #[cold]
    pub(in crate::qp) fn note_stale(&mut self, psn: Psn) -> bool {
        let is_answer = psn.distance(self.acknowledged_psn()) <= 0 && self.note_small();
        if !is_answer {
            self.suspicion().stale = self.una;
        }
        is_answer
    }

    /// The peer acknowledges nothing new. Returns whether it answers a question: small packets arrive.
    #[cold]
    pub(super) fn note_small(&mut self) -> bool {
        let (una, suspicion) = (self.una, self.suspicion());
        let is_answer = suspicion.asked == una;
        if is_answer {
            (suspicion.asked, suspicion.small) = (NEVER, una);
        }
        is_answer
    }

    /// A timeout passed, and `expected` is the PSN that the peer is to send next.
    #[cold]
    pub(in crate::qp) fn note_silence(&mut self, expected: Psn) {
        let (una, suspicion) = (self.una, self.suspicion());
        if suspicion.silent != una {
            (suspicion.silent, suspicion.expected) = (una, expected);
        }
        // A packet that any path carries would ask nothing new.
        if self.oldest_length() > ANY_PATH {
            self.offer.owe_question();
        }
    }

    /// Returns the PSN of a question: a duplicate of the last packet that was acknowledged, which a responder acknowledges once more
    /// and does not execute (IBA 9.7.5.1). If the peer answers it and acknowledges nothing else, the path loses large packets.
    #[cold]
    pub(in crate::qp) fn take_question(&mut self) -> Option<Psn> {
        if !self.offer.take_question() || self.is_answered() {
            return None;
        }
        let una = self.una;
        self.suspicion().asked = una;
        Some(self.acknowledged_psn())
    }

    /// Returns the payload bytes of the oldest packet, or of its answer.
    #[expect(clippy::arithmetic_side_effects, reason = "an offset is at most the length")]
    fn oldest_length(&self) -> u32 {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.una);
        oldest.map_or(0, |oldest| (oldest.length - oldest.offset(self.una, self.mtu)).min(self.mtu))
    }

    /// Returns the likely reason for which all retries were in vain. `heard` is an ICMP statement about the peer with its time. Of the PSNs
    /// that are expected from the peer, the connection's first and the next are given.
    #[expect(clippy::arithmetic_side_effects, reason = "hours times 15 are far below the longest Duration")]
    pub(in crate::qp) fn why_unanswered(
        &self,
        now: Instant,
        heard: Option<(Instant, Unreachable)>,
        [first, expected]: [Psn; 2],
    ) -> FailureReason {
        let noted = self.suspicion.as_deref().copied().unwrap_or_default();
        let Suspicion { nak, stale, silent, small, expected: then, .. } = noted;
        // The last wait is the longest.
        let silence = self.wait().unwrap_or_default() * (u32::from(self.retries()) + 1);
        let is_asked = nak == self.una || self.selective.as_ref().is_some_and(|it| it.heard() > self.una);
        // A peer that asks for packets is reached.
        let heard = heard.filter(|&(at, _)| !is_asked && now.saturating_since(at) <= silence);
        if let Some((_, what)) = heard {
            return FailureReason::Unreachable(what);
        }
        let is_new = self.una == 0;
        if is_new && stale == 0 {
            return FailureReason::OtherPsns;
        }
        let sends = silent == self.una && expected != then;
        if small == self.una || is_asked && self.ends_short() {
            return self
                .large_packets()
                .unwrap_or(FailureReason::LargePackets { lost: self.oldest_length(), arrived: 0 });
        }
        let is_alive = !is_new || is_asked || expected != first;
        if let Some(reason) = self.large_packets().filter(|_| is_alive) {
            return reason;
        }
        match (is_asked, is_new) {
            (true, _) => FailureReason::Loss,
            (false, _) if sends => FailureReason::OneWay,
            (false, true) if expected != first => FailureReason::OneWay,
            (false, true) => FailureReason::NeverAnswered,
            (false, false) => FailureReason::WentDark,
        }
    }

    /// Returns whether a large packet is lost each time and the last of its message, which any path carries, is what arrives behind it.
    fn ends_short(&self) -> bool {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.una);
        let last = oldest.and_then(|oldest| oldest.length.checked_rem(self.mtu)).unwrap_or(0);
        self.retries() >= OFTEN && self.oldest_length() == self.mtu && (1..=ANY_PATH).contains(&last)
    }

    /// Returns that the path loses large packets, if the oldest is surely larger than all that arrived lately.
    #[expect(clippy::arithmetic_side_effects, reason = "the kept requests are few")]
    fn large_packets(&self) -> Option<FailureReason> {
        let oldest = self.queue.iter().find(|wqe| wqe.end() > self.una)?;
        let lost = self.oldest_length();
        // Those before it in its own message are as long.
        if lost <= ANY_PATH || self.una > oldest.first {
            return None;
        }
        let is_alike = |wqe: &&Wqe| !wqe.is_local() && wqe.is_answered() == oldest.is_answered();
        let before = self.queue.forgotten().filter(is_alike).map(|wqe| wqe.length.min(self.mtu));
        let (count, largest) =
            before.fold((0, 0), |(count, largest), length| (count + 1, length.max(largest)));
        let arrived = match count {
            LATELY.. => largest,
            // No packet is larger than all that arrived together.
            _ if !oldest.is_answered() => u32::try_from(self.stream_at(0, self.una)).ok()?,
            _ => return None,
        };
        (lost > arrived).then_some(FailureReason::LargePackets { lost, arrived })
    }

    /// Returns what the peer refused.
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
