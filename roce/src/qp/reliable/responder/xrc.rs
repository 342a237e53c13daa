//! The responder of an XRC target: each request names a shared receive queue, and uses its protection domain and completion queue
//! (IBA annex A14).

use super::{Arrival, Refusal, Responder};
use crate::qp::receive_queue::ReceiveQueue;
use crate::qp::{CompletionStatus, Identity, Receives};
use crate::srq::ResolvedSrq;
use crate::wire::Operation;
use crate::{Discard, Memory, SrqNumber};

impl Responder {
    /// Executes a packet with the domain and completion queue of the shared receive queue that it names.
    #[inline(never)]
    pub(super) fn execute_xrc<M: Memory>(
        &mut self,
        number: SrqNumber,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        let resolved = self.check_xrc(number, arrival)?;
        self.queue = ReceiveQueue::XrcTarget(Some(resolved));
        let identity = Identity { pd: resolved.pd, recv_cq: resolved.cq, ..*arrival.identity };
        let mut arrival = Arrival {
            memory: &mut *arrival.memory,
            context: &mut *arrival.context,
            identity: &identity,
            rights: arrival.rights,
            bth: arrival.bth,
            srq: arrival.srq,
            is_marked: arrival.is_marked,
            payload: arrival.payload,
        };
        self.execute_here(operation, &mut arrival)
    }

    /// Checks that the queue exists, is of the target's domain, and is the same for the whole message. If not, the request is invalid.
    fn check_xrc<M>(&self, number: SrqNumber, arrival: &Arrival<'_, '_, M>) -> Result<ResolvedSrq, Refusal> {
        let (resolved, domain) =
            arrival.context.srqs.resolve(number).ok_or(Refusal::invalid(Discard::UnknownSrq))?;
        if arrival.identity.receives != Receives::XrcTarget(domain) {
            return Err(Refusal::invalid(Discard::XrcDomain));
        }
        if self.message.is_some() && self.queue.resolved() != Some(&resolved) {
            return Err(Refusal::invalid(Discard::Sequence));
        }
        // Otherwise a packet would be acknowledged and its completion lost (IBA 10.2.6).
        if arrival.context.cqs.overflowed(resolved.cq) {
            return Err(Refusal::operational(CompletionStatus::Flushed));
        }
        Ok(resolved)
    }
}
