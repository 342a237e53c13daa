//! Datagrams: any peer, one packet a message, the network header before the payload (IBA 9.8.3).

use super::super::{CompletionOpcode, CompletionStatus, buffers};
use super::Unreliable;
use super::receive::Arrival;
use crate::wire::Immediate;
use crate::{Discard, FailureCause, Memory, Qpn};

/// The offset of a datagram's payload in its receive buffers. Before it are its IPv6 header, or 20 undefined bytes
/// and its IPv4 header (IBA A17.4.5.1).
const GRH: usize = 40;

impl Unreliable {
    pub(super) fn on_datagram<M: Memory>(
        &mut self,
        network: &[u8],
        source: Qpn,
        immediate: Option<Immediate>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let length = (GRH + arrival.payload.len()) as u32;
        let request = self.receives.front(arrival.context.shared).ok_or(Discard::ReceiverNotReady)?;
        if buffers::room(&request.buffers) < length {
            return Err(Discard::LocalProtection);
        }
        let mut grh = [0; GRH];
        grh[GRH - network.len()..].copy_from_slice(network);
        let (regions, pd) = (&*arrival.context.regions, arrival.common.identity.pd);
        let placed = buffers::place(arrival.memory, regions, pd, &request.buffers, 0, &grh).and_then(|()| {
            buffers::place(arrival.memory, regions, pd, &request.buffers, GRH as u32, arrival.payload)
        });
        if placed.is_err() {
            let status = CompletionStatus::LocalProtection;
            self.fail(arrival.common, Some(FailureCause::Receive(status)), status, arrival.context);
            return Err(Discard::LocalProtection);
        }
        let Some(request) = self.receives.pop(arrival.context.shared) else {
            return Err(Discard::ReceiverNotReady);
        };
        self.deliver(request.id, CompletionOpcode::Recv, length, immediate, Some(source), arrival);
        Ok(())
    }
}
