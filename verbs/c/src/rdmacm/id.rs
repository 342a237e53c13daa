//! Identifiers: the program's handle of a connection, or of a listener.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::address;
use crate::rdmacm::device::{Device, device_of, device_with, devices};
use crate::rdmacm::errno::{Errno, INVALID, injected, out, status};
use crate::rdmacm::events::{self, EventChannel, Parameters, QueuedEvent, UnacknowledgedEvents};
use crate::rdmacm::incoming::Backlog;
use crate::rdmacm::manager;
use crate::rdmacm::process::Process;
use crate::rdmacm::query::Query;
use crate::rdmacm::queue_pair;
use datapath::siblings::Claim;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbs::cm::machine::message::{Mad, Pending};
use verbs::cm::machine::{self, CmConnection, Machine};
use verbs::fault::Verb;

#[repr(C)]
pub(crate) struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    connection: Mutex<Connection>,
    pub(crate) unacknowledged: UnacknowledgedEvents,
    pub(crate) backlog: Backlog,
    /// Locked while the queue pair is created, modified or destroyed: `rdma_get_cm_event` may modify it while another thread of the program
    /// destroys it.
    modifying: Mutex<()>,
    /// Locked while an event is sent to the channel, and while the identifier moves to another channel.
    reporting: Mutex<()>,
    /// Whether the identifier has its own channel. Calls then wait for their events.
    synchronous: AtomicBool,
    /// The process that created the identifier. A forked process inherits only the memory.
    pub(crate) process: Process,
}

// SAFETY: locks protect the fields that change, except those of the structure that the program and this library share by the rules of the
// manual pages. The pointers refer to objects of libibverbs, which any thread may use.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// The identifier of a connection or of a listener. It is removed from the machine before it is destroyed, so it is alive while the machine
/// is locked.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) *mut Id);

// SAFETY: an identifier may be used from any thread.
unsafe impl Send for Handle {}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Idle,
    Bound,
    /// The destination's Ethernet address is being resolved.
    AddressQuery,
    AddressResolved,
    RouteResolved,
    Listening,
    /// The identifier has a connection, whose state is in the device's machine.
    HasConnection,
    /// As the following states, only for datagrams: the QPN of the service has been requested.
    ServiceRequested,
    /// A peer has requested the QPN of the service.
    ServiceRequestReceived,
    ServiceResolved,
    Closed,
}

/// Properties of a connection, or of a datagram service.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// The context of the device, as a number that is only compared; 0 before the device is known. The device may lose the address later.
    pub(crate) context: usize,
    /// Communication id of the CM connection, or 0.
    pub(crate) local: u32,
    /// Key in [`Tables`](crate::rdmacm::tables::Tables), or 0. In requests for a datagram service it is the request id (IBA 12.11.1).
    pub(crate) request_id: u32,
    /// Request id of the peer that requested the datagram service.
    pub(crate) remote: u32,
    pub(crate) transaction: u64,
    /// Whether the identifier may bind to a port that is in use.
    pub(crate) shares_port: bool,
    /// Whether a listener at all IPv6 addresses does not listen at the IPv4 ones.
    pub(crate) family_only: bool,
    pub(crate) ack_timeout: u8,
    /// Traffic class, chosen by the program (`RDMA_OPTION_ID_TOS`) or by the peer in its request.
    pub(crate) traffic_class: u8,
    /// The request for a datagram service that is repeated.
    pub(crate) pending: Option<Pending>,
    /// Set only in [`State::AddressQuery`].
    pub(crate) query: Option<Query>,
    /// The answer to a datagram request, for copies of that request.
    pub(crate) answer: Option<Box<Mad>>,
    /// For a listener from `rdma_create_ep`: the domain and the attributes for the queue pairs of its connections.
    pub(crate) template: Option<(usize, ibv_qp_init_attr)>,
}

// SAFETY: the pointers in the template refer to objects of libibverbs, which any thread may use.
unsafe impl Send for Connection {}

impl Connection {
    /// Returns both addresses, or `EINVAL` before they are known.
    pub(crate) fn addresses(&self) -> Result<(IpAddr, IpAddr), Errno> {
        match (self.source, self.destination) {
            (Some(source), Some(destination)) => Ok((source.ip(), destination.ip())),
            _ => Err(INVALID),
        }
    }

    /// Returns the claim to a service at `at`. A loopback address stands for all addresses of its family.
    pub(crate) fn claim(&self, service: u64, at: IpAddr, listens: bool) -> Claim {
        let at = match (address::is_any(at), at) {
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            (false, at) => at,
        };
        let family_only = self.family_only || at.is_ipv4();
        Claim { service, at, family_only, shared: self.shares_port, listens }
    }

    pub(crate) fn device(&self) -> Result<&'static Device, Errno> {
        match device_with(self.context) {
            Some(device) => Ok(device),
            None => device_of(self.source.ok_or(INVALID)?.ip()),
        }
    }
}

impl Id {
    /// # Safety
    /// The caller must pass null or a live identifier.
    pub(crate) unsafe fn from<'a>(id: *mut rdma_cm_id) -> Result<&'a Self, Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe { id.cast::<Self>().as_ref() }.ok_or(INVALID)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the connection if it is in `state`. Returns `EINVAL` otherwise.
    pub(crate) fn lock_in(&self, state: State) -> Result<MutexGuard<'_, Connection>, Errno> {
        let connection = self.lock();
        if connection.state == state { Ok(connection) } else { Err(INVALID) }
    }

    /// Calls `act` with the device's machine and the communication id, and wakes the manager's thread. Returns `EINVAL` if the identifier
    /// has no address.
    pub(crate) fn act<T>(
        &self,
        act: impl FnOnce(&mut Machine<Device>, u32, &'static Device) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let connection = self.lock();
        let (local, device) = (connection.local, connection.device()?);
        drop(connection);
        let result = act(&mut device.machine(), local, device)?;
        manager::wake();
        Ok(result)
    }

    /// Calls `act` with the connection. Returns `EINVAL` if there is none.
    pub(crate) fn with_cm_connection<T>(
        &self,
        act: impl FnOnce(&mut CmConnection<Handle>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let connection = self.lock();
        let (local, device) = (connection.local, connection.device()?);
        drop(connection);
        act(device.machine().connection(local).ok_or(INVALID)?)
    }

    /// Calls `act` with the connection if it is in `state`. Returns `EINVAL` otherwise.
    pub(crate) fn with_cm_connection_in<T>(
        &self,
        state: machine::State,
        act: impl FnOnce(&mut CmConnection<Handle>) -> T,
    ) -> Result<T, Errno> {
        self.with_cm_connection(|cm_connection| {
            if cm_connection.state == state { Ok(act(cm_connection)) } else { Err(INVALID) }
        })
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.connection.try_lock().is_ok()
    }

    pub(crate) fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// Prevents other threads from creating, modifying or destroying the queue pair.
    pub(crate) fn lock_queue_pair(&self) -> MutexGuard<'_, ()> {
        self.modifying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_queue_pair(&self) -> bool {
        let _guard = self.lock_queue_pair();
        !self.qp().is_null()
    }

    #[cfg(test)]
    pub(crate) fn is_queue_pair_locked(&self) -> bool {
        self.modifying.try_lock().is_err()
    }

    pub(crate) fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the program creates and destroys the queue pair through this library, one thread at a time.
        unsafe { (*self.abi()).qp }
    }

    pub(crate) fn port_space(&self) -> rdma_port_space {
        // SAFETY: set when the identifier was created.
        unsafe { (*self.abi()).ps }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: set when the identifier was created.
        unsafe { (*self.abi()).qp_type == IBV_QPT_UD }
    }

    pub(crate) fn is_xrc(&self) -> bool {
        // SAFETY: set when the identifier was created.
        unsafe { matches!((*self.abi()).qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) }
    }

    /// Returns whether this is the side of an XRC connection that receives messages.
    pub(crate) fn is_target(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.abi()).qp_type == IBV_QPT_XRC_RECV }
    }

    pub(crate) fn channel(&self) -> *mut rdma_event_channel {
        // SAFETY: as for `qp`.
        unsafe { (*self.abi()).channel }
    }

    pub(crate) fn report(&self, kind: rdma_cm_event_type, status: c_int) {
        self.report_event(QueuedEvent {
            id: self.abi().cast(),
            listener: std::ptr::null_mut(),
            kind,
            status,
            parameters: Parameters::Connection(rdma_conn_param::default()),
            private: Vec::new(),
        });
    }

    /// Keeps the identifier in its channel while the guard exists.
    pub(crate) fn lock_channel(&self) -> MutexGuard<'_, ()> {
        self.reporting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_channel_locked(&self) -> bool {
        self.reporting.try_lock().is_err()
    }

    pub(crate) fn report_event(&self, event: QueuedEvent) {
        self.report_in_channel(&self.lock_channel(), event);
    }

    /// Reports an event to the program through the current channel, which the guard prevents from changing.
    pub(crate) fn report_in_channel(&self, _guard: &MutexGuard<'_, ()>, event: QueuedEvent) {
        // SAFETY: an identifier's channel outlives it, or is destroyed after the identifier has left the channel.
        if let Some(channel) = unsafe { self.channel().cast::<EventChannel>().as_ref() } {
            channel.push(event);
        }
    }

    /// Creates an identifier. If `channel` is null, creates a channel for it.
    pub(crate) fn create(
        channel: *mut rdma_event_channel,
        user: *mut c_void,
        ps: rdma_port_space,
    ) -> Result<*mut Self, Errno> {
        let synchronous = AtomicBool::new(channel.is_null());
        let channel = if channel.is_null() { EventChannel::create()? } else { channel };
        let qp_type = if ps == RDMA_PS_UDP { IBV_QPT_UD } else { IBV_QPT_RC };
        let abi = rdma_cm_id { channel, context: user, ps, qp_type, ..Default::default() };
        let connection = Mutex::new(Connection::default());
        let (unacknowledged, backlog) = (UnacknowledgedEvents::default(), Backlog::default());
        let (modifying, reporting) = (Mutex::default(), Mutex::default());
        let process = Process::this();
        let id = Self {
            abi: UnsafeCell::new(abi),
            connection,
            unacknowledged,
            backlog,
            modifying,
            reporting,
            synchronous,
            process,
        };
        Ok(Box::into_raw(Box::new(id)))
    }

    /// Returns the device, or the first device if it is not known yet.
    pub(crate) fn device(&self) -> Result<&'static Device, Errno> {
        // SAFETY: the identifier is alive, and no thread writes the field at the same time.
        let context = unsafe { (*self.abi()).verbs };
        let devices = devices()?;
        let its = devices.iter().find(|device| device.context == context);
        its.or(devices.first()).ok_or(Errno(libc::ENODEV))
    }

    /// Writes the device and the addresses into the structure that the program reads.
    pub(crate) fn show(&self, device: Option<&Device>, connection: &Connection) {
        // SAFETY: the program reads only the addresses that are set; the unions have room for either family.
        unsafe {
            let abi = self.abi();
            (*abi).verbs = device.map_or(std::ptr::null_mut(), |device| device.context);
            (*abi).port_num = 1;
            if let Some(device) = device
                && (*abi).pd.is_null()
            {
                // Without a default domain, the creation of a queue pair returns the error.
                (*abi).pd = queue_pair::default_domain(device).unwrap_or(std::ptr::null_mut());
            }
            let addresses = &raw mut (*abi).route.addr;
            if let Some(source) = connection.source {
                address::write((&raw mut (*addresses).__bindgen_anon_1).cast(), source);
            }
            if let Some(destination) = connection.destination {
                address::write((&raw mut (*addresses).__bindgen_anon_2).cast(), destination);
            }
        }
    }

    /// Waits for the event that completes a call, if calls of this identifier wait.
    ///
    /// # Safety
    /// The caller must keep the identifier alive.
    pub(crate) unsafe fn complete(&self) -> Result<(), Errno> {
        if !self.synchronous.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.drop_event();
        // SAFETY: the identifier's own channel lives as long as the identifier.
        let event = unsafe { events::next(self.channel()) }?;
        // SAFETY: the event was created above.
        let (kind, result) = unsafe {
            (*self.abi()).event = event;
            ((*event).event, (*event).status)
        };
        match kind {
            RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            _ if result < 0 => Err(Errno(-result)),
            _ if result > 0 => Err(Errno(libc::EIO)),
            _ => Ok(()),
        }
    }

    /// Acknowledges the event for which the last call waited.
    pub(crate) fn drop_event(&self) {
        // SAFETY: the event is null, or `complete` received it and it was not acknowledged.
        unsafe {
            let event = std::mem::replace(&mut (*self.abi()).event, std::ptr::null_mut());
            if !event.is_null() {
                events::rdma_ack_cm_event(event);
            }
        }
    }

    /// Moves the identifier to another channel, or to a new one of its own if `to` is null.
    ///
    /// # Safety
    /// The caller must pass null or a live channel.
    pub(crate) unsafe fn migrate(&self, to: *mut rdma_event_channel) -> Result<(), Errno> {
        let own = to.is_null();
        let to = if own { EventChannel::create()? } else { to };
        let _guard = self.lock_channel();
        let from = self.channel();
        let was_own = self.synchronous.swap(own, Ordering::Relaxed);
        // SAFETY: both channels are alive. The identifier's own previous channel has no other owner.
        unsafe {
            (*self.abi()).channel = to;
            (*from.cast::<EventChannel>()).move_events(self.abi().cast(), to);
            if was_own {
                events::rdma_destroy_event_channel(from);
            }
        }
        Ok(())
    }

    /// # Safety
    /// The caller must not use the identifier after this call.
    pub(crate) unsafe fn destroy(id: *mut Self) {
        // SAFETY: guaranteed by the caller; `unacknowledged.wait` returns when no event refers to the identifier.
        unsafe {
            manager::leave(&*id);
            if let Some(channel) = (*id).channel().cast::<EventChannel>().as_ref() {
                for orphan in channel.discard_events(id) {
                    Self::destroy(orphan);
                }
            }
            (*id).drop_event();
            (*id).unacknowledged.wait();
            if (*id).synchronous.load(Ordering::Relaxed) {
                events::rdma_destroy_event_channel((*id).channel());
            }
            libc::free((*(*id).abi()).route.path_rec.cast());
            drop(Box::from_raw(id));
        }
    }
}

/// `rdma_create_id(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    user: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    status(|| {
        injected(Verb::RdmaCreateId)?;
        if ![RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB].contains(&ps) {
            return Err(INVALID);
        }
        devices()?;
        // SAFETY: the contract of the manual page.
        unsafe { *out(id)? = Id::create(channel, user, ps)?.cast() };
        Ok(())
    })
}

/// `rdma_destroy_id(3)`: waits until the program has acknowledged the identifier's events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe {
            Id::from(id)?;
            Id::destroy(id.cast());
        }
        Ok(())
    })
}

/// `rdma_migrate_id(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the contract of the manual page.
    status(|| unsafe { Id::from(id)?.migrate(channel) })
}

/// Binds to a local address. The unspecified address stands for all, and port 0 selects a free one.
pub(crate) fn bind(id: &Id, wanted: SocketAddr) -> Result<(), Errno> {
    let mut connection = id.lock();
    if connection.state != State::Idle {
        return Err(INVALID);
    }
    // With the unspecified address, the device is not known before a connection.
    let device = if address::is_any(wanted.ip()) { None } else { Some(device_of(wanted.ip())?) };
    let port = if wanted.port() == 0 { manager::free_port()? } else { wanted.port() };
    manager::bind(id, &connection.claim(service(id.port_space(), port), wanted.ip(), false))?;
    connection.source = Some(SocketAddr::new(wanted.ip(), port));
    connection.state = State::Bound;
    connection.context = device.map_or(0, |device| device.context.addr());
    id.show(device, &connection);
    Ok(())
}

/// `rdma_bind_addr(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, source: *mut sockaddr) -> c_int {
    status(|| {
        injected(Verb::RdmaBindAddr)?;
        // SAFETY: the contract of the manual page.
        let (id, source) = unsafe { (Id::from(id)?, address::read(source.cast())?) };
        bind(id, source)
    })
}

/// `rdma_listen(3)`: an identifier that is not bound listens at all addresses, on a free port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    status(|| {
        injected(Verb::RdmaListen)?;
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        if id.lock().state == State::Idle {
            bind(id, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        let mut connection = id.lock();
        if connection.state != State::Bound {
            return Err(INVALID);
        }
        let source = connection.source.ok_or(INVALID)?;
        let service = service(id.port_space(), source.port());
        let claim = connection.claim(service, source.ip(), true);
        connection.state = State::Listening;
        drop(connection);
        id.backlog.limit(backlog);
        manager::listen(id, &claim).inspect_err(|_| id.lock().state = State::Bound)
    })
}

/// Returns the service ID of a port (IBA A11.2).
pub(crate) fn service(ps: rdma_port_space, port: u16) -> u64 {
    u64::from(ps) << 16 | u64::from(port)
}

/// `rdma_get_src_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the contract of the manual page.
    let source = unsafe { Id::from(id) }.ok().and_then(|id| id.lock().source);
    source.map_or(0, |source| source.port().to_be())
}

/// `rdma_get_dst_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the contract of the manual page.
    let destination = unsafe { Id::from(id) }.ok().and_then(|id| id.lock().destination);
    destination.map_or(0, |destination| destination.port().to_be())
}
