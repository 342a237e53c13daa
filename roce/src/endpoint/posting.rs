//! Requests on their way in: with or without the check, one at a time or a list.

use super::Endpoint;
use crate::qp::{CheckedRecv, CheckedSend, PostError, PostRules, RecvRequest, RecvRules, SendRequest};
use crate::{Qpn, SrqId};
use cc::Instant;
use core::slice::from_mut;

impl Endpoint {
    /// Takes in a send request.
    ///
    /// # Errors
    /// Returns why the request was refused. Nothing of it was done.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: SendRequest) -> Result<(), PostError> {
        let (index, qp, mut context) = self.open(now, qpn).ok_or(PostError::NoQp { qpn })?;
        let mut checked = qp.check_send(request)?;
        qp.take_sends(from_mut(&mut checked), &mut context);
        self.settle(now, index);
        Ok(())
    }

    /// Takes in a receive request.
    ///
    /// # Errors
    /// Returns why the request was refused. Nothing of it was done.
    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), PostError> {
        // A receive needs no time: what waits for it comes back by itself.
        let (_, qp, mut context) = self.open(Instant::ZERO, qpn).ok_or(PostError::NoQp { qpn })?;
        let checked = qp.check_recv(request)?;
        qp.take_recv(checked, &mut context);
        self.spread_overflow(Instant::ZERO);
        Ok(())
    }

    /// The rules by which requests for a queue pair are checked before [`Self::take_sends`]. A change of its state may change them.
    #[must_use]
    pub fn post_rules(&self, qpn: Qpn) -> Option<PostRules> {
        self.qps.get(qpn).map(|slot| slot.qp.post_rules())
    }

    /// Takes in receive requests, in two parts, that were checked by [`Self::post_rules`], for room, and for the state. None is refused;
    /// those of a queue pair that was reset or destroyed since are forgotten. They are read where they lie, and left without buffers.
    pub fn take_recvs(&mut self, now: Instant, qpn: Qpn, requests: [&mut [CheckedRecv]; 2]) {
        let Some((index, qp, mut context)) = self.open(now, qpn) else { return };
        for request in requests.into_iter().flatten() {
            qp.take_recv(request.take(), &mut context);
        }
        self.settle(now, index);
    }

    /// Takes in send requests, as [`Self::take_recvs`] does. Their places are left with data that no longer counts.
    pub fn take_sends(&mut self, now: Instant, qpn: Qpn, requests: [&mut [CheckedSend]; 2]) {
        let Some((index, qp, mut context)) = self.open(now, qpn) else { return };
        for part in requests {
            qp.take_sends(part, &mut context);
        }
        self.settle(now, index);
    }

    /// Send requests that the queue pair would still take now; 0 means that `post_send` answers `QueueFull`. Requests
    /// that are done, signalled or not, take no room.
    #[must_use]
    pub fn send_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.send_room())
    }

    /// Receive requests that the queue pair would still take now.
    #[must_use]
    pub fn recv_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.recv_room())
    }

    /// Returns [`Self::send_room`] and [`Self::recv_room`].
    #[must_use]
    pub fn rooms(&self, qpn: Qpn) -> [u32; 2] {
        self.qps.get(qpn).map_or([0; 2], |slot| [slot.qp.send_room(), slot.qp.recv_room()])
    }

    /// Takes in a receive request for whichever queue pair comes first.
    ///
    /// # Errors
    /// Returns why the request was refused. Nothing of it was done.
    pub fn post_srq_recv(&mut self, srq: SrqId, request: RecvRequest) -> Result<(), PostError> {
        let checked = self.commons.shared.check(srq, request)?;
        self.take_srq_recv(srq, checked);
        Ok(())
    }

    /// The rules by which requests for a shared receive queue are checked.
    #[must_use]
    pub fn srq_rules(&self, srq: SrqId) -> Option<RecvRules> {
        self.commons.shared.rules(srq)
    }

    /// Takes in a request that was checked, by [`Self::srq_rules`] and for room.
    pub fn take_srq_recv(&mut self, srq: SrqId, request: CheckedRecv) {
        self.commons.shared.take(srq, request);
    }
}
