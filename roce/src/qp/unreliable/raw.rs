//! Raw packets: whole Ethernet frames, which are sent unchanged and without congestion control.

use super::super::common::Common;
use super::super::{CompletionStatus, Context, State, buffers};
use super::receive::Arrival;
use super::{Kind, Unreliable};
use crate::{Discard, Memory};

impl Unreliable {
    pub(in crate::qp) fn on_frame<M: Memory>(
        &mut self,
        common: &mut Common,
        frame: &[u8],
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        match (common.state, self.kind) {
            (State::Reset | State::Init | State::Error, _) => Err(Discard::QpState),
            (_, Kind::Raw { .. }) => {
                let mut arrival = Arrival { common, memory, context, solicited: false, payload: frame };
                self.on_datagram(&[], None, None, &mut arrival)
            }
            (_, Kind::Connected | Kind::Datagram { .. }) => Err(Discard::Opcode),
        }
    }

    /// Writes the frame of the oldest request. The caller must have checked the state.
    pub(super) fn transmit_frame<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let wqe = self.queue.front()?;
        let length = wqe.length as usize;
        let written = match frame.get_mut(..length) {
            Some(into) => {
                let (regions, data) = (&*context.regions, &wqe.request.data);
                let gathered = buffers::gather(memory, regions, common.identity.pd, data, 0, into);
                gathered.map_err(|_| CompletionStatus::LocalProtection)
            }
            None => Err(CompletionStatus::LocalLength),
        };
        if let Err(status) = written {
            self.fail_send(common, status, context);
            return None;
        }
        context.counters.tx_payload_bytes += length as u64;
        self.next += 1;
        self.complete_front(common, context);
        Some(length)
    }
}
