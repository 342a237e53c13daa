//! Telemetry of switches, independent of its format on the wire.

use crate::Rate;
use core::num::NonZeroU32;

/// Limit on the hops of a path: that of the 4-bit count of rtgwg-00 Figure 4.
pub const MAX_HOPS: usize = 15;

/// A reading of a running counter in a telemetry header: `bits` wide, in units of `unit`.
///
/// Only the distance between two readings is meaningful, and only if it is below 2^`bits` counts. A peer may choose width and unit, so the
/// constructors allow only widths of 1 to 64 and units above 0. So [`period`](Self::period) is at least 2 and may be a divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    raw: u64,
    /// Width, 1 to 64.
    bits: u8,
    unit: NonZeroU32,
}

impl Counter {
    /// Creates a reading with a width and unit from the wire. Bits of `raw` above the width are ignored.
    ///
    /// Returns `None` if the width is not 1 to 64 or the unit is 0.
    #[must_use]
    pub const fn new(raw: u64, bits: u8, unit: u32) -> Option<Self> {
        match NonZeroU32::new(unit) {
            Some(unit) if bits >= 1 && bits <= 64 => Some(Self { raw, bits, unit }),
            _ => None,
        }
    }

    /// Creates a reading of a layout with fixed width and unit; invalid ones do not compile.
    #[must_use]
    pub const fn of<const BITS: u8, const UNIT: u32>(raw: u64) -> Self {
        const { assert!(BITS >= 1 && BITS <= 64, "a counter is 1 to 64 bits wide") };
        let unit = const { NonZeroU32::new(UNIT).expect("a counter's unit is not 0") };
        Self { raw, bits: BITS, unit }
    }

    const fn mask(self) -> u64 {
        u64::MAX >> 64u8.saturating_sub(self.bits)
    }

    /// Returns the reading, `bits` wide.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw & self.mask()
    }

    /// Returns another reading of the same counter.
    #[must_use]
    pub(crate) const fn with(self, raw: u64) -> Self {
        Self { raw, ..self }
    }

    /// Returns the width in bits, 1 to 64.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Returns the unit of a count, in bytes or ns.
    #[must_use]
    pub const fn unit(self) -> u32 {
        self.unit.get()
    }

    /// Returns the distance from `earlier`, with at most one wrap, in bytes or ns. Saturates.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        (self.raw.wrapping_sub(earlier.raw) & self.mask()).saturating_mul(self.unit() as u64)
    }

    /// Returns the distance after which a reading repeats, in bytes or ns: at least 2. Saturates.
    #[must_use]
    pub const fn period(self) -> u64 {
        self.mask().saturating_add(1).saturating_mul(self.unit() as u64)
    }
}

/// The telemetry of a switch about the egress port of a packet (rtgwg-00 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Capacity of the link (`B`).
    pub bandwidth: Rate,
    /// When the packet was sent by the port (`ts`), in ns.
    pub time: Counter,
    /// Bytes that the port sent before this packet (`txBytes`).
    pub tx_bytes: Counter,
    /// Bytes queued in the port behind this packet (`qlen`).
    pub queue: u64,
}

/// Index of a hop on the path; 0 is the first switch.
pub type HopIndex = u8;

/// The telemetry of one path: all its hops, or only the busiest (rtgwg-00 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTelemetry {
    path_id: u16,
    hops: [Option<Hop>; MAX_HOPS],
}

impl PathTelemetry {
    /// Creates telemetry without hops, of the path `path_id` (the XOR of its switches' ids, rtgwg-00 6.1.3).
    #[must_use]
    pub const fn new(path_id: u16) -> Self {
        Self { path_id, hops: [None; MAX_HOPS] }
    }

    /// Sets the hop at `index`. Returns whether `index` is below [`MAX_HOPS`]; otherwise nothing changes.
    pub fn set(&mut self, index: HopIndex, hop: Hop) -> bool {
        match self.hops.get_mut(usize::from(index)) {
            Some(place) => {
                *place = Some(hop);
                true
            }
            None => false,
        }
    }

    /// Returns the path's id, which differs between paths.
    #[must_use]
    pub const fn path_id(&self) -> u16 {
        self.path_id
    }

    /// Returns the hops present, in path order.
    pub fn hops(&self) -> impl Iterator<Item = (HopIndex, &Hop)> {
        (0u8..).zip(&self.hops).filter_map(|(index, hop)| hop.as_ref().map(|hop| (index, hop)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_wraps() {
        let before = Counter::of::<24, 1>(0xff_fff0);
        let after = Counter::of::<24, 1>(0x00_0010);
        assert_eq!(after.since(before), 0x20);
        assert_eq!(Counter::of::<20, 128>(3).since(Counter::of::<20, 128>(1)), 256);
        assert_eq!(before.period(), 1 << 24);
    }

    /// Every pair of readings of every narrow counter.
    #[test]
    fn every_distance_of_a_narrow_counter_equals_the_count() {
        for bits in 1..=8u8 {
            let period = 1u64 << bits;
            for (before, counted) in
                (0..period).flat_map(|raw| (0..period).map(move |counted| (raw, counted)))
            {
                for unit in [1, 128, u32::MAX] {
                    let [earlier, later] =
                        [before, before + counted].map(|raw| Counter::new(raw, bits, unit).unwrap());
                    assert_eq!(later.since(earlier), counted * u64::from(unit));
                    assert!(later.since(earlier) < later.period());
                }
            }
        }
    }

    #[test]
    fn no_counter_has_a_period_below_two() {
        for (bits, unit) in [(0, 1), (65, 1), (255, 1), (64, 0), (1, 0)] {
            assert_eq!(Counter::new(0, bits, unit), None, "{bits} bits of {unit}");
        }
        for (bits, unit, period) in [
            (1, 1, 2),
            (24, 1, 1 << 24),
            (64, 1, u64::MAX),
            (64, u32::MAX, u64::MAX),
            (32, u32::MAX, u64::from(u32::MAX) << 32),
        ] {
            assert_eq!(
                Counter::new(0, bits, unit).map(Counter::period),
                Some(period),
                "{bits} bits of {unit}"
            );
        }
    }
}
