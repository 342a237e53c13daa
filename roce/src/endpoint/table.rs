use super::numbers::{MAX_QPS, Numbers};
use crate::qp::{AnyQueuePair, Identity};
use crate::wire::Service;
use crate::{ControlError, Qpn};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use cc::Instant;

/// A queue pair in its place, with what the scheduler notes about it.
pub(super) struct Slot {
    pub(super) qp: AnyQueuePair,
    /// It stands in the ready queue.
    pub(super) is_ready: bool,
    /// When its timer is set to; it may be earlier than need be, never later.
    pub(super) armed: Option<Instant>,
}

struct Place {
    generation: u32,
    slot: Option<Box<Slot>>,
}

/// All queue pairs of an endpoint, found by number.
pub(super) struct QpTable {
    places: Vec<Place>,
    free: VecDeque<u32>,
    numbers: Numbers,
    limit: u32,
}

impl QpTable {
    pub(super) fn new(core: u8, limit: u32, secret: &[u8; 32]) -> Self {
        let limit = limit.min(MAX_QPS);
        Self { places: Vec::new(), free: VecDeque::new(), numbers: Numbers::new(core, limit, secret), limit }
    }

    /// Makes a queue pair where its number has it. A place that was given up waits behind all others.
    pub(super) fn insert(
        &mut self,
        service: Service,
        make: impl FnOnce(Qpn) -> Identity,
    ) -> Result<Qpn, ControlError> {
        if (self.places.len() as u32) < self.limit {
            self.free.push_front(self.places.len() as u32);
            self.places.push(Place { generation: 0, slot: None });
        }
        // Some numbers are not given: then another generation, or another place.
        for _ in 0..3 {
            let Some(index) = self.free.pop_front() else { break };
            let place = &mut self.places[index as usize];
            let Some(qpn) = self.numbers.seal(index, place.generation) else {
                place.generation = place.generation.wrapping_add(1);
                self.free.push_back(index);
                continue;
            };
            let qp = AnyQueuePair::new(service, make(qpn));
            place.slot = Some(Box::new(Slot { qp, is_ready: false, armed: None }));
            return Ok(qpn);
        }
        Err(ControlError::Limit { what: "queue pairs", limit: self.limit })
    }

    /// Takes a queue pair out; gives it and its place.
    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<(u32, Box<Slot>)> {
        let index = self.find(qpn)?;
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push_back(index);
        place.slot.take().map(|slot| (index, slot))
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&Slot> {
        let place = self.places.get(self.numbers.slot(qpn) as usize)?;
        place.slot.as_deref().filter(|slot| slot.qp.identity().qpn == qpn)
    }

    /// The place of `qpn`: what it is called wherever it was looked up once.
    pub(super) fn find(&self, qpn: Qpn) -> Option<u32> {
        let index = self.numbers.slot(qpn);
        let slot = self.places.get(index as usize)?.slot.as_deref()?;
        (slot.qp.identity().qpn == qpn).then_some(index)
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.places.get_mut(index as usize)?.slot.as_deref_mut()
    }

    pub(super) fn len(&self) -> u32 {
        self.places.len() as u32
    }
}
