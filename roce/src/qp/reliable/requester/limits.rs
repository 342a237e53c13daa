//! Limits of a requester: how much may be outstanding, how often something is requested again, how long an answer may take.

use core::time::Duration;

/// Half the circle: PSNs that may be outstanding, or new and old cannot be distinguished (IBA 9.7.2).
pub(super) const MAX_OUTSTANDING: u64 = 1 << 23;

/// Doublings of the time that an answer may take.
pub(super) const MAX_BACKOFF: u8 = 2;

/// Answers about the past start the retry timer again so often, each when a quarter of it has passed: 16 times the time that an answer
/// may take, at the least.
pub(super) const MAX_STALE_RESTARTS: u8 = 64;

/// Doublings of the time after which an unanswered packet is requested again.
pub(super) const MAX_PROBE_BACKOFF: u8 = 6;

/// Packets that go-back-N sends at once after a loss, at the least.
pub(super) const MIN_RECOVERY_PACKETS: u64 = 8;

/// A long message asks for an acknowledgement at least this often, so that the window keeps moving.
pub(super) const PACKETS_PER_ACK: u8 = 64;

/// As often as that in a window too. A window of one round trip's bytes, as HPCC++ has it, stops for as long as an acknowledgement is late.
/// Requested twice a window, they keep a 100 Gb/s link 71 % busy in the simulator; requested this often, 94 %. As a power of two.
pub(super) const ACKS_PER_WINDOW: u8 = 4;

/// The same if acknowledgements bring the telemetry that the sender computes with: of four flows that join one after another, each then
/// has as fair a share as with an answer to each packet (`fabric/tests/bands.rs`).
pub(super) const ANSWERS_PER_WINDOW: u8 = 5;

/// Bytes of packets that a peer must be able to hold behind a missing one.
pub(super) const HELD: u64 = 1 << 20;

/// The reordering window while no round trip was measured.
pub(super) const LATE: Duration = Duration::from_micros(20);

/// After which time a packet that was sent again counts as lost again, if neither a round trip nor a timer says how long it takes.
pub(super) const UNKNOWN: Duration = Duration::from_millis(100);
