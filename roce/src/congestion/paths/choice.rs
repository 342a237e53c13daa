//! The setting that gives a queue pair several paths.

use core::time::Duration;

/// Paths of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// Number of paths, 2 to [`PathChoice::MAX`], including the connection's own.
    pub count: u8,
    /// Time between probes while data is in flight: about a base round trip. Each probe uses the next path.
    pub interval: Duration,
    /// Whether packets are sprayed over all paths, which needs selective repeat. Data then measures the paths, the queue pair's own probes
    /// alternate between them, and loads are counted over `interval`.
    pub spray: bool,
}

impl PathChoice {
    /// Limit of the paths of a queue pair.
    pub const MAX: u8 = 8;
}
