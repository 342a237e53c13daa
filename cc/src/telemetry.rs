use crate::Rate;

/// Hops that one path may report: what the 4-bit count of rtgwg-00 Figure 4 can hold.
pub const MAX_HOPS: usize = 15;

/// A running counter as a telemetry header carries it: `bits` wide, each count worth `unit`.
///
/// Only the distance between two readings means anything, and only when fewer than 2^`bits` counts lie between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    raw: u64,
    bits: u8,
    unit: u32,
}

impl Counter {
    /// A reading. `bits` is 1 to 64; bits of `raw` above are ignored.
    #[must_use]
    pub const fn new(raw: u64, bits: u8, unit: u32) -> Self {
        assert!(bits >= 1 && bits <= 64, "a counter is 1 to 64 bits wide");
        Self { raw, bits, unit }
    }

    /// The reading, `bits` wide.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw & u64::MAX >> (64 - self.bits)
    }

    /// Another reading of the same counter.
    #[must_use]
    pub(crate) const fn with(self, raw: u64) -> Self {
        Self { raw, ..self }
    }

    /// How wide it is, 1 to 64.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// What a count is worth, in bytes or ns.
    #[must_use]
    pub const fn unit(self) -> u32 {
        self.unit
    }

    /// What was counted since `earlier`, across at most one wrap, in the unit's base (bytes or ns).
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        let mask = u64::MAX >> (64 - self.bits);
        (self.raw.wrapping_sub(earlier.raw) & mask).saturating_mul(self.unit as u64)
    }

    /// After what amount the counter shows the same reading again, in the unit's base.
    #[must_use]
    pub const fn period(self) -> u64 {
        (u64::MAX >> (64 - self.bits)).saturating_add(1).saturating_mul(self.unit as u64)
    }
}

/// What one switch stamped about the egress port that a packet left by (rtgwg-00 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link's capacity (`B`).
    pub bandwidth: Rate,
    /// When the packet left (`ts`), in ns.
    pub time: Counter,
    /// Bytes sent by the port before this packet (`txBytes`).
    pub tx_bytes: Counter,
    /// Bytes waiting in the port behind this packet (`qlen`).
    pub queue: u64,
}

/// A hop's place on the path, 0 the first switch.
pub type HopIndex = u8;

/// The telemetry of one path: all its hops, or only the busiest (rtgwg-00 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTelemetry {
    path_id: u16,
    hops: [Option<Hop>; MAX_HOPS],
}

impl PathTelemetry {
    /// No hops yet, on the path `path_id` (the XOR of its switches' ids, rtgwg-00 6.1.3).
    #[must_use]
    pub const fn new(path_id: u16) -> Self {
        Self { path_id, hops: [None; MAX_HOPS] }
    }

    /// Adds the hop at `index`; one at or beyond [`MAX_HOPS`] is not kept and gives `false`.
    pub fn set(&mut self, index: HopIndex, hop: Hop) -> bool {
        match self.hops.get_mut(usize::from(index)) {
            Some(place) => {
                *place = Some(hop);
                true
            }
            None => false,
        }
    }

    /// The path's id: another id is another path.
    #[must_use]
    pub const fn path_id(&self) -> u16 {
        self.path_id
    }

    /// The hops present, in path order.
    pub fn hops(&self) -> impl Iterator<Item = (HopIndex, &Hop)> {
        (0u8..).zip(&self.hops).filter_map(|(index, hop)| hop.as_ref().map(|hop| (index, hop)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_wraps() {
        let before = Counter::new(0xff_fff0, 24, 1);
        let after = Counter::new(0x00_0010, 24, 1);
        assert_eq!(after.since(before), 0x20);
        assert_eq!(Counter::new(3, 20, 128).since(Counter::new(1, 20, 128)), 256);
        assert_eq!(before.period(), 1 << 24);
    }
}
