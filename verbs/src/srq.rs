//! Shared receive queues: receive requests for several queue pairs.

use crate::device::Inner;
use crate::xrc::XrcParts;
use crate::{Error, ProtectionDomain};
use datapath::engine::SrqRings;
use roce::qp::{PostError, RecvRequest};
use roce::{ControlError, SrqId, SrqInit, SrqNumber, SrqReport};
use std::sync::Arc;

/// A shared receive queue. Only one thread may post to it at a time.
///
/// ```no_run
/// # use ferroce_verbs::{CompletionQueue, ProtectionDomain, RecvRequest, Sge};
/// # fn serve(domain: &ProtectionDomain, cq: &CompletionQueue, buffer: Sge) -> Result<(), Box<dyn std::error::Error>> {
/// let mut receives = domain.shared_receive_queue(256, 1)?;
/// receives.post_recv(RecvRequest::new(1, buffer))?;
/// let one = domain.queue_pair(cq, cq).receive_from(&receives).build()?;
/// let other = domain.queue_pair(cq, cq).receive_from(&receives).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedReceiveQueue {
    rings: SrqRings,
    number: SrqNumber,
    handle: Arc<SrqHandle>,
}

/// The queue in the core. It is destroyed when neither a poster nor a queue pair holds it.
#[derive(Debug)]
pub(crate) struct SrqHandle {
    pub(crate) device: Arc<Inner>,
    pub(crate) id: SrqId,
    _xrc: Option<XrcParts>,
}

impl ProtectionDomain {
    /// Creates a shared receive queue for `depth` requests of up to `max_sge` buffers.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded or the core has stopped.
    pub fn shared_receive_queue(&self, depth: u32, max_sge: u32) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::new(&self.device, SrqInit { pd: self.pd, depth, max_sge, xrc: None }, None)
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Arc<Inner>, init: SrqInit, xrc: Option<XrcParts>) -> Result<Self, Error> {
        let (limits, SrqInit { depth, max_sge, .. }) = (&device.info.limits, init);
        for (what, value, least, most) in
            [("depth", depth, 1, limits.max_requests), ("max_sge", max_sge, 0, limits.max_sge)]
        {
            if !(least..=most).contains(&value) {
                return Err(Error::value(what, value, format!("{least} to {most}")));
            }
        }
        let made: Result<_, ControlError> = device.engine.call(move |station, _| {
            let rings = station.create_srq(init)?;
            let srq = rings.srq();
            let number = station.endpoint.srq_number(srq).ok_or(ControlError::NoSrq(srq))?;
            Ok((rings, number))
        })?;
        let (rings, number) = made?;
        let handle = Arc::new(SrqHandle { device: device.clone(), id: rings.srq(), _xrc: xrc });
        Ok(Self { rings, number, handle })
    }

    pub(crate) fn handle(&self) -> &Arc<SrqHandle> {
        &self.handle
    }

    /// Posts one receive request, for the first queue pair that needs it.
    ///
    /// # Errors
    /// Returns an error if the queue is full or the request exceeds a limit. The request is then not posted.
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        let result = self.rings.push_recv(request);
        // After a refusal too: a full queue's poster waits for the core to say what is done.
        self.rings.ring_doorbell();
        self.handle.device.engine.posted();
        result
    }

    /// Returns its number in the device, which events contain.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.handle.id
    }

    /// Returns the number by which requests to a target of its XRC domain name it.
    #[must_use]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// Requests one event when fewer than `limit` requests are left; 0 requests none.
    ///
    /// # Errors
    /// Returns an error if the limit exceeds the queue's depth or the core has stopped.
    pub fn arm(&self, limit: u32) -> Result<(), Error> {
        let id = self.handle.id;
        Ok(self.handle.device.engine.call(move |station, _| station.endpoint.arm_srq(id, limit))??)
    }

    /// Returns the queue's current report.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn query(&self) -> Result<SrqReport, Error> {
        let id = self.handle.id;
        let report = self.handle.device.engine.call(move |station, _| station.endpoint.srq_report(id))?;
        report.ok_or(Error::Control(ControlError::NoSrq(id)))
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no queues left. No queue pair takes from it: each holds a handle.
        let _ = self.device.engine.call(move |station, _| station.destroy_srq(id));
    }
}
