//! Connections: requests, replies, rejections and disconnections, and the transitions of their queue pairs.

use crate::abi::*;
#[cfg(not(test))]
use crate::ibverbs::ibv_modify_qp;
use crate::rdmacm::address;
use crate::rdmacm::datagram::{self, QKEY};
use crate::rdmacm::device::{MAX_RD_ATOMIC, check_mtu};
use crate::rdmacm::errno::{Errno, INVALID, injected, status, verb};
use crate::rdmacm::events::QueuedEvent;
use crate::rdmacm::id::{Connection, Handle, Id, State, service};
use crate::rdmacm::manager;
#[cfg(test)]
use crate::rdmacm::test_environment::ibv_modify_qp;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};
use verbs::cm::machine::message::QpParameters;
use verbs::cm::machine::message::service::ServiceStatus;
use verbs::cm::machine::{CmConnection, State as Phase};
use verbs::fault::Verb;

/// The code that Linux requests since 6.3: 0.54 s. The timeout grows to four times that, so with 7 retries an unreachable peer is reported
/// after 15 s.
const ACK_TIMEOUT: u8 = 17;
/// Code of 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Timeout of Linux for an answer: 16 times 4.3 s (`CMA_CM_RESPONSE_TIMEOUT`, `CMA_MAX_CM_RETRIES`).
pub(crate) const CM_TIMEOUT: Duration = Duration::from_millis(16 * 4295);

const DATAGRAM_INIT_MASK: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
const INIT_MASK: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const RTR_MASK: u32 = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const RTS_MASK: u32 = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Returns the attributes for the transition of a datagram queue pair, which has no peer.
fn datagram_attributes(state: ibv_qp_state) -> Result<(ibv_qp_attr, u32), Errno> {
    let attributes = ibv_qp_attr { qp_state: state, port_num: 1, qkey: QKEY, ..Default::default() };
    let mask = match state {
        IBV_QPS_INIT => DATAGRAM_INIT_MASK,
        IBV_QPS_RTS => IBV_QP_STATE | IBV_QP_SQ_PSN,
        IBV_QPS_RTR | IBV_QPS_ERR => IBV_QP_STATE,
        _ => return Err(INVALID),
    };
    Ok((attributes, mask))
}

/// Returns the attributes and their mask for the transition of a connection's queue pair to `state`.
fn attributes(id: &Id, state: ibv_qp_state) -> Result<(ibv_qp_attr, u32), Errno> {
    if id.is_datagram() {
        return datagram_attributes(state);
    }
    let mut attributes = ibv_qp_attr { qp_state: state, port_num: 1, ..Default::default() };
    let connection = id.lock();
    let (traffic_class, ack_timeout) = (connection.traffic_class, connection.ack_timeout);
    let device = connection.device();
    drop(connection);
    let mask = match state {
        IBV_QPS_INIT => {
            attributes.qp_access_flags =
                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            INIT_MASK
        }
        IBV_QPS_RTR => {
            let device = device?;
            id.with_cm_connection(|cm_connection| {
                attributes.ah_attr.is_global = 1;
                attributes.ah_attr.port_num = 1;
                attributes.ah_attr.grh.dgid = ibv_gid { raw: address::gid(cm_connection.peer.ip()) };
                attributes.ah_attr.grh.sgid_index = device.gid_index(cm_connection.source.ip())?;
                attributes.ah_attr.grh.hop_limit = 64;
                attributes.ah_attr.grh.traffic_class = traffic_class;
                attributes.path_mtu = cm_connection.mtu.into();
                attributes.dest_qp_num = cm_connection.theirs.qpn;
                attributes.rq_psn = cm_connection.ours.psn;
                attributes.max_dest_rd_atomic = cm_connection.ours.responder_resources;
                attributes.min_rnr_timer = MIN_RNR_TIMER;
                Ok(RTR_MASK)
            })?
        }
        IBV_QPS_RTS => id.with_cm_connection(|cm_connection| {
            attributes.timeout = ack_timeout;
            attributes.retry_cnt = cm_connection.retry_count;
            attributes.rnr_retry = cm_connection.theirs.rnr_retry;
            attributes.sq_psn = cm_connection.theirs.psn;
            attributes.max_rd_atomic =
                cm_connection.ours.initiator_depth.min(cm_connection.theirs.responder_resources);
            Ok(RTS_MASK)
        })?,
        IBV_QPS_ERR => IBV_QP_STATE,
        _ => return Err(INVALID),
    };
    Ok((attributes, mask))
}

/// Moves the identifier's queue pair, if it has one, to `state`. The identifier must not be locked: resolving an unreachable peer takes
/// seconds, and must not delay other requests.
pub(crate) fn modify(id: &Id, state: ibv_qp_state) -> Result<(), Errno> {
    let _guard = id.lock_queue_pair();
    if id.qp().is_null() {
        return Ok(());
    }
    let (mut attributes, mask) = attributes(id, state)?;
    // SAFETY: the identifier owns the queue pair, and the guard prevents its destruction.
    verb(unsafe { ibv_modify_qp(id.qp(), &mut attributes, mask as c_int) })
}

/// # Safety
/// The caller must pass parameters that are valid by rdma_connect(3).
unsafe fn private<'a>(parameters: &rdma_conn_param) -> &'a [u8] {
    if parameters.private_data.is_null() {
        return &[];
    }
    let length = parameters.private_data_len.into();
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(parameters.private_data.cast(), length) }
}

/// Returns our parameters as the program chose them, or the maximum without `wanted`. `psn` is the first PSN of the peer.
fn our_parameters(id: &Id, wanted: Option<&rdma_conn_param>, psn: u32) -> QpParameters {
    let (responder, initiator, rnr_retry) = wanted
        .map_or((u8::MAX, u8::MAX, 7), |w| (w.responder_resources, w.initiator_depth, w.rnr_retry_count));
    let qp = id.qp();
    let (qpn, srq) = if qp.is_null() {
        wanted.map_or((0, false), |wanted| (wanted.qp_num, wanted.srq != 0))
    } else {
        // SAFETY: the queue pair is alive.
        unsafe { ((*qp).qp_num, !(*qp).srq.is_null() || id.is_target()) }
    };
    QpParameters {
        qpn: qpn & 0xff_ffff,
        psn,
        responder_resources: responder.min(MAX_RD_ATOMIC),
        initiator_depth: initiator.min(MAX_RD_ATOMIC),
        rnr_retry: rnr_retry.min(7),
        srq,
        xrc: id.is_xrc(),
        // The C interface has no setting for selective repeat.
        selective_repeat: false,
    }
}

/// Returns the QPN of the identifier's own queue pair. A queue pair that the program manages itself does not end with the connection.
fn own_queue_pair(id: &Id) -> Option<u32> {
    // SAFETY: null, or alive.
    unsafe { id.qp().as_ref() }.map(|qp| qp.qp_num)
}

/// Returns the ACK timeout code of a side, or the default for 0. Code 0 would disable the timeout, so a lost packet would stop the
/// connection permanently.
pub(crate) fn finite(ack_timeout: u8) -> u8 {
    if ack_timeout == 0 { ACK_TIMEOUT } else { ack_timeout }
}

fn request(
    id: &Id,
    connection: &mut Connection,
    wanted: Option<&rdma_conn_param>,
    data: &[u8],
) -> Result<(), Errno> {
    let device = connection.device()?;
    let (Some(source), Some(destination)) = (connection.source, connection.destination) else {
        return Err(INVALID);
    };
    connection.ack_timeout = finite(connection.ack_timeout);
    let mtu = device.mtu();
    check_mtu(device, mtu)?;
    let cm_connection = CmConnection {
        ours: our_parameters(id, wanted, manager::random()? & 0xff_ffff),
        qpn: own_queue_pair(id),
        retry_count: wanted.map_or(7, |wanted| wanted.retry_count.min(7)),
        mtu,
        ack_timeout: connection.ack_timeout,
        traffic_class: connection.traffic_class,
        program: Some(Handle(id.abi().cast())),
        ..CmConnection::new(source, destination)
    };
    let request = (service(id.port_space(), destination.port()), data);
    connection.local =
        device.machine().request(cm_connection, request, CM_TIMEOUT, Instant::now(), device)?;
    connection.state = State::HasConnection;
    manager::wake();
    Ok(())
}

/// `rdma_connect(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, wanted: *mut rdma_conn_param) -> c_int {
    status(|| {
        injected(Verb::RdmaConnect)?;
        // SAFETY: the contract of the manual page.
        let (id, wanted) = unsafe { (Id::from(id)?, wanted.as_ref()) };
        let mut connection = id.lock();
        if connection.state != State::RouteResolved {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        let data = wanted.map_or(&[][..], |wanted| unsafe { private(wanted) });
        if id.is_datagram() {
            datagram::connect(id, &mut connection, data)?;
        } else {
            request(id, &mut connection, wanted, data)?;
        }
        drop(connection);
        // SAFETY: the identifier is alive.
        unsafe { id.complete() }
    })
}

/// Handles the peer's reply: moves the queue pair to RTS, and sends RTU. Runs in the program's own thread, because it may block.
pub(crate) fn finish(id: &Id, event: &mut QueuedEvent) {
    if !id.has_queue_pair() {
        return;
    }
    match establish(id) {
        Ok(()) => event.kind = RDMA_CM_EVENT_ESTABLISHED,
        Err(errno) => (event.kind, event.status) = (RDMA_CM_EVENT_CONNECT_ERROR, -errno.0),
    }
}

fn establish(id: &Id) -> Result<(), Errno> {
    id.with_cm_connection_in(Phase::ReplyReceived, |_| ())?;
    modify(id, IBV_QPS_RTR)?;
    modify(id, IBV_QPS_RTS)?;
    id.act(|machine, local, device| {
        machine
            .connection(local)
            .filter(|cm_connection| cm_connection.state == Phase::ReplyReceived)
            .ok_or(INVALID)?;
        machine.ready(local, device);
        Ok(())
    })
}

/// `rdma_establish(3)`: for a program that manages its own queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        // `finish` has already established the connection of an identifier with a queue pair.
        if id.has_queue_pair() { Err(INVALID) } else { establish(id) }
    })
}

/// Moves the queue pair to RTS, and sends the reply.
fn reply(id: &Id, wanted: Option<&rdma_conn_param>, data: &[u8]) -> Result<(), Errno> {
    id.with_cm_connection_in(Phase::RequestReceived, |cm_connection| {
        let mut ours = our_parameters(id, wanted, cm_connection.ours.psn);
        // At most the number that the peer requests, and the number that it executes.
        ours.responder_resources = ours.responder_resources.min(cm_connection.theirs.initiator_depth);
        ours.initiator_depth = ours.initiator_depth.min(cm_connection.theirs.responder_resources);
        cm_connection.ours = ours;
        cm_connection.qpn = own_queue_pair(id);
    })?;
    modify(id, IBV_QPS_RTR)?;
    modify(id, IBV_QPS_RTS)?;
    id.act(|machine, local, device| {
        machine
            .connection(local)
            .filter(|cm_connection| cm_connection.state == Phase::RequestReceived)
            .ok_or(INVALID)?;
        machine.reply(local, data, CM_TIMEOUT, Instant::now(), device)
    })
}

/// `rdma_accept(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, wanted: *mut rdma_conn_param) -> c_int {
    status(|| {
        injected(Verb::RdmaAccept)?;
        // SAFETY: the contract of the manual page.
        let (id, wanted) = unsafe { (Id::from(id)?, wanted.as_ref()) };
        // SAFETY: the contract of the manual page.
        let data = wanted.map_or(&[][..], |wanted| unsafe { private(wanted) });
        if id.is_datagram() {
            let mut connection = id.lock_in(State::ServiceRequestReceived)?;
            let qpn = our_parameters(id, wanted, 0).qpn;
            datagram::answer(id, &mut connection, ServiceStatus::Valid, qpn, data)?;
            // The peer has its answer and sends no further message.
            connection.state = State::ServiceResolved;
            return Ok(());
        }
        reply(id, wanted, data)?;
        // SAFETY: the identifier is alive.
        unsafe { id.complete() }
    })
}

/// `rdma_reject(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        let parameters =
            rdma_conn_param { private_data: data, private_data_len: length, ..Default::default() };
        // SAFETY: the contract of the manual page.
        let data = unsafe { private(&parameters) };
        if id.is_datagram() {
            let mut connection = id.lock_in(State::ServiceRequestReceived)?;
            datagram::answer(id, &mut connection, ServiceStatus::Rejected, 0, data)?;
            connection.state = State::Closed;
            return Ok(());
        }
        id.act(|machine, local, device| {
            machine
                .connection(local)
                .filter(|cm_connection| cm_connection.state == Phase::RequestReceived)
                .ok_or(INVALID)?;
            machine.reject(local, data, device)
        })
    })
}

/// `rdma_disconnect(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        modify(id, IBV_QPS_ERR)?;
        // Datagram identifiers have no connection.
        if id.is_datagram() {
            return Ok(());
        }
        let begins =
            id.act(|machine, local, device| match machine.connection(local).ok_or(INVALID)?.state {
                Phase::Established | Phase::ReplySent | Phase::ReplyReceived => {
                    machine.disconnect(local, Instant::now(), device);
                    Ok(true)
                }
                // One side has already disconnected.
                Phase::Ended(_) | Phase::DisconnectSent => Ok(false),
                Phase::RequestSent | Phase::RequestReceived => Err(INVALID),
            })?;
        // SAFETY: the identifier is alive.
        if begins { unsafe { id.complete() } } else { Ok(()) }
    })
}

/// `rdma_init_qp_attr(3)`: for a program that manages its own queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    wanted: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (id, wanted, mask) =
            unsafe { (Id::from(id)?, wanted.as_mut().ok_or(INVALID)?, mask.as_mut().ok_or(INVALID)?) };
        let (attributes, which) = attributes(id, wanted.qp_state)?;
        (*wanted, *mask) = (attributes, which as c_int);
        Ok(())
    })
}
