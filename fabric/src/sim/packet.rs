//! The model's packets.

use super::packet_pool::LinkPacket;
use super::setup::Setup;
use crate::classes::ClassId;
use crate::direct::DirectResponder;
use crate::load::LoadMeter;
use crate::random::Random;
use cc::{Counter, Hop, Instant, PathTelemetry, Rate};
use roce::wire::Subscription;
use roce::wire::format::PortState;

/// Number of records that a header can hold, as in the authors' simulator.
pub(super) const HOPS: usize = 5;

/// A switch's record at the resolution of the wire.
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
    const fn new(rate: u32, nanos: u64, tx_bytes: u64, queue: u64) -> Self {
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
            time: Counter::of::<24, 1>(self.time as u64),
            tx_bytes: Counter::of::<20, 128>(self.tx as u64),
            queue: self.queue as u64 * 80,
        }
    }
}

/// A packet of the model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packet {
    pub(super) flow: u32,
    /// Bytes on the wire.
    pub(super) size: u32,
    /// First byte of the data; in an acknowledgement, the next expected byte.
    pub(super) seq: u64,
    /// Payload bytes; 0 for an acknowledgement.
    pub(super) payload: u32,
    /// Time at which the data left its host, ps.
    pub(super) sent: u64,
    pub(super) is_ack: bool,
    /// Set if the receiver found a gap.
    pub(super) is_nak: bool,
    /// Set in the first data after an unanswered loss: the receiver may report another gap.
    pub(super) is_restart: bool,
    /// Number of flows that the receiver counts on its link; in an acknowledgement.
    pub(super) flows: u32,
    /// ECN mark. An acknowledgement copies the mark of the data.
    pub(super) is_marked: bool,
    pub(super) hops: u8,
    pub(super) stamps: [Stamp; HOPS],
}

impl Packet {
    pub(super) fn telemetry(&self) -> PathTelemetry {
        let mut path = PathTelemetry::new(0);
        for (index, stamp) in (0..self.hops).zip(&self.stamps) {
            path.set(index, stamp.hop());
        }
        path
    }
}

impl LinkPacket for Packet {
    const HAS_CONNECTIONS: bool = false;

    fn frame(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn way(&self, setup: &Setup, hashes: &[u64]) -> (u32, u64) {
        let spec = &setup.flows[self.flow as usize];
        let host = if self.is_ack { spec.source } else { spec.destination };
        (host, hashes[self.flow as usize] ^ u64::from(self.is_ack))
    }

    fn class(&self, setup: &Setup) -> ClassId {
        match setup.second_class {
            Some(second) if second.dscp == setup.flows[self.flow as usize].dscp => ClassId::Second,
            _ => ClassId::Ordinary,
        }
    }

    fn is_looked_at(&self) -> bool {
        !self.is_ack
    }

    fn mark(&mut self) -> bool {
        self.is_marked = true;
        true
    }

    fn stamp(&mut self, state: &PortState) {
        if let Some(place) = self.stamps.get_mut(usize::from(self.hops)) {
            let gbps = (state.rate.as_bps() / 1_000_000_000) as u32;
            *place = Stamp::new(gbps, state.time, state.tx_bytes, state.queue);
            self.hops += 1;
        }
    }

    /// Does nothing: the model supports only HPCC INT.
    fn stamp_as_linux(&mut self, _: &PortState) {}

    fn has_vendor_opcode(&self) -> bool {
        false
    }

    fn forge(&mut self, _: &mut Random) -> bool {
        false
    }

    fn subscription(&self, _: &mut DirectResponder, _: Instant, _: u64) -> Option<Subscription> {
        None
    }

    fn answer(&mut self, _: &DirectResponder, _: Instant, _: &Subscription, _: (&LoadMeter, u64)) -> bool {
        false
    }

    fn expiring_flow(&self) -> Option<u32> {
        Some(self.flow)
    }

    fn digest(&self) -> [u64; 2] {
        [self.flow.into(), self.seq]
    }
}
