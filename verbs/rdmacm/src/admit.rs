//! A peer asks to connect: the listener gets an event, with an identifier for the new connection.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::connect;
use crate::device::{Device, check_mtu};
use crate::errno::{Errno, INVALID};
use crate::events::{Parameters, Waiting};
use crate::id::{Connection, Id, State};
use crate::manager::{answer, parameters};
use crate::message::{self, Kind, Mad, Reason, Request};
use crate::strangers::Strangers;
use crate::tables::Tables;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

/// As Linux has it (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;

/// The requests of a listener that the program has not taken yet, and the number of them that there may be.
pub(crate) struct Backlog {
    most: AtomicU32,
    waiting: AtomicU32,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { most: AtomicU32::new(MAX_BACKLOG), waiting: AtomicU32::new(0) }
    }
}

impl Backlog {
    /// As `rdma_listen` wants it. What is no sensible number asks for the largest, as on Linux.
    pub(crate) fn limit(&self, wanted: c_int) {
        let most = u32::try_from(wanted).ok().filter(|wanted| (1..=MAX_BACKLOG).contains(wanted));
        self.most.store(most.unwrap_or(MAX_BACKLOG), Ordering::Relaxed);
    }

    /// Returns whether a further request must be dropped. A peer that receives no answer asks again. Only the manager's thread adds
    /// requests, so there is still room when it does.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// The program has taken a request.
    pub(crate) fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Creates the identifier for a peer's request to `listener`, and reports it to the program.
pub(crate) fn admit(
    device: &Device,
    tables: &mut Tables,
    listener: *mut Id,
    connection: Connection,
    parameters: Parameters,
    private: Vec<u8>,
) -> Result<(), Errno> {
    // SAFETY: a listener in the tables is alive while they are locked.
    let heard = unsafe { &*listener };
    // The request comes to the channel that its identifier is created for.
    let stays = heard.stay();
    // SAFETY: as above.
    let (channel, user, ps) = unsafe { (heard.channel(), (*heard.abi()).context, (*heard.abi()).ps) };
    let child = Id::create(channel, user, ps)?;
    // SAFETY: it was created right here.
    let id = unsafe { &*child };
    // SAFETY: as above.
    unsafe { (*id.abi()).qp_type = (*heard.abi()).qp_type };
    let asked = (connection.addresses()?.1, connection.remote, heard.is_datagram());
    *id.lock() = connection;
    match tables.insert_asked(device, id, asked) {
        Ok(local) => id.lock().local = local,
        Err(errno) => {
            // SAFETY: nothing has seen it.
            unsafe { drop(Box::from_raw(child)) };
            return Err(errno);
        }
    }
    id.show(Some(device), &id.lock());
    let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
    heard.backlog.enter();
    heard.tell_here(&stays, Waiting { id: child, listener, kind, status: 0, parameters, private });
    Ok(())
}

/// A peer wants to connect.
pub(crate) fn on_request(
    device: &Device,
    tables: &mut Tables,
    strangers: &mut Strangers,
    from: IpAddr,
    mad: &Mad,
) -> Result<(), Errno> {
    let (remote, transaction) = (message::ids(mad).0, message::transaction(mad));
    let request = Request::read(mad).ok_or(INVALID)?;
    if let Some(id) = tables.find_asked((from, remote, false)) {
        // It comes again: the reply does too, by its own clock. Without a reply, the peer must wait for the program.
        if let Ok(connection) = id.lock_in(State::RequestCame) {
            answer(device, from, &message::receipt(transaction, connection.local, remote));
        }
        return Ok(());
    }
    let Some(listener) = tables.listener(request.service, request.destination.ip(), false) else {
        if device.answers_for(request.service, request.destination.ip()) {
            let reason = Reason::InvalidService;
            answer(device, from, &message::reject(transaction, 0, remote, reason, device.guid));
        }
        return Ok(());
    };
    let reject = |reason| {
        answer(device, from, &message::reject(transaction, 0, remote, reason, device.guid));
    };
    // SAFETY: a listener in the tables is alive while they are locked.
    let heard = unsafe { &*listener };
    if request.side.xrc != heard.is_target() {
        reject(Reason::InvalidService);
        return Ok(());
    }
    if check_mtu(device, request.mtu).is_err() {
        reject(Reason::InvalidMtu);
        return Ok(());
    }
    device.gid_index(request.destination.ip())?;
    if heard.backlog.is_full() || !strangers.are_found(|peer| device.finds(peer), from, mad) {
        return Ok(());
    }
    // The address below the datagram is the peer's, whatever it says of itself.
    let connection = Connection {
        state: State::RequestCame,
        source: Some(request.destination),
        destination: Some(SocketAddr::new(from, request.source.port())),
        remote,
        transaction,
        ours: connect::side_for(&request.side)?,
        theirs: request.side,
        mtu: request.mtu,
        ack_timeout: connect::finite(request.ack_timeout),
        retry_count: request.retry_count,
        traffic_class: request.traffic_class,
        ..Default::default()
    };
    let parameters = Parameters::Connection(parameters(&connection));
    let private = message::private_data(mad, Kind::Request).to_vec();
    admit(device, tables, listener, connection, parameters, private)
}
