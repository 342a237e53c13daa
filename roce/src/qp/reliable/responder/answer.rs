//! The next answer that leaves, in PSN order (IBA 9.7.5.1).

use super::execute::rest;
use super::resources::Kind;
use super::{Answer, NO_CREDITS, Responder};
use crate::qp::wqe::Position;
use crate::wire::{Operation, Reth, Syndrome};
use crate::{PdId, Psn};

/// The next packet that answers the peer, not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp) struct Answered {
    pub(in crate::qp) operation: Operation,
    pub(in crate::qp) psn: Psn,
    /// The BTH's congestion byte.
    pub(in crate::qp) congestion: u8,
    /// The packets that arrived early and are held (selective repeat). `psn` is then the missing one, and `operation` is not sent.
    pub(in crate::qp) held: Option<(u8, u128)>,
    /// Which bytes of registered memory a READ response carries; each packet checks the region anew, as it may be
    /// gone since the request came.
    pub(in crate::qp) read: Option<(PdId, Reth)>,
}

impl Responder {
    /// Returns true if an answer waits.
    #[inline]
    pub(in crate::qp) fn has_answer(&self) -> bool {
        self.answer.is_some() || self.echo.due().is_some() || self.resources.has_due()
    }

    /// The next answer. READ responses and atomics come first and in order: an acknowledgement that overtook one would mean to the peer
    /// that it was lost.
    #[expect(clippy::arithmetic_side_effects, reason = "a round goes from `from` by way of `next` to `end`")]
    pub(in crate::qp) fn plan(&self, mtu: u32) -> Option<Answered> {
        let ack = Syndrome::Ack { credits: NO_CREDITS };
        let Some(due) = self.resources.due() else {
            if let Some(boundary) = self.echo.due() {
                let operation = Operation::Acknowledge(self.aeth(ack));
                let congestion = boundary.bits();
                return Some(Answered { operation, psn: boundary.up_to, congestion, held: None, read: None });
            }
            return self.answer.map(|answer| match answer {
                Answer::Acknowledge => {
                    let held = self.reorder.as_ref().and_then(|reorder| reorder.report());
                    Answered {
                        operation: Operation::Acknowledge(self.aeth(ack)),
                        psn: if held.is_some() { self.expected } else { self.expected.plus(Psn::CIRCLE - 1) },
                        congestion: self.echo.bits(),
                        held,
                        read: None,
                    }
                }
                Answer::Refuse(psn, syndrome) => Answered {
                    operation: Operation::Acknowledge(self.aeth(syndrome)),
                    psn,
                    congestion: self.echo.bits(),
                    held: None,
                    read: None,
                },
            });
        };
        let aeth = crate::wire::Aeth { syndrome: ack, msn: due.msn };
        let psn = due.first.plus(due.next);
        Some(match due.kind {
            Kind::Atomic(original) => Answered {
                operation: Operation::AtomicAcknowledge { aeth, original },
                psn,
                congestion: 0,
                held: None,
                read: None,
            },
            // As to a READ of nothing (IBA annex A19).
            Kind::Done => Answered {
                operation: Operation::ReadResponseOnly(aeth),
                psn,
                congestion: 0,
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
                Answered {
                    operation,
                    psn,
                    congestion: 0,
                    held: None,
                    read: Some((pd, Reth { length: left.length.min(mtu), ..left })),
                }
            }
        })
    }

    /// The answer of [`Self::plan`] was sent.
    pub(in crate::qp) fn commit(&mut self) {
        if self.resources.advance() {
            return;
        }
        if self.echo.due().is_some() {
            self.echo.on_boundary_sent();
        } else {
            // Held packets are reported 128 at a time.
            let is_told = self.answer != Some(Answer::Acknowledge)
                || self.reorder.as_mut().is_none_or(|reorder| reorder.reported());
            if is_told {
                self.answer = None;
            }
            self.echo.on_acknowledged();
        }
    }
}
