//! The state of a switch's port, which telemetry reports.

use cc::Rate;

/// A switch's knowledge of the port that a packet leaves by, at the moment that it begins to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// The switch's id, 12 bits.
    pub switch: u16,
    /// The port's place.
    pub port: u16,
    /// The link's capacity (`B`).
    pub rate: Rate,
    /// The time (`ts`), ns.
    pub time: u64,
    /// Bytes that left before (`txBytes`).
    pub tx_bytes: u64,
    /// Bytes that wait behind (`qlen`).
    pub queue: u64,
    /// The time that this packet waited, ns.
    pub sojourn: u64,
    /// The port's load in AECN's units.
    pub load: Load,
}

/// The number of values in a [`Load`].
pub(super) const KINDS: usize = 5;

/// A share of 1 in the units of [`Load`]'s shares; the largest that can be expressed is 255/128.
pub const ONE: f64 = 128.0;

/// The load of a port, one byte for each value, in the order of the draft's Table 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// In-flight bytes as a share of the capacity of link and base round trip, in 1/128. The path's is the highest.
    pub inflight: u8,
    /// The discounted rate (CONGA's DRE) as a share of the link's, in 1/128. The highest.
    pub rate: u8,
    /// The queue as a share of its limit, in 1/128. The highest.
    pub queue: u8,
    /// The packet's time in the queue, µs. A path's is the sum.
    pub delay: u8,
    /// 1 if the port is congested. The sum.
    pub congested: u8,
}

impl Load {
    pub(super) const fn bytes(self) -> [u8; KINDS] {
        [self.inflight, self.rate, self.queue, self.delay, self.congested]
    }

    /// A share in the fields' unit.
    #[must_use]
    pub fn share(of_one: f64) -> u8 {
        // A float's cast to an integer stops at the integer's ends.
        (of_one * ONE) as u8
    }
}
