//! The state of a switch port, which telemetry reports.

use cc::Rate;

/// State of the port by which a packet is sent, at the start of its transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Id of the switch, 12 bits.
    pub switch: u16,
    /// Index of the port.
    pub port: u16,
    /// Capacity of the link (`B`).
    pub rate: Rate,
    /// Time of transmission (`ts`), ns.
    pub time: u64,
    /// Bytes sent before the packet (`txBytes`).
    pub tx_bytes: u64,
    /// Bytes queued after the packet (`qlen`).
    pub queue: u64,
    /// Time for which the packet was queued, ns.
    pub sojourn: u64,
    /// Load of the port, in AECN's units.
    pub load: Load,
}

pub(super) const KINDS: usize = 5;

/// Share of 1 in the units of [`Load`]; the largest share that can be expressed is 255/128.
pub const ONE: f64 = 128.0;

/// Load of a port, one byte for each value, in the order of the draft's Table 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// In-flight bytes as a share of the capacity of link and base round trip, in 1/128. The value of a path is the highest.
    pub inflight: u8,
    /// Discounted rate (CONGA's DRE) as a share of the link's, in 1/128. The value of a path is the highest.
    pub rate: u8,
    /// Queue as a share of its limit, in 1/128. The value of a path is the highest.
    pub queue: u8,
    /// Time of the packet in the queue, µs. The value of a path is the sum.
    pub delay: u8,
    /// 1 if the port is congested. The value of a path is the sum.
    pub congested: u8,
}

impl Load {
    pub(super) const fn bytes(self) -> [u8; KINDS] {
        [self.inflight, self.rate, self.queue, self.delay, self.congested]
    }

    /// Converts a share to the unit of the fields.
    #[must_use]
    pub fn share(of_one: f64) -> u8 {
        // The cast saturates.
        (of_one * ONE) as u8
    }
}
