//! The world of unit tests: a device for which this file answers, and a server that the messages of peers go to.

use crate::abi::*;
use crate::address;
use crate::connect::PATIENCE;
use crate::device::{Calls, Device, Kept, pretend};
use crate::errno::set;
use crate::events::rdma_create_event_channel;
use crate::id::{Connection, Id, State, service};
use crate::manager::take_in;
use crate::message::{self, Kind, Mad, Pending, Request, Side};
use crate::strangers::Strangers;
use crate::tables::{Place, Tables};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

pub(crate) const PORT: u16 = 7471;
/// The number of times that a peer is looked for before the test fails.
pub(crate) const LOOKS: u32 = 12;

/// The network: the hosts that answer, and how often each of the others was looked for.
pub(crate) struct Network {
    pub(crate) there: BTreeSet<IpAddr>,
    looks: BTreeMap<IpAddr, u32>,
    pub(crate) sent: Vec<(IpAddr, Mad)>,
    /// Queue pairs that were ended.
    pub(crate) ended: Vec<u32>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    there: BTreeSet::new(),
    looks: BTreeMap::new(),
    sent: Vec::new(),
    ended: Vec::new(),
});

pub(crate) fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap()
}

unsafe extern "C" fn finds(_: *mut ibv_context, peer: *const [u8; 16]) -> c_int {
    // SAFETY: the caller's array.
    let peer = address::ip(unsafe { *peer });
    let mut network = network();
    if network.there.contains(&peer) {
        return 1;
    }
    let looks = network.looks.entry(peer).or_default();
    *looks += 1;
    if *looks < LOOKS {
        return 0;
    }
    set(crate::errno::Errno(libc::ETIMEDOUT));
    -1
}

unsafe extern "C" fn send(_: *mut ibv_context, _: c_int, to: *const [u8; 16], mad: *const Mad) -> c_int {
    // SAFETY: the caller's arrays.
    let (to, mad) = unsafe { (address::ip(*to), *mad) };
    network().sent.push((to, mad));
    0
}

unsafe extern "C" fn receive(_: *mut ibv_context, _: *mut [u8; 16], _: *mut Mad) -> c_int {
    0
}

unsafe extern "C" fn end(_: *mut ibv_context, qpn: u32) -> c_int {
    network().ended.push(qpn);
    0
}

pub(crate) fn ours() -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), PORT)
}

pub(crate) fn device() -> &'static Device {
    &devices()[0]
}

/// The device of most tests, and one in another network.
pub(crate) fn devices() -> &'static [Device] {
    let gids = vec![ours().ip(), "fe80::1".parse().unwrap(), "fd00::1".parse().unwrap()];
    pretend([(gids, 1), (vec![[10, 9, 0, 1].into()], 2)].map(|(gids, number)| Device {
        // Only compared.
        context: std::ptr::without_provenance_mut(number),
        guid: [number as u8; 8],
        descriptor: -1,
        gids,
        mtu: 5,
        calls: Calls { send, finds, receive, end },
        siblings: None,
        domain: Kept::missing(),
        xrc_domain: Kept::missing(),
    }))
}

/// Returns the next event of a channel, and its status.
#[cfg(test)]
pub(crate) fn event(channel: *mut rdma_event_channel) -> Option<(rdma_cm_event_type, c_int)> {
    // SAFETY: tests keep their channels; the event is given back once.
    unsafe {
        let event = crate::events::next_now(channel)?;
        let said = ((*event).event, (*event).status);
        crate::events::rdma_ack_cm_event(event);
        Some(said)
    }
}

/// A message that was sent just now, and is repeated soon.
pub(crate) fn pending(mad: Mad) -> Pending {
    let now = Instant::now();
    let mut pending = Pending::new(mad, 1, now, PATIENCE);
    pending.sent(now);
    pending
}

/// The first message of a connection.
pub(crate) fn request(from: IpAddr, id: u32) -> Mad {
    let mut mad = message::message(Kind::Request, u64::from(id), id, 0);
    let source = SocketAddr::new(from, 40_000);
    let side = Side { qpn: 0x11, ..Side::default() };
    Request {
        service: service(RDMA_PS_TCP, PORT),
        guid: [2; 8],
        side,
        retry_count: 7,
        mtu: 3,
        ack_timeout: 14,
        traffic_class: 0x68,
        source,
        destination: ours(),
    }
    .write(&mut mad);
    mad
}

pub(crate) struct Server {
    pub(crate) tables: Tables,
    pub(crate) strangers: Strangers,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) listener: *mut Id,
}

impl Server {
    pub(crate) fn new() -> Self {
        device();
        let channel = rdma_create_event_channel();
        let listener = Id::create(channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
        // SAFETY: created right here.
        let id = unsafe { &*listener };
        *id.lock() = Connection { state: State::Listening, source: Some(ours()), ..Default::default() };
        let mut tables = Tables::default();
        let place = Place::new(ours().ip(), &id.lock());
        tables.listen(id, service(RDMA_PS_TCP, PORT), place).unwrap();
        Self { tables, strangers: Strangers::default(), channel, listener }
    }

    /// Takes a message in.
    pub(crate) fn takes(&mut self, from: IpAddr, mad: &Mad) {
        take_in(device(), &mut self.tables, &mut self.strangers, from, mad);
    }

    #[cfg(test)]
    pub(crate) fn hears(&mut self, from: IpAddr, id: u32) {
        self.takes(from, &request(from, id));
    }

    pub(crate) fn looks(&mut self, now: Instant) {
        for (from, mad) in self.strangers.look(|peer| device().finds(peer), now) {
            self.takes(from, &mad);
        }
    }

    /// The peers whose requests the program received.
    #[cfg(test)]
    pub(crate) fn told(&self) -> Vec<*mut Id> {
        let mut told = Vec::new();
        // SAFETY: the channel is alive; the listener keeps the events until they are given back.
        while let Some(event) = unsafe { crate::events::next_now(self.channel) } {
            // SAFETY: as above.
            unsafe {
                assert_eq!((*event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
                assert_eq!((*event).listen_id, self.listener.cast());
                told.push((*event).id.cast());
                crate::events::rdma_ack_cm_event(event);
            }
        }
        told
    }
}

#[cfg(test)]
thread_local! {
    /// A hook of this thread's test that runs while a queue pair is being modified.
    pub(crate) static WHILE_MODIFIED: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
    /// The same, while an event goes to a channel.
    pub(crate) static WHILE_TOLD: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
}

/// Replaces libibverbs', which the fuzz target `cm` needs: it would look for the peer now, for 3 s if the peer has gone.
#[cfg(test)]
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    WHILE_MODIFIED.with_borrow(|look| look.iter().for_each(|look| look()));
    0
}
