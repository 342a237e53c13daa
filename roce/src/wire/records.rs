//! The records of all links of a path, in feedback.

use super::telemetry::{HopRecord, MAX_HOPS, RECORD_LENGTH};
use cc::Hop;

/// Telemetry of all switches of a path, in path order: 1 to [`Records::MAX`] records of rtgwg-00 Figure 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    count: u8,
    /// In the encoding on the wire, so that a header with feedback stays small.
    packed: [[u8; RECORD_LENGTH]; Self::MAX],
}

impl Records {
    /// Limit of the records: "inside a data center, the path length is often no more than 5 hops" (rtgwg-00 6.1).
    pub const MAX: usize = 5;

    /// Collects these records; `None` if there is none, or there are too many.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`packed` has a place for it")]
    pub fn of(records: impl Iterator<Item = HopRecord>) -> Option<Self> {
        let mut all = Self { count: 0, packed: [[0; RECORD_LENGTH]; Self::MAX] };
        for record in records {
            *all.packed.get_mut(usize::from(all.count))? = record.pack();
            all.count += 1;
        }
        (all.count > 0).then_some(all)
    }

    /// Converts hops in any format to the resolution of Figure 4; `None` if there is none, there are too many, or a rate has no code.
    #[must_use]
    pub fn of_hops<'a>(hops: impl Iterator<Item = &'a Hop>) -> Option<Self> {
        let mut records_of = [None; MAX_HOPS as usize];
        for (at, hop) in hops.enumerate() {
            *records_of.get_mut(at)? = Some(HopRecord::of(hop)?);
        }
        Self::of(records_of.into_iter().flatten())
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn count(&self) -> u8 {
        self.count
    }

    /// Returns the length on the wire, bytes.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "there are at most MAX records")]
    pub const fn length(&self) -> usize {
        self.count as usize * RECORD_LENGTH
    }

    /// Returns the records, in path order.
    #[expect(clippy::indexing_slicing, reason = "there are at most MAX records")]
    pub fn iter(&self) -> impl Iterator<Item = HopRecord> {
        self.packed[..usize::from(self.count)].iter().filter_map(|&packed| HopRecord::unpack(packed))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the room is MAX_REPORT bytes, and there are at most MAX records"
    )]
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..self.length()].copy_from_slice(&self.packed.as_flattened()[..self.length()]);
    }

    /// Reads `count` records from the front of `bytes`. Returns them and the rest.
    pub(super) fn read(count: u8, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (records, rest) = bytes.split_at_checked(usize::from(count) * RECORD_LENGTH)?;
        let (packed, _) = records.as_chunks::<RECORD_LENGTH>();
        let all = Self::of(packed.iter().map_while(|&packed| HopRecord::unpack(packed)))?;
        (all.count == count).then_some((all, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::telemetry::Speed;
    use cc::{Counter, Rate};

    fn record(number: u64) -> HopRecord {
        HopRecord::new(Speed::from_code(2).unwrap(), number, number << 7, number * 80)
    }

    #[test]
    fn one_to_five_records_survive_the_wire() {
        assert_eq!(Records::of(core::iter::empty()), None);
        assert_eq!(Records::of((0..6).map(record)), None);
        for count in 1..=5 {
            let all = Records::of((0..count).map(record)).unwrap();
            let mut bytes = [0xff; 50];
            all.write(&mut bytes);
            assert_eq!(Records::read(count as u8, &bytes), Some((all, &bytes[all.length()..])));
            assert!(all.iter().eq((0..count).map(record)));
        }
        assert_eq!(Records::read(6, &[0; 48]), None);
        assert_eq!(Records::read(1, &[0xf0, 0, 0, 0, 0, 0, 0, 0]), None, "a speed without a code");
        assert_eq!(Records::read(2, &[0; 15]), None);
    }

    /// Hops in other units and widths, read twice: the distances are the same except for Figure 4's resolution.
    #[test]
    fn hops_of_other_layouts_keep_their_distances() {
        let hop = |micros: u64, bytes: u64| Hop {
            bandwidth: Rate::from_gbps(100),
            time: Counter::of::<32, 1000>(micros),
            tx_bytes: Counter::of::<54, 1>(bytes),
            queue: 1234,
        };
        for (micros, bytes) in [(5, 70_000), (u64::from(u32::MAX) - 3, (1 << 54) - 128 * 200)] {
            let [before, after] = [hop(micros, bytes), hop(micros + 8, bytes + 128 * 781)];
            let [first, second] = [before, after]
                .map(|hop| Hop::from(Records::of_hops([hop].iter()).unwrap().iter().next().unwrap()));
            assert_eq!(second.time.since(first.time), after.time.since(before.time));
            assert_eq!(second.tx_bytes.since(first.tx_bytes), after.tx_bytes.since(before.tx_bytes));
            assert_eq!((first.queue, first.bandwidth), (1200, before.bandwidth));
        }
        let odd = Hop { bandwidth: Rate::from_mbps(333), ..hop(0, 0) };
        assert_eq!(Records::of_hops([hop(0, 0), odd].iter()), None, "no code stands for 333 Mb/s");
    }
}
