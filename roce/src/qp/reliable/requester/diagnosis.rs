//! Evidence that may explain why a peer does not acknowledge. Nothing is recorded while acknowledgements arrive.

use crate::Psn;
use alloc::boxed::Box;

/// Not a packet number.
const NEVER: u64 = u64::MAX;

/// Evidence, if any was recorded.
#[derive(Debug, Default)]
pub(super) struct Diagnosis(Option<Box<Evidence>>);

/// The number of the oldest packet at each event. Once that packet is acknowledged, the event no longer counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// The peer sent a NAK for the packet.
    pub(super) nak: u64,
    /// An answer matched no packet in flight.
    pub(super) stale: u64,
    pub(super) timeout: u64,
    keep_alive: u64,
    /// The peer answered a keep-alive: small packets arrive.
    pub(super) alive: u64,
    /// PSN expected from the peer at the timeout.
    pub(super) expected: Psn,
}

impl Default for Evidence {
    fn default() -> Self {
        Self {
            nak: NEVER,
            stale: NEVER,
            timeout: NEVER,
            keep_alive: NEVER,
            alive: NEVER,
            expected: Psn::new(0),
        }
    }
}

impl Diagnosis {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    fn evidence_mut(&mut self) -> &mut Evidence {
        self.0.get_or_insert_default()
    }

    pub(super) fn evidence(&self) -> Evidence {
        self.0.as_deref().copied().unwrap_or_default()
    }

    #[cold]
    pub(super) fn record_nak(&mut self, una: u64) {
        self.evidence_mut().nak = una;
    }

    #[cold]
    pub(super) fn record_stale(&mut self, una: u64) {
        self.evidence_mut().stale = una;
    }

    #[cold]
    pub(super) fn record_keep_alive(&mut self, una: u64) {
        self.evidence_mut().keep_alive = una;
    }

    /// Records an acknowledgement of nothing new. Returns whether it answers a keep-alive.
    #[cold]
    pub(super) fn record_duplicate(&mut self, una: u64) -> bool {
        let evidence = self.evidence_mut();
        let is_answer = evidence.keep_alive == una;
        if is_answer {
            (evidence.keep_alive, evidence.alive) = (NEVER, una);
        }
        is_answer
    }

    /// Records a timeout; `expected` is the next PSN expected from the peer.
    #[cold]
    pub(super) fn record_timeout(&mut self, una: u64, expected: Psn) {
        let evidence = self.evidence_mut();
        if evidence.timeout != una {
            (evidence.timeout, evidence.expected) = (una, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_acknowledgement_answers_one_keep_alive() {
        let mut diagnosis = Diagnosis::new();
        assert!(!diagnosis.record_duplicate(4));
        diagnosis.record_keep_alive(4);
        assert!(!diagnosis.record_duplicate(5), "another packet is the oldest");
        assert!(diagnosis.record_duplicate(4) && !diagnosis.record_duplicate(4));
        assert_eq!(diagnosis.evidence().alive, 4);
    }

    #[test]
    fn the_first_timeout_of_a_packet_counts() {
        let mut diagnosis = Diagnosis::new();
        diagnosis.record_timeout(4, Psn::new(7));
        diagnosis.record_timeout(4, Psn::new(8));
        assert_eq!((diagnosis.evidence().timeout, diagnosis.evidence().expected), (4, Psn::new(7)));
        diagnosis.record_timeout(5, Psn::new(9));
        assert_eq!(diagnosis.evidence().expected, Psn::new(9));
    }
}
