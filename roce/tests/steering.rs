//! Packet scripts of raw packet queue pairs: whole frames are sent unchanged, and rules choose which queue pair receives a frame.

use crate::harness::{Host, Options};
use cc::Instant;
use roce::qp::{
    CompletionOpcode, CompletionStatus, Data, Modify, PostError, RecvRequest, SendRequest, State,
};
use roce::steering::{
    EthernetSpec, FlowAction, FlowFrames, FlowRule, FlowSpec, HASH_KEY, HashFields, Ipv4Spec, MAX_FLOWS,
    Masked, PortSpec, Rss,
};
use roce::wire::Service;
use roce::{ControlError, Discard, Qpn};

const NOW: Instant = Instant::ZERO;
const LONGEST: u32 = 1518;

fn open(host: &mut Host) -> Qpn {
    let qpn = host.endpoint.create_qp(NOW, host.init_of(Service::Raw)).unwrap();
    for modify in [Modify::InitRaw, Modify::ReadyToReceiveRaw { longest: LONGEST }, Modify::ReadyToSendRaw] {
        host.endpoint.modify_qp(NOW, qpn, modify).unwrap();
    }
    qpn
}

fn host() -> Host {
    let mut host = Host::new(1, &Options { max_qps: 16, ..Options::default() });
    host.qpn = open(&mut host);
    host
}

/// Returns a UDP frame from port 1234 to `port`, from 1.1.1.1 to 2.2.2.2, with wrong lengths and no checksum: no parser would accept it.
fn frame(port: u16, payload: usize) -> Vec<u8> {
    let ethernet = [1, 0x50, 0x56, 0x19, 0x20, 0xa7, 0x24, 0x8a, 7, 0xa5, 0x28, 0xc8, 8, 0];
    let ip = [0x45, 0, 0xff, 0xff, 0, 0, 0x40, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    let udp = [0x04, 0xd2, (port >> 8) as u8, port as u8, 0, 0, 0, 0];
    let bytes = (0..payload).map(|n| n as u8);
    ethernet.into_iter().chain(ip).chain(udp).chain(bytes).collect()
}

fn to_port(port: u16) -> FlowRule {
    let destination = Masked::exactly(port.to_be_bytes());
    FlowRule::new(vec![FlowSpec::Udp(PortSpec { destination, ..PortSpec::default() })])
}

fn receive(qpn: Qpn, host: &mut Host, id: u64, length: u32) {
    let request = RecvRequest::new(id, host.sge(4096 * id, length));
    host.endpoint.post_recv(qpn, request).unwrap();
}

fn steer(host: &mut Host, frame: &[u8]) -> bool {
    host.endpoint.steer(NOW, &mut host.ram, frame)
}

fn came(host: &mut Host) -> Vec<(u64, u32)> {
    host.received().iter().map(|came| (came.id, came.length)).collect()
}

fn transmit(host: &mut Host, room: usize) -> Option<Vec<u8>> {
    let mut room = vec![0xee; room];
    let length = host.endpoint.poll_transmit(NOW, &host.ram, &mut room)?;
    Some(room[..length].to_vec())
}

#[test]
fn a_frame_leaves_as_the_program_wrote_it() {
    let mut host = host();
    let frame = frame(5678, 300);
    host.ram.0[..frame.len()].copy_from_slice(&frame);
    let buffers = [host.sge(0, 14), host.sge(14, frame.len() as u32 - 14)];
    host.endpoint.post_send(NOW, host.qpn, SendRequest::send(1, &buffers[..])).unwrap();
    host.endpoint.post_send(NOW, host.qpn, SendRequest::send(2, Data::inline(&frame[..60]))).unwrap();
    assert_eq!(transmit(&mut host, 2048).unwrap(), frame);
    assert_eq!(transmit(&mut host, 2048).unwrap(), frame[..60]);
    assert_eq!(transmit(&mut host, 2048), None);
    let sent: Vec<_> = host.sent().iter().map(|sent| (sent.id, sent.status, sent.opcode)).collect();
    let done = |id| (id, CompletionStatus::Success, CompletionOpcode::Send);
    assert_eq!(sent, [done(1), done(2)]);
    assert_eq!(host.endpoint.counters().tx_payload_bytes, frame.len() as u64 + 60);
}

#[test]
fn a_frame_arrives_whole_where_a_rule_sends_it() {
    let mut host = host();
    let (other, frame) = (open(&mut host), frame(5678, 300));
    assert!(!host.endpoint.has_flows() && !steer(&mut host, &frame));
    let flow = host.endpoint.add_flow(other, to_port(5678)).unwrap();
    receive(host.qpn, &mut host, 1, 2048);
    receive(other, &mut host, 2, 2048);
    assert!(steer(&mut host, &frame));
    assert!(!steer(&mut host, &self::frame(5679, 300)), "no rule is about it");
    let received = host.received();
    assert_eq!((received.len(), received[0].id, received[0].length), (1, 2, frame.len() as u32));
    assert_eq!((received[0].opcode, received[0].source), (CompletionOpcode::Recv, None));
    assert_eq!(host.bytes(8192, frame.len()), frame);
    host.endpoint.remove_flow(flow);
    assert!(!host.endpoint.has_flows() && !steer(&mut host, &frame));
}

/// RoCEv2 packets are delivered to their queue pairs, whatever the rules.
#[test]
fn rocev2_packets_are_not_steered() {
    let mut host = host();
    host.endpoint.add_flow(host.qpn, FlowRule::new(Vec::new())).unwrap();
    receive(host.qpn, &mut host, 1, 2048);
    assert!(!steer(&mut host, &frame(4791, 300)));
    assert!(steer(&mut host, &frame(4790, 300)));
    assert_eq!(came(&mut host), [(1, 342)]);
}

#[test]
fn rules_apply_in_the_order_of_their_priority() {
    let mut host = host();
    let (second, third) = (open(&mut host), open(&mut host));
    let copy = FlowRule { action: FlowAction::Copy, ..to_port(7) };
    let any = |priority, frames, action| FlowRule { priority, frames, action };
    let flows = [
        (host.qpn, any(9, FlowFrames::Matching(Vec::new()), FlowAction::Take)),
        (second, copy),
        (third, any(0, FlowFrames::Rest, FlowAction::Take)),
    ];
    for (qpn, rule) in flows {
        host.endpoint.add_flow(qpn, rule).unwrap();
    }
    for (id, qpn) in [(1, host.qpn), (2, second), (3, third)] {
        receive(qpn, &mut host, id, 2048);
    }
    assert!(steer(&mut host, &frame(7, 10)));
    assert_eq!(came(&mut host), [(2, 52), (1, 52)], "the rest is none");
    let drops = FlowRule { action: FlowAction::Drop, ..to_port(8) };
    host.endpoint.add_flow(second, drops).unwrap();
    assert!(steer(&mut host, &frame(8, 10)));
    assert_eq!(host.endpoint.counters().discarded(Discard::FlowRule), 1);
    host.endpoint.destroy_qp(NOW, host.qpn).unwrap();
    assert!(steer(&mut host, &frame(9, 10)));
    assert_eq!(came(&mut host), [(3, 52)], "the first one's rule went with it");
}

#[test]
fn a_frame_that_finds_no_room_is_dropped_and_counted() {
    let mut host = host();
    host.endpoint.add_flow(host.qpn, to_port(7)).unwrap();
    let frame = frame(7, 100);
    let dropped = |host: &Host, why| host.endpoint.counters().discarded(why);
    assert!(steer(&mut host, &frame));
    assert_eq!(dropped(&host, Discard::ReceiverNotReady), 1);
    receive(host.qpn, &mut host, 1, frame.len() as u32 - 1);
    assert!(steer(&mut host, &frame));
    assert_eq!(dropped(&host, Discard::LocalProtection), 1);
    assert!(steer(&mut host, &self::frame(7, 99)), "the request waits for a shorter one");
    assert_eq!(came(&mut host), [(1, frame.len() as u32 - 1)]);
    host.endpoint.modify_qp(NOW, host.qpn, Modify::Error).unwrap();
    assert!(steer(&mut host, &frame));
    assert_eq!(dropped(&host, Discard::QpState), 1);
}

#[test]
fn frames_have_an_ethernet_header_and_fit_the_port() {
    let mut host = host();
    let mut post = |length| host.endpoint.post_send(NOW, host.qpn, SendRequest::send(1, host.sge(0, length)));
    for given in [0, 13, LONGEST + 1] {
        let refused = PostError::FrameLength { given: given.into(), limit: LONGEST };
        assert_eq!(post(given), Err(refused));
    }
    assert_eq!((post(14), post(LONGEST)), (Ok(()), Ok(())));
    let send = SendRequest::send(1, Data::inline(&[0; 64])).with_immediate([0; 4]);
    assert_eq!(host.endpoint.post_send(NOW, host.qpn, send), Err(PostError::Service { qpn: host.qpn }));
    // The buffers are shorter than the program claimed: the send fails, and receiving continues.
    assert_eq!(transmit(&mut host, 1024).map(|frame| frame.len()), Some(14));
    assert_eq!(transmit(&mut host, 1024), None);
    let statuses: Vec<_> = host.sent().iter().map(|sent| sent.status).collect();
    assert_eq!(statuses, [CompletionStatus::Success, CompletionStatus::LocalLength]);
    assert_eq!(host.endpoint.report(host.qpn).unwrap().state, State::SendQueueError);
    host.endpoint.modify_qp(NOW, host.qpn, Modify::Resume).unwrap();
    let foreign = SendRequest::send(3, roce::qp::Sge { length: 1 << 10, ..host.sge(u64::MAX >> 1, 0) });
    host.endpoint.post_send(NOW, host.qpn, foreign).unwrap();
    assert_eq!(transmit(&mut host, 2048), None);
    assert_eq!(host.sent()[0].status, CompletionStatus::LocalProtection);
}

#[test]
fn only_raw_packet_queue_pairs_accept_rules_up_to_the_limit() {
    let mut host = host();
    let datagrams = host.endpoint.create_qp(NOW, host.init_of(Service::Ud)).unwrap();
    let refused = host.endpoint.add_flow(datagrams, to_port(7));
    assert_eq!(refused, Err(ControlError::NotRaw(datagrams)));
    let none = Qpn::new(5);
    assert_eq!(host.endpoint.add_flow(none, to_port(7)), Err(ControlError::NoQp(none)));
    for port in 0..MAX_FLOWS as u16 {
        host.endpoint.add_flow(host.qpn, to_port(port)).unwrap();
    }
    let refused = host.endpoint.add_flow(host.qpn, to_port(7)).unwrap_err();
    assert_eq!(refused.to_string(), "flow rules: the limit of 256 is reached");
    receive(host.qpn, &mut host, 1, 2048);
    assert!(steer(&mut host, &frame(255, 0)), "the last one counts");
}

#[test]
fn states_are_those_of_raw_packets() {
    let mut host = host();
    let [raw, connected] = [Service::Raw, Service::Uc]
        .map(|service| host.endpoint.create_qp(NOW, host.init_of(service)).unwrap());
    for (qpn, modify) in [
        (raw, Modify::InitDatagram { queue_key: 1, partition_key: 0xffff }),
        (raw, Modify::ReadyToReceiveRaw { longest: LONGEST }),
        (raw, Modify::ReadyToSendRaw),
        (connected, Modify::InitRaw),
    ] {
        let refused = host.endpoint.modify_qp(NOW, qpn, modify);
        assert!(matches!(refused, Err(ControlError::Transition { .. })), "{modify:?}");
    }
    for modify in [Modify::InitRaw, Modify::InitRaw, Modify::ReadyToReceiveRaw { longest: LONGEST }] {
        host.endpoint.modify_qp(NOW, raw, modify).unwrap();
    }
    let early = SendRequest::send(1, host.sge(0, 64));
    let state = State::ReadyToReceive;
    assert_eq!(host.endpoint.post_send(NOW, raw, early), Err(PostError::State { qpn: raw, state }));
    host.endpoint.modify_qp(NOW, raw, Modify::ReadyToSendRaw).unwrap();
    host.endpoint.modify_qp(NOW, raw, Modify::Reset).unwrap();
    host.endpoint.modify_qp(NOW, raw, Modify::InitRaw).unwrap();
}

#[test]
fn a_rule_may_name_any_header() {
    let mut host = host();
    let (v4, ethernet) = (Ipv4Spec::default(), EthernetSpec::default());
    let specs = vec![
        FlowSpec::Ethernet(EthernetSpec { ether_type: Masked::exactly([8, 0]), ..ethernet }),
        FlowSpec::Ipv4(Ipv4Spec { source: Masked::exactly([1; 4]), ..v4 }),
        FlowSpec::Udp(PortSpec { source: Masked::exactly([0x04, 0xd2]), ..PortSpec::default() }),
    ];
    host.endpoint.add_flow(host.qpn, FlowRule::new(specs)).unwrap();
    receive(host.qpn, &mut host, 1, 2048);
    let mut other = frame(7, 0);
    other[29] ^= 1;
    assert!(!steer(&mut host, &other), "another source address");
    assert!(steer(&mut host, &frame(7, 0)));
    assert!((0..14).all(|length| !steer(&mut host, &frame(7, 0)[..length])), "no whole header");
}

/// All frames of a flow are delivered to the same queue pair.
#[test]
fn frames_spread_over_queue_pairs_by_their_headers() {
    let mut host = host();
    let [one, two] = [open(&mut host), open(&mut host)];
    let fields = HashFields { ipv4_source: true, udp_destination: true, ..HashFields::default() };
    let key = core::array::from_fn(|i| (i * 37 + 11) as u8);
    let spread = |table: &[Qpn]| Rss { key, fields, table: table.to_vec() };
    assert_eq!(key.len(), HASH_KEY);
    let refused = host.endpoint.set_rss(host.qpn, spread(&[one, two, one])).unwrap_err();
    let said = "entries of a spread, a power of two = 3: out of range; the limit is 128";
    assert_eq!(refused.to_string(), said);
    let none = Qpn::new(5);
    assert_eq!(host.endpoint.set_rss(host.qpn, spread(&[one, none])), Err(ControlError::NoQp(none)));
    host.endpoint.set_rss(host.qpn, spread(&[one, two])).unwrap();
    host.endpoint.add_flow(host.qpn, FlowRule::new(Vec::new())).unwrap();
    let mut takers = std::collections::BTreeMap::<u16, Vec<Qpn>>::new();
    for _ in 0..2 {
        for port in 0..32 {
            receive(one, &mut host, 1, 2048);
            receive(two, &mut host, 2, 2048);
            assert!(steer(&mut host, &frame(port, 10)));
            let received = host.received();
            assert_eq!(received.len(), 1);
            takers.entry(port).or_default().push(received[0].qpn);
            for qpn in [one, two] {
                host.endpoint.modify_qp(NOW, qpn, Modify::Reset).unwrap();
                for modify in [Modify::InitRaw, Modify::ReadyToReceiveRaw { longest: LONGEST }] {
                    host.endpoint.modify_qp(NOW, qpn, modify).unwrap();
                }
            }
        }
    }
    assert!(takers.values().all(|takers| takers[0] == takers[1]), "{takers:?}");
    let of_one = takers.values().filter(|takers| takers[0] == one).count();
    assert!((4..=28).contains(&of_one), "{of_one} of 32");
    host.endpoint.destroy_qp(NOW, two).unwrap();
    let dropped = (0..32).filter(|&port| steer(&mut host, &frame(port, 10))).count();
    assert_eq!(dropped, 32, "also those of the one that is gone");
}
