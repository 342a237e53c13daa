//! Opcode and extended headers of the packets of a send request.

use super::wqe::{Position, Wqe};
use super::{Remote, SendOperation};
use crate::wire::{AtomicEth, CompareSwap, FetchAdd, Operation, Reth, SendTail};

/// Returns the operation of the packet at `position`; `None` for local requests. A READ requests the bytes from `offset` to `end`: fewer
/// than all after a loss.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "`end` is not before `offset`")]
pub(super) fn operation(wqe: &Wqe, position: Position, offset: u32, end: u32) -> Option<Operation> {
    Some(match wqe.request.operation {
        SendOperation::Send { immediate } | SendOperation::SendTo { immediate, .. } => {
            send(position, immediate.map_or(SendTail::Plain, SendTail::Immediate))
        }
        SendOperation::SendInvalidate { rkey } => send(position, SendTail::Invalidate(rkey)),
        SendOperation::AtomicWrite { remote: Remote { address, rkey } } => {
            Operation::AtomicWrite(Reth { address, rkey, length: wqe.length })
        }
        SendOperation::Flush { remote: Remote { address, rkey }, length, to } => {
            Operation::Flush(to, Reth { address, rkey, length })
        }
        SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => return None,
        SendOperation::Write { remote, immediate } => {
            let reth = Reth { address: remote.address, rkey: remote.rkey, length: wqe.length };
            match position {
                Position::First => Operation::WriteFirst(reth),
                Position::Middle => Operation::WriteMiddle,
                Position::Last => Operation::WriteLast(immediate),
                Position::Only => Operation::WriteOnly(reth, immediate),
            }
        }
        SendOperation::Read { remote } => Operation::ReadRequest(Reth {
            address: remote.address.wrapping_add(u64::from(offset)),
            rkey: remote.rkey,
            length: end - offset,
        }),
        SendOperation::FetchAdd { remote, add } => Operation::FetchAdd(AtomicEth {
            address: remote.address,
            rkey: remote.rkey,
            operands: FetchAdd { add },
        }),
        SendOperation::CompareSwap { remote, compare, swap } => Operation::CompareSwap(AtomicEth {
            address: remote.address,
            rkey: remote.rkey,
            operands: CompareSwap { compare, swap },
        }),
    })
}

const fn send(position: Position, tail: SendTail) -> Operation {
    match position {
        Position::First => Operation::SendFirst,
        Position::Middle => Operation::SendMiddle,
        Position::Last => Operation::SendLast(tail),
        Position::Only => Operation::SendOnly(tail),
    }
}
