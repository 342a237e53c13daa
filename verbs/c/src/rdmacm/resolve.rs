//! Address and route resolution: a destination is resolved once its Ethernet address, or that of the router to it, is known.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::address;
use crate::rdmacm::device::route;
use crate::rdmacm::errno::{Errno, INVALID, injected, status};
use crate::rdmacm::id::{Connection, Id, State, bind};
use crate::rdmacm::manager;
use crate::rdmacm::query::Query;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use verbs::fault::Verb;

impl Id {
    /// Handles the outcome of a check: the destination's Ethernet address is known (`true`), or not known yet, or an error ends the query.
    /// Returns the time of the next check.
    pub(crate) fn on_check(&self, found: Result<bool, Errno>, now: Instant) -> Option<Instant> {
        let mut connection = self.lock_in(State::AddressQuery).ok()?;
        let query = connection.query.as_mut()?;
        let outcome = match found {
            Ok(true) => Ok(()),
            Ok(false) if query.postpone(now) => return Some(query.next),
            Ok(false) => Err(Errno(libc::ETIMEDOUT)),
            Err(errno) => Err(errno),
        };
        connection.query = None;
        self.resolved(&mut connection, outcome);
        None
    }

    /// Ends the resolution of the destination's address. After an error the program may resolve again, as on Linux.
    fn resolved(&self, connection: &mut Connection, outcome: Result<(), Errno>) {
        let (state, event, status) = match outcome {
            Ok(()) => (State::AddressResolved, RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            Err(errno) => (State::Bound, RDMA_CM_EVENT_ADDR_ERROR, -errno.0),
        };
        connection.state = state;
        self.report(event, status);
    }
}

/// `rdma_resolve_addr(3)`. As on Linux, the call fails for a destination without a route, and an event reports a destination that does not
/// answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    status(|| {
        injected(Verb::RdmaResolveAddr)?;
        // SAFETY: the contract of the manual page.
        let (id, destination) = unsafe { (Id::from(id)?, address::read(destination.cast())?) };
        if !source.is_null() && id.lock().state == State::Idle {
            // SAFETY: the contract of the manual page.
            bind(id, unsafe { address::read(source.cast()) }?)?;
        }
        let mut connection = id.lock();
        if !matches!(connection.state, State::Idle | State::Bound) {
            return Err(INVALID);
        }
        let bound = connection.source.filter(|source| !address::is_any(source.ip()));
        let (device, from, to) = match bound.map(|bound| bound.ip()) {
            None => route(destination.ip())?,
            Some(bound) => {
                let device = connection.device()?;
                (device, bound, device.destination(destination.ip())?)
            }
        };
        let found = if device.gids().contains(to) { Ok(true) } else { device.poll_resolution(to) };
        if let Err(unreachable @ Errno(libc::ENETUNREACH)) = found {
            return Err(unreachable);
        }
        let port = connection.source.map_or_else(manager::free_port, |source| Ok(source.port()))?;
        connection.source = Some(SocketAddr::new(from, port));
        connection.destination = Some(SocketAddr::new(to, destination.port()));
        connection.context = device.context.addr();
        id.show(Some(device), &connection);
        manager::join(id, &mut connection)?;
        if found == Ok(false) {
            let timeout = Duration::from_millis(timeout_ms.max(0) as u64);
            connection.query = Some(Query::new(Instant::now(), timeout));
            connection.state = State::AddressQuery;
            manager::schedule(connection.request_id);
        } else {
            id.resolved(&mut connection, found.map(drop));
        }
        drop(connection);
        // SAFETY: the identifier is alive.
        unsafe { id.complete() }
    })
}

/// `rdma_resolve_route(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    status(|| {
        injected(Verb::RdmaResolveRoute)?;
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        let mut connection = id.lock();
        if connection.state != State::AddressResolved {
            return Err(INVALID);
        }
        let (source, destination) = connection.addresses()?;
        let mtu = connection.device()?.mtu();
        connection.state = State::RouteResolved;
        let record = ibv_sa_path_rec {
            dgid: ibv_gid { raw: address::gid(destination) },
            sgid: ibv_gid { raw: address::gid(source) },
            hop_limit: 64,
            traffic_class: connection.traffic_class,
            numb_path: 1,
            pkey: 0xffff_u16.to_be(),
            mtu,
            ..Default::default()
        };
        // SAFETY: calloc allocated the memory, which is as large as the record and is freed with the identifier.
        unsafe {
            let place = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast::<ibv_sa_path_rec>();
            if place.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            place.write(record);
            (*id.abi()).route.path_rec = place;
            (*id.abi()).route.num_paths = 1;
        }
        drop(connection);
        id.report(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        // SAFETY: the identifier is alive.
        unsafe { id.complete() }
    })
}
