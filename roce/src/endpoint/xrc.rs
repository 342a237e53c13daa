//! XRC domains of an endpoint, and the objects created in them (IBA annex A14).

use super::Endpoint;
use crate::qp::{Identity, QpInit, Receives};
use crate::wire::Service;
use crate::{ControlError, Qpn, SrqId, SrqInit, SrqNumber, XrcReceives, XrcdId};
use cc::Instant;

impl Endpoint {
    /// Makes an XRC domain.
    ///
    /// # Errors
    /// Returns an error if there is one too many.
    pub fn create_xrcd(&mut self) -> Result<XrcdId, ControlError> {
        self.commons.xrc.create()
    }

    /// Gives up an XRC domain.
    ///
    /// # Errors
    /// Returns an error if there is none of this number, or targets or shared receive queues are of it.
    pub fn destroy_xrcd(&mut self, domain: XrcdId) -> Result<(), ControlError> {
        self.commons.xrc.destroy(domain)
    }

    /// Makes an XRC target, in RESET. It takes messages for any shared receive queue of the domain, and sends none.
    ///
    /// # Errors
    /// Returns an error if the domain is unknown, or there is no free number: those of destroyed queue pairs rest for a time.
    pub fn create_xrc_target(&mut self, now: Instant, domain: XrcdId) -> Result<Qpn, ControlError> {
        self.commons.xrc.join(domain)?;
        let identity = |qpn| Identity::new(qpn, &QpInit::XRC_TARGET, Receives::Named(domain));
        let made = self.qps.insert(now, Service::Xrc, identity);
        made.inspect_err(|_| self.commons.xrc.leave(domain))
    }

    /// Returns the number that peers use for a shared receive queue: requests to an XRC target contain it.
    #[must_use]
    pub fn srq_number(&self, srq: SrqId) -> Option<SrqNumber> {
        self.commons.shared.number(srq)
    }

    pub(super) fn create_xrc_srq(&mut self, init: SrqInit, xrc: XrcReceives) -> Result<SrqId, ControlError> {
        self.commons.xrc.join(xrc.domain)?;
        let made =
            self.commons.cqs.join(xrc.cq).and_then(|()| {
                self.commons.shared.create(init).inspect_err(|_| self.commons.cqs.leave(xrc.cq))
            });
        made.inspect_err(|_| self.commons.xrc.leave(xrc.domain))
    }

    /// A queue that [`Self::create_xrc_srq`] created is gone.
    pub(super) fn leave_xrc(&mut self, xrc: XrcReceives) {
        self.commons.cqs.leave(xrc.cq);
        self.commons.xrc.leave(xrc.domain);
    }
}
