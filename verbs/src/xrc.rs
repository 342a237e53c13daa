//! Extended reliable connections: a peer sends to many shared receive queues through one queue pair (IBA annex A14).
//!
//! The sender has an initiator: a [`QueuePair`] of [`Service::Xrc`](crate::Service::Xrc). The receiver has an [`XrcDomain`] with
//! targets and shared receive queues, and passes their [numbers](SharedReceiveQueue::number) to the sender by any means.

use crate::completion::CqHandle;
use crate::device::{Device, Inner};
use crate::queue_pair::{Owned, random_psn};
use crate::service::Any;
use crate::{Access, CompletionQueue, Error, ProtectionDomain, QueuePair, SharedReceiveQueue};
use roce::qp::{Modify, QpInit};
use roce::{SrqInit, XrcReceives, XrcdId};
use std::sync::Arc;

pub use roce::SrqNumber;

/// An XRC domain: its targets receive messages for its shared receive queues.
///
/// ```
/// # use ferroce_verbs::{CompletionQueue, Device, Error, ProtectionDomain, xrc::SrqNumber};
/// fn receive(device: &Device, domain: &ProtectionDomain, cq: &CompletionQueue) -> Result<SrqNumber, Error> {
///     let xrc = device.xrc_domain()?;
///     let target = xrc.target().build()?;
///     let queue = domain.xrc_receive_queue(&xrc, cq, 64, 1)?;
///     println!("connect to {} and name {:?}", target.endpoint(), queue.number());
///     # Ok(queue.number())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct XrcDomain {
    handle: Arc<XrcdHandle>,
}

/// Reference to the domain in the cores. The cores destroy the domain when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct XrcdHandle {
    device: Arc<Inner>,
    id: XrcdId,
    /// The core of the domain's targets and shared receive queues.
    core: usize,
}

/// The objects that a shared receive queue of an XRC domain keeps alive.
#[derive(Debug)]
pub(crate) struct XrcParts {
    _domain: Arc<XrcdHandle>,
    _cq: Arc<CqHandle>,
}

impl Device {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// Returns an error if there are too many XRC domains or the core has stopped.
    pub fn xrc_domain(&self) -> Result<XrcDomain, Error> {
        let device = self.inner.clone();
        let id = device.on_all(|state, _| state.endpoint.create_xrcd())??;
        let core = device.loads.least();
        Ok(XrcDomain { handle: Arc::new(XrcdHandle { device, id, core }) })
    }
}

impl XrcDomain {
    /// Returns a builder for a target.
    pub fn target(&self) -> TargetBuilder {
        let access = Access::ALL | Access::REMOTE_FLUSH;
        TargetBuilder { domain: self.handle.clone(), access, gid_index: None, partition_key: 0xffff }
    }

    /// Returns whether both are the same domain.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Returns the number of references to the domain: clones, and objects created in it.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.handle)
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue of an XRC domain for `depth` requests of up to `max_sge` buffers. Completions go to `cq`. Requests to
    /// the queue use keys of this protection domain.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, the domain or queue belongs to another device, or the core has
    /// stopped.
    pub fn xrc_receive_queue(
        &self,
        domain: &XrcDomain,
        cq: &CompletionQueue,
        depth: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        let (domain, cq) = (&domain.handle, cq.handle());
        for (device, what) in [(&domain.device, "the XRC domain"), (&cq.device, "the completion queue")] {
            if !Arc::ptr_eq(device, &self.device) {
                return Err(Error::OtherDevice { what });
            }
        }
        let xrc = XrcReceives { domain: domain.id, cq: cq.id };
        let init = SrqInit { pd: self.pd, depth, max_sge, xrc: Some(xrc) };
        let parts = XrcParts { _domain: domain.clone(), _cq: cq.clone() };
        cq.producer_cores.add(domain.core);
        SharedReceiveQueue::new(&self.device, domain.core, init, Some(parts))
    }
}

/// A builder for XRC targets.
#[derive(Debug)]
#[must_use = "nothing is created before build()"]
pub struct TargetBuilder {
    domain: Arc<XrcdHandle>,
    access: Access,
    gid_index: Option<usize>,
    partition_key: u16,
}

impl TargetBuilder {
    /// Sets which operations the peer may request. The rights of each region apply as well. The default is all operations.
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Sets the GID index of the target's address. The default is the [preferred](crate::DeviceInfo::preferred_gid) one.
    pub fn gid_index(self, index: usize) -> Self {
        Self { gid_index: Some(index), ..self }
    }

    /// Sets the P_Key that both sides carry. The default is 0xFFFF.
    pub fn partition_key(self, key: u16) -> Self {
        Self { partition_key: key, ..self }
    }

    /// Creates the target in INIT. It is connected like any queue pair, but cannot post.
    ///
    /// # Errors
    /// Returns an error if the device has no such GID, there are too many queue pairs, or the core has stopped.
    pub fn build(self) -> Result<QueuePair<Any>, Error> {
        let (access, partition_key) = (self.access, self.partition_key);
        let mut qp = self.build_reset()?;
        qp.modify(Modify::Init { access, partition_key })?;
        Ok(qp)
    }

    /// Creates the target in RESET, for transitions by [`QueuePair::modify`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_reset(self) -> Result<QueuePair<Any>, Error> {
        let (device, id) = (self.domain.device.clone(), self.domain.id);
        let (gid, psn) = (device.gid(self.gid_index)?, random_psn()?);
        let core = self.domain.core;
        let create = || device.engine.call_on(core, move |state, now| state.create_xrc_target(now, id));
        let rings = device.create_on(core, create)?;
        let owned = Owned::Target { _domain: self.domain };
        Ok(QueuePair::new(device, rings, (gid, psn), &QpInit::XRC_TARGET, owned))
    }
}

impl Drop for XrcdHandle {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no domains left. No object uses the domain, because each has a reference to it.
        let _ = self.device.engine.call_all(move |state, _| state.endpoint.destroy_xrcd(id));
    }
}
