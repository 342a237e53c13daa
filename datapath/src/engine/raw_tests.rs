//! Tests of raw packets: the frames to which rules apply, and the delivery of a process's frames to itself and to others.

use super::*;
use crate::io::{self, Burst, Loopback, LoopbackBuf, PacketBuf, PacketIo};
use roce::Discard;
use roce::qp::{Capabilities, Data, Modify, QpInit, SendRequest};
use roce::steering::{EthernetSpec, FlowRule, FlowSpec, Masked};
use roce::wire::{Service, Vlan};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const GROUP: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
/// An EtherType of no protocol that a core implements.
const LOCAL: [u8; 2] = [0x88, 0xb5];

struct Loop(Loopback, Loopback);

impl PacketIo for Loop {
    type Buf = LoopbackBuf;

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        let mut sent = Burst::new();
        self.1.receive(&mut sent);
        self.1.transmit(&mut sent);
        self.0.receive(into);
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        self.0.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<LoopbackBuf>) {
        self.0.transmit(from);
    }

    fn caps(&self) -> io::Caps {
        self.0.caps()
    }

    fn loops_back(&self) -> bool {
        true
    }
}

fn start<P: PacketIo + 'static>(port: P, vlan: Option<Vlan>) -> Engine {
    let config = CoreConfig { vlan, addresses: Vec::new(), ..super::tests::config(Progress::Inline) };
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(port, &config).unwrap() }
}

/// Creates a raw packet queue pair that receives frames of `ether_type`. It has no receive requests, so each frame is counted as dropped.
fn open(engine: &Engine, ether_type: [u8; 2]) -> roce::Qpn {
    let create = move |state: &mut CoreState, now| {
        let pd = state.endpoint.create_pd();
        let (cq, _) = state.create_cq(4).unwrap();
        let (capabilities, signal_all, srq) = (Capabilities::default(), false, None);
        let init =
            QpInit { service: Service::Raw, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all, srq };
        let qpn = state.create_qp(now, init).unwrap().qpn();
        for modify in [Modify::InitRaw, Modify::ReadyToReceiveRaw { longest: 1518 }, Modify::ReadyToSendRaw] {
            state.endpoint.modify_qp(now, qpn, modify).unwrap();
        }
        let spec = EthernetSpec { ether_type: Masked::exactly(ether_type), ..EthernetSpec::default() };
        state.endpoint.add_flow(qpn, FlowRule::new(vec![FlowSpec::Ethernet(spec)])).unwrap();
        qpn
    };
    engine.call(create).unwrap()
}

fn frame(to: [u8; 6], tag: &[u8], ether_type: [u8; 2]) -> Vec<u8> {
    [&to[..], &[2, 0, 0, 0, 0, 9], tag, &ether_type, &[0; 46]].concat()
}

fn put(port: &mut Loopback, frame: &[u8]) {
    let mut buffer = port.alloc().unwrap();
    buffer.set_len(frame.len());
    buffer.copy_from_slice(frame);
    let mut burst = Burst::new();
    burst.push(buffer);
    port.transmit(&mut burst);
}

/// Returns the number of frames that a rule steered to the queue pair. They were dropped, because it has no receive requests.
fn steered(engine: &Engine) -> u64 {
    while engine.progress() {}
    engine.call(|state, _| state.endpoint.counters().discarded(Discard::ReceiverNotReady)).unwrap()
}

#[test]
fn rules_see_frames_of_any_address_and_tag_and_leave_resolution_its_own() {
    const ARP: [u8; 2] = [0x08, 0x06];
    let (port, mut other) = io::pair(64, 2048);
    let engine = start(port, Some(Vlan(5)));
    for to in [MAC.0, [2, 0, 0, 0, 0, 7], GROUP] {
        put(&mut other, &frame(to, &[], LOCAL));
    }
    assert_eq!(steered(&engine), 0, "there is no rule");
    open(&engine, LOCAL);
    for to in [MAC.0, [2, 0, 0, 0, 0, 7], GROUP] {
        for tag in [&[][..], &[0x81, 0, 0, 5], &[0x81, 0, 0, 6]] {
            put(&mut other, &frame(to, tag, LOCAL));
        }
    }
    put(&mut other, &frame(MAC.0, &[0x81, 0, 0, 5], [0x88, 0xb6]));
    assert_eq!(steered(&engine), 9);
    open(&engine, ARP);
    put(&mut other, &frame([0xff; 6], &[0x81, 0, 0, 5], ARP));
    assert_eq!(steered(&engine), 10);
    let resolved = engine.call(|state, _| state.counters.neighbour_packets).unwrap();
    assert_eq!(resolved, 1, "both take it");
}

/// Covers a port that loops back no frames and one that loops back all.
#[test]
fn a_frame_to_a_group_is_looped_back_once_and_a_unicast_frame_is_not() {
    let (port, mut other) = io::pair(64, 2048);
    let (near, far) = io::pair(64, 2048);
    let engines = [start(port, None), start(Loop(near, far), None)];
    for (engine, loops_back) in engines.iter().zip([false, true]) {
        let qpn = open(engine, LOCAL);
        let stranger = [2, 0, 0, 0, 0, 7];
        for (to, times) in [(GROUP, 1), (MAC.0, 2), (stranger, 2 + u64::from(loops_back))] {
            let request = SendRequest::send(1, Data::inline(&frame(to, &[], LOCAL))).unsignalled();
            engine.call(move |state, now| state.endpoint.post_send(now, qpn, request)).unwrap().unwrap();
            assert_eq!(steered(engine), times, "{to:?}, loops back: {loops_back}");
        }
    }
    let mut left = Burst::new();
    other.receive(&mut left);
    let left: Vec<_> = left.iter().map(|frame| frame[..6].to_vec()).collect();
    assert_eq!(left, [GROUP.to_vec(), vec![2, 0, 0, 0, 0, 7]]);
}
