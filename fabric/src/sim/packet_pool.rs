//! A packet on a simulated link: a frame, or a descriptor of the model.

use super::setup::Setup;
use crate::classes::ClassId;
use crate::direct::DirectResponder;
use crate::load::LoadMeter;
use crate::random::Random;
use cc::Instant;
use roce::wire::Subscription;
use roce::wire::format::PortState;
use std::mem;

/// A packet of either kind of host.
pub(super) trait LinkPacket: Default + Clone {
    /// Whether flows are connections. Every thread then handles the start of every flow, because it numbers the queue pairs of all hosts.
    const HAS_CONNECTIONS: bool;
    /// Returns the bytes of a frame; `None` for a packet of the model, which has no headers.
    fn frame(&mut self) -> Option<&mut [u8]>;
    fn size(&self) -> u32;
    /// Returns the destination host and the hash of the five-tuple; `hashes` are those of the flows.
    fn way(&self, setup: &Setup, hashes: &[u64]) -> (u32, u64);
    fn class(&self, setup: &Setup) -> ClassId;
    /// Returns whether switches mark and stamp the packet.
    fn is_looked_at(&self) -> bool;
    /// Sets the ECN mark; returns whether the packet is ECN-capable.
    fn mark(&mut self) -> bool;
    fn stamp(&mut self, state: &PortState);
    /// Writes a port's state as Linux does, if the packet has an IOAM trace option.
    fn stamp_as_linux(&mut self, state: &PortState);
    fn has_vendor_opcode(&self) -> bool;
    /// Forges the report of a path, if the packet has one; returns whether it did.
    fn forge(&mut self, random: &mut Random) -> bool;
    /// Returns the subscription of a packet whose queue holds `waiting` bytes, if its sender must receive a response now.
    fn subscription(
        &self,
        responder: &mut DirectResponder,
        now: Instant,
        waiting: u64,
    ) -> Option<Subscription>;
    /// Replaces the packet by the response to a subscription; returns whether there is one.
    fn answer(
        &mut self,
        responder: &DirectResponder,
        now: Instant,
        subscription: &Subscription,
        load: (&LoadMeter, u64),
    ) -> bool;
    /// Returns the flow for which a drop schedules an event; `None` for endpoints, which detect losses themselves.
    fn expiring_flow(&self) -> Option<u32>;
    /// Returns two words that identify the packet in the trace.
    fn digest(&self) -> [u64; 2];
}

/// Limit on spare packets, for runs in which a thread receives more packets than it sends.
const MOST_SPARE: usize = 256;

pub(super) struct PacketPool<P> {
    places: Vec<(u32, P)>,
    free: Vec<u32>,
    /// Old contents of places that now hold packets of other threads. Their buffers are reused.
    spare: Vec<P>,
}

impl<P> Default for PacketPool<P> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), spare: Vec::new() }
    }
}

impl<P: Default> PacketPool<P> {
    /// Returns a free place, with the contents of its previous packet.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push((0, P::default()));
            self.places.len() as u32 - 1
        })
    }

    pub(super) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Takes a packet for another thread, and frees its place.
    pub(super) fn send(&mut self, place: u32) -> P {
        self.give_back(place);
        let spare = self.spare.pop().unwrap_or_default();
        mem::replace(self.get_mut(place), spare)
    }

    /// Stores a packet of another thread, and returns its place.
    pub(super) fn accept(&mut self, packet: P) -> u32 {
        let place = self.take();
        let before = mem::replace(self.get_mut(place), packet);
        if self.spare.len() < MOST_SPARE {
            self.spare.push(before);
        }
        place
    }

    pub(super) fn get(&self, place: u32) -> &P {
        &self.places[place as usize].1
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut P {
        &mut self.places[place as usize].1
    }

    /// Returns the port by which the packet entered its current switch.
    pub(super) fn ingress(&self, place: u32) -> u32 {
        self.places[place as usize].0
    }

    pub(super) fn came_by(&mut self, place: u32, port: u32) {
        self.places[place as usize].0 = port;
    }

    /// Adds the places of another thread.
    pub(super) fn add(&mut self, other: Self) {
        self.places.extend(other.places);
    }

    /// Returns the largest number of packets that existed at the same time, as the sum over threads.
    pub(super) fn most(&self) -> usize {
        self.places.len()
    }
}
