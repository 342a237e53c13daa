//! Evidence that may explain why a peer does not acknowledge. A requester that gets its acknowledgements notes nothing.

use crate::Psn;

/// No packet number.
pub(super) const NEVER: u64 = u64::MAX;

/// When something was noted, as the packet that was the oldest then. Once it is acknowledged, the note means nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    /// A NAK requested the packet.
    pub(super) nak: u64,
    /// An answer came that is about no packet in flight.
    pub(super) stale: u64,
    /// A timeout passed.
    pub(super) silent: u64,
    /// A question, which is a packet without payload, left.
    pub(super) asked: u64,
    /// The peer answered it.
    pub(super) small: u64,
    /// The PSN that was expected from the peer then.
    pub(super) expected: Psn,
}

impl Default for Suspicion {
    fn default() -> Self {
        Self { nak: NEVER, stale: NEVER, silent: NEVER, asked: NEVER, small: NEVER, expected: Psn::new(0) }
    }
}
