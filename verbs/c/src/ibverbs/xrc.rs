//! XRC domains, the objects created in them, and targets that `ibv_open_qp` opens again.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, at, created, injected, out, status};
use crate::ibverbs::completion::Cq;
use crate::ibverbs::context::Context;
use crate::ibverbs::device::Configured;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Guard, Lock, Rank};
use crate::ibverbs::queue_pair::{self, Inner};
use crate::ibverbs::srq::{self, Srq};
use crate::memory_reserve;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use verbs::fault::Verb;
use verbs::xrc::XrcDomain;

/// An XRC domain, as returned by one call of `ibv_open_xrcd`.
#[repr(C)]
pub(crate) struct Xrcd {
    abi: ibv_xrcd,
    domain: XrcDomain,
    /// The file that identifies the domain.
    file: Option<File>,
    /// Number of targets and queues in the domain, which prevent its closing.
    pub(crate) users: AtomicUsize,
}

/// A file, identified by its device and inode instead of its name. It identifies one domain on each RDMA device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct File {
    of: *const Configured,
    device: u64,
    inode: u64,
}

// SAFETY: the pointer is only compared.
unsafe impl Send for File {}

/// State that the contexts of this process share: domains by file, and targets by QPN.
struct Shared {
    domains: Vec<(File, XrcDomain, usize)>,
    targets: Vec<(XrcDomain, u32, Weak<Lock<Inner>>)>,
}

static SHARED: Lock<Shared> = Lock::new(Rank::Xrc, Shared { domains: Vec::new(), targets: Vec::new() });

fn shared() -> Guard<'static, Shared> {
    SHARED.lock()
}

fn file_of(context: &Context, descriptor: c_int) -> Result<File, Errno> {
    // SAFETY: all-zero bytes are a valid value of this structure, which the kernel fills.
    let mut found: libc::stat = unsafe { zeroed() };
    // SAFETY: `found` has room for the structure.
    if unsafe { libc::fstat(descriptor, &mut found) } != 0 {
        return Err(Errno(libc::EBADF));
    }
    Ok(File { of: context.configured, device: found.st_dev, inode: found.st_ino })
}

/// `ibv_open_xrcd(3)`: contexts that pass the same file open the same domain. A descriptor of -1 opens a new domain.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    wanted: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    created(|| {
        // SAFETY: the contract of the manual page.
        let (owner, wanted) = unsafe { (Context::from(context)?, at(wanted)?) };
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if wanted.comp_mask & needed != needed {
            return Err(INVALID);
        }
        if wanted.comp_mask & !needed != 0 {
            return Err(UNSUPPORTED);
        }
        let file = (wanted.fd != -1).then(|| file_of(owner, wanted.fd)).transpose()?;
        let mut shared = shared();
        let known = shared.domains.iter_mut().find(|(by, ..)| Some(*by) == file);
        let domain = match (known, file) {
            (Some(_), _) if wanted.oflags & libc::O_EXCL != 0 => return Err(INVALID),
            (Some((_, domain, opened)), _) => {
                *opened += 1;
                domain.clone()
            }
            (None, Some(_)) if wanted.oflags & libc::O_CREAT == 0 => return Err(Errno(libc::EAGAIN)),
            (None, Some(file)) => {
                let domain = owner.device.xrc_domain()?;
                shared.domains.push((file, domain.clone(), 1));
                domain
            }
            (None, None) => owner.device.xrc_domain()?,
        };
        let abi = ibv_xrcd { context };
        Ok(live_objects::publish(Xrcd { abi, domain, file, users: AtomicUsize::new(0) }).cast())
    })
}

/// `ibv_close_xrcd(3)`
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        let xrcd = xrcd.cast::<Xrcd>();
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(xrcd) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: no object in the domain is left, and the program must not use it after this call.
        let file = unsafe { live_objects::reclaim(xrcd) }?.file;
        let mut shared = shared();
        shared.domains.retain_mut(|(by, _, opened)| {
            *opened -= usize::from(Some(*by) == file);
            *opened > 0
        });
        Ok(())
    })
}

/// Removes the receive queue: an initiator receives no messages with any attributes.
pub(crate) fn receive_nothing(init: &mut ibv_qp_init_attr) {
    (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    (init.recv_cq, init.srq) = (init.send_cq, null_mut());
}

/// Creates a target.
///
/// # Safety
/// The caller must pass a domain that is null or alive.
pub(crate) unsafe fn create_target(
    xrcd: *mut ibv_xrcd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: guaranteed by the caller.
    let whole = unsafe { live_objects::find(xrcd.cast::<Xrcd>()) }?;
    let qp = whole.domain.target().build_reset()?;
    (init.cap, init.send_cq, init.recv_cq, init.srq) = Default::default();
    let qpn = qp.qpn().get();
    let inner = Inner::new(qp, init);
    let mut shared = shared();
    shared.targets.retain(|(_, _, inner)| inner.strong_count() > 0);
    shared.targets.push((whole.domain.clone(), qpn, Arc::downgrade(&inner)));
    drop(shared);
    Ok(publish(whole, xrcd.cast(), (qpn, init.qp_context), inner))
}

fn publish(
    whole: &Xrcd,
    xrcd: *mut Xrcd,
    (qp_num, qp_context): (u32, *mut std::ffi::c_void),
    inner: Arc<Lock<Inner>>,
) -> *mut ibv_qp {
    whole.users.fetch_add(1, Ordering::AcqRel);
    let state = {
        let inner = inner.lock();
        inner.qp.query().map_or(IBV_QPS_RESET, |report| queue_pair::state_code(report.state))
    };
    let base = ibv_qp {
        context: whole.abi.context,
        qp_context,
        qp_num,
        state,
        qp_type: IBV_QPT_XRC_RECV,
        ..Default::default()
    };
    // SAFETY: the context is that of the XRC domain, which is open.
    unsafe { queue_pair::publish(base, inner, false, xrcd) }
}

/// `ibv_open_qp(3)`: opens a target that this process created in the domain. The target is destroyed with the last queue pair that refers
/// to it.
pub(crate) unsafe extern "C" fn open_qp(
    _context: *mut ibv_context,
    wanted: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    created(|| {
        // SAFETY: the contract of the manual page.
        let wanted = unsafe { at(wanted) }?;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if wanted.comp_mask & needed != needed || wanted.qp_type != IBV_QPT_XRC_RECV {
            return Err(INVALID);
        }
        let xrcd = wanted.xrcd.cast::<Xrcd>();
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find(xrcd) }?;
        let inner = shared().targets.iter().find_map(|(domain, qpn, inner)| {
            (domain.is_same(&whole.domain) && *qpn == wanted.qp_num).then(|| inner.upgrade())?
        });
        let context =
            if wanted.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 { wanted.qp_context } else { null_mut() };
        Ok(publish(whole, xrcd, (wanted.qp_num, context), inner.ok_or(INVALID)?))
    })
}

/// `ibv_create_srq_ex(3)`
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    wanted: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    created(|| {
        injected(Verb::CreateSrq)?;
        // SAFETY: the contract of the manual page.
        let wanted = unsafe { out(wanted) }?;
        let has = |part| wanted.comp_mask & part != 0;
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { wanted.srq_type } else { IBV_SRQT_BASIC };
        let known =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        if wanted.comp_mask & !known != 0 || kind > IBV_SRQT_XRC {
            return Err(UNSUPPORTED);
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        let domain = unsafe { live_objects::find(wanted.pd.cast::<Pd>()) }?;
        let attributes = wanted.attr;
        memory_reserve::check_requests(attributes.max_wr, attributes.max_sge)?;
        let (queue, xrc) = if kind == IBV_SRQT_XRC {
            if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) {
                return Err(INVALID);
            }
            let (xrcd, cq) = (wanted.xrcd.cast::<Xrcd>(), wanted.cq.cast::<Cq>());
            // SAFETY: the contract of the manual page.
            let (whole, completions) = unsafe { (live_objects::find(xrcd)?, live_objects::find(cq)?) };
            let (depth, max_sge) = (attributes.max_wr, attributes.max_sge);
            let queue = {
                let completions = completions.queue.lock();
                domain.domain.xrc_receive_queue(&whole.domain, &completions, depth, max_sge)?
            };
            whole.users.fetch_add(1, Ordering::AcqRel);
            completions.users.fetch_add(1, Ordering::AcqRel);
            (queue, Some((xrcd, cq)))
        } else {
            (domain.domain.shared_receive_queue(attributes.max_wr, attributes.max_sge)?, None)
        };
        // SAFETY: the domain is alive.
        unsafe { srq::publish(wanted.pd, wanted.srq_context, attributes, queue, xrc) }
    })
}

/// `ibv_get_srq_num(3)`
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, into: *mut u32) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (srq, into) = unsafe { (live_objects::find(srq.cast::<Srq>())?, out(into)?) };
        if srq.xrc.is_none() {
            return Err(INVALID);
        }
        *into = srq.queue.lock().number().get();
        Ok(())
    })
}

/// Releases the objects that a shared receive queue of an XRC domain uses.
///
/// # Safety
/// The caller must ensure that both are alive.
pub(crate) unsafe fn release((xrcd, cq): (*mut Xrcd, *mut Cq)) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        live_objects::find(xrcd)?.users.fetch_sub(1, Ordering::AcqRel);
        live_objects::find(cq)?.users.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}
