//! The table of queue pairs.

use super::burst::Traced;
use super::numbers::{CoreIndex, QpNumbers};
use crate::qp::{Account, Identity, QueuePair};
use crate::wire::Service;
use crate::{ControlError, Qpn};
use alloc::boxed::Box;
use alloc::vec::Vec;
use cc::Instant;

/// Queue pair in its slot, and the state of its scheduling.
pub(super) struct Slot {
    pub(super) qp: QueuePair,
    pub(super) is_ready: bool,
    /// The queue pair is among those that keep memory for telemetry.
    pub(super) is_telemetry_holder: bool,
    /// Time to which the queue pair's timer is set; may be too early, never too late.
    pub(super) armed: Option<Instant>,
    pub(super) account: Account,
    /// State at the last trace point; `None` without a tracer.
    pub(super) traced: Option<Box<Traced>>,
}

/// Queue pairs of an endpoint, found by number.
pub(super) struct QpTable {
    slots: Vec<Option<Box<Slot>>>,
    free: Vec<u32>,
    numbers: QpNumbers,
    core: CoreIndex,
    limit: u32,
}

impl QpTable {
    /// Bytes of an unused queue pair: its slot, the entry of its number, and itself.
    pub(super) const QP_BYTES: usize = size_of::<Option<Box<Slot>>>() + size_of::<u32>() + size_of::<Slot>();

    pub(super) fn new(process: u8, core: CoreIndex, limit: u32, secret: &[u8; 32]) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            numbers: QpNumbers::new(process, core, secret),
            core,
            limit: limit.min(core.max_qps()),
        }
    }

    /// Creates a queue pair with a number that no other has, or has had recently.
    ///
    /// # Errors
    /// Returns [`ControlError::Limit`] if the limit of queue pairs is reached, and [`ControlError::NumbersQuarantined`] if no number is
    /// free.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        service: Service,
        make: impl FnOnce(Qpn) -> Identity,
    ) -> Result<Qpn, ControlError> {
        let index = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        if index >= self.limit {
            return Err(ControlError::Limit { what: "queue pairs", limit: self.limit });
        }
        let numbers = self.core.max_qps();
        let qpn = self.numbers.assign(now, index).ok_or(ControlError::NumbersQuarantined { numbers })?;
        if self.free.pop().is_none() {
            self.slots.push(None);
        }
        let qp = QueuePair::new(service, make(qpn));
        let account = Account::new(now);
        let slot =
            Slot { qp, is_ready: false, is_telemetry_holder: false, armed: None, account, traced: None };
        self.slots[index as usize] = Some(Box::new(slot));
        Ok(qpn)
    }

    pub(super) fn remove(&mut self, now: Instant, qpn: Qpn) -> Option<(u32, Box<Slot>)> {
        let index = self.find(qpn)?;
        let slot = self.slots[index as usize].take()?;
        self.numbers.release(now, qpn);
        self.free.push(index);
        Some((index, slot))
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&Slot> {
        self.at(self.numbers.slot_of(qpn)).filter(|slot| slot.qp.identity().qpn == qpn)
    }

    #[inline(always)]
    pub(super) fn find(&self, qpn: Qpn) -> Option<u32> {
        let index = self.numbers.slot_of(qpn);
        let slot = self.at(index)?;
        (slot.qp.identity().qpn == qpn).then_some(index)
    }

    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)?.as_deref()
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_deref_mut()
    }

    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }
}
