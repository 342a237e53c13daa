//! Feedback of a receiver on a sender's path: in telemetry responses, in notifications, and in Acknowledges.

use super::records::Records;
use super::telemetry::{HopRecord, MAX_HOPS, RECORD_LENGTH};
use crate::Discard;
use cc::{Counter, Hop, PathTelemetry, Rate};
use core::num::NonZeroU32;

/// Length of the longest [`Feedback`], bytes: report and seal.
pub const MAX_FEEDBACK: usize = MAX_REPORT + SEAL_LENGTH;

/// Length of the longest [`Report`], bytes.
const MAX_REPORT: usize = 4 + HOP_LENGTH + 4;
const _: () = assert!(4 + Records::MAX * RECORD_LENGTH <= MAX_REPORT);

/// Length of a hop that does not fit a [`HopRecord`], bytes: {B 64 in bit/s, ts 64, txBytes 64, qlen 64 in bytes, bits of ts 8, bits of
/// txBytes 8, 0 16, unit of ts 32 in ns, unit of txBytes 32 in bytes}. Bits are 1 to 64, units at least 1.
const HOP_LENGTH: usize = 44;

/// Length of a [`Seal`], bytes.
pub const SEAL_LENGTH: usize = 24;

/// State of a path. On the wire: {kind 4, path id 12, hops 8, index 8}, then the content of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Kind 0: the busiest link, as in its record (rtgwg-00 7.1).
    Busiest {
        /// The XOR of the switches' ids, 12 bits.
        path_id: u16,
        /// Hops that the packet passed, 0 to 15.
        hops: u8,
        /// Hop with the highest normalised in-flight bytes, by its index on the path. It is `Some` if and only if `hops` is not 0, and its
        /// index is below `hops`.
        busiest: Option<(u8, HopRecord)>,
    },
    /// Kind 1: the window that the receiver computed, in payload bytes (rtgwg-00 6.3.2).
    Window(u64),
    /// Kind 2: only the utilisation of the busiest link (rtgwg-00 9.1).
    Ratio {
        /// The path's id, 12 bits.
        path_id: u16,
        /// In-flight bytes as a share of the capacity of link and base round trip, in units of 2^-20.
        utilisation: u32,
        /// Time between the two records, ns.
        interval: u32,
    },
    /// Kind 3: confirms a setup.
    Ready,
    /// Kind 4: the busiest link, from its record or estimated, if the telemetry had another format than HPCC INT.
    Hop {
        /// The XOR of the switches' ids, 12 bits.
        path_id: u16,
        /// Hops that the packet passed, 1 to 15.
        hops: u8,
        /// Index of the busiest hop on the path, below `hops`.
        index: u8,
        /// State of the link.
        hop: Hop,
    },
    /// Kind 5: as kind 4, in any format, followed by the number of flows at the receiver (32 bits), if the sender's setup requests it.
    Shared {
        /// The XOR of the switches' ids, 12 bits.
        path_id: u16,
        /// Hops that the packet passed, 1 to 15; the last one is the receiver's link.
        hops: u8,
        /// Index of the busiest hop on the path, below `hops`.
        index: u8,
        /// State of the link.
        hop: Hop,
        /// Flows at the receiver.
        flows: NonZeroU32,
    },
    /// Kind 6: all links of the path, as records of rtgwg-00 Figure 4, if the sender's setup requests it.
    All {
        /// The XOR of the switches' ids, 12 bits.
        path_id: u16,
        /// Record of each switch, in path order.
        records: Records,
    },
}

impl Report {
    /// Returns the length on the wire, bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        match self {
            Self::Busiest { busiest: None, .. } | Self::Ready => 4,
            Self::Busiest { busiest: Some(_), .. } | Self::Window(_) | Self::Ratio { .. } => {
                4 + RECORD_LENGTH
            }
            Self::Hop { .. } => 4 + HOP_LENGTH,
            Self::Shared { .. } => MAX_REPORT,
            Self::All { records, .. } => records.length().saturating_add(4),
        }
    }

    /// Returns the reported links: no hop if the path had none, `None` if the kind reports no links.
    #[must_use]
    pub fn path(&self) -> Option<PathTelemetry> {
        let (path_id, busiest) = match *self {
            Self::Busiest { path_id, busiest, .. } => {
                (path_id, busiest.map(|(index, record)| (index, record.into())))
            }
            Self::Hop { path_id, index, hop, .. } | Self::Shared { path_id, index, hop, .. } => {
                (path_id, Some((index, hop)))
            }
            Self::All { path_id, records } => {
                let mut path = PathTelemetry::new(path_id);
                for (index, record) in (0u8..).zip(records.iter()) {
                    path.set(index, record.into());
                }
                return Some(path);
            }
            Self::Window(_) | Self::Ratio { .. } | Self::Ready => return None,
        };
        let mut path = PathTelemetry::new(path_id);
        if let Some((index, hop)) = busiest {
            path.set(index, hop);
        }
        Some(path)
    }

    /// Returns the number of switches that the packet passed, if the kind has it.
    #[must_use]
    pub const fn hops(&self) -> Option<u8> {
        match self {
            Self::Busiest { hops, .. } | Self::Hop { hops, .. } | Self::Shared { hops, .. } => Some(*hops),
            Self::All { records, .. } => Some(records.count()),
            Self::Window(_) | Self::Ratio { .. } | Self::Ready => None,
        }
    }

    /// Returns whether the report is consistent: the busiest hop is one of the hops.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        match self {
            Self::Busiest { path_id, hops, busiest } => {
                let named = busiest.map_or(*hops == 0, |(index, _)| index < *hops);
                named && *hops <= MAX_HOPS && *path_id <= 0xfff
            }
            Self::Ratio { path_id, .. } | Self::All { path_id, .. } => *path_id <= 0xfff,
            Self::Hop { path_id, hops, index, .. } | Self::Shared { path_id, hops, index, .. } => {
                index < hops && *hops <= MAX_HOPS && *path_id <= 0xfff
            }
            Self::Window(_) | Self::Ready => true,
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the room is MAX_REPORT bytes")]
    fn write(&self, into: &mut [u8]) {
        let word = |kind: u16, path_id: u16, hops: u8, index: u8| {
            let [high, low] = (kind << 12 | path_id & 0xfff).to_be_bytes();
            [high, low, hops, index]
        };
        let (word, rest) = match *self {
            Self::Busiest { path_id, hops, busiest } => {
                let index = busiest.map_or(0, |(index, _)| index);
                (word(0, path_id, hops, index), busiest.map(|(_, record)| record.pack()))
            }
            Self::Window(window) => (word(1, 0, 0, 0), Some(window.to_be_bytes())),
            Self::Ratio { path_id, utilisation, interval } => {
                let both = u64::from(utilisation) << 32 | u64::from(interval);
                (word(2, path_id, 0, 0), Some(both.to_be_bytes()))
            }
            Self::Ready => (word(3, 0, 0, 0), None),
            Self::Hop { path_id, hops, index, hop } => {
                into[4..4 + HOP_LENGTH].copy_from_slice(&pack_hop(&hop));
                (word(4, path_id, hops, index), None)
            }
            Self::Shared { path_id, hops, index, hop, flows } => {
                into[4..4 + HOP_LENGTH].copy_from_slice(&pack_hop(&hop));
                into[4 + HOP_LENGTH..MAX_REPORT].copy_from_slice(&flows.get().to_be_bytes());
                (word(5, path_id, hops, index), None)
            }
            Self::All { path_id, records } => {
                records.write(&mut into[4..]);
                (word(6, path_id, records.count(), 0), None)
            }
        };
        into[..4].copy_from_slice(&word);
        if let Some(rest) = rest {
            into[4..12].copy_from_slice(&rest);
        }
    }

    /// Reads a report from the front of `bytes`. Returns it and the rest.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([high, low, hops, index], rest) = bytes.split_first_chunk()?;
        let (kind, path_id) = (high >> 4, u16::from_be_bytes([*high, *low]) & 0xfff);
        let eight = || rest.split_first_chunk::<8>();
        let (report, rest) = match (kind, hops) {
            (0, 0) => (Self::Busiest { path_id, hops: 0, busiest: None }, rest),
            (0, &hops) => {
                let (record, rest) = eight()?;
                let busiest = Some((*index, HopRecord::unpack(*record)?));
                (Self::Busiest { path_id, hops, busiest }, rest)
            }
            (1, _) => {
                let (window, rest) = eight()?;
                (Self::Window(u64::from_be_bytes(*window)), rest)
            }
            (2, _) => {
                let (both, rest) = eight()?;
                let both = u64::from_be_bytes(*both);
                let (utilisation, interval) = ((both >> 32) as u32, both as u32);
                (Self::Ratio { path_id, utilisation, interval }, rest)
            }
            (3, _) => (Self::Ready, rest),
            (4, &hops) => {
                let (hop, rest) = rest.split_first_chunk()?;
                (Self::Hop { path_id, hops, index: *index, hop: unpack_hop(hop)? }, rest)
            }
            (5, &hops) => {
                let (hop, rest) = rest.split_first_chunk()?;
                let (flows, rest) = rest.split_first_chunk()?;
                let flows = NonZeroU32::new(u32::from_be_bytes(*flows))?;
                (Self::Shared { path_id, hops, index: *index, hop: unpack_hop(hop)?, flows }, rest)
            }
            (6, &hops) => {
                let (records, rest) = Records::read(hops, rest)?;
                (Self::All { path_id, records }, rest)
            }
            _ => return None,
        };
        // Each report has one encoding.
        let mut again = [0; MAX_REPORT];
        report.write(&mut again);
        let is_same = again.get(..report.length()).is_some_and(|again| bytes.starts_with(again));
        (report.is_legal() && is_same).then_some((report, rest))
    }
}

fn pack_hop(hop: &Hop) -> [u8; HOP_LENGTH] {
    let mut bytes = [0; HOP_LENGTH];
    let Hop { bandwidth, time, tx_bytes, queue } = hop;
    for (place, value) in
        bytes.as_chunks_mut().0.iter_mut().zip([bandwidth.as_bps(), time.raw(), tx_bytes.raw(), *queue])
    {
        *place = value.to_be_bytes();
    }
    bytes[32..34].copy_from_slice(&[time.bits(), tx_bytes.bits()]);
    bytes[36..40].copy_from_slice(&time.unit().to_be_bytes());
    bytes[40..44].copy_from_slice(&tx_bytes.unit().to_be_bytes());
    bytes
}

fn unpack_hop(bytes: &[u8; HOP_LENGTH]) -> Option<Hop> {
    let u64_at = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let u32_at = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let counter = |raw_at, bits, unit_at| Counter::new(u64_at(raw_at)?, bits, u32_at(unit_at)?);
    Some(Hop {
        bandwidth: Rate::from_bps(u64_at(0)?),
        time: counter(8, bytes[32], 36)?,
        tx_bytes: counter(16, bytes[33], 40)?,
        queue: u64_at(24)?,
    })
}

/// Authentication of feedback: an increasing counter, and a keyed hash over packet and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Larger than in every earlier packet.
    pub counter: u64,
    /// SipHash-2-4 with 128 bits.
    pub tag: [u8; 16],
}

impl Seal {
    #[expect(clippy::indexing_slicing, reason = "the room is SEAL_LENGTH bytes")]
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..8].copy_from_slice(&self.counter.to_be_bytes());
        into[8..24].copy_from_slice(&self.tag);
    }

    /// Reads a seal, which must fill `bytes`; `None` if there are no bytes.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>, Discard> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let bytes: &[u8; SEAL_LENGTH] = bytes.try_into().map_err(|_| Discard::Telemetry)?;
        let (counter, tag) = bytes.split_first_chunk().ok_or(Discard::Telemetry)?;
        let tag = tag.try_into().map_err(|_| Discard::Telemetry)?;
        Ok(Some(Self { counter: u64::from_be_bytes(*counter), tag }))
    }
}

/// Report, with a seal if the queue pairs share a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// State of the path.
    pub report: Report,
    /// Authentication, if the queue pairs share a key.
    pub seal: Option<Seal>,
}

impl Feedback {
    /// Returns the length on the wire, bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.report.length().saturating_add(if self.seal.is_some() { SEAL_LENGTH } else { 0 })
    }

    /// Writes the feedback to the start of `into`, which must have room for it. Returns the number of bytes written.
    #[expect(clippy::indexing_slicing, reason = "the room is MAX_FEEDBACK bytes")]
    pub fn write(&self, into: &mut [u8]) -> usize {
        self.report.write(into);
        if let Some(seal) = &self.seal {
            seal.write(&mut into[self.report.length()..]);
        }
        self.length()
    }

    /// Reads feedback, which must fill `bytes`.
    ///
    /// # Errors
    /// Returns [`Discard::Telemetry`] if they are not feedback.
    pub fn read(bytes: &[u8]) -> Result<Self, Discard> {
        let (report, rest) = Report::read(bytes).ok_or(Discard::Telemetry)?;
        Ok(Self { report, seal: Seal::read(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::telemetry::Speed;
    use proptest::prelude::*;

    fn masked(raw: u64, bits: u8) -> u64 {
        raw & u64::MAX >> (64 - bits)
    }

    fn any_report() -> impl Strategy<Value = Report> {
        let record =
            |code, time, bytes, queue| HopRecord::new(Speed::from_code(code).unwrap(), time, bytes, queue);
        prop_oneof![
            (0u16..0x1000).prop_map(|path_id| Report::Busiest { path_id, hops: 0, busiest: None }),
            (0u16..0x1000, 1u8..=15, any::<u8>(), 0u8..15, any::<[u64; 3]>()).prop_map(
                move |(path_id, hops, index, code, [time, bytes, queue])| Report::Busiest {
                    path_id,
                    hops,
                    busiest: Some((index % hops, record(code, time, bytes, queue))),
                }
            ),
            any::<u64>().prop_map(Report::Window),
            (0u16..0x1000, any::<u32>(), any::<u32>()).prop_map(|(path_id, utilisation, interval)| {
                Report::Ratio { path_id, utilisation, interval }
            }),
            Just(Report::Ready),
            (0u16..0x1000, prop::collection::vec((0u8..15, any::<[u64; 3]>()), 1..=Records::MAX)).prop_map(
                move |(path_id, hops)| {
                    let hops =
                        hops.into_iter().map(|(code, [time, bytes, queue])| record(code, time, bytes, queue));
                    Report::All { path_id, records: Records::of(hops).unwrap() }
                }
            ),
            (0u16..0x1000, 1u8..=15, any::<u8>(), any::<[u64; 4]>(), 1u8..=64, 1u8..=64, any::<[u32; 2]>())
                .prop_map(|(path_id, hops, index, [rate, time, bytes, queue], time_bits, tx_bits, units)| {
                    let counter =
                        |raw, bits, unit: u32| Counter::new(masked(raw, bits), bits, unit.max(1)).unwrap();
                    let (time, tx_bytes) =
                        (counter(time, time_bits, units[0]), counter(bytes, tx_bits, units[1]));
                    let hop = Hop { bandwidth: Rate::from_bps(rate), time, tx_bytes, queue };
                    match NonZeroU32::new(units[1] >> 8) {
                        Some(flows) if rate % 2 == 0 => {
                            Report::Shared { path_id, hops, index: index % hops, hop, flows }
                        }
                        _ => Report::Hop { path_id, hops, index: index % hops, hop },
                    }
                }),
        ]
    }

    /// A counter of 0 bits or of unit 0 has no period, so distances cannot be computed.
    #[test]
    fn a_hop_with_an_illegal_counter_is_no_feedback() {
        let counter = Counter::of::<64, 1>(0);
        let hop = Hop { bandwidth: Rate::from_gbps(10), time: counter, tx_bytes: counter, queue: 0 };
        let reports = [
            Report::Hop { path_id: 1, hops: 1, index: 0, hop },
            Report::Shared { path_id: 1, hops: 1, index: 0, hop, flows: NonZeroU32::MIN },
        ];
        for report in reports {
            let mut good = [0; MAX_FEEDBACK];
            let length = Feedback { report, seal: None }.write(&mut good);
            assert_eq!(Feedback::read(&good[..length]), Ok(Feedback { report, seal: None }));
            for (at, value) in
                [(4 + 32, 0), (4 + 32, 65), (4 + 33, 0), (4 + 33, 65), (4 + 39, 0), (4 + 43, 0)]
            {
                let mut bytes = good;
                bytes[at] = value;
                assert_eq!(Feedback::read(&bytes[..length]), Err(Discard::Telemetry), "byte {at}: {value}");
            }
        }
    }

    proptest! {
        #[test]
        fn feedback_survives_the_wire(report in any_report(), seal in prop::option::of(any::<(u64, [u8; 16])>())) {
            let feedback = Feedback { report, seal: seal.map(|(counter, tag)| Seal { counter, tag }) };
            let mut bytes = [0; MAX_FEEDBACK];
            let length = feedback.write(&mut bytes);
            prop_assert_eq!(length, feedback.length());
            prop_assert_eq!(Feedback::read(&bytes[..length]), Ok(feedback));
        }

        #[test]
        fn parsed_feedback_is_written_identically(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(feedback) = Feedback::read(&bytes) {
                let mut again = [0; MAX_FEEDBACK];
                let length = feedback.write(&mut again);
                prop_assert_eq!(&again[..length], &bytes[..]);
            }
        }
    }
}
