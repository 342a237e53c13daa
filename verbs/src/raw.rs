//! Raw packets: queue pairs that send whole Ethernet frames, and receive the frames that their rules match.
//!
//! A frame begins with its Ethernet header and ends before the FCS. The port sends it unchanged: no header is added, no checksum is
//! computed, and no congestion control paces it. A received frame fills the buffers from their first byte, and the completion contains its
//! length. A frame is dropped and counted if there is no receive request, or if the request's buffers are too short.
//!
//! Without a [rule](FlowRule), a queue pair receives nothing. Rules apply to every frame that the port receives, with any address and VLAN,
//! except RoCEv2 packets and the packets of address resolution. The port decides which frames it receives: a NIC filters those of other
//! addresses. A frame to a group's address or to the port's own is also delivered to the queue pairs of this port, in any process of the
//! interface.
//!
//! ```no_run
//! # use ferroce_verbs::{CompletionQueue, Data, Error, ProtectionDomain, Sge, RecvRequest, service::Request};
//! # use ferroce_verbs::raw::{FlowRule, FlowSpec, Masked, PortSpec};
//! # fn receive_dns(domain: &ProtectionDomain, cq: &CompletionQueue, buffer: Sge, frame: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//! let mut qp = domain.queue_pair(cq, cq).raw().build()?;
//! qp.post_recv(RecvRequest::new(1, buffer))?;
//! qp.open()?;
//! let dns = PortSpec { destination: Masked::exactly(53_u16.to_be_bytes()), ..PortSpec::default() };
//! let rule = qp.steer(FlowRule::new(vec![FlowSpec::Udp(dns)]))?;
//! qp.post_send(Request::frame(2, Data::inline(frame)))?;
//! drop(rule); // The rule ends.
//! # Ok(())
//! # }
//! ```

use crate::device::Inner;
use crate::service::{Frames, Raw};
use crate::{DeviceInfo, Error, QueuePair};
use datapath::engine::CoreState;
use roce::qp::Modify;
use roce::steering::FlowId;
pub use roce::steering::{
    EthernetSpec, FlowAction, FlowFrames, FlowRule, FlowSpec, HASH_KEY, HashFields, Ipv4Spec, Ipv6Spec,
    MAX_ENTRIES, MAX_FLOWS, Masked, PortSpec, Rss,
};
use std::sync::Arc;

/// A rule that applies until this value or its queue pair is dropped.
#[derive(Debug)]
#[must_use = "the rule ends when this is dropped"]
pub struct Flow {
    device: Arc<Inner>,
    core: usize,
    id: FlowId,
}

impl Drop for Flow {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no rules left.
        let _ = self.device.engine.call_on(self.core, move |state, _| state.endpoint.remove_flow(id));
    }
}

impl<S: Frames> QueuePair<S> {
    /// Adds a rule for the frames that the queue pair receives.
    ///
    /// # Errors
    /// Returns an error if a queue pair of [`Any`](crate::service::Any) service is not of raw packets, there are [`MAX_FLOWS`] rules, or
    /// the core has stopped.
    pub fn steer(&self, rule: FlowRule) -> Result<Flow, Error> {
        let (qpn, core, device) = (self.qpn(), self.core, self.device.clone());
        let id = device.engine.call_on(core, move |state, _| state.endpoint.add_flow(qpn, rule))??;
        Ok(Flow { device, core, id })
    }
}

impl<S: Frames> QueuePair<S> {
    /// Distributes the frames that match this queue pair's rules to other raw packet queue pairs of the device, each flow to one of them.
    /// This queue pair then receives nothing.
    ///
    /// # Errors
    /// Returns an error if one of the queue pairs does not exist or is not of raw packets, if the size of the table is not a power of two
    /// up to [`MAX_ENTRIES`], or if the core has stopped.
    pub fn spread(&self, spread: Rss) -> Result<(), Error> {
        let qpn = self.qpn();
        let spread = move |state: &mut CoreState, _| state.endpoint.set_rss(qpn, spread);
        Ok(self.device.engine.call_on(self.core, spread)??)
    }
}

impl QueuePair<Raw> {
    /// Moves the queue pair to RTS, for frames up to the port's longest.
    ///
    /// # Errors
    /// Returns an error if it is already open, or the core has stopped.
    pub fn open(&mut self) -> Result<(), Error> {
        let longest = self.device.info.longest_raw(false)?;
        self.modify(Modify::ReadyToReceiveRaw { longest })?;
        self.modify(Modify::ReadyToSendRaw)
    }
}

impl DeviceInfo {
    /// Returns the length of the longest frame that a raw packet queue pair can send, bytes.
    pub(crate) fn longest_raw(&self, has_shared_receives: bool) -> Result<u32, Error> {
        let refused = |reason| Error::Raw { port: self.port.clone(), reason };
        let longest = self
            .longest_frame
            .ok_or_else(|| refused("it receives RoCEv2 packets alone; open the interface as packet:IFACE"))?;
        match has_shared_receives {
            false => Ok(longest),
            true => Err(refused("it takes no shared receive queue; create it without one")),
        }
    }
}
