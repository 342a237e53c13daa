//! Tests with a process of the interface that receives no frames, such as a stopped one, and of frames to other destinations meanwhile.

use super::config::CoreConfig;
use super::*;
use crate::io::{self, Burst, LoopbackBuf, PacketIo};
use crate::siblings::{Delivery, DisconnectNotice, Events, Member, Pushed};
use cc::Instant;
use roce::qp::{
    AckTimeout, Capabilities, Congestion, CongestionAlgorithm, Data, Modify, QpInit, RtrSettings,
    RtsSettings, SendRequest,
};
use roce::wire::{Path, Service};
use roce::{Access, Qpn};
use std::sync::mpsc::{Sender, channel};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Sends each process that joins to the test.
pub(super) struct Joined(pub(super) Sender<(u8, Arc<Member>)>);

impl Events for Joined {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        let _ = self.0.send((slot, member));
    }

    fn left(&self, _: u8) {}

    fn died(&self, _: DisconnectNotice) {}
}

/// Creates a connection to a queue pair behind an Ethernet address.
pub(super) fn connect(state: &mut CoreState, now: Instant, mac: Mac, destination: Qpn) -> Qpn {
    let (rings, _) = create(state, now);
    let [ours, theirs] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    ready(state, now, rings.qpn(), Path::new((OWN, ours), (mac, theirs)), destination);
    rings.qpn()
}

/// Creates a queue pair with one completion queue.
pub(super) fn create(state: &mut CoreState, now: Instant) -> (QpRings, CqRing) {
    let pd = state.endpoint.create_pd();
    let (cq, ring) = state.create_cq(64).unwrap();
    let capabilities = Capabilities { max_send: 32, ..Capabilities::default() };
    let (service, signal_all, srq) = (Service::Rc, false, None);
    let init = QpInit { service, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all, srq };
    (state.create_qp(now, init).unwrap(), ring)
}

/// Makes a queue pair ready to send.
pub(super) fn ready(state: &mut CoreState, now: Instant, qpn: Qpn, path: Path, destination: Qpn) {
    let receive = RtrSettings::new(path, destination);
    let congestion = Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 20, rate: None });
    let send = RtsSettings { ack_timeout: AckTimeout::new(20), ..RtsSettings::new(congestion) };
    for modify in [
        Modify::Init { access: Access::ALL, partition_key: 0xffff },
        Modify::ReadyToReceive(receive),
        Modify::ReadyToSend(send),
    ] {
        state.endpoint.modify_qp(now, qpn, modify).unwrap();
    }
}

/// A process that receives no frames, and a device on the same interface.
struct Scene {
    engine: Engine,
    network: io::Loopback,
    /// The slot of the process, which is the top of its queue pair numbers.
    slot: u8,
    _siblings: [Siblings; 2],
}

impl Scene {
    /// Creates the scene. Each test has an interface of its own.
    fn new(test: u32, cores: u8) -> Self {
        let interface = 0x4000_0000 | test << 24 | std::process::id();
        let mut own = Siblings::join(interface, Delivery::ToAll).unwrap();
        let (joined, members) = channel();
        own.watch(Box::new(Joined(joined))).unwrap();
        let stopped = Siblings::join(interface, Delivery::ToAll).unwrap();
        let (slot, member) = members.recv().unwrap();
        assert_eq!(slot, stopped.slot());
        let (port, network) = io::pair(256, 2048);
        let config = CoreConfig { cores, ..super::tests::config(Progress::Inline) };
        // SAFETY: these tests register no memory.
        let engine = unsafe { Engine::start(port, &config).unwrap() };
        let mut member_rings = Box::new(own.member_rings());
        member_rings.add(slot, member);
        engine
            .call(move |state, now| {
                // Fills the ring.
                while member_rings.push(slot, &[0; 1024], now) == Pushed::Done {}
                state.member_rings = Some(member_rings);
            })
            .unwrap();
        Self { engine, network, slot, _siblings: [own, stopped] }
    }

    /// Posts 16 messages to the process and then 16 to the network, on a core.
    fn send(&self, core: usize) {
        let theirs = Qpn::new(u32::from(self.slot) << 18 | 7);
        let post = move |state: &mut CoreState, now| {
            for (mac, qpn) in [(OWN, theirs), (PEER, Qpn::new(9))] {
                let qpn = connect(state, now, mac, qpn);
                for id in 0..16 {
                    let request = SendRequest::send(id, Data::inline(&[1; 64])).unsignalled();
                    state.endpoint.post_send(now, qpn, request).unwrap();
                }
            }
        };
        self.engine.call_on(core, post).unwrap();
    }

    /// Returns the number of frames that were sent to the network.
    fn left(&mut self) -> usize {
        let mut left: Burst<LoopbackBuf> = Burst::new();
        self.network.receive(&mut left);
        left.iter().filter(|frame| frame.starts_with(&PEER.0)).count()
    }
}

#[test]
fn a_process_that_reads_no_frames_does_not_delay_frames_to_the_network() {
    let mut scene = Scene::new(0, 1);
    scene.send(0);
    assert_eq!(scene.left(), 16, "each left in the turn in which it was posted");
}

#[test]
fn a_process_that_reads_no_frames_does_not_delay_other_cores() {
    let mut scene = Scene::new(1, 2);
    scene.send(1);
    // A turn of the other core, and then of core 0.
    scene.engine.progress();
    scene.engine.progress();
    assert_eq!(scene.left(), 16);
}
