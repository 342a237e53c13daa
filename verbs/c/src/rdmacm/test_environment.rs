//! Environment of unit tests: devices on a simulated network, and a server that receives the messages of peers.

use crate::abi::*;
use crate::rdmacm::connect::CM_TIMEOUT;
use crate::rdmacm::device::{Device, MAX_RD_ATOMIC, ManagementQueuePair, ProcessObject, replace};
use crate::rdmacm::errno::Errno;
use crate::rdmacm::events::rdma_create_event_channel;
use crate::rdmacm::id::{Connection, Handle, Id, State, service};
use crate::rdmacm::manager;
use crate::rdmacm::tables::Tables;
use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use verbs::cm::machine::message::{self, ConnectRequest, Kind, Mad, Pending, QpParameters, Sent};
use verbs::cm::machine::unresolved::Unresolved;
use verbs::cm::machine::{CmConnection, Machine, State as Phase};
use verbs::port::{GidTable, Mac};

pub(crate) const PORT: u16 = 7471;
/// Number of checks after which the resolution of a peer fails.
pub(crate) const CHECKS: u32 = 12;

/// The network: the hosts that answer, and the number of checks for each other address.
pub(crate) struct Network {
    pub(crate) there: BTreeSet<IpAddr>,
    checks: BTreeMap<IpAddr, u32>,
    pub(crate) sent: Vec<(IpAddr, Mad)>,
    /// Queue pairs that were moved to the error state.
    pub(crate) ended: Vec<u32>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    there: BTreeSet::new(),
    checks: BTreeMap::new(),
    sent: Vec::new(),
    ended: Vec::new(),
});

pub(crate) fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap()
}

/// Queue pair 1 on the simulated network.
struct TestQueuePair {
    gids: GidTable,
}

impl ManagementQueuePair for TestQueuePair {
    fn send(&self, _: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno> {
        network().sent.push((to, *mad));
        Ok(Sent::Done)
    }

    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno> {
        let mut network = network();
        if network.there.contains(&peer) {
            return Ok(true);
        }
        let checks = network.checks.entry(peer).or_default();
        *checks += 1;
        if *checks < CHECKS { Ok(false) } else { Err(Errno(libc::ETIMEDOUT)) }
    }

    fn receive(&self) -> Option<(IpAddr, Mad)> {
        None
    }

    fn end(&self, qpn: u32) {
        network().ended.push(qpn);
    }

    fn gids(&self) -> GidTable {
        self.gids.clone()
    }

    fn mtu(&self) -> u8 {
        5
    }
}

pub(crate) fn ours() -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), PORT)
}

pub(crate) fn device() -> &'static Device {
    &devices()[0]
}

/// Returns the device of most tests, and a device in another network.
pub(crate) fn devices() -> &'static [Device] {
    let gids = vec![ours().ip(), "fe80::1".parse().unwrap(), "fd00::1".parse().unwrap()];
    replace([new_device(gids, 1), new_device(vec![[10, 9, 0, 1].into()], 2)])
}

pub(crate) fn new_device(gids: Vec<IpAddr>, number: usize) -> Device {
    Device {
        // The context is only compared.
        context: std::ptr::without_provenance_mut(number),
        descriptor: -1,
        management: Box::new(TestQueuePair { gids: GidTable::new(Mac::default(), gids) }),
        domain: ProcessObject::missing(),
        xrc_domain: ProcessObject::missing(),
        machine: Mutex::new(new_machine()),
    }
}

fn new_machine() -> Machine<Device> {
    Machine::new([1; 8], 5, MAX_RD_ATOMIC)
}

/// The devices of servers, which are hidden from the manager's thread, and those that no server uses.
static SERVERS: Mutex<Vec<&Device>> = Mutex::new(Vec::new());
static FREE: Mutex<Vec<&Device>> = Mutex::new(Vec::new());

pub(crate) fn server_of(ours: IpAddr) -> Option<&'static Device> {
    server_where(|device| device.gids().get(1) == Some(ours))
}

pub(crate) fn server_where(is_it: impl Fn(&&'static Device) -> bool) -> Option<&'static Device> {
    SERVERS.lock().unwrap().iter().copied().find(|device| is_it(device))
}

/// Returns the first address of a device after its default GID.
fn first_address(device: &Device) -> IpAddr {
    device.gids().get(1).unwrap()
}

/// Returns a device for one server at a time.
fn server_device() -> &'static Device {
    if let Some(device) = FREE.lock().unwrap().pop() {
        *device.machine() = new_machine();
        return device;
    }
    let mut servers = SERVERS.lock().unwrap();
    let number = servers.len();
    let at: IpAddr = [172, 16, (number >> 8) as u8, number as u8].into();
    let device = Box::leak(Box::new(new_device(vec![at], 3 + number)));
    servers.push(device);
    device
}

/// Adds a device that is hidden from the manager's thread.
#[cfg(test)]
pub(crate) fn add_device(device: Device) -> &'static Device {
    devices();
    let device = Box::leak(Box::new(device));
    SERVERS.lock().unwrap().push(device);
    device
}

/// Returns the next event of a channel, and its status.
#[cfg(test)]
pub(crate) fn event(channel: *mut rdma_event_channel) -> Option<(rdma_cm_event_type, c_int)> {
    // SAFETY: tests do not destroy their channels; the event is acknowledged once.
    unsafe {
        let event = crate::rdmacm::events::next_now(channel)?;
        let said = ((*event).event, (*event).status);
        crate::rdmacm::events::rdma_ack_cm_event(event);
        Some(said)
    }
}

fn request(to: SocketAddr, from: IpAddr, id: u32) -> Mad {
    let mut mad = message::message(Kind::Request, u64::from(id), id, 0);
    let source = SocketAddr::new(from, 40_000);
    let qp = QpParameters { qpn: 0x11, ..QpParameters::default() };
    ConnectRequest {
        service: service(RDMA_PS_TCP, to.port()),
        guid: [2; 8],
        qp,
        retry_count: 7,
        mtu: 3,
        ack_timeout: 14,
        traffic_class: 0x68,
        source,
        destination: to,
    }
    .write(&mut mad);
    mad
}

/// The communication id of every peer.
pub(crate) const REMOTE: u32 = 0x77;

pub(crate) struct Server {
    pub(crate) device: &'static Device,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) unresolved: Unresolved,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) listener: *mut Id,
}

impl Server {
    pub(crate) fn new() -> Self {
        // Creates the devices of the other identifiers.
        device();
        let device = server_device();
        let channel = rdma_create_event_channel();
        let listener = Id::create(channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
        // SAFETY: the identifier was created above.
        let id = unsafe { &*listener };
        let source = SocketAddr::new(first_address(device), PORT);
        *id.lock() = Connection { state: State::Listening, source: Some(source), ..Default::default() };
        let claim = id.lock().claim(service(RDMA_PS_TCP, PORT), source.ip(), true);
        assert!(device.machine().listen(claim, false, Handle(listener)));
        let tables = Mutex::default();
        Self { device, tables, unresolved: Unresolved::default(), channel, listener }
    }

    /// Releases the device for the next server.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn end(self) {
        FREE.lock().unwrap().push(self.device);
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::new(first_address(self.device), PORT)
    }

    pub(crate) fn receive(&mut self, from: IpAddr, mad: &Mad) {
        manager::receive(self.device, &self.tables, &mut self.unresolved, from, mad);
    }

    pub(crate) fn request(&self, from: IpAddr, id: u32) -> Mad {
        request(self.at(), from, id)
    }

    #[cfg(test)]
    pub(crate) fn receive_request(&mut self, from: IpAddr, id: u32) {
        let mad = self.request(from, id);
        self.receive(from, &mad);
    }

    pub(crate) fn run_timers(&mut self, now: Instant) -> Option<Instant> {
        for (from, mad) in self.unresolved.resolved(|peer| self.device.poll_resolution(peer), now) {
            self.receive(from, &mad);
        }
        self.device.machine().run_timers(now, self.device)
    }

    /// Creates a connection of the server in any state.
    pub(crate) fn connection(&self, peer: IpAddr, state: Phase, qpn: u32) -> *mut Id {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = Id::create(self.channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
        let (local, peer) = (NEXT.fetch_add(1, Ordering::Relaxed), SocketAddr::new(peer, PORT));
        // SAFETY: the identifier was created above.
        *unsafe { &*id }.lock() = Connection {
            state: State::HasConnection,
            source: Some(self.at()),
            destination: Some(peer),
            local,
            ..Default::default()
        };
        let now = Instant::now();
        let mut pending = Pending::new([0; 256], 1, now, CM_TIMEOUT);
        pending.sent(now);
        let cm_connection = CmConnection {
            state,
            theirs: QpParameters { qpn: 0x99, ..QpParameters::default() },
            qpn: Some(qpn),
            program: Some(Handle(id)),
            remote: REMOTE,
            pending: Some(pending),
            ..CmConnection::new(self.at(), peer)
        };
        self.device.machine().insert(local, cm_connection);
        id
    }

    /// Returns the identifiers of reported requests.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> Vec<*mut Id> {
        let mut requests = Vec::new();
        // SAFETY: the channel is alive; the listener keeps the events until they are acknowledged.
        while let Some(event) = unsafe { crate::rdmacm::events::next_now(self.channel) } {
            // SAFETY: as above.
            unsafe {
                assert_eq!((*event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
                assert_eq!((*event).listen_id, self.listener.cast());
                requests.push((*event).id.cast());
                crate::rdmacm::events::rdma_ack_cm_event(event);
            }
        }
        requests
    }
}

#[cfg(test)]
thread_local! {
    /// A hook of this thread's test that runs while a queue pair is modified.
    pub(crate) static WHILE_MODIFIED: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
    /// A hook of this thread's test that runs while an event is sent to a channel.
    pub(crate) static WHILE_REPORTED: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
}

/// Replaces libibverbs' function in tests, which would resolve the peer for up to 3 s.
#[cfg(test)]
pub(crate) unsafe fn ibv_modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    WHILE_MODIFIED.with_borrow(|hook| hook.iter().for_each(|hook| hook()));
    0
}
