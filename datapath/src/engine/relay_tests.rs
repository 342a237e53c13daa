//! Tests of relaying: frames that the kernel delivered to one process of an interface, and that are for another.

use super::pending_frames_tests::Joined;
use super::*;
use crate::io::{self, Burst, PacketIo};
use crate::siblings::{Delivery, Member};
use roce::wire::{Bth, Header, Opcode, Path};
use roce::{Psn, Qpn, wire};
use std::sync::mpsc::{Receiver, channel};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEERS: Mac = Mac([2, 0, 0, 0, 0, 2]);
const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

fn join(interface: u32) -> (Siblings, Receiver<(u8, Arc<Member>)>) {
    let mut siblings = Siblings::join(interface, Delivery::ToOne).unwrap();
    let (joined, members) = channel();
    siblings.watch(Box::new(Joined(joined))).unwrap();
    (siblings, members)
}

fn frame(to: Mac, qpn: Qpn) -> Vec<u8> {
    let [ours, theirs] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let header = Header::Datagram {
        bth: Bth::new(qpn, Psn::new(0)),
        queue_key: 1,
        source: Qpn::new(9),
        immediate: None,
    };
    let mut frame = vec![0; 200];
    let length =
        wire::emit(&Path::new((PEERS, theirs), (to, ours)), 1, &header, 8, &mut frame).unwrap().seal();
    frame.truncate(length);
    frame
}

/// Returns the frames that another process receives, of those that the kernel delivered to this one, and the number that this one counts as
/// relayed.
fn relayed(test: u32, peer_mac: Option<Mac>, frames: impl Fn(u8, u8) -> Vec<Vec<u8>>) -> (Vec<Vec<u8>>, u64) {
    let interface = 0x2000_0000 | test << 24 | std::process::id();
    let (own, joined) = join(interface);
    let (other, joined_before) = join(interface);
    let ((slot, member), (own_slot, own_member)) = (joined.recv().unwrap(), joined_before.recv().unwrap());
    let (port, mut network) = io::pair(256, 2048);
    let config = CoreConfig { peer_mac, ..super::tests::config(Progress::Inline) };
    // SAFETY: these tests register no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    let mut member_rings = Box::new(own.member_rings());
    member_rings.add(slot, member);
    let frames = frames(own_slot, slot);
    let counted = engine.call(move |state, now| {
        state.member_rings = Some(member_rings);
        frames.iter().for_each(|frame| state.on_frame_in_place(now, frame));
        state.member_rings.iter_mut().for_each(|member_rings| member_rings.publish());
        state.counters.siblings
    });
    let mut theirs = other.member_rings();
    theirs.add(own_slot, own_member);
    let mut burst = Burst::new();
    theirs.receive(&mut burst, || network.alloc());
    (burst.iter().map(|frame| frame.to_vec()).collect(), counted.unwrap())
}

fn qpn(slot: u8) -> Qpn {
    Qpn::new(u32::from(slot) << 18 | 7)
}

#[test]
fn a_packet_of_another_process_is_passed_on_and_others_stay() {
    let (sent, counted) = relayed(0, Some(PEERS), |own, other| {
        vec![frame(OWN, qpn(other)), frame(OWN, qpn(own)), vec![0xa5; 20]]
    });
    assert_eq!((sent.len(), counted), (1, 1));
    assert_eq!(wire::destination(&sent[0]).map(Qpn::get).map(|qpn| qpn & 0x3_ffff), Some(7));
}

#[test]
fn datagrams_of_queue_pair_1_and_direct_responses_reach_all_processes() {
    let mut response = frame(OWN, Qpn::new(1 << 18));
    response[42] = Opcode::DIRECT_RESPONSE.0;
    let (sent, counted) = relayed(1, Some(PEERS), |_, _| vec![frame(OWN, Qpn::new(1)), response.clone()]);
    assert_eq!((sent.len(), counted), (2, 0));
}

#[test]
fn a_frame_to_all_processes_is_not_passed_on() {
    let (sent, _) = relayed(2, Some(PEERS), |_, _| vec![frame(GROUP, roce::GROUP_QPN)]);
    assert_eq!(sent.len(), 0, "a datagram to a group");
    let (sent, counted) = relayed(3, None, |_, other| vec![frame(OWN, qpn(other)), frame(OWN, Qpn::new(1))]);
    assert_eq!((sent.len(), counted), (0, 1), "on a packet socket");
}
