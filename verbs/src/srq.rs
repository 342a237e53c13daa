//! Receive requests that several queue pairs share.

use crate::device::Inner;
use crate::xrc::XrcParts;
use crate::{Error, ProtectionDomain};
use datapath::engine::SrqRings;
use roce::qp::{PostError, RecvRequest};
use roce::{ControlError, SrqId, SrqInit, SrqNumber, SrqReport};
use std::sync::Arc;

/// A shared receive queue. One thread at a time posts to it.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    rings: SrqRings,
    number: SrqNumber,
    handle: Arc<SrqHandle>,
}

/// The queue in the core. It goes when nobody posts to it and no queue pair takes from it any more.
#[derive(Debug)]
pub(crate) struct SrqHandle {
    pub(crate) device: Arc<Inner>,
    pub(crate) id: SrqId,
    _xrc: Option<XrcParts>,
}

impl ProtectionDomain {
    /// Makes a shared receive queue for `depth` requests of up to `max_sge` buffers.
    ///
    /// # Errors
    /// Returns an error if a limit is passed, or the core has stopped.
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

    /// Hands one receive request to the core, for whichever queue pair comes first.
    ///
    /// # Errors
    /// Returns an error if the queue is full or the request passes a limit. Nothing of it was done.
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        let result = self.rings.push_recv(request);
        // After a refusal too: a full queue's poster waits for the core to say what is done.
        self.rings.ring_doorbell();
        self.handle.device.engine.posted();
        result
    }

    /// Its name in the device, as events have it.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.handle.id
    }

    /// What peers call it: requests to a target of its XRC domain name it by this number.
    #[must_use]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// Asks for an event, once, when fewer than `limit` requests wait; 0 asks for none.
    ///
    /// # Errors
    /// A limit beyond the queue's depth, or the core has stopped.
    pub fn arm(&self, limit: u32) -> Result<(), Error> {
        let id = self.handle.id;
        Ok(self.handle.device.engine.call(move |station, _| station.endpoint.arm_srq(id, limit))??)
    }

    /// What the queue says of itself.
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
