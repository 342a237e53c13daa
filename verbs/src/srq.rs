//! Shared receive queues: receive requests for several queue pairs.

use crate::device::Inner;
use crate::fault::{self, Verb};
use crate::xrc::XrcParts;
use crate::{Error, ProtectionDomain};
use datapath::engine::{CoreState, SrqRings, Stopped};
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

/// Reference to the queue in the cores. The cores destroy the queue when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct SrqHandle {
    pub(crate) device: Arc<Inner>,
    pub(crate) id: SrqId,
    /// The core of all queue pairs that receive from it.
    pub(crate) core: usize,
    _xrc: Option<XrcParts>,
}

impl ProtectionDomain {
    /// Creates a shared receive queue for `depth` requests of up to `max_sge` buffers.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded or the core has stopped.
    pub fn shared_receive_queue(&self, depth: u32, max_sge: u32) -> Result<SharedReceiveQueue, Error> {
        fault::check_call::<Error>(Verb::CreateSrq)?;
        let init = SrqInit { pd: self.pd, depth, max_sge, xrc: None };
        SharedReceiveQueue::new(&self.device, self.device.loads.least(), init, None)
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        device: &Arc<Inner>,
        core: usize,
        init: SrqInit,
        xrc: Option<XrcParts>,
    ) -> Result<Self, Error> {
        let (limits, SrqInit { depth, max_sge, .. }) = (&device.info.limits, init);
        for (what, value, least, most) in
            [("depth", depth, 1, limits.max_requests), ("max_sge", max_sge, 0, limits.max_sge)]
        {
            if !(least..=most).contains(&value) {
                return Err(Error::value(what, value, format!("{least} to {most}")));
            }
        }
        let (rings, number) = device.create_on(core, || create(device, core, init))?;
        let handle = Arc::new(SrqHandle { device: device.clone(), id: rings.srq(), core, _xrc: xrc });
        Ok(Self { rings, number, handle })
    }

    pub(crate) fn handle(&self) -> &Arc<SrqHandle> {
        &self.handle
    }

    /// Posts one receive request. Any queue pair of the shared receive queue may consume it.
    ///
    /// # Errors
    /// Returns an error if the queue is full or the request exceeds a limit. The request is then not posted.
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        fault::check_call::<PostError>(Verb::PostSrqRecv)?;
        let result = self.rings.push_recv(request);
        // Also after an error: a program with a full queue waits for the core to complete requests.
        self.rings.ring_doorbell();
        self.handle.device.engine.posted(self.handle.core);
        result
    }

    /// Returns the queue's number in the device, which events contain.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.handle.id
    }

    /// Returns the SRQ number, which XRC requests to the queue contain.
    #[must_use]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// Requests one event for when fewer than `limit` requests are left; 0 requests none.
    ///
    /// # Errors
    /// Returns an error if the limit exceeds the queue's depth or the core has stopped.
    pub fn arm(&self, limit: u32) -> Result<(), Error> {
        let id = self.handle.id;
        let arm = move |state: &mut CoreState, _| state.endpoint.arm_srq(id, limit);
        Ok(self.handle.device.engine.call_on(self.handle.core, arm)??)
    }

    /// Returns the queue's current report.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn query(&self) -> Result<SrqReport, Error> {
        let id = self.handle.id;
        let report = move |state: &mut CoreState, _| state.endpoint.srq_report(id);
        let report = self.handle.device.engine.call_on(self.handle.core, report)?;
        report.ok_or(Error::Control(ControlError::NoSrq(id)))
    }
}

/// Creates the queue on all cores, so that it has the same number on all, and its rings on `core`.
fn create(
    device: &Inner,
    core: usize,
    init: SrqInit,
) -> Result<Result<(SrqRings, SrqNumber), ControlError>, Stopped> {
    let made = device.engine.call_all(move |state, _| {
        let (rings, id) = if state.index() == core {
            let rings = state.create_srq(init)?;
            let id = rings.srq();
            (Some(rings), id)
        } else {
            (None, state.endpoint.create_srq(init)?)
        };
        let number = state.endpoint.srq_number(id).ok_or(ControlError::NoSrq(id))?;
        Ok((rings, number))
    })?;
    Ok(made.into_iter().collect::<Result<Vec<_>, _>>().map(|made| {
        debug_assert!(made.iter().all(|(_, number)| *number == made[0].1), "cores agree on numbers");
        let mut rings = made.into_iter().filter_map(|(rings, number)| Some((rings?, number)));
        rings.next().expect("one of the cores is `core`")
    }))
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no queues left. No queue pair uses the queue, because each has a reference to it.
        let _ = self.device.engine.call_all(move |state, _| state.destroy_srq(id));
        self.device.loads.release(self.core);
    }
}
