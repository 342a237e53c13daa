//! The setting that gives a queue pair several paths.

use core::time::Duration;

/// Which paths a queue pair may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// The number of paths, 2 to [`PathChoice::MOST`], the connection's own included.
    pub count: u8,
    /// One of them after the other is probed this often while data is in flight: about a base round trip.
    pub interval: Duration,
    /// Packets are sprayed over all of them, which needs selective repeat. Then data measures them, and
    /// the queue pair's own probes take turns; `interval` is that over which loads are counted.
    pub spray: bool,
}

impl PathChoice {
    /// The most paths of one queue pair.
    pub const MOST: u8 = 8;
}
