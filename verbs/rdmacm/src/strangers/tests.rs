//! Requests in other peers' names, on a device where this file says who answers.

use super::*;
use crate::abi::*;
use crate::address;
use crate::connect::rdma_accept;
use crate::device::{Calls, pretend};
use crate::errno::set;
use crate::events::{rdma_ack_cm_event, rdma_create_event_channel};
use crate::id::{Connection, Id, State, service};
use crate::manager::{Tables, take_in};
use crate::message::{Kind, Request, Side};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard};

const PORT: u16 = 7471;
/// How often somebody is looked for before it is given up.
const LOOKS: u32 = 12;

/// The network: who answers, and how often each of the others was looked for.
struct Network {
    there: BTreeSet<IpAddr>,
    looks: BTreeMap<IpAddr, u32>,
    sent: Vec<(IpAddr, Kind)>,
}

static NETWORK: Mutex<Network> =
    Mutex::new(Network { there: BTreeSet::new(), looks: BTreeMap::new(), sent: Vec::new() });

fn network() -> MutexGuard<'static, Network> {
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
    let (to, kind) = unsafe { (address::ip(*to), message::kind(&*mad).unwrap()) };
    network().sent.push((to, kind));
    0
}

unsafe extern "C" fn receive(_: *mut ibv_context, _: *mut [u8; 16], _: *mut Mad) -> c_int {
    0
}

fn ours() -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), PORT)
}

fn device() -> &'static Device {
    pretend(Device {
        context: std::ptr::null_mut(),
        guid: [1; 8],
        descriptor: -1,
        gids: vec![ours().ip()],
        mtu: 5,
        calls: Calls { send, finds, receive },
    })
}

/// The first message of a connection.
fn request(from: IpAddr, id: u32) -> Mad {
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
        source,
        destination: ours(),
    }
    .write(&mut mad);
    mad
}

struct Server {
    tables: Tables,
    strangers: Strangers,
    channel: *mut rdma_event_channel,
    listener: *mut Id,
}

impl Server {
    fn new() -> Self {
        let channel = rdma_create_event_channel();
        let listener = Id::create(channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
        // SAFETY: made right here.
        let id = unsafe { &*listener };
        *id.lock() = Connection { state: State::Listening, source: Some(ours()), ..Default::default() };
        let mut tables = Tables::default();
        tables.listen(id, service(RDMA_PS_TCP, PORT)).unwrap();
        Self { tables, strangers: Strangers::default(), channel, listener }
    }

    fn hears(&mut self, from: IpAddr, id: u32) {
        take_in(device(), &mut self.tables, &mut self.strangers, from, &request(from, id));
    }

    fn looks(&mut self, now: Instant) {
        for (from, mad) in self.strangers.look(device(), now) {
            take_in(device(), &mut self.tables, &mut self.strangers, from, &mad);
        }
    }

    /// Whom the program is told of.
    fn told(&self) -> Vec<*mut Id> {
        let mut told = Vec::new();
        // SAFETY: the channel is alive; the listener holds the events until they are given back.
        while let Some(event) = unsafe { crate::events::next_now(self.channel) } {
            // SAFETY: as above.
            unsafe {
                assert_eq!((*event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
                assert_eq!((*event).listen_id, self.listener.cast());
                told.push((*event).id.cast());
                rdma_ack_cm_event(event);
            }
        }
        told
    }
}

fn peer(id: *mut Id) -> IpAddr {
    // SAFETY: nobody destroys it.
    unsafe { &*id }.lock().destination.unwrap().ip()
}

#[test]
fn requests_in_the_names_of_peers_that_are_not_there_hold_nobody_up() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 0, 0, 2].into();
    let spoofed = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
    for n in 0..10 * MOST as u32 {
        server.hears(spoofed(n), n);
        if n == 9 * MOST as u32 + 7 {
            // Its answer to ARP is on its way.
            server.hears(honest, 1);
            network().there.insert(honest);
        }
        assert!(server.strangers.waiting.len() <= MOST);
    }
    assert!(server.told().is_empty());
    server.looks(Instant::now() + FIRST_LOOK);
    let told = server.told();
    assert_eq!(told.iter().copied().map(peer).collect::<Vec<_>>(), [honest]);
    server.hears(honest, 1);
    assert!(server.told().is_empty(), "its request comes again, and is known");
    // Who doesn't answer is looked for less and less often, and forgotten.
    let mut rounds = 0;
    while let Some(next) = server.strangers.next() {
        server.looks(next);
        rounds += 1;
    }
    assert!(server.told().is_empty());
    assert!(rounds < 100 * LOOKS, "{rounds} times looked at {MOST} strangers");
}

#[test]
fn a_request_that_comes_again_is_kept_once() {
    let mut server = Server::new();
    let late: IpAddr = [10, 0, 0, 3].into();
    for _ in 0..3 {
        server.hears(late, 1);
    }
    server.hears(late, 2);
    assert_eq!(server.strangers.waiting.len(), 2, "two connections");
    network().there.insert(late);
    server.looks(Instant::now() + FIRST_LOOK);
    assert_eq!(server.told().len(), 2);
    // Now it is known, and waits no more.
    server.hears(late, 3);
    assert_eq!(server.told().len(), 1);
}

/// Takes the place of libibverbs': there are no domains.
#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    std::ptr::null_mut()
}

thread_local! {
    /// What a test of this thread looks at while a queue pair is being modified.
    static WHILE_MODIFIED: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Replaces libibverbs': it would look for the peer now, for 3 s if the peer has gone.
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    WHILE_MODIFIED.with_borrow(|look| look.as_ref().expect("no test modifies a queue pair unasked")());
    0
}

#[test]
fn nobody_waits_for_who_accepts() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 0, 0, 4].into();
    network().there.insert(honest);
    server.hears(honest, 1);
    let id = server.told()[0];
    // SAFETY: nobody destroys it.
    let free = move || assert!(unsafe { &*id }.is_free(), "whoever needs this connection waits");
    WHILE_MODIFIED.set(Some(Box::new(free)));
    let mut qp = ibv_qp { qp_num: 0x12, ..Default::default() };
    // SAFETY: the identifier is alive, and has no queue pair yet.
    unsafe {
        (*(*id).abi()).qp = &raw mut qp;
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), 0);
        assert_eq!((*id).lock().state, State::ReplySent);
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), -1, "once");
    }
    assert!(network().sent.contains(&(honest, Kind::Reply)));
}

#[test]
fn a_connection_that_is_being_established_counts_as_held() {
    device();
    let channel = rdma_create_event_channel();
    let id = Id::create(channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
    let mut qp = ibv_qp { qp_num: 0x12, ..Default::default() };
    // SAFETY: made right here, and not destroyed.
    unsafe {
        let destination = Some(SocketAddr::new([10, 0, 0, 5].into(), PORT));
        let (source, mtu) = (Some(ours()), 5);
        let theirs = Side { qpn: 0x11, ..Side::default() };
        *(*id).lock() =
            Connection { state: State::ReplyCame, source, destination, theirs, mtu, ..Default::default() };
        (*(*id).abi()).qp = &raw mut qp;
        (*id).tell(RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        let looked = Rc::new(Cell::new(0));
        let looks = looked.clone();
        let held = move || {
            looks.set(looks.get() + 1);
            assert!((*id).held.any(), "rdma_destroy_id would free the identifier now");
        };
        WHILE_MODIFIED.set(Some(Box::new(held)));
        let event = crate::events::next_now(channel).unwrap();
        assert_eq!(((*event).event, looked.get()), (RDMA_CM_EVENT_ESTABLISHED, 2));
        assert!((*id).held.any());
        rdma_ack_cm_event(event);
        assert!(!(*id).held.any());
    }
}
