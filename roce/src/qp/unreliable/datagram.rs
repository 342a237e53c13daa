//! Datagrams: one packet per message, from any peer, with the network header in front of the payload (IBA 9.8.3). Raw frames are received
//! in the same way, without a header.

use super::super::{CompletionOpcode, CompletionStatus, buffers};
use super::Unreliable;
use super::receive::Arrival;
use crate::wire::Immediate;
use crate::{Discard, FailureCause, Memory, Qpn};

/// Offset of the payload in the receive buffers. The 40 bytes before it contain the IPv6 header, or 20 undefined bytes and the IPv4 header
/// (IBA A17.4.5.1).
pub(super) const GRH: usize = 40;

impl Unreliable {
    /// Places `head` and the payload in the buffers of the oldest receive request.
    pub(super) fn on_datagram<M: Memory>(
        &mut self,
        head: &[u8],
        source: Option<Qpn>,
        immediate: Option<Immediate>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let (offset, length) = (head.len() as u32, (head.len() + arrival.payload.len()) as u32);
        let request = self.receives.front(arrival.context.srqs).ok_or(Discard::ReceiverNotReady)?;
        if buffers::room(&request.buffers) < length {
            return Err(Discard::LocalProtection);
        }
        let (regions, pd) = (&*arrival.context.regions, arrival.common.identity.pd);
        let placed = buffers::place(arrival.memory, regions, pd, &request.buffers, 0, head).and_then(|()| {
            buffers::place(arrival.memory, regions, pd, &request.buffers, offset, arrival.payload)
        });
        if placed.is_err() {
            let status = CompletionStatus::LocalProtection;
            self.fail(arrival.common, Some(FailureCause::Receive(status)), status, arrival.context);
            return Err(Discard::LocalProtection);
        }
        let Some(request) = self.receives.pop(arrival.context.srqs) else {
            return Err(Discard::ReceiverNotReady);
        };
        self.deliver(request.id, CompletionOpcode::Recv, length, immediate, source, arrival);
        Ok(())
    }
}
