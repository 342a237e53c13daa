//! The unit that travels on a simulated link: a frame, or a packet of the model.

use super::setup::Setup;
use crate::classes::ClassId;
use crate::direct::Told;
use crate::load::LoadMeter;
use crate::random::Random;
use cc::Instant;
use roce::wire::Subscription;
use roce::wire::format::PortState;

/// A packet on its way, of either kind of host.
pub(super) trait Parcel: Default {
    /// Bytes on the wire.
    fn size(&self) -> u32;
    /// The host that it goes to, and the hash of its five-tuple; `hashes` are the flows'.
    fn way(&self, setup: &Setup, hashes: &[u64]) -> (u32, u64);
    /// Its class of service at switches.
    fn class(&self, setup: &Setup) -> ClassId;
    /// Returns true if switches mark and stamp it.
    fn is_looked_at(&self) -> bool;
    /// Marks it; returns whether it carries the mark now.
    fn mark(&mut self) -> bool;
    /// Writes a port's state into it, if it has room.
    fn stamp(&mut self, state: &PortState);
    /// Writes a port's state into it as stock Linux does, if it carries an IOAM trace.
    fn stamp_as_linux(&mut self, state: &PortState);
    /// Returns true if only Ferroce understands it.
    fn only_ferroce_knows(&self) -> bool;
    /// Changes it if it reports the path to a sender; returns true if it did.
    fn lie(&mut self, random: &mut Random) -> bool;
    /// The subscription of one that meets so many waiting bytes, if its sender must get a response now.
    fn asks(&self, told: &mut Told, now: Instant, waiting: u64) -> Option<Subscription>;
    /// Becomes the answer to a subscription; returns whether it did.
    fn answer(&mut self, told: &Told, now: Instant, asks: &Subscription, load: (&LoadMeter, u64)) -> bool;
    /// The flow that must be informed when it is dropped; real packets' owners find out by themselves.
    fn bereaved(&self) -> Option<u32>;
    /// Returns two words that distinguish packets in the trace.
    fn digest(&self) -> [u64; 2];
}

/// Every packet that is on its way, in places that are used again.
pub(super) struct Parcels<P> {
    places: Vec<(u32, P)>,
    free: Vec<u32>,
}

impl<P> Default for Parcels<P> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<P: Default> Parcels<P> {
    /// Takes a free place, with its old contents.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push((0, P::default()));
            self.places.len() as u32 - 1
        })
    }

    pub(super) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(super) fn get(&self, place: u32) -> &P {
        &self.places[place as usize].1
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut P {
        &mut self.places[place as usize].1
    }

    /// The port by which it came into the switch that it is in.
    pub(super) fn ingress(&self, place: u32) -> u32 {
        self.places[place as usize].0
    }

    pub(super) fn came_by(&mut self, place: u32, port: u32) {
        self.places[place as usize].0 = port;
    }

    /// The most that were at once.
    pub(super) fn most(&self) -> usize {
        self.places.len()
    }
}
