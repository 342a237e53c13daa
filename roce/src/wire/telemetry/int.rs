//! The INT header of rtgwg-00 Figure 4.

use crate::Discard;
use cc::{Counter, Hop, Rate};

/// Limit of the hops that an INT header can count: 4 bits.
pub const MAX_HOPS: u8 = 15;

/// Switches for which a sender leaves room.
pub const HOPS: u8 = 5;

/// Length of a hop record, bytes.
pub const RECORD_LENGTH: usize = 8;

/// Length of the word before the records, bytes.
pub(in crate::wire) const WORD_LENGTH: usize = 4;

const TX_UNIT: u32 = 128;
const QUEUE_UNIT: u32 = 80;

/// Capacity of a switch port (`B`), as a code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Speed(u8);

/// Speeds by code: the authors' first, then Ferroce's.
const SPEEDS: [Rate; 15] = [
    Rate::from_gbps(25),
    Rate::from_gbps(50),
    Rate::from_gbps(100),
    Rate::from_gbps(200),
    Rate::from_gbps(400),
    Rate::from_mbps(10),
    Rate::from_mbps(100),
    Rate::from_mbps(200),
    Rate::from_mbps(500),
    Rate::from_gbps(1),
    Rate::from_mbps(2_500),
    Rate::from_gbps(5),
    Rate::from_gbps(10),
    Rate::from_gbps(40),
    Rate::from_gbps(800),
];

impl Speed {
    /// Returns all speeds, by code.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SPEEDS.len() as u8).map(Self)
    }

    /// Returns the speed with this code; `None` for 15 and above.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < SPEEDS.len() { Some(Self(code)) } else { None }
    }

    /// Returns the code, 0 to 14.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the speed that is exactly `rate`, if there is a code for it.
    #[must_use]
    pub fn from_rate(rate: Rate) -> Option<Self> {
        Self::all().find(|speed| speed.rate() == rate)
    }

    /// Returns the rate.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "a code of `SPEEDS`: none but `all` and `from_code` creates one"
    )]
    pub const fn rate(self) -> Rate {
        SPEEDS[self.0 as usize]
    }
}

/// Record of a switch about the port by which a packet is sent, at the wire's resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopRecord {
    speed: Speed,
    timestamp: u32,
    tx_bytes: u32,
    queue: u16,
}

impl HopRecord {
    /// Creates a record of `time_ns` (ns), `tx_bytes` and `queue_bytes`, each rounded down to its unit. Time and bytes wrap; the queue
    /// saturates at 5.2 MB.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the divisors are constants other than 0")]
    pub fn new(speed: Speed, time_ns: u64, tx_bytes: u64, queue_bytes: u64) -> Self {
        Self {
            speed,
            timestamp: time_ns as u32 & 0xff_ffff,
            tx_bytes: (tx_bytes / u64::from(TX_UNIT)) as u32 & 0xf_ffff,
            queue: u16::try_from(queue_bytes / u64::from(QUEUE_UNIT)).unwrap_or(u16::MAX),
        }
    }

    /// Converts telemetry in another format to this resolution; `None` if there is no code for its rate. The distance between two such
    /// records equals that between the readings, because the counters of every format wrap at a multiple of this one's periods.
    #[must_use]
    pub fn of(hop: &Hop) -> Option<Self> {
        let in_units = |counter: Counter| counter.raw().wrapping_mul(counter.unit().into());
        let speed = Speed::from_rate(hop.bandwidth)?;
        Some(Self::new(speed, in_units(hop.time), in_units(hop.tx_bytes), hop.queue))
    }

    /// Returns the capacity of the port.
    #[must_use]
    pub const fn speed(self) -> Speed {
        self.speed
    }

    /// Returns when the packet was sent, ns, 24 bits.
    #[must_use]
    pub const fn timestamp(self) -> u32 {
        self.timestamp
    }

    /// Returns the bytes sent in units of 128, 20 bits.
    #[must_use]
    pub const fn tx_units(self) -> u32 {
        self.tx_bytes
    }

    /// Returns the bytes queued in the port.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "16 bits times 80 fit into 32 bits")]
    pub const fn queue_bytes(self) -> u32 {
        self.queue as u32 * QUEUE_UNIT
    }

    /// Encodes the record: {B 4, ts 24, txBytes 20, qlen 16}.
    #[must_use]
    pub const fn pack(self) -> [u8; RECORD_LENGTH] {
        let word = (self.speed.0 as u64) << 60
            | (self.timestamp as u64) << 36
            | (self.tx_bytes as u64) << 16
            | self.queue as u64;
        word.to_be_bytes()
    }

    /// Decodes a record; `None` if no speed has its code.
    #[must_use]
    pub const fn unpack(bytes: [u8; RECORD_LENGTH]) -> Option<Self> {
        let word = u64::from_be_bytes(bytes);
        match Speed::from_code((word >> 60) as u8) {
            None => None,
            Some(speed) => Some(Self {
                speed,
                timestamp: (word >> 36) as u32 & 0xff_ffff,
                tx_bytes: (word >> 16) as u32 & 0xf_ffff,
                queue: word as u16,
            }),
        }
    }
}

impl From<HopRecord> for Hop {
    fn from(record: HopRecord) -> Self {
        Self {
            bandwidth: record.speed.rate(),
            time: Counter::of::<24, 1>(u64::from(record.timestamp)),
            tx_bytes: Counter::of::<20, TX_UNIT>(u64::from(record.tx_bytes)),
            queue: u64::from(record.queue_bytes()),
        }
    }
}

/// INT header: the word before the records, {nHop 4, pathID 12, room 16}.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntHeader {
    hops: u8,
    path_id: u16,
    room: u8,
    is_subscription: bool,
}

/// Bit of the word's room: the packet subscribes to direct responses. The room is then 1, and switches write no record.
const SUBSCRIPTION_FLAG: u32 = 0x8000;

impl IntHeader {
    /// Header of a packet that subscribes.
    pub(in crate::wire) const SUBSCRIPTION: Self =
        Self { hops: 0, path_id: 0, room: 1, is_subscription: true };

    /// Returns whether the packet subscribes to direct responses, and requests no records.
    #[must_use]
    pub const fn is_subscription(self) -> bool {
        self.is_subscription
    }

    /// Creates a header with room for `room` records, at most [`MAX_HOPS`].
    #[must_use]
    pub const fn with_room(room: u8) -> Self {
        Self {
            hops: 0,
            path_id: 0,
            room: if room > MAX_HOPS { MAX_HOPS } else { room },
            is_subscription: false,
        }
    }

    /// Returns the number of switches that wrote a record, at most the room.
    #[must_use]
    pub const fn hops(self) -> u8 {
        self.hops
    }

    /// Returns the header after the switch with this id has written its record; `None` if there is no room.
    #[expect(clippy::arithmetic_side_effects, reason = "`hops` is below `room`")]
    pub(super) const fn stamped(self, switch_id: u16) -> Option<Self> {
        if self.hops >= self.room || self.is_subscription {
            return None;
        }
        Some(Self { hops: self.hops + 1, path_id: self.path_id ^ switch_id & 0xfff, ..self })
    }

    /// Returns the XOR of the switches' ids, 12 bits.
    #[must_use]
    pub const fn path_id(self) -> u16 {
        self.path_id
    }

    /// Returns the records for which the sender left room.
    #[must_use]
    pub const fn room(self) -> u8 {
        self.room
    }

    /// Returns the bytes of the room: the length of a probe's payload.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "8 bits times 8 fit into 16 bits")]
    pub const fn room_bytes(self) -> usize {
        self.room as usize * RECORD_LENGTH
    }

    pub(in crate::wire) const fn pack(self) -> [u8; WORD_LENGTH] {
        let flag = if self.is_subscription { SUBSCRIPTION_FLAG } else { 0 };
        let word = (self.hops as u32) << 28 | (self.path_id as u32) << 16 | flag | self.room as u32;
        word.to_be_bytes()
    }

    pub(in crate::wire) fn unpack(bytes: [u8; WORD_LENGTH]) -> Option<Self> {
        let word = u32::from_be_bytes(bytes);
        let hops = (word >> 28) as u8;
        let is_subscription = word & SUBSCRIPTION_FLAG != 0;
        let room = u8::try_from(word & 0xffff & !SUBSCRIPTION_FLAG).ok()?;
        let is_legal = !is_subscription || hops == 0 && room == 1;
        (is_legal && hops <= room && room <= MAX_HOPS).then_some(Self {
            is_subscription,
            hops,
            path_id: (word >> 16) as u16 & 0xfff,
            room,
        })
    }

    /// Checks that the payload has the length of the room, and that each record in it is valid.
    pub(in crate::wire) fn check(self, payload: &[u8]) -> Result<(), Discard> {
        let (records, rest) = payload.as_chunks::<RECORD_LENGTH>();
        let fits = rest.is_empty() && records.len() == usize::from(self.room);
        let readable =
            records.iter().take(usize::from(self.hops)).all(|&bytes| HopRecord::unpack(bytes).is_some());
        if fits && readable { Ok(()) } else { Err(Discard::Telemetry) }
    }

    /// Returns the records in a probe's payload, in path order.
    pub fn records(self, payload: &[u8]) -> impl Iterator<Item = HopRecord> {
        let (records, _) = payload.as_chunks::<RECORD_LENGTH>();
        records.iter().take(usize::from(self.hops)).filter_map(|&bytes| HopRecord::unpack(bytes))
    }
}
