//! Datagrams: any peer, one packet a message, the network header before the payload (IBA 9.8.3). Raw frames arrive as such, without one.

use super::super::{CompletionOpcode, CompletionStatus, buffers};
use super::Unreliable;
use super::receive::Arrival;
use crate::wire::Immediate;
use crate::{Discard, FailureCause, Memory, Qpn};

/// The offset of a datagram's payload in its receive buffers. Before it are its IPv6 header, or 20 undefined bytes
/// and its IPv4 header (IBA A17.4.5.1).
pub(super) const GRH: usize = 40;

impl Unreliable {
    /// Takes in a datagram: `head` and then the payload go into the oldest receive request's buffers.
    pub(super) fn on_datagram<M: Memory>(
        &mut self,
        head: &[u8],
        source: Option<Qpn>,
        immediate: Option<Immediate>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let (offset, length) = (head.len() as u32, (head.len() + arrival.payload.len()) as u32);
        let request = self.receives.front(arrival.context.shared).ok_or(Discard::ReceiverNotReady)?;
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
        let Some(request) = self.receives.pop(arrival.context.shared) else {
            return Err(Discard::ReceiverNotReady);
        };
        self.deliver(request.id, CompletionOpcode::Recv, length, immediate, source, arrival);
        Ok(())
    }
}
