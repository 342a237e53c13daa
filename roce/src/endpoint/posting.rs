//! Posting of work requests: checked here or by the caller, one at a time or in lists.

use super::Endpoint;
use crate::qp::{CheckedRecv, CheckedSend, PostError, PostRules, RecvRequest, RecvRules, SendRequest};
use crate::{Qpn, SrqId};
use cc::Instant;
use core::slice::from_mut;

impl Endpoint {
    /// Posts a send request.
    ///
    /// # Errors
    /// Returns a [`PostError`] if the request was refused; nothing was done.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: SendRequest) -> Result<(), PostError> {
        let (index, qp, mut context) = self.open(now, qpn).ok_or(PostError::NoQp { qpn })?;
        let mut checked = qp.check_send(request)?;
        qp.take_sends(from_mut(&mut checked), &mut context);
        self.schedule(now, index);
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Returns a [`PostError`] if the request was refused; nothing was done.
    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), PostError> {
        // A receive request starts no timer, because a peer that waits for it retries.
        let (_, qp, mut context) = self.open(Instant::ZERO, qpn).ok_or(PostError::NoQp { qpn })?;
        let checked = qp.check_recv(request)?;
        qp.take_recv(checked, &mut context);
        self.fail_overflowed_cqs(Instant::ZERO);
        Ok(())
    }

    /// Returns the rules that requests must satisfy before [`Self::take_sends`] and [`Self::take_recvs`]. A change of the queue pair's
    /// state may change them.
    #[must_use]
    pub fn post_rules(&self, qpn: Qpn) -> Option<PostRules> {
        self.qps.get(qpn).map(|slot| slot.qp.post_rules())
    }

    /// Posts receive requests, in two parts, that were checked against [`Self::post_rules`], the free entries and the state. None is
    /// refused; those of a queue pair that was since reset or destroyed are dropped. Each is moved out, and an empty one is left in its
    /// place.
    pub fn take_recvs(&mut self, now: Instant, qpn: Qpn, requests: [&mut [CheckedRecv]; 2]) {
        let Some((index, qp, mut context)) = self.open(now, qpn) else { return };
        for request in requests.into_iter().flatten() {
            qp.take_recv(request.take(), &mut context);
        }
        self.schedule(now, index);
    }

    /// Posts send requests, as [`Self::take_recvs`] does. The contents left in their places are unspecified.
    pub fn take_sends(&mut self, now: Instant, qpn: Qpn, requests: [&mut [CheckedSend]; 2]) {
        let Some((index, qp, mut context)) = self.open(now, qpn) else { return };
        for part in requests {
            qp.take_sends(part, &mut context);
        }
        self.schedule(now, index);
    }

    /// Returns how many more send requests fit; 0 means that [`Self::post_send`] returns [`PostError::QueueFull`]. Completed requests,
    /// signalled or not, use no entry.
    #[must_use]
    pub fn send_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.send_room())
    }

    /// Returns how many more receive requests fit.
    #[must_use]
    pub fn recv_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.recv_room())
    }

    /// Returns [`Self::send_room`] and [`Self::recv_room`].
    #[must_use]
    pub fn rooms(&self, qpn: Qpn) -> [u32; 2] {
        self.qps.get(qpn).map_or([0; 2], |slot| [slot.qp.send_room(), slot.qp.recv_room()])
    }

    /// Posts a receive request to a shared receive queue.
    ///
    /// # Errors
    /// Returns a [`PostError`] if the request was refused; nothing was done.
    pub fn post_srq_recv(&mut self, srq: SrqId, request: RecvRequest) -> Result<(), PostError> {
        let checked = self.shared.srqs.check(srq, request)?;
        self.take_srq_recv(srq, checked);
        Ok(())
    }

    /// Returns the rules for requests to a shared receive queue.
    #[must_use]
    pub fn srq_rules(&self, srq: SrqId) -> Option<RecvRules> {
        self.shared.srqs.rules(srq)
    }

    /// Posts a request that was checked against [`Self::srq_rules`] and the free entries.
    pub fn take_srq_recv(&mut self, srq: SrqId, request: CheckedRecv) {
        self.shared.srqs.take(srq, request);
    }
}
