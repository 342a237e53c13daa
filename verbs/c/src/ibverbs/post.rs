//! Work requests, which programs post as linked lists.

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, at, injected, out, status};
use crate::ibverbs::address::Ah;
use crate::ibverbs::queue_pair::Qp;
use crate::ibverbs::window;
use std::ffi::{c_int, c_uint};
use verbs::fault::Verb;
use verbs::service::Any;
use verbs::xrc::SrqNumber;
use verbs::{
    Capabilities, Data, Lkey, Qpn, QueuePair, RecvRequest, Remote, Rkey, SendOperation, SendRequest, Service,
    Sge,
};

/// Returns the elements of a list. They need no alignment, because some programs have lists in packed structures (libiscsi's iSER).
///
/// # Errors
/// Returns `EINVAL`, before any element is read, if `count` is negative or more than `most`, or positive without a list.
///
/// # Safety
/// If `count` is at most `most`, the caller must keep `count` elements at `list` valid until the iterator is dropped.
pub(crate) unsafe fn buffers(
    list: *const ibv_sge,
    count: impl TryInto<u32>,
    most: u32,
) -> Result<impl Iterator<Item = ibv_sge> + Clone, Errno> {
    match count.try_into() {
        Ok(count) if count == 0 || (count <= most && !list.is_null()) => {
            // SAFETY: guaranteed by the caller; the read needs no alignment.
            Ok((0..count as usize).map(move |index| unsafe { list.add(index).read_unaligned() }))
        }
        _ => Err(INVALID),
    }
}

pub(crate) fn sge(from: ibv_sge) -> Sge {
    Sge { address: from.addr, length: from.length, lkey: Lkey::new(from.lkey) }
}

/// # Safety
/// The caller must ensure that each element is readable memory of the program.
pub(crate) unsafe fn inline(list: impl Iterator<Item = ibv_sge> + Clone, limit: u32) -> Result<Data, Errno> {
    let length: u64 = list.clone().map(|sge| u64::from(sge.length)).sum();
    if length > u64::from(limit) {
        return Err(INVALID);
    }
    let mut data = Data::inline(&[]);
    if let Data::Inline(bytes) = &mut data {
        for sge in list.filter(|sge| sge.length > 0) {
            let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: guaranteed by the caller; null is not memory of the program.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, sge.length as usize) });
        }
    }
    Ok(data)
}

/// # Safety
/// The caller must pass a request for a datagram queue pair, with a live address handle.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<SendOperation, Errno> {
    // SAFETY: any bytes are numbers; the queue pair's service determines which member the program has set.
    let (immediate, ud) = unsafe { (wr.__bindgen_anon_1.imm_data.to_ne_bytes(), wr.wr.ud) };
    let immediate = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(immediate),
        _ => return Err(INVALID),
    };
    // SAFETY: guaranteed by the caller.
    let address = &unsafe { at(ud.ah.cast::<Ah>()) }?.handle;
    Ok(SendOperation::SendTo {
        to: address.to(Qpn::new(ud.remote_qpn & 0xff_ffff), ud.remote_qkey),
        immediate,
    })
}

/// Returns the operation for a raw packet. Checksum offload is not supported; programs that query the device first do not request it.
fn frame(wr: &ibv_send_wr) -> Result<SendOperation, Errno> {
    match wr.opcode {
        IBV_WR_SEND if wr.send_flags & IBV_SEND_IP_CSUM as c_uint == 0 => {
            Ok(SendOperation::Send { immediate: None })
        }
        IBV_WR_SEND => {
            tracing::warn!("ibv_post_send: IBV_SEND_IP_CSUM: the device computes none; compute it before");
            Err(UNSUPPORTED)
        }
        IBV_WR_TSO => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

/// # Safety
/// The caller must pass a request that is valid by ibv_post_send(3).
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOperation, Errno> {
    // SAFETY: any bytes are numbers; the opcode determines which member the program has set.
    let (immediate, rdma, atomic, key) = unsafe {
        let extra = &wr.__bindgen_anon_1;
        (extra.imm_data.to_ne_bytes(), wr.wr.rdma, wr.wr.atomic, Rkey::new(extra.invalidate_rkey))
    };
    let remote = Remote { address: rdma.remote_addr, rkey: Rkey::new(rdma.rkey) };
    let word = Remote { address: atomic.remote_addr, rkey: Rkey::new(atomic.rkey) };
    match wr.opcode {
        IBV_WR_SEND => Ok(SendOperation::Send { immediate: None }),
        IBV_WR_SEND_WITH_IMM => Ok(SendOperation::Send { immediate: Some(immediate) }),
        IBV_WR_RDMA_WRITE => Ok(SendOperation::Write { remote, immediate: None }),
        IBV_WR_RDMA_WRITE_WITH_IMM => Ok(SendOperation::Write { remote, immediate: Some(immediate) }),
        IBV_WR_RDMA_READ => Ok(SendOperation::Read { remote }),
        IBV_WR_ATOMIC_WRITE => Ok(SendOperation::AtomicWrite { remote }),
        IBV_WR_ATOMIC_FETCH_AND_ADD => Ok(SendOperation::FetchAdd { remote: word, add: atomic.compare_add }),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            Ok(SendOperation::CompareSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap })
        }
        IBV_WR_SEND_WITH_INV => Ok(SendOperation::SendInvalidate { rkey: key }),
        IBV_WR_LOCAL_INV => Ok(SendOperation::LocalInvalidate { rkey: key }),
        IBV_WR_BIND_MW => {
            // SAFETY: guaranteed by the caller; the opcode determines which member the program has set.
            let binding = unsafe {
                let bind = &wr.__bindgen_anon_2.bind_mw;
                window::binding(bind.mw, bind.rkey, &bind.bind_info)
            };
            Ok(SendOperation::Bind(binding?))
        }
        IBV_WR_TSO => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

/// # Safety
/// The caller must pass a request that is valid by ibv_post_send(3).
unsafe fn send_request(
    wr: &ibv_send_wr,
    service: Service,
    limits: Capabilities,
) -> Result<SendRequest, Errno> {
    // SAFETY: guaranteed by the caller.
    let list = unsafe { buffers(wr.sg_list, wr.num_sge, limits.max_send_sge) }?;
    let flag = |flag: ibv_send_flags| wr.send_flags & flag as c_uint != 0;
    let data = if flag(IBV_SEND_INLINE) {
        // SAFETY: guaranteed by the caller.
        unsafe { inline(list, limits.max_inline) }?
    } else {
        Data::Buffers(list.map(sge).collect())
    };
    Ok(SendRequest {
        id: wr.wr_id,
        operation: match service {
            // SAFETY: guaranteed by the caller.
            Service::Rc | Service::Uc | Service::Xrc => unsafe { operation(wr) }?,
            // SAFETY: guaranteed by the caller.
            Service::Ud => unsafe { datagram(wr) }?,
            Service::Raw => frame(wr)?,
        },
        data,
        signalled: flag(IBV_SEND_SIGNALED),
        solicited: flag(IBV_SEND_SOLICITED),
        fence: flag(IBV_SEND_FENCE),
        // SAFETY: any bytes are a number; the program sets it for an initiator.
        srq: (service == Service::Xrc).then(|| SrqNumber::new(unsafe { wr.qp_type.xrc.remote_srqn })),
    })
}

/// `ibv_post_send(3)`
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = first;
    let result = status(|| {
        injected(Verb::PostSend)?;
        // SAFETY: the contract of the manual page.
        let mut inner = unsafe { Qp::from(qp) }?.lock();
        let (limits, service) = (inner.qp.capabilities(), inner.qp.service());
        let mut refused = None;
        // `next` points to the request that may be refused.
        let mut handed = None::<*mut ibv_send_wr>;
        let requests = std::iter::from_fn(|| {
            if let Some(taken) = handed {
                // SAFETY: a request of the program's list.
                next = unsafe { (*taken).next };
            }
            // SAFETY: the list ends with null.
            let wr = unsafe { next.as_ref() }?;
            handed = Some(next);
            // SAFETY: the contract of the manual page.
            unsafe { send_request(wr, service, limits) }.map_err(|errno| refused = Some(errno)).ok()
        });
        inner.qp.post_send_list(requests).map_err(|list| Errno::from(list.error))?;
        refused.map_or(Ok(()), Err)
    });
    if result != 0 {
        // SAFETY: null, or room for a pointer.
        if let Ok(bad) = unsafe { out(bad) } {
            *bad = next;
        }
    }
    result
}

/// # Safety
/// The caller must pass a request that is valid by ibv_post_recv(3).
pub(crate) unsafe fn recv_request(wr: &ibv_recv_wr, max_sge: u32) -> Result<RecvRequest, Errno> {
    // SAFETY: guaranteed by the caller.
    let list = unsafe { buffers(wr.sg_list, wr.num_sge, max_sge) }?;
    Ok(RecvRequest { id: wr.wr_id, buffers: list.map(sge).collect() })
}

/// `ibv_post_recv(3)`
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let lock = || {
        injected(Verb::PostRecv)?;
        // SAFETY: the contract of the manual page.
        Ok(unsafe { Qp::from(qp) }?.lock())
    };
    // SAFETY: as above.
    unsafe { post_recvs(first, bad, lock, |inner| &mut inner.qp) }
}

/// Posts a program's list of receives to `queue` of the object that `lock` returns.
///
/// # Safety
/// The caller must pass a list that is valid by ibv_post_recv(3).
pub(crate) unsafe fn post_recvs<G>(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    lock: impl FnOnce() -> Result<G, Errno>,
    queue: impl FnOnce(&mut G) -> &mut QueuePair<Any>,
) -> c_int {
    let mut next = first;
    let result = status(|| {
        let mut locked = lock()?;
        let queue = queue(&mut locked);
        let max_sge = queue.capabilities().max_recv_sge;
        let mut refused = None;
        let mut handed = None::<*mut ibv_recv_wr>;
        let requests = std::iter::from_fn(|| {
            if let Some(taken) = handed {
                // SAFETY: a request of the program's list.
                next = unsafe { (*taken).next };
            }
            // SAFETY: the list ends with null.
            let wr = unsafe { next.as_ref() }?;
            handed = Some(next);
            // SAFETY: guaranteed by the caller.
            unsafe { recv_request(wr, max_sge) }.map_err(|errno| refused = Some(errno)).ok()
        });
        queue.post_recv_list(requests).map_err(|list| Errno::from(list.error))?;
        refused.map_or(Ok(()), Err)
    });
    if result != 0 {
        // SAFETY: null, or room for a pointer.
        if let Ok(bad) = unsafe { out(bad) } {
            *bad = next;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_in_a_packed_structure_is_read() {
        #[repr(C, packed)]
        struct Packed(u8, [ibv_sge; 2]);
        let part = |addr| ibv_sge { addr, length: 3, lkey: 5 };
        let packed = Packed(0, [part(0x1000), part(0x2000)]);
        // SAFETY: the list has two elements and outlives the iterator.
        let list = unsafe { buffers((&raw const packed.1).cast(), 2, 2) }.ok().unwrap();
        assert_eq!(list.map(|part| part.addr).collect::<Vec<_>>(), [0x1000, 0x2000]);
    }
}
