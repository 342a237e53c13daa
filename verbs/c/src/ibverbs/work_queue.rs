//! Receive work queues, and queue pairs that distribute frames over them by a hash of the headers (RSS).
//!
//! A work queue is a raw packet queue pair that is hidden from the program.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, at, created, out, status};
use crate::ibverbs::completion::Cq;
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use crate::ibverbs::post::post_recvs;
use crate::ibverbs::queue_pair::{self, Qp, discard_completions, ibv_destroy_qp, users};
use crate::memory_reserve;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::raw::{HASH_KEY, HashFields, MAX_ENTRIES, Rss};
use verbs::service::Any;
use verbs::state::Modify;
use verbs::{Capabilities, Qpn, QueuePair, Service};

/// The attributes of a queue pair that distributes frames.
pub(crate) const SPREAD: c_uint = IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
/// The fields that a hash may cover: all except those of IPsec and of inner headers.
const FIELDS: u64 = IBV_RX_HASH_IPSEC_SPI as u64 - 1;

/// A work queue. The program's pointer is the address of `abi`.
#[repr(C)]
pub(crate) struct Wq {
    abi: UnsafeCell<ibv_wq>,
    qp: Lock<QueuePair<Any>>,
    /// The length of the longest frame, bytes.
    longest: u32,
    /// Number of entries of indirection tables that refer to the work queue.
    users: AtomicUsize,
}

/// An indirection table. The program's pointer is the address of `abi`.
#[repr(C)]
pub(crate) struct Table {
    abi: ibv_rwq_ind_table,
    queues: Vec<*mut Wq>,
    /// Number of queue pairs that use the table.
    pub(crate) users: AtomicUsize,
}

impl Wq {
    fn base(&self) -> ibv_wq {
        // SAFETY: only `state` changes after the creation, and it is one word.
        unsafe { *self.abi.get() }
    }
}

pub(crate) fn capabilities(whole: &mut ibv_device_attr_ex) {
    whole.max_wq_type_rq = whole.orig_attr.max_qp as u32;
    whole.rss_caps = ibv_rss_caps {
        supported_qpts: 1 << IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: whole.orig_attr.max_qp as u32,
        max_rwq_indirection_table_size: MAX_ENTRIES as u32,
        rx_hash_fields_mask: FIELDS,
        rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
    };
}

/// `ibv_create_wq(3)`
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    created(|| {
        // SAFETY: the contract of the manual page.
        let (opened, init) = unsafe { (Context::from(context)?, out(init)?) };
        let has_flags = init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0;
        if init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 || has_flags {
            return Err(UNSUPPORTED);
        }
        if init.wq_type != IBV_WQT_RQ {
            return Err(INVALID);
        }
        let longest = opened.device.opened().longest_frame.ok_or(UNSUPPORTED)?;
        // SAFETY: the contract of the manual page.
        let (domain, cq) =
            unsafe { (live_objects::find(init.pd.cast::<Pd>())?, live_objects::find(init.cq.cast::<Cq>())?) };
        let (max_recv, max_recv_sge) = (init.max_wr, init.max_sge);
        memory_reserve::check_requests(max_recv, max_recv_sge)?;
        let limits = Capabilities { max_send: 1, max_recv, max_recv_sge, ..Default::default() };
        let builder = {
            let queue = cq.queue.lock();
            domain.domain.queue_pair(&queue, &queue)
        };
        let qp = builder.service(Service::Raw).capabilities(limits).build_reset()?;
        let abi = ibv_wq {
            context,
            wq_context: init.wq_context,
            pd: init.pd,
            cq: init.cq,
            wq_num: qp.qpn().get(),
            state: IBV_WQS_RESET,
            wq_type: init.wq_type,
            post_recv: Some(post_recv),
            ..Default::default()
        };
        for users in [&domain.users, &cq.users] {
            users.fetch_add(1, Ordering::AcqRel);
        }
        let (abi, qp) = (UnsafeCell::new(abi), Lock::new(Rank::QueuePair, qp));
        Ok(live_objects::publish(Wq { abi, qp, longest, users: AtomicUsize::new(0) }).cast())
    })
}

/// `ibv_post_wq_recv(3)`
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the contract of the manual page.
    unsafe { post_recvs(first, bad, || Ok(at(wq.cast::<Wq>())?.qp.lock()), |qp| &mut **qp) }
}

/// `ibv_modify_wq(3)`
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, wanted: *mut ibv_wq_attr) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (wq, wanted) = unsafe { (live_objects::find(wq.cast::<Wq>())?, &*out(wanted)?) };
        let mask = wanted.attr_mask;
        if mask == 0 || mask >= IBV_WQ_ATTR_RESERVED {
            return Err(INVALID);
        }
        if mask & IBV_WQ_ATTR_FLAGS != 0 {
            return Err(UNSUPPORTED);
        }
        let mut qp = wq.qp.lock();
        let base = wq.base();
        if mask & IBV_WQ_ATTR_CURR_STATE != 0 && wanted.curr_wq_state != base.state {
            return Err(INVALID);
        }
        if mask & IBV_WQ_ATTR_STATE == 0 {
            return Ok(());
        }
        match (base.state, wanted.wq_state) {
            (_, IBV_WQS_RESET) => {
                qp.modify(Modify::Reset)?;
                // SAFETY: the completion queue lives as long as its work queues.
                unsafe { discard_completions([base.cq, null_mut()], qp.qpn()) }?;
            }
            (IBV_WQS_RESET, IBV_WQS_RDY) => {
                qp.modify(Modify::InitRaw)?;
                qp.modify(Modify::ReadyToReceiveRaw { longest: wq.longest })?;
            }
            (IBV_WQS_RDY, IBV_WQS_RDY) => {}
            (_, IBV_WQS_ERR) => qp.modify(Modify::Error)?,
            _ => return Err(INVALID),
        }
        // SAFETY: the lock is held. A program that reads the field at the same time reads one word.
        unsafe { (&raw mut (*wq.abi.get()).state).write(wanted.wq_state) };
        Ok(())
    })
}

/// `ibv_destroy_wq(3)`
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find_last(wq.cast::<Wq>()) }?;
        if whole.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        let base = whole.base();
        let qpn = whole.qp.lock().qpn();
        // SAFETY: the program must not use the work queue after this call.
        drop(unsafe { live_objects::reclaim(wq.cast::<Wq>()) }?);
        // SAFETY: the completion queue lives as long as its work queues.
        unsafe { discard_completions([base.cq, null_mut()], qpn) }?;
        // SAFETY: both live as long as their work queues.
        for users in unsafe { [&live_objects::find(base.pd.cast::<Pd>())?.users, users(base.cq)?] } {
            users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// `ibv_create_rwq_ind_table(3)`
pub(crate) unsafe extern "C" fn create_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    created(|| {
        // SAFETY: the contract of the manual page.
        let (_, init) = unsafe { (Context::from(context)?, out(init)?) };
        if init.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        let entries = 1_usize.checked_shl(init.log_ind_tbl_size).filter(|&entries| entries <= MAX_ENTRIES);
        let Some(entries) = entries.filter(|_| !init.ind_tbl.is_null()) else { return Err(INVALID) };
        // SAFETY: the contract of the manual page: the list has `entries` entries.
        let queues: Vec<_> = (0..entries).map(|at| unsafe { *init.ind_tbl.add(at) }.cast::<Wq>()).collect();
        for &queue in &queues {
            // SAFETY: the contract of the manual page.
            unsafe { live_objects::find(queue) }?;
        }
        for &queue in &queues {
            // SAFETY: as above.
            unsafe { live_objects::find(queue) }?.users.fetch_add(1, Ordering::AcqRel);
        }
        let abi = ibv_rwq_ind_table { context, ..Default::default() };
        Ok(live_objects::publish(Table { abi, queues, users: AtomicUsize::new(0) }).cast())
    })
}

/// `ibv_destroy_rwq_ind_table(3)`
pub(crate) unsafe extern "C" fn destroy_table(table: *mut ibv_rwq_ind_table) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(table.cast::<Table>()) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: the program must not use the table after this call.
        let table = unsafe { live_objects::reclaim(table.cast::<Table>()) }?;
        for &queue in &table.queues {
            // SAFETY: work queues live as long as the tables that refer to them.
            unsafe { live_objects::find(queue) }?.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// Returns the hash that a program chose, over the queues of a table.
///
/// # Safety
/// The caller must pass a key of the length in `wanted`.
unsafe fn spread(wanted: &ibv_rx_hash_conf, table: Vec<Qpn>) -> Result<Rss, Errno> {
    let has = |field: ibv_rx_hash_fields| wanted.rx_hash_fields_mask & field as u64 != 0;
    let any = |fields: &[ibv_rx_hash_fields]| fields.iter().any(|field| has(*field));
    if wanted.rx_hash_fields_mask & !FIELDS != 0 {
        tracing::warn!(
            "ibv_create_qp_ex: a hash over IPsec or inner headers: not supported; use outer IP and ports"
        );
        return Err(UNSUPPORTED);
    }
    let families = any(&[IBV_RX_HASH_SRC_IPV4, IBV_RX_HASH_DST_IPV4])
        && any(&[IBV_RX_HASH_SRC_IPV6, IBV_RX_HASH_DST_IPV6]);
    let protocols = any(&[IBV_RX_HASH_SRC_PORT_TCP, IBV_RX_HASH_DST_PORT_TCP])
        && any(&[IBV_RX_HASH_SRC_PORT_UDP, IBV_RX_HASH_DST_PORT_UDP]);
    let is_toeplitz = c_uint::from(wanted.rx_hash_function) == IBV_RX_HASH_FUNC_TOEPLITZ;
    if families || protocols || !is_toeplitz || usize::from(wanted.rx_hash_key_len) != HASH_KEY {
        return Err(INVALID);
    }
    // SAFETY: guaranteed by the caller; any bytes are a valid key.
    let key = *unsafe { at(wanted.rx_hash_key.cast::<[u8; HASH_KEY]>()) }?;
    let fields = HashFields {
        ipv4_source: has(IBV_RX_HASH_SRC_IPV4),
        ipv4_destination: has(IBV_RX_HASH_DST_IPV4),
        ipv6_source: has(IBV_RX_HASH_SRC_IPV6),
        ipv6_destination: has(IBV_RX_HASH_DST_IPV6),
        tcp_source: has(IBV_RX_HASH_SRC_PORT_TCP),
        tcp_destination: has(IBV_RX_HASH_DST_PORT_TCP),
        udp_source: has(IBV_RX_HASH_SRC_PORT_UDP),
        udp_destination: has(IBV_RX_HASH_DST_PORT_UDP),
    };
    Ok(Rss { key, fields, table })
}

/// Creates a queue pair that receives into the queues of a table. Its own queues are unused.
///
/// # Safety
/// The caller must fulfil the contract of ibv_create_qp_ex(3).
pub(crate) unsafe fn create_spread(wanted: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    if wanted.comp_mask & SPREAD != SPREAD || wanted.qp_type != IBV_QPT_RAW_PACKET {
        return Err(INVALID);
    }
    let pointer = wanted.rwq_ind_tbl.cast::<Table>();
    // SAFETY: guaranteed by the caller.
    let table = unsafe { live_objects::find(pointer) }?;
    // SAFETY: work queues live as long as the tables that refer to them.
    let queues = table
        .queues
        .iter()
        .map(|&queue| unsafe { live_objects::find(queue) })
        .collect::<Result<Vec<_>, _>>()?;
    let numbers = queues.iter().map(|queue| Qpn::new(queue.base().wq_num)).collect();
    // SAFETY: guaranteed by the caller.
    let spread = unsafe { spread(&wanted.rx_hash_conf, numbers) }?;
    let cq = queues.first().ok_or(INVALID)?.base().cq;
    let (qp_context, qp_type) = (wanted.qp_context, wanted.qp_type);
    let mut init = ibv_qp_init_attr { qp_context, send_cq: cq, recv_cq: cq, qp_type, ..Default::default() };
    // SAFETY: guaranteed by the caller; the completion queue lives as long as its work queues.
    let qp = unsafe { queue_pair::create(wanted.pd, &mut init, false) }?;
    // SAFETY: the queue pair was created above.
    let whole = unsafe { Qp::find(qp) }?;
    let outcome = whole.lock().qp.spread(spread);
    if let Err(error) = outcome {
        // SAFETY: as above, and the program does not have it yet.
        unsafe { ibv_destroy_qp(qp) };
        return Err(error.into());
    }
    table.users.fetch_add(1, Ordering::AcqRel);
    whole.table.store(pointer, Ordering::Release);
    Ok(qp)
}
