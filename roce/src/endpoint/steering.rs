//! Steers frames to raw packet queue pairs, by the rules that programs add.

use super::{ControlError, Endpoint};
use crate::steering::{Cursor, FlowAction, FlowId, FlowRule, Headers, MAX_ENTRIES, Rss};
use crate::wire::{self, Service};
use crate::{Discard, Memory, Qpn};
use cc::Instant;

impl Endpoint {
    /// Adds a rule for the frames that a raw packet queue pair receives. It exists until [`remove_flow`](Self::remove_flow), or as long as
    /// the queue pair.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue pair does not exist or is not a raw packet queue pair, or there are
    /// [`MAX_FLOWS`](crate::steering::MAX_FLOWS) rules.
    pub fn add_flow(&mut self, qpn: Qpn, rule: FlowRule) -> Result<FlowId, ControlError> {
        self.check_raw(qpn)?;
        self.flows.add(qpn, rule)
    }

    /// Spreads the frames of `qpn` over other raw packet queue pairs; it receives none itself from then on.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if a queue pair does not exist or is not a raw packet queue pair, or the size of the table is not a power
    /// of two up to [`MAX_ENTRIES`].
    pub fn set_rss(&mut self, qpn: Qpn, rss: Rss) -> Result<(), ControlError> {
        for &qpn in rss.table.iter().chain([&qpn]) {
            self.check_raw(qpn)?;
        }
        if !rss.is_legal() {
            let (value, limit) = (rss.table.len() as u64, MAX_ENTRIES as u64);
            return Err(ControlError::Value { what: "entries of a spread, a power of two", value, limit });
        }
        self.flows.set_rss(qpn, rss);
        Ok(())
    }

    fn check_raw(&self, qpn: Qpn) -> Result<(), ControlError> {
        let slot = self.qps.get(qpn).ok_or(ControlError::NoQp(qpn))?;
        match slot.qp.service() {
            Service::Raw => Ok(()),
            Service::Rc | Service::Uc | Service::Ud | Service::Xrc => Err(ControlError::NotRaw(qpn)),
        }
    }

    /// Removes a rule; does nothing if its queue pair was destroyed.
    pub fn remove_flow(&mut self, flow: FlowId) {
        self.flows.remove(flow);
    }

    /// Returns whether there are rules. If so, call [`steer`](Self::steer) for each frame before [`on_frame`](Self::on_frame).
    #[inline(always)]
    #[must_use]
    pub fn has_flows(&self) -> bool {
        !self.flows.is_empty()
    }

    /// Delivers an Ethernet frame by the rules. Returns whether a rule matched it. RoCEv2 packets are not steered: their queue pairs
    /// receive them.
    #[inline(never)]
    pub fn steer<M: Memory>(&mut self, now: Instant, memory: &mut M, frame: &[u8]) -> bool {
        if wire::opcode_and_destination(frame, self.shared.numbers).is_some() {
            return false;
        }
        let Some(headers) = Headers::of(frame) else { return false };
        let mut cursor = Cursor::default();
        while let Some((qpn, action)) = self.flows.next(&headers, &mut cursor) {
            let delivered = match action {
                FlowAction::Take | FlowAction::Copy => self.deliver_raw(now, memory, frame, qpn),
                FlowAction::Drop => Err(Discard::FlowRule),
            };
            if let Err(discard) = delivered {
                self.shared.counters.discard(discard);
            }
        }
        self.shared.counters.rx_frames += u64::from(cursor.is_taken());
        cursor.is_taken()
    }

    fn deliver_raw<M: Memory>(
        &mut self,
        now: Instant,
        memory: &mut M,
        frame: &[u8],
        qpn: Qpn,
    ) -> Result<(), Discard> {
        let (index, qp, mut context) = self.open(now, qpn).ok_or(Discard::UnknownQp)?;
        let taken = qp.on_frame(frame, memory, &mut context);
        self.schedule(now, index);
        taken
    }
}
