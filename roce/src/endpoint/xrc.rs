//! XRC domains of an endpoint, and the objects created in them (IBA annex A14).

use super::Endpoint;
use crate::qp::{Identity, QpInit, Receives};
use crate::wire::Service;
use crate::{ControlError, Qpn, SrqId, SrqInit, SrqNumber, XrcReceives, XrcdId};
use cc::Instant;

impl Endpoint {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the limit of XRC domains is reached.
    pub fn create_xrcd(&mut self) -> Result<XrcdId, ControlError> {
        self.shared.xrc.create()
    }

    /// Destroys an XRC domain.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the domain does not exist, or has targets or shared receive queues.
    pub fn destroy_xrcd(&mut self, domain: XrcdId) -> Result<(), ControlError> {
        self.shared.xrc.destroy(domain)
    }

    /// Creates an XRC target, in RESET. It receives messages for any shared receive queue of the domain, and sends none.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the domain does not exist, or no number is free: those of destroyed queue pairs are not reused for
    /// [`QPN_QUARANTINE`](super::QPN_QUARANTINE).
    pub fn create_xrc_target(&mut self, now: Instant, domain: XrcdId) -> Result<Qpn, ControlError> {
        self.shared.xrc.join(domain)?;
        let identity = |qpn| Identity::new(qpn, &QpInit::XRC_TARGET, Receives::XrcTarget(domain));
        let made = self.qps.insert(now, Service::Xrc, identity);
        made.inspect_err(|_| self.shared.xrc.leave(domain))
    }

    /// Returns the number of a shared receive queue in requests to an XRC target.
    #[must_use]
    pub fn srq_number(&self, srq: SrqId) -> Option<SrqNumber> {
        self.shared.srqs.number(srq)
    }

    pub(super) fn create_xrc_srq(&mut self, init: SrqInit, xrc: XrcReceives) -> Result<SrqId, ControlError> {
        self.shared.xrc.join(xrc.domain)?;
        let made = self
            .shared
            .cqs
            .join(xrc.cq)
            .and_then(|()| self.shared.srqs.create(init).inspect_err(|_| self.shared.cqs.leave(xrc.cq)));
        made.inspect_err(|_| self.shared.xrc.leave(xrc.domain))
    }

    pub(super) fn leave_xrc(&mut self, xrc: XrcReceives) {
        self.shared.cqs.leave(xrc.cq);
        self.shared.xrc.leave(xrc.domain);
    }
}
