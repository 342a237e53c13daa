//! Packets as descriptors, in a table whose places are used again.

use cc::{Counter, Hop, PathTelemetry, Rate};

/// Hops that a packet's header has room for, as the authors'.
pub(super) const HOPS: usize = 5;

/// What one switch stamped: at the wire's resolution, which is the authors'.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamp {
    /// Gb/s.
    pub(super) rate: u32,
    /// ns, 24 bits.
    time: u32,
    /// 128 B, 20 bits.
    tx: u32,
    /// 80 B, 17 bits.
    queue: u32,
}

impl Stamp {
    pub(super) const fn new(rate: u32, nanos: u64, tx_bytes: u64, queue: u64) -> Self {
        Self {
            rate,
            time: nanos as u32 & 0xff_ffff,
            tx: (tx_bytes / 128) as u32 & 0xf_ffff,
            queue: (queue / 80) as u32 & 0x1_ffff,
        }
    }

    const fn hop(self) -> Hop {
        Hop {
            bandwidth: Rate::from_gbps(self.rate as u64),
            time: Counter::new(self.time as u64, 24, 1),
            tx_bytes: Counter::new(self.tx as u64, 20, 128),
            queue: self.queue as u64 * 80,
        }
    }
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packet {
    pub(super) flow: u32,
    /// Bytes on the wire.
    pub(super) size: u32,
    /// Of data, the first byte's place in the flow; of an acknowledgement, the next byte that is expected.
    pub(super) seq: u64,
    /// Payload bytes; 0 for an acknowledgement.
    pub(super) payload: u32,
    /// The port by which it came into the switch that it is in.
    pub(super) ingress: u32,
    pub(super) is_ack: bool,
    /// A gap: the sender goes back.
    pub(super) is_nak: bool,
    /// Marked; in an acknowledgement, that the data was.
    pub(super) is_marked: bool,
    pub(super) hops: u8,
    pub(super) stamps: [Stamp; HOPS],
}

impl Packet {
    pub(super) fn stamp(&mut self, stamp: Stamp) {
        if let Some(place) = self.stamps.get_mut(usize::from(self.hops)) {
            *place = stamp;
            self.hops += 1;
        }
    }

    pub(super) fn telemetry(&self) -> PathTelemetry {
        let mut path = PathTelemetry::new(0);
        for (index, stamp) in (0..self.hops).zip(&self.stamps) {
            path.set(index, stamp.hop());
        }
        path
    }
}

/// All packets.
#[derive(Default)]
pub(super) struct Packets {
    places: Vec<Packet>,
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = packet;
            return place;
        }
        self.places.push(packet);
        self.places.len() as u32 - 1
    }

    pub(super) fn remove(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(super) fn get(&self, place: u32) -> &Packet {
        &self.places[place as usize]
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Packet {
        &mut self.places[place as usize]
    }

    /// The most that were at once.
    pub(super) fn most(&self) -> usize {
        self.places.len()
    }
}
