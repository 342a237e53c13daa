//! Selects the next answer, in PSN order (IBA 9.7.5.1).

use super::execute::rest;
use super::resources::{DueResponse, Kind, Resource};
use super::{NO_CREDITS, PendingAcknowledge, Responder};
use crate::congestion::Boundary;
use crate::qp::wqe::Position;
use crate::wire::{Aeth, Operation, Reth, Syndrome};
use crate::{PdId, Psn};

/// Next packet that answers the peer, not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp) struct PlannedResponse {
    pub(in crate::qp) operation: Operation,
    pub(in crate::qp) psn: Psn,
    /// Congestion byte of the BTH.
    pub(in crate::qp) congestion: u8,
    /// Early packets that are held, with selective repeat. `psn` is then the missing one, and `operation` is not sent.
    pub(in crate::qp) held: Option<(u8, u128)>,
    /// Registered memory that a READ response carries. Each packet checks the region again: it may have been deregistered since the request
    /// arrived.
    pub(in crate::qp) read: Option<(PdId, Reth)>,
}

impl Responder {
    #[inline]
    pub(in crate::qp) fn has_answer(&self) -> bool {
        self.pending_acknowledge.is_some() || self.echo.due().is_some() || self.resources.has_due()
    }

    /// Returns the next answer. READ responses and atomics are first, in order: an acknowledgement sent before one would imply that it was
    /// lost.
    #[expect(clippy::arithmetic_side_effects, reason = "a round goes from `from` by way of `next` to `end`")]
    pub(in crate::qp) fn plan(&self, mtu: u32) -> Option<PlannedResponse> {
        let Some(due) = self.resources.due() else { return self.plan_acknowledge() };
        if let Some(boundary) = self.boundary_before(&due) {
            return Some(self.acknowledge_to(boundary));
        }
        let ack = Syndrome::Ack { credits: NO_CREDITS };
        let aeth = Aeth { syndrome: ack, msn: due.msn };
        let psn = due.first.plus(due.next);
        Some(match due.kind {
            Kind::Atomic(original) => PlannedResponse {
                operation: Operation::AtomicAcknowledge { aeth, original },
                psn,
                congestion: due.congestion,
                held: None,
                read: None,
            },
            // The form of the answer to a READ of 0 bytes (IBA annex A19).
            Kind::Done => PlannedResponse {
                operation: Operation::ReadResponseOnly(aeth),
                psn,
                congestion: due.congestion,
                held: None,
                read: None,
            },
            Kind::Read(pd, reth) => {
                let left = rest(reth, due.next, mtu);
                let position = Position::of(due.next - due.from, due.end - due.from);
                let operation = match position {
                    Position::First => Operation::ReadResponseFirst(aeth),
                    Position::Middle => Operation::ReadResponseMiddle,
                    Position::Last => Operation::ReadResponseLast(aeth),
                    Position::Only => Operation::ReadResponseOnly(aeth),
                };
                PlannedResponse {
                    operation,
                    psn,
                    congestion: due.congestion,
                    held: None,
                    read: Some((pd, Reth { length: left.length.min(mtu), ..left })),
                }
            }
        })
    }

    /// Returns the change of the mark, not yet acknowledged, that precedes the request whose answer is due.
    fn boundary_before(&self, due: &DueResponse) -> Option<Boundary> {
        self.echo.due().copied().filter(|boundary| due.first.distance(boundary.up_to) > 0)
    }

    #[cold]
    fn acknowledge_to(&self, boundary: Boundary) -> PlannedResponse {
        let next = self.resources.next_after(boundary.up_to, self.expected);
        let msn = next.map_or(self.msn, Resource::msn_before);
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: NO_CREDITS }, msn };
        plain(aeth, boundary.up_to, boundary.bits())
    }

    /// Returns the next Acknowledge packet. An ACK has the PSN of a SEND or WRITE (see `acknowledgeable`), a NAK that of the packet to be
    /// retransmitted.
    fn plan_acknowledge(&self) -> Option<PlannedResponse> {
        let ack = Syndrome::Ack { credits: NO_CREDITS };
        if let Some(boundary) = self.echo.due() {
            return Some(self.acknowledge_to(*boundary));
        }
        let congestion = self.echo.bits();
        Some(match self.pending_acknowledge? {
            PendingAcknowledge::Acknowledge => {
                match self.reorder.as_ref().and_then(|reorder| reorder.report()) {
                    None => plain(self.aeth(ack), self.newest(), congestion),
                    held => PlannedResponse { held, ..plain(self.aeth(ack), self.expected, congestion) },
                }
            }
            PendingAcknowledge::AcknowledgeDuplicate(duplicate)
            | PendingAcknowledge::ReplyToKeepAlive(duplicate) => {
                let (psn, msn) = self.executed_with(duplicate);
                plain(Aeth { syndrome: ack, msn }, psn, congestion)
            }
            PendingAcknowledge::Nak(psn, syndrome) => plain(self.aeth(syndrome), psn, congestion),
        })
    }

    /// Returns the PSN of the last SEND or WRITE before the READ or atomic that follows a duplicate, and the MSN then. A later PSN would
    /// acknowledge that READ or atomic as answered.
    fn executed_with(&self, duplicate: Psn) -> (Psn, u32) {
        let next = self.resources.next_after(duplicate, self.expected);
        next.map_or((self.newest(), self.msn), |next| (next.acknowledgeable, next.msn_before()))
    }

    /// Drops a pending acknowledgement that the answer to a READ or atomic, just sent with this PSN, implies (IBA 9.7.5.1.2). Linux's
    /// requester ends a READ without the rest of its data if an older ACK arrives between its responses. An older NAK would be obsolete.
    /// With selective repeat the pending answer stays, because it reports the held packets.
    fn drop_implied(&mut self, psn: Psn) {
        let before = match self.pending_acknowledge {
            None | Some(PendingAcknowledge::ReplyToKeepAlive(_)) => return,
            Some(PendingAcknowledge::Acknowledge) => self.acknowledgeable,
            Some(PendingAcknowledge::AcknowledgeDuplicate(duplicate)) => duplicate,
            Some(PendingAcknowledge::Nak(missing, _)) => missing,
        };
        if self.reorder.is_none() && psn.distance(before) >= 0 {
            self.pending_acknowledge = None;
        }
    }

    pub(in crate::qp) fn commit(&mut self) {
        if self.echo.due().is_some() && self.is_boundary_next() {
            self.echo.on_boundary_sent();
            return;
        }
        if let Some(psn) = self.resources.advance() {
            self.drop_implied(psn);
            return;
        }
        // Held packets are reported 128 at a time.
        let is_reported = self.pending_acknowledge != Some(PendingAcknowledge::Acknowledge)
            || self.reorder.as_mut().is_none_or(|reorder| reorder.on_report_sent());
        if is_reported {
            self.pending_acknowledge = None;
        }
        self.echo.on_acknowledged();
    }

    #[cold]
    fn is_boundary_next(&self) -> bool {
        self.resources.due().is_none_or(|due| self.boundary_before(&due).is_some())
    }
}

/// Returns a plan for an ACK or NAK without a report of held packets.
#[inline]
const fn plain(aeth: Aeth, psn: Psn, congestion: u8) -> PlannedResponse {
    PlannedResponse { operation: Operation::Acknowledge(aeth), psn, congestion, held: None, read: None }
}
