//! Each pair of {Rust API, C API} connects and disconnects over a link that loses each message of the connection manager once. The device
//! of a C side is a management port of the Rust API.

use crate::abi::*;
use crate::rdmacm::address;
use crate::rdmacm::connect::{rdma_accept, rdma_connect, rdma_disconnect, rdma_establish};
use crate::rdmacm::device::{Device, ManagementQueuePair};
use crate::rdmacm::errno::Errno;
use crate::rdmacm::events::{rdma_ack_cm_event, rdma_create_event_channel, rdma_get_cm_event};
use crate::rdmacm::id::{Id, rdma_bind_addr, rdma_destroy_id, rdma_listen};
use crate::rdmacm::manager;
use crate::rdmacm::resolve::{rdma_resolve_addr, rdma_resolve_route};
use crate::rdmacm::test_environment::{add_device, new_device};
use datapath::io::{Burst, Caps};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use verbs::cm::machine::message::{BODY, Kind, Mad};
use verbs::cm::machine::unresolved::Unresolved;
use verbs::cm::{self, Listener, Options};
use verbs::management::{ManagementPort, Sent};
use verbs::port::{GidTable, Loopback, Mac, OwnPort, PacketIo, pair};
use verbs::{DeviceConfig, Progress, QueuePair};

/// Offset of a management datagram in a frame: Ethernet 14, IPv4 20, UDP 8, BTH 12, DETH 8.
const MAD: usize = 62;
/// UD SEND Only.
const OPCODE: u8 = 0x64;

/// Kind of the next message that the link loses.
type Lost = Arc<Mutex<Option<Kind>>>;

struct Lossy {
    port: Loopback,
    lost: Lost,
}

impl Lossy {
    fn loses(&self, frame: &[u8]) -> bool {
        let Some(kind) = *self.lost.lock().unwrap() else { return false };
        let is_lost = frame.len() > MAD + BODY
            && frame[MAD - 20] == OPCODE
            && frame[MAD + 16..MAD + 18] == (kind as u16).to_be_bytes();
        if is_lost {
            *self.lost.lock().unwrap() = None;
        }
        is_lost
    }
}

impl PacketIo for Lossy {
    type Buf = <Loopback as PacketIo>::Buf;

    fn receive(&mut self, into: &mut Burst<Self::Buf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<Self::Buf>) {
        from.retain(|frame| !self.loses(frame));
        self.port.transmit(from);
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

/// A side of a connection, on either API.
#[derive(Clone)]
enum Side {
    Rust(verbs::Device, IpAddr),
    C(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Client,
    Server,
}

/// The port of a C side, and a table that contains only its address.
struct CPort {
    port: ManagementPort,
    gids: GidTable,
}

impl ManagementQueuePair for CPort {
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno> {
        ManagementQueuePair::send(&self.port, from, to, mad)
    }

    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno> {
        ManagementQueuePair::poll_resolution(&self.port, peer)
    }

    fn receive(&self) -> Option<(IpAddr, Mad)> {
        ManagementQueuePair::receive(&self.port)
    }

    fn end(&self, qpn: u32) {
        ManagementQueuePair::end(&self.port, qpn);
    }

    fn gids(&self) -> GidTable {
        self.gids.clone()
    }

    fn mtu(&self) -> u8 {
        ManagementQueuePair::mtu(&self.port)
    }
}

/// Opens a C side on a device, with a thread that receives messages and runs the timers, as the manager's does.
fn c_side(device: &verbs::Device, at: IpAddr) -> Side {
    let port = device.open_management().unwrap();
    let descriptor = port.as_raw_fd();
    let gids = GidTable::new(Mac::default(), [at]);
    let management = Box::new(CPort { port, gids });
    let device: &Device = add_device(Device { descriptor, management, ..new_device(vec![at], 0) });
    let body = move || {
        let (tables, mut unresolved) = (Mutex::default(), Unresolved::default());
        loop {
            while let Some((from, mad)) = device.receive() {
                manager::receive(device, &tables, &mut unresolved, from, &mad);
            }
            device.machine().run_timers(Instant::now(), device);
            let mut watched = libc::pollfd { fd: device.descriptor, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor.
            unsafe { libc::poll(&mut watched, 1, 1) };
        }
    };
    std::thread::spawn(body);
    Side::C(at)
}

/// Returns the two sides of a link, and the kind of message that it loses.
fn sides(number: u8, [server_is_c, client_is_c]: [bool; 2]) -> ([Side; 2], Lost) {
    let (left, right) = pair(256, 4500);
    let lost = Lost::default();
    let at = |side: u8| IpAddr::from([10, 64 + number, 0, 1 + side]);
    let mac = |side: u8| Mac([2, 0, 0, 0, number, side]);
    let open = |port, side: u8, is_c: bool| {
        let config = DeviceConfig::new()
            .address(format!("{}/24", at(side)).parse().unwrap())
            .progress(Progress::Adaptive);
        let own = OwnPort { name: format!("pair{number}.{side}"), mac: mac(side) };
        let device = verbs::Device::open_on(Lossy { port, lost: lost.clone() }, own, &config).unwrap();
        device.set_neighbour(at(1 - side), mac(1 - side)).unwrap();
        if is_c { c_side(&device, at(side)) } else { Side::Rust(device, at(side)) }
    };
    ([open(left, 0, server_is_c), open(right, 1, client_is_c)], lost)
}

fn queue_pair(device: &verbs::Device) -> QueuePair {
    let cq = device.create_cq(16).unwrap();
    device.allocate_pd().unwrap().queue_pair(&cq, &cq).build().unwrap()
}

fn called(result: c_int) {
    assert_eq!(result, 0, "{:?}", crate::rdmacm::errno::last());
}

fn with_address(address: SocketAddr, call: impl FnOnce(*mut sockaddr) -> c_int) {
    // SAFETY: all-zero bytes are a valid address, with room for either family.
    let mut place: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { address::write((&raw mut place).cast(), address) };
    called(call((&raw mut place).cast()));
}

fn identifier() -> *mut rdma_cm_id {
    Id::create(rdma_create_event_channel(), null_mut(), RDMA_PS_TCP).unwrap().cast()
}

/// Waits for an event of one of these kinds. Returns its kind and its identifier.
fn event(id: *mut rdma_cm_id, kinds: &[rdma_cm_event_type]) -> (rdma_cm_event_type, *mut rdma_cm_id) {
    let mut event = null_mut();
    // SAFETY: the identifier is alive, and the event is acknowledged once.
    unsafe {
        called(rdma_get_cm_event((*id).channel, &mut event));
        let (kind, its) = ((*event).event, (*event).id);
        called(rdma_ack_cm_event(event));
        assert!(kinds.contains(&kind), "event {kind}, not one of {kinds:?}");
        (kind, its)
    }
}

/// Ends the connection of a C program, or waits for its end.
fn end_connection(id: *mut rdma_cm_id, disconnects: bool) {
    if disconnects {
        // SAFETY: the identifier is alive.
        called(unsafe { rdma_disconnect(id) });
    }
    event(id, &[RDMA_CM_EVENT_DISCONNECTED]);
}

/// Accepts one connection. Calls `ready` when the side listens.
fn serve(side: &Side, port: u16, ends: Ends, ready: impl FnOnce()) {
    let disconnects = ends == Ends::Server;
    match side {
        Side::Rust(device, at) => {
            let listener = Listener::bind(device, SocketAddr::new(*at, port)).unwrap();
            ready();
            let request = listener.accept().unwrap();
            let mut connection = request.accept(queue_pair(device), &Options::new()).unwrap();
            if disconnects { connection.disconnect().unwrap() } else { connection.wait_end().unwrap() }
        }
        Side::C(at) => {
            let listener = identifier();
            let mut wanted = rdma_conn_param { qp_num: 0x99, ..Default::default() };
            // SAFETY: the identifiers are alive, and destroyed once.
            unsafe {
                with_address(SocketAddr::new(*at, port), |at| rdma_bind_addr(listener, at));
                called(rdma_listen(listener, 1));
                ready();
                let (_, id) = event(listener, &[RDMA_CM_EVENT_CONNECT_REQUEST]);
                called(rdma_accept(id, &mut wanted));
                // A DREQ may arrive before the copy of a lost RTU.
                let kinds = [RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED];
                if event(id, &kinds).0 == RDMA_CM_EVENT_ESTABLISHED {
                    end_connection(id, disconnects);
                }
                called(rdma_destroy_id(id));
                called(rdma_destroy_id(listener));
            }
        }
    }
}

fn connect(side: &Side, to: SocketAddr, ends: Ends) {
    let disconnects = ends == Ends::Client;
    match side {
        Side::Rust(device, _) => {
            let mut connection = cm::connect(queue_pair(device), to, &Options::new()).unwrap();
            if disconnects { connection.disconnect().unwrap() } else { connection.wait_end().unwrap() }
        }
        Side::C(at) => {
            let id = identifier();
            let mut wanted = rdma_conn_param { qp_num: 0x99, ..Default::default() };
            // SAFETY: the identifier is alive, and destroyed once.
            unsafe {
                with_address(SocketAddr::new(*at, 0), |at| rdma_bind_addr(id, at));
                with_address(to, |to| rdma_resolve_addr(id, null_mut(), to, 2000));
                event(id, &[RDMA_CM_EVENT_ADDR_RESOLVED]);
                called(rdma_resolve_route(id, 2000));
                event(id, &[RDMA_CM_EVENT_ROUTE_RESOLVED]);
                called(rdma_connect(id, &mut wanted));
                event(id, &[RDMA_CM_EVENT_CONNECT_RESPONSE]);
                called(rdma_establish(id));
                end_connection(id, disconnects);
                called(rdma_destroy_id(id));
            }
        }
    }
}

/// IBA 12.9.7: each message of a connection is lost once on either side, and repeated.
fn survives_each_loss(number: u8, server_is_c: bool, client_is_c: bool) {
    let ([server, client], lost) = sides(number, [server_is_c, client_is_c]);
    let at = match &server {
        Side::Rust(_, at) | Side::C(at) => *at,
    };
    let kinds =
        [Kind::Request, Kind::Reply, Kind::ReadyToUse, Kind::DisconnectRequest, Kind::DisconnectReply];
    let cases = kinds.into_iter().flat_map(|kind| [(kind, Ends::Client), (kind, Ends::Server)]);
    for (port, (kind, ends)) in (9000..).zip(cases) {
        *lost.lock().unwrap() = Some(kind);
        std::thread::scope(|scope| {
            let (listens, is_ready) = std::sync::mpsc::channel();
            let server = &server;
            scope.spawn(move || serve(server, port, ends, || listens.send(()).unwrap()));
            is_ready.recv().unwrap();
            connect(&client, SocketAddr::new(at, port), ends);
        });
        assert_eq!(*lost.lock().unwrap(), None, "{kind:?} is sent; the {ends:?} disconnects");
    }
}

#[test]
fn rust_connects_to_rust_whichever_message_is_lost() {
    survives_each_loss(0, false, false);
}

#[test]
fn c_connects_to_rust_whichever_message_is_lost() {
    survives_each_loss(1, false, true);
}

#[test]
fn rust_connects_to_c_whichever_message_is_lost() {
    survives_each_loss(2, true, false);
}

#[test]
fn c_connects_to_c_whichever_message_is_lost() {
    survives_each_loss(3, true, true);
}
