//! The table of queue pairs.

use super::burst::Traced;
use super::numbers::{CoreIndex, QpNumbers};
use crate::qp::{Account, Identity, QueuePair};
use crate::wire::Service;
use crate::{ControlError, Qpn};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use cc::Instant;
use core::time::Duration;

/// A queue pair in its place, with what the scheduler notes about it.
pub(super) struct Slot {
    pub(super) qp: QueuePair,
    /// It is in the ready queue.
    pub(super) is_ready: bool,
    /// It is among those that keep memory for telemetry.
    pub(super) is_keeper: bool,
    /// When its timer is set to; it may be earlier than need be, never later.
    pub(super) armed: Option<Instant>,
    /// The account of its waiting times.
    pub(super) account: Account,
    /// The state that trace points saw last; `None` without a tracer.
    pub(super) traced: Option<Box<Traced>>,
}

struct Place {
    generation: u32,
    slot: Option<Box<Slot>>,
}

/// The time for which the number of a destroyed queue pair is not reused. A peer that does not know of its end continues to send for a
/// while, and the network may delay a packet for any time. It is twice what the default timeout of 67 ms and 7 retries take at most, if
/// each timeout is the 4-fold that IBA 9.7.6.1.3 allows.
pub const QPN_REST: Duration = Duration::from_secs(4);

/// All queue pairs of an endpoint, found by number.
pub(super) struct QpTable {
    places: Vec<Place>,
    free: VecDeque<u32>,
    /// Places all whose numbers were given once more, and until when they rest, in order.
    resting: VecDeque<(Instant, u32)>,
    numbers: QpNumbers,
    limit: u32,
}

impl QpTable {
    /// Bytes of a queue pair that nothing was asked of yet.
    pub(super) const QP_BYTES: usize = size_of::<Place>() + size_of::<Slot>();

    pub(super) fn new(process: u8, core: CoreIndex, limit: u32, secret: &[u8; 32]) -> Self {
        let limit = limit.min(core.max_qps());
        Self {
            places: Vec::new(),
            free: VecDeque::new(),
            resting: VecDeque::new(),
            numbers: QpNumbers::new(process, core, limit, secret),
            limit,
        }
    }

    /// Creates a queue pair at the place of its number. A place that was freed waits behind all others.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        service: Service,
        make: impl FnOnce(Qpn) -> Identity,
    ) -> Result<Qpn, ControlError> {
        if (self.places.len() as u32) < self.limit {
            self.free.push_front(self.places.len() as u32);
            self.places.push(Place { generation: 0, slot: None });
        }
        while self.resting.front().is_some_and(|&(until, _)| until <= now)
            && let Some((_, index)) = self.resting.pop_front()
        {
            self.free.push_back(index);
        }
        // Some numbers are not given: then another generation, or another place.
        for _ in 0..3 {
            let Some(index) = self.free.pop_front() else { break };
            let place = &mut self.places[index as usize];
            let Some(qpn) = self.numbers.seal(index, place.generation) else {
                self.give_up(now, index);
                continue;
            };
            let qp = QueuePair::new(service, make(qpn));
            let account = Account::new(now);
            let slot = Slot { qp, is_ready: false, is_keeper: false, armed: None, account, traced: None };
            place.slot = Some(Box::new(slot));
            return Ok(qpn);
        }
        Err(ControlError::Limit { what: "queue pairs", limit: self.limit })
    }

    /// Takes a queue pair out; returns it and its place.
    ///
    /// Its next number is another one, so that the place may be had at once; only one whose numbers go round rests. Then each
    /// of them rested at least as long: those before the last were given up earlier.
    pub(super) fn remove(&mut self, now: Instant, qpn: Qpn) -> Option<(u32, Box<Slot>)> {
        let index = self.find(qpn)?;
        self.give_up(now, index);
        self.places[index as usize].slot.take().map(|slot| (index, slot))
    }

    fn give_up(&mut self, now: Instant, index: u32) {
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        if self.numbers.goes_round(place.generation) {
            self.resting.push_back((now + QPN_REST, index));
        } else {
            self.free.push_back(index);
        }
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&Slot> {
        let place = self.places.get(self.numbers.slot(qpn) as usize)?;
        place.slot.as_deref().filter(|slot| slot.qp.identity().qpn == qpn)
    }

    /// The place of `qpn`: what it is called wherever it was looked up once.
    #[inline(always)]
    pub(super) fn find(&self, qpn: Qpn) -> Option<u32> {
        let index = self.numbers.slot(qpn);
        let slot = self.places.get(index as usize)?.slot.as_deref()?;
        (slot.qp.identity().qpn == qpn).then_some(index)
    }

    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> Option<&Slot> {
        self.places.get(index as usize)?.slot.as_deref()
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.places.get_mut(index as usize)?.slot.as_deref_mut()
    }

    pub(super) fn len(&self) -> u32 {
        self.places.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{Capabilities, Receives};
    use crate::{CqId, PdId};

    fn identity(qpn: Qpn) -> Identity {
        Identity {
            qpn,
            pd: PdId(0),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            signal_all: false,
            receives: Receives::Own,
            capabilities: Capabilities::default(),
        }
    }

    #[test]
    fn a_number_rests_before_it_is_given_again() {
        // As many places as numbers, so that each place has one.
        let numbers = QpNumbers::new(0, CoreIndex::ONLY, CoreIndex::ONLY.max_qps(), &[7; 32]);
        let (places, free, resting) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let mut table = QpTable { places, free, resting, numbers, limit: 2 };
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let [a, b] = [0, 1].map(|_| table.insert(at(0), Service::Rc, identity).unwrap());
        table.remove(at(10), a).unwrap();
        table.remove(at(20), b).unwrap();
        let rest = QPN_REST.as_millis() as u64;
        let full = Err(ControlError::Limit { what: "queue pairs", limit: 2 });
        assert_eq!(table.insert(at(rest + 9), Service::Rc, identity), full);
        assert_eq!(table.insert(at(rest + 10), Service::Rc, identity), Ok(a));
        assert_eq!(table.insert(at(rest + 10), Service::Rc, identity), full);
        assert_eq!(table.insert(at(rest + 20), Service::Rc, identity), Ok(b));
    }
}
