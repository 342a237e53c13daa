//! Limits of a requester: outstanding packets, retransmissions, timeouts.

use core::time::Duration;

/// PSNs that may be outstanding: half the PSN space, or new and old packets cannot be distinguished (IBA 9.7.2).
pub(super) const MAX_OUTSTANDING: u64 = 1 << 23;

/// Doublings of the retransmission timeout.
pub(super) const MAX_BACKOFF: u8 = 2;

/// Restarts of the retransmission timer by stale answers. Each takes at least a quarter of the timeout, all of them 16 timeouts.
pub(super) const MAX_STALE_RESTARTS: u8 = 64;

/// Doublings of the timeout of a tail loss probe or a retransmission.
pub(super) const MAX_PROBE_BACKOFF: u8 = 6;

/// Least recovery window of go-back-N after a loss other than a timeout, packets.
pub(super) const MIN_RECOVERY_PACKETS: u64 = 8;

/// Packets after which a long message sets AckReq, so that the window keeps moving.
pub(super) const PACKETS_PER_ACK: u8 = 64;

/// AckReqs per window, as a power of two. A window of one round trip's bytes, as with HPCC++, is exhausted while an acknowledgement is
/// delayed. Two AckReqs per window keep a 100 Gb/s link 71 % busy in the simulator, 16 keep it 94 % busy.
pub(super) const ACKS_PER_WINDOW: u8 = 4;

/// The same if acknowledgements carry the telemetry of the sender's algorithm. Four flows that start one after another then share a link as
/// fairly as with an answer to each packet (`fabric/tests/bands.rs`).
pub(super) const ANSWERS_PER_WINDOW: u8 = 5;

/// Bytes that a peer must be able to hold after a missing packet.
pub(super) const HELD: u64 = 1 << 20;

/// Reordering window until a round trip is measured.
pub(super) const LATE: Duration = Duration::from_micros(20);

/// Time after which a retransmission counts as lost, if neither a round trip nor a timeout is known.
pub(super) const UNKNOWN: Duration = Duration::from_millis(100);
