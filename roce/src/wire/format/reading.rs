//! Telemetry as a receiver reads it, in any format.

use crate::wire::telemetry::MAX_HOPS;
use cc::{Counter, Hop, Rate};

/// Telemetry as a receiver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, on the stack of its reader")]
pub enum Reading {
    /// Record of each switch.
    Hops(Hops),
    /// Highest in-flight share of the path's links, in units of 2^-20, which the switches computed.
    Inflight(u32),
    /// Signal from which such a share is computed.
    Signal(Signal),
}

/// Value of a CSIG tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Least available share of a link, in 2^-20. Queued bytes count as used.
    Available(u32),
    /// Longest time that the packet waited at a hop, ns.
    Delay(u64),
}

/// Telemetry of one switch. Values that the format or the switch omits are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopReading {
    /// Capacity of the link (`B`).
    pub bandwidth: Option<Rate>,
    /// When the packet was sent (`ts`), ns; when it arrived if only that is known.
    pub time: Counter,
    /// Bytes sent by the port (`txBytes`).
    pub tx_bytes: Option<Counter>,
    /// Bytes queued (`qlen`).
    pub queue: u64,
}

impl HopReading {
    /// Converts the reading to the form that algorithms use; `None` if a value is missing.
    #[must_use]
    pub fn complete(&self) -> Option<Hop> {
        let Self { bandwidth: Some(bandwidth), time, tx_bytes: Some(tx_bytes), queue } = *self else {
            return None;
        };
        Some(Hop { bandwidth, time, tx_bytes, queue })
    }
}

/// Telemetry of all switches of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    path_id: u16,
    count: u8,
    hops: [Option<HopReading>; MAX_HOPS as usize],
}

impl Hops {
    /// Adds the next switch of the path. More than 15 are ignored.
    pub(super) fn push(&mut self, node: u32, hop: HopReading) {
        if let Some(place) = self.hops.get_mut(usize::from(self.count)) {
            *place = Some(hop);
            self.count = self.count.saturating_add(1);
            self.path_id ^= (node ^ node >> 12) as u16 & 0xfff;
        }
    }

    /// Returns the XOR of the switches' ids, folded to 12 bits.
    #[must_use]
    pub const fn path_id(&self) -> u16 {
        self.path_id
    }

    /// Returns the number of switches.
    #[must_use]
    pub const fn count(&self) -> u8 {
        self.count
    }

    /// Returns the switches, in path order.
    pub fn iter(&self) -> impl Iterator<Item = &HopReading> {
        self.hops.iter().flatten()
    }
}
