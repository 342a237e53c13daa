//! A receiver's reading of telemetry, whatever its format.

use crate::wire::telemetry::MAX_HOPS;
use cc::{Counter, Hop, Rate};

/// A receiver's reading of telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, on the stack of its reader")]
pub enum Reading {
    /// A record from each switch.
    Hops(Hops),
    /// The highest in-flight share of the path's links, in units of 2^-20: the switches computed it.
    Inflight(u32),
    /// One of the signals of such a share.
    Signal(Signal),
}

/// The value that a CSIG tag reports of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The least share of a link that is available, in 2^-20. Bytes that wait count as used.
    Available(u32),
    /// The longest time that the packet waited at a hop, in ns.
    Delay(u64),
}

/// One switch's telemetry. A value that the layout, or the switch, leaves out is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopReading {
    /// The link's capacity (`B`).
    pub bandwidth: Option<Rate>,
    /// When the packet left, or came if that is all there is (`ts`), in ns.
    pub time: Counter,
    /// Bytes sent by the port (`txBytes`).
    pub tx_bytes: Option<Counter>,
    /// Bytes waiting (`qlen`).
    pub queue: u64,
}

impl HopReading {
    /// As the algorithms take it; `None` if something lacks.
    #[must_use]
    pub fn complete(&self) -> Option<Hop> {
        let Self { bandwidth: Some(bandwidth), time, tx_bytes: Some(tx_bytes), queue } = *self else {
            return None;
        };
        Some(Hop { bandwidth, time, tx_bytes, queue })
    }
}

/// The telemetry of all switches of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    path_id: u16,
    count: u8,
    hops: [Option<HopReading>; MAX_HOPS as usize],
}

impl Hops {
    /// Adds the next switch, from the first on; one beyond 15 is not kept.
    pub(super) fn push(&mut self, node: u32, hop: HopReading) {
        if let Some(place) = self.hops.get_mut(usize::from(self.count)) {
            *place = Some(hop);
            self.count = self.count.saturating_add(1);
            self.path_id ^= (node ^ node >> 12) as u16 & 0xfff;
        }
    }

    /// The XOR of the switches' ids, folded to 12 bits.
    #[must_use]
    pub const fn path_id(&self) -> u16 {
        self.path_id
    }

    /// Returns the number of hops.
    #[must_use]
    pub const fn count(&self) -> u8 {
        self.count
    }

    /// The switches, first first.
    pub fn iter(&self) -> impl Iterator<Item = &HopReading> {
        self.hops.iter().flatten()
    }
}
