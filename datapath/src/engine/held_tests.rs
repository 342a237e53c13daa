//! A process of the interface that takes no frames, as one that is stopped, and the frames to others meanwhile.

use super::*;
use crate::io::{self, Burst, LoopbackBuf, PacketIo};
use crate::siblings::{Events, Farewell, Member, Pushed};
use cc::Instant;
use roce::qp::{
    AckTimeout, Capabilities, Congestion, CongestionAlgorithm, Data, LossRecovery, Modify, QpInit,
    RtrSettings, RtsSettings, SendRequest,
};
use roce::wire::{Mtu, Path, RnrTimer, Service};
use roce::{Access, Psn, Qpn};
use std::sync::mpsc::{Sender, channel};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

struct Joined(Sender<(u8, Arc<Member>)>);

impl Events for Joined {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        let _ = self.0.send((slot, member));
    }

    fn left(&self, _: u8) {}

    fn died(&self, _: Farewell) {}
}

/// Creates a connection to a queue pair behind an Ethernet address.
fn connect(station: &mut Station, now: Instant, mac: Mac, destination: Qpn) -> Qpn {
    let pd = station.endpoint.create_pd();
    let (cq, _) = station.create_cq(64).unwrap();
    let capabilities = Capabilities { max_send: 32, ..Capabilities::default() };
    let (service, signal_all, srq) = (Service::Rc, false, None);
    let init = QpInit { service, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all, srq };
    let qpn = station.create_qp(now, init).unwrap().qpn();
    let [ours, theirs] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let receive = RtrSettings {
        path: Path::new((OWN, ours), (mac, theirs)),
        destination,
        mtu: Mtu::M1024,
        receive_psn: Psn::new(0),
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::new(1),
        loss_recovery: LossRecovery::GoBackN,
    };
    let send = RtsSettings {
        send_psn: Psn::new(0),
        ack_timeout: AckTimeout::new(20),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        congestion: Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 20, rate: None }),
    };
    for modify in [
        Modify::Init { access: Access::ALL, partition_key: 0xffff },
        Modify::ReadyToReceive(receive),
        Modify::ReadyToSend(send),
    ] {
        station.endpoint.modify_qp(now, qpn, modify).unwrap();
    }
    qpn
}

#[test]
fn a_process_that_takes_no_frames_does_not_delay_frames_to_the_network() {
    let interface = 0x4000_0000 | std::process::id();
    let mut own = Siblings::join(interface).unwrap();
    let (joined, members) = channel();
    own.watch(Box::new(Joined(joined))).unwrap();
    let stopped = Siblings::join(interface).unwrap();
    let (slot, member) = members.recv().unwrap();
    assert_eq!(slot, stopped.slot());
    let (port, mut network) = io::pair(256, 2048);
    let config = super::tests::config(Progress::Inline);
    // SAFETY: this test registers no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    let mut lanes = Box::new(own.lanes());
    lanes.add(slot, member);
    let [to_stopped, to_network] = engine
        .call(move |station, now| {
            // The ring is full.
            while lanes.push(slot, &[0; 1024], now) == Pushed::Done {}
            station.lanes = Some(lanes);
            let theirs = Qpn::new(u32::from(slot) << 18 | 7);
            [(OWN, theirs), (PEER, Qpn::new(9))].map(|(mac, qpn)| connect(station, now, mac, qpn))
        })
        .unwrap();
    for qpn in [to_stopped, to_network] {
        for id in 0..16 {
            let request = SendRequest::send(id, Data::inline(&[1; 64])).unsignalled();
            engine.call(move |station, now| station.endpoint.post_send(now, qpn, request)).unwrap().unwrap();
        }
    }
    let mut left: Burst<LoopbackBuf> = Burst::new();
    network.receive(&mut left);
    let to_peer = left.iter().filter(|frame| frame.starts_with(&PEER.0)).count();
    assert_eq!(to_peer, 16, "each left in the turn in which it was posted");
}
