//! Environment of the state machine: datagrams of queue pair 1, and events of identifiers.

use crate::abi::*;
use crate::rdmacm::connect::finite;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::{Errno, INVALID};
use crate::rdmacm::events::{Parameters, QueuedEvent};
use crate::rdmacm::id::{Connection, Handle, State};
use crate::rdmacm::incoming;
use crate::rdmacm::manager;
use datapath::siblings::Siblings;
use std::net::IpAddr;
use verbs::cm::machine::message::{Mad, Sent};
use verbs::cm::machine::{CmConnection, Environment, Event};

impl Environment for Device {
    type Error = Errno;
    type Connection = Handle;
    type Listener = Handle;

    const MRA_RESTARTS_TIMEOUT: bool = true;

    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno> {
        self.send(from, to, mad)
    }

    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno> {
        self.poll_resolution(peer)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.gids().contains(address)
    }

    fn random(&self) -> Result<u32, Errno> {
        manager::random()
    }

    fn too_long(&self, _: usize, _: usize) -> Errno {
        INVALID
    }

    fn siblings(&self) -> Option<&Siblings> {
        self.management.siblings()
    }

    fn is_full(&self, listener: &Handle) -> bool {
        // SAFETY: the caller has locked the machine.
        unsafe { &*listener.0 }.backlog.is_full()
    }

    fn on_request(
        &self,
        listener: &mut Handle,
        local: u32,
        cm_connection: &mut CmConnection<Handle>,
    ) -> Result<(), Errno> {
        let connection = Connection {
            state: State::HasConnection,
            source: Some(cm_connection.source),
            destination: Some(cm_connection.peer),
            context: self.context.addr(),
            local,
            ack_timeout: finite(cm_connection.ack_timeout),
            traffic_class: cm_connection.traffic_class,
            ..Default::default()
        };
        let parameters = Parameters::Connection(parameters(cm_connection));
        let private = std::mem::take(&mut cm_connection.private);
        // SAFETY: the caller has locked the machine.
        let child = unsafe { incoming::create(self, &*listener.0, connection, |_| Ok(())) }?;
        cm_connection.program = Some(Handle(child));
        // SAFETY: as above, and no other code has the identifier yet.
        unsafe { incoming::report(&*listener.0, child, parameters, private) };
        Ok(())
    }

    /// Reports an event to the program. As in rdma-core, only a rejection moves the queue pair to the error state. After a disconnection
    /// the queue pair works until the program ends it, as on Linux: a Linux peer may send its DREQ before its last ACK.
    fn report(&self, cm_connection: &mut CmConnection<Handle>, event: Event<Errno>) {
        let (kind, status) = match event {
            Event::ReplyReceived => (RDMA_CM_EVENT_CONNECT_RESPONSE, 0),
            Event::Established => (RDMA_CM_EVENT_ESTABLISHED, 0),
            Event::Rejected(reason) => {
                cm_connection.qpn.take().into_iter().for_each(|qpn| self.management.end(qpn));
                (RDMA_CM_EVENT_REJECTED, reason.into())
            }
            Event::Disconnected => (RDMA_CM_EVENT_DISCONNECTED, 0),
            Event::NotFound(errno) => (RDMA_CM_EVENT_UNREACHABLE, -errno.0),
            Event::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            Event::TimeWaitExit => (RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        };
        let Some(Handle(id)) = cm_connection.program else { return };
        let is_message = matches!(kind, RDMA_CM_EVENT_CONNECT_RESPONSE | RDMA_CM_EVENT_REJECTED)
            || kind == RDMA_CM_EVENT_ESTABLISHED;
        let parameters = if is_message { parameters(cm_connection) } else { rdma_conn_param::default() };
        let private = if is_message { std::mem::take(&mut cm_connection.private) } else { Vec::new() };
        // SAFETY: the caller has locked the machine.
        unsafe { &*id }.report_event(QueuedEvent {
            id,
            listener: std::ptr::null_mut(),
            kind,
            status,
            parameters: Parameters::Connection(parameters),
            private,
        });
    }
}

/// Returns the parameters of the peer, as the program reads them: the number of READs and atomics that the peer sends is the number that
/// this side executes, and vice versa.
fn parameters(cm_connection: &CmConnection<Handle>) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: cm_connection.theirs.initiator_depth,
        initiator_depth: cm_connection.theirs.responder_resources,
        retry_count: cm_connection.retry_count,
        rnr_retry_count: cm_connection.theirs.rnr_retry,
        srq: cm_connection.theirs.srq.into(),
        qp_num: cm_connection.theirs.qpn,
        ..Default::default()
    }
}
