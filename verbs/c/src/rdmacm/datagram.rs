//! Datagrams: a sender requests the QPN of a service, and the answer contains it (IBA 12.11). No connection exists afterwards: each side
//! sends by an address handle.

use crate::abi::*;
use crate::rdmacm::address;
use crate::rdmacm::connect::CM_TIMEOUT;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::{Errno, INVALID};
use crate::rdmacm::events::{Parameters, QueuedEvent};
use crate::rdmacm::id::{Connection, Id, State, service};
use crate::rdmacm::incoming;
use crate::rdmacm::manager;
use crate::rdmacm::tables::Tables;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use verbs::cm::machine::Environment;
use verbs::cm::machine::message::service::{ServiceReply, ServiceRequest, ServiceStatus};
use verbs::cm::machine::message::{self, Kind, Mad, Pending, Sent};
use verbs::cm::machine::unresolved::Unresolved;

/// The Q_Key of all datagram queue pairs that librdmacm creates.
pub(crate) const QKEY: u32 = 0x0123_4567;

/// Requests the QPN of the service at the identifier's destination.
pub(crate) fn connect(id: &Id, connection: &mut Connection, data: &[u8]) -> Result<(), Errno> {
    let (Some(source), Some(destination)) = (connection.source, connection.destination) else {
        return Err(INVALID);
    };
    manager::join(id, connection)?;
    connection.transaction = u64::from(connection.request_id);
    let request =
        ServiceRequest { service: service(id.port_space(), destination.port()), source, destination };
    let mut mad = message::message(Kind::ServiceRequest, connection.transaction, connection.request_id, 0);
    request.write(&mut mad);
    if !message::put_private_data(&mut mad, Kind::ServiceRequest, data) {
        return Err(INVALID);
    }
    let now = Instant::now();
    let mut pending = Pending::new(mad, connection.request_id, now, CM_TIMEOUT);
    match connection.device()?.send(source.ip(), destination.ip(), &mad)? {
        Sent::Done => pending.sent(now),
        _ => pending.postpone(now),
    }
    connection.pending = Some(pending);
    connection.state = State::ServiceRequested;
    manager::schedule(connection.request_id);
    Ok(())
}

/// Answers the requester. The answer is kept for copies of the request, in case it is lost.
pub(crate) fn answer(
    id: &Id,
    connection: &mut Connection,
    status: ServiceStatus,
    qpn: u32,
    data: &[u8],
) -> Result<(), Errno> {
    let (source, destination) = connection.addresses()?;
    let port = connection.source.map_or(0, |source| source.port());
    let (status, service) = (status as u8, service(id.port_space(), port));
    let mut mad = message::message(Kind::ServiceReply, connection.transaction, connection.remote, 0);
    ServiceReply { status, qpn, service, qkey: QKEY }.write(&mut mad);
    if !message::put_private_data(&mut mad, Kind::ServiceReply, data) {
        return Err(INVALID);
    }
    let _ = connection.device()?.send(source, destination, &mad)?;
    connection.answer = Some(Box::new(mad));
    Ok(())
}

/// Handles the answer of a peer: the QPN of its service, or the reason of its refusal.
pub(crate) fn on_reply(device: &Device, tables: &Tables, from: IpAddr, mad: &Mad) {
    let Some(id) = tables.find(message::ids(mad).0).filter(|id| id.is_datagram()) else { return };
    let mut connection = id.lock();
    let Ok((source, destination)) = connection.addresses() else { return };
    if destination != from || connection.state != State::ServiceRequested {
        return;
    }
    let reply = ServiceReply::read(mad);
    if reply.status == ServiceStatus::NotSupported as u8
        && connection.pending.as_mut().and_then(|pending| pending.refused(Instant::now())).is_some()
    {
        return manager::schedule(connection.request_id);
    }
    connection.pending = None;
    let valid = reply.status == ServiceStatus::Valid as u8;
    connection.state = if valid { State::ServiceResolved } else { State::Closed };
    let mut ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    ah_attr.grh.dgid = ibv_gid { raw: address::gid(destination) };
    ah_attr.grh.hop_limit = 64;
    ah_attr.grh.traffic_class = connection.traffic_class;
    ah_attr.grh.sgid_index = device.gid_index(source).unwrap_or(0);
    let parameters = rdma_ud_param { ah_attr, qp_num: reply.qpn, qkey: reply.qkey, ..Default::default() };
    id.report_event(QueuedEvent {
        id: id.abi().cast(),
        listener: std::ptr::null_mut(),
        kind: if valid { RDMA_CM_EVENT_ESTABLISHED } else { RDMA_CM_EVENT_UNREACHABLE },
        status: if valid { 0 } else { reply.status.into() },
        parameters: Parameters::Datagram(parameters),
        private: message::private_data(mad, Kind::ServiceReply).to_vec(),
    });
}

pub(crate) fn on_request(
    device: &Device,
    tables: &mut Tables,
    unresolved: &mut Unresolved,
    from: IpAddr,
    mad: &Mad,
) -> Result<(), Errno> {
    let (remote, transaction) = (message::ids(mad).0, message::transaction(mad));
    let request = ServiceRequest::read(mad).ok_or(INVALID)?;
    if let Some(known) = tables.find_requested((from, remote)) {
        let connection = known.lock();
        if let (Some(answer), Ok((source, destination))) = (&connection.answer, connection.addresses()) {
            // If the answer is lost again, the peer repeats its request.
            let _ = device.send(source, destination, answer);
        }
        return Ok(());
    }
    let at = request.destination.ip();
    let Some(listener) = tables.datagram_listener(request.service, at) else {
        if !device.answers_for(from, remote, request.service, at) {
            return Ok(());
        }
        let mut mad = message::message(Kind::ServiceReply, transaction, remote, 0);
        let status = ServiceStatus::NotSupported as u8;
        ServiceReply { status, qpn: 0, service: request.service, qkey: 0 }.write(&mut mad);
        if let Ok(own) = device.address_towards(from) {
            // If the answer is lost, the peer repeats its request.
            let _ = device.send(own, from, &mad);
        }
        return Ok(());
    };
    device.gid_index(request.destination.ip())?;
    let poll_resolution = |peer| device.poll_resolution(peer);
    if listener.backlog.is_full() || !unresolved.is_resolved(poll_resolution, Instant::now(), from, mad) {
        return Ok(());
    }
    let connection = Connection {
        state: State::ServiceRequestReceived,
        source: Some(request.destination),
        // The identifier uses the source address of the packet, not the address in the message.
        destination: Some(SocketAddr::new(from, request.source.port())),
        context: device.context.addr(),
        remote,
        transaction,
        ..Default::default()
    };
    let listener: *const Id = listener;
    // SAFETY: a listener in the tables is alive while they are locked.
    let listener = unsafe { &*listener };
    let child = incoming::create(device, listener, connection, |id| {
        id.lock().request_id = tables.insert_requested(device, id, (from, remote))?;
        Ok(())
    })?;
    let private = message::private_data(mad, Kind::ServiceRequest).to_vec();
    // SAFETY: as above, and no other code has the identifier yet.
    unsafe { incoming::report(listener, child, Parameters::Datagram(rdma_ud_param::default()), private) };
    Ok(())
}
