//! The checks of a request packet, in order (IBA 9.7.4.1).

use super::arrival::Rights;
use super::message::Message;
use super::refusal::Refusal;
use crate::qp::wqe::MAX_MESSAGE;
use crate::qp::{CompletionStatus, Identity, RecvRequest, buffers};
use crate::wire::{Feth, NakCode, Operation, Reth};
use crate::{Access, Discard, RegionTable, Rkey, Slice};

/// Checks that the first, middle and last packets of a message are in order, with no other between them (IBA 9.7.4.1.2). `message` is the
/// one in progress.
#[inline(always)]
pub(super) fn check_sequence(operation: Operation, message: Option<&Message>) -> Result<(), Refusal> {
    let fits = match operation {
        Operation::SendMiddle | Operation::SendLast(_) => matches!(message, Some(Message::Send { .. })),
        Operation::WriteMiddle | Operation::WriteLast(_) => matches!(message, Some(Message::Write { .. })),
        _ => message.is_none(),
    };
    if fits { Ok(()) } else { Err(Refusal::invalid(Discard::Sequence)) }
}

/// Checks that the payload fits the opcode: full unless it is the last, at least a byte in the last of several packets, none in requests
/// without data (IBA 9.7.4.1.6). Checks that the queue pair allows the operation; if not, the request is invalid rather than an access
/// error, as in Linux.
#[inline(always)]
pub(super) fn check_payload_right(operation: Operation, length: u32, rights: Rights) -> Result<(), Refusal> {
    check_payload(operation, length, rights.mtu)?;
    check_right(operation, rights.access)
}

#[inline(always)]
fn check_payload(operation: Operation, length: u32, mtu: u32) -> Result<(), Refusal> {
    if length > mtu {
        return Err(Refusal::invalid(Discard::Oversized));
    }
    let fits = match operation {
        Operation::SendFirst | Operation::SendMiddle | Operation::WriteFirst(_) | Operation::WriteMiddle => {
            length == mtu
        }
        Operation::SendLast(_) | Operation::WriteLast(_) => length > 0,
        Operation::SendOnly(_) | Operation::WriteOnly(..) => true,
        Operation::AtomicWrite(reth) => length == 8 && reth.length == 8,
        Operation::Flush(feth, _) if !feth.is_legal() => return Err(Refusal::invalid(Discard::FlushKind)),
        _ => length == 0,
    };
    if fits { Ok(()) } else { Err(Refusal::invalid(Discard::Length)) }
}

#[inline(always)]
fn check_right(operation: Operation, access: Access) -> Result<(), Refusal> {
    let needs = match operation {
        Operation::WriteFirst(_) | Operation::WriteOnly(..) | Operation::AtomicWrite(_) => {
            Access::REMOTE_WRITE
        }
        // Memory of this host does not persist after a power failure.
        Operation::Flush(feth, _) if feth.is_persistent() => {
            return Err(Refusal::invalid(Discard::RemoteAccess));
        }
        Operation::Flush(..) => Access::REMOTE_FLUSH,
        Operation::ReadRequest(_) => Access::REMOTE_READ,
        Operation::CompareSwap(_) | Operation::FetchAdd(_) => Access::REMOTE_ATOMIC,
        _ => Access::LOCAL_READ,
    };
    if access.contains(needs) { Ok(()) } else { Err(Refusal::invalid(Discard::RemoteAccess)) }
}

/// Checks that an RDMA range is in its region, which allows the access. An empty range needs no region (IBA 9.7.4.1.4). Returns the range.
#[inline(always)]
pub(super) fn check_range(
    reth: Reth,
    access: Access,
    regions: &RegionTable,
    identity: &Identity,
) -> Result<Option<Slice>, Refusal> {
    if reth.length > MAX_MESSAGE {
        return Err(Refusal::invalid(Discard::Length));
    }
    if reth.length == 0 {
        return Ok(None);
    }
    regions
        .remote(reth.rkey, identity.pd, identity.qpn, reth.address, reth.length, access)
        .map(Some)
        .map_err(|error| Refusal::access(error.discard()))
}

/// Checks that a WRITE has exactly the bytes that its RETH announced (IBA 9.7.4.1.6).
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "the sum of two 32-bit numbers fits into 64 bits")]
pub(super) fn check_write_length(reth: Reth, received: u32, length: u32, ends: bool) -> Result<(), Refusal> {
    let total = u64::from(received) + u64::from(length);
    let announced = u64::from(reth.length);
    let fits = if ends { total == announced } else { total < announced };
    if fits { Ok(()) } else { Err(Refusal::invalid(Discard::Length)) }
}

/// Checks that a SEND fits its receive buffers, and does not exceed the longest message (IBA 9.7.4.1.6).
#[expect(clippy::arithmetic_side_effects, reason = "a message has at most 2^31 bytes, a packet at most 4096")]
pub(super) fn check_room(request: &RecvRequest, received: u32, length: u32) -> Result<(), Refusal> {
    if received + length <= buffers::room(&request.buffers) {
        return Ok(());
    }
    Err(Refusal::Fatal {
        code: NakCode::InvalidRequest,
        discard: Discard::LocalProtection,
        receive: CompletionStatus::LocalLength,
    })
}

/// Checks a range to flush. Its R_Key must be valid even if the range is empty (IBA annex A19).
pub(super) fn check_flush(
    feth: Feth,
    reth: Reth,
    regions: &RegionTable,
    identity: &Identity,
) -> Result<(), Refusal> {
    let (Identity { pd, qpn, .. }, access) = (*identity, Access::REMOTE_FLUSH);
    let checked = match feth.is_of_whole_region() {
        true => regions.remote_whole(reth.rkey, pd, qpn, access),
        false => regions.remote(reth.rkey, pd, qpn, reth.address, reth.length, access).map(drop),
    };
    checked.map_err(|error| Refusal::access(error.discard()))
}

/// Checks the target of an atomic: 8 bytes, aligned to 8 (IBA 9.4.5, annex A19).
pub(super) fn check_atomic(
    address: u64,
    rkey: Rkey,
    access: Access,
    regions: &RegionTable,
    identity: &Identity,
) -> Result<Slice, Refusal> {
    if !address.is_multiple_of(8) {
        return Err(Refusal::invalid(Discard::Misaligned));
    }
    let at = regions
        .remote(rkey, identity.pd, identity.qpn, address, 8, access)
        .map_err(|error| Refusal::access(error.discard()))?;
    // A zero-based window may begin anywhere.
    if at.address().is_multiple_of(8) { Ok(at) } else { Err(Refusal::invalid(Discard::Misaligned)) }
}
