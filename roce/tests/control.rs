//! Creating, connecting and destroying queue pairs and completion queues.

use crate::harness::{BASE, Host, Options, Pair, path};
use cc::{Instant, Rate};
use core::time::Duration;
use roce::qp::{
    CORE_BITS, Capabilities, CompletionStatus, CongestionAlgorithm, Data, Modify, PostError, QpInit, Remote,
    SendRequest, State, udp_source_port, udp_source_port_of_datagrams, udp_source_port_of_flow,
};
use roce::wire::Service;
use roce::{Access, ControlError, CoreIndex, CqId, Qpn};
use std::collections::BTreeSet;

const NOW: Instant = Instant::ZERO;

fn init(host: &Host) -> QpInit {
    QpInit {
        service: Service::Rc,
        pd: host.pd,
        send_cq: host.send_cq,
        recv_cq: host.recv_cq,
        capabilities: Capabilities::default(),
        signal_all: false,
        srq: None,
    }
}

/// IBA 10.3.1: from RESET through INIT and RTR to RTS, in this order only.
#[test]
fn states_follow_in_their_order() {
    let options = Options::default();
    let mut host = Host::new(1, &options);
    let qpn = host.qpn;
    let to_init = Modify::Init { access: Access::ALL, partition_key: 0xffff };
    host.endpoint.modify_qp(NOW, qpn, to_init).unwrap();
    // INIT to INIT sets the attributes again (IBA 10.3.1.2).
    host.endpoint.modify_qp(NOW, qpn, to_init).unwrap();
    host.endpoint.modify_qp(NOW, qpn, Modify::Reset).unwrap();
    host.ready_to_receive(path(1, 2), Qpn::new(9), 0, &options);
    assert_eq!(host.endpoint.report(qpn).unwrap().state, State::ReadyToReceive);
    let early = SendRequest::send(1, Data::empty());
    let refused = host.endpoint.post_send(NOW, qpn, early.clone());
    assert_eq!(refused, Err(PostError::State { qpn, state: State::ReadyToReceive }));
    host.ready_to_send(&options);
    assert_eq!(host.endpoint.post_send(NOW, qpn, early), Ok(()));
    host.endpoint.modify_qp(NOW, qpn, Modify::Error).unwrap();
    assert_eq!(host.sent()[0].status, CompletionStatus::Flushed);
}

#[test]
fn settings_beyond_their_limits_are_named() {
    let mut host = Host::new(1, &Options::default());
    let mut qp = init(&host);
    qp.capabilities.max_send_sge = 33;
    let refused = host.endpoint.create_qp(NOW, qp);
    assert_eq!(refused, Err(ControlError::Value { what: "max_send_sge", value: 33, limit: 32 }));
    let nowhere = QpInit { recv_cq: CqId(7), ..init(&host) };
    assert_eq!(host.endpoint.create_qp(NOW, nowhere), Err(ControlError::NoCq(CqId(7))));
    assert!(matches!(host.endpoint.create_cq(0), Err(ControlError::Value { .. })));
    let made = core::iter::from_fn(|| host.endpoint.create_qp(NOW, init(&host)).ok()).count();
    assert_eq!(made, 7, "8 with the one that was there");
    let full = host.endpoint.create_qp(NOW, init(&host));
    assert_eq!(full, Err(ControlError::Limit { what: "queue pairs", limit: 8 }));
}

#[test]
fn a_slot_that_is_used_again_has_another_number() {
    let mut host = Host::new(1, &Options::default());
    let mut seen = BTreeSet::from([host.qpn.get()]);
    for _ in 0..1000 {
        let qpn = host.endpoint.create_qp(NOW, init(&host)).unwrap();
        assert_eq!(qpn.get() >> 18, 1, "the core's bits");
        assert!(seen.insert(qpn.get()));
        host.endpoint.destroy_qp(NOW, qpn).unwrap();
        assert_eq!(host.endpoint.destroy_qp(NOW, qpn), Err(ControlError::NoQp(qpn)));
        assert_eq!(host.endpoint.report(qpn), None);
    }
}

#[test]
fn a_completion_queue_in_use_stays() {
    let mut host = Host::new(1, &Options::default());
    let (qpn, cq) = (host.qpn, host.send_cq);
    assert_eq!(host.endpoint.destroy_cq(cq), Err(ControlError::CqBusy { cq, qps: 1 }));
    host.endpoint.destroy_qp(NOW, qpn).unwrap();
    assert_eq!(host.endpoint.destroy_cq(cq), Ok(()));
    assert_eq!(host.endpoint.destroy_cq(cq), Err(ControlError::NoCq(cq)));
}

/// IBA 10.2.6: an overflow is an error of the completion queue and of all queue pairs that use it.
#[test]
fn a_completion_queue_that_overflows_ends_its_queue_pairs() {
    let mut pair = Pair::connect(Options { cq_depth: 3, ..Options::default() });
    let from = pair.hosts[0].sge(0, 10);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    for id in 0..3 {
        pair.post(0, SendRequest::write(id, from, remote));
    }
    pair.run(Duration::from_millis(1));
    let cq = pair.hosts[0].send_cq;
    assert!(!pair.hosts[0].endpoint.cq_overflowed(cq), "it holds exactly its depth");
    for id in 3..6 {
        pair.post(0, SendRequest::write(id, from, remote));
    }
    pair.run(Duration::from_millis(1));
    assert!(pair.hosts[0].endpoint.cq_overflowed(cq));
    assert_eq!(pair.reports()[0].unwrap().state, State::Error);
    assert_eq!(pair.reports()[1].unwrap().state, State::ReadyToSend);
    assert_eq!(pair.hosts[0].sent().iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1, 2]);
}

/// IBA 9.4: a message has at most 2^31 bytes.
#[test]
fn invalid_requests_are_refused() {
    let options = Options {
        capabilities: Capabilities { max_send: 2, max_recv: 1, ..Capabilities::default() },
        ..Options::default()
    };
    let mut pair = Pair::connect(options);
    let (qpn, now) = (pair.hosts[0].qpn, pair.now);
    let remote = Remote { address: BASE + 4, rkey: pair.hosts[1].region.rkey };
    let sge = |length| pair.hosts[0].sge(0, length);
    let long = [sge(1 << 31), sge(1)];
    let cases = [
        (SendRequest::send(1, &long[..]), PostError::MessageTooLong { given: (1 << 31) + 1 }),
        (SendRequest::send(1, &[sge(1); 5][..]), PostError::TooManyBuffers { given: 5, limit: 4 }),
        (SendRequest::send(1, Data::inline(&[0; 237])), PostError::InlineTooLong { given: 237, limit: 236 }),
        (SendRequest::fetch_add(1, sge(8), remote, 1), PostError::BadAtomic),
        (SendRequest::fetch_add(1, sge(4), Remote { address: BASE, ..remote }, 1), PostError::BadAtomic),
    ];
    let endpoint = &mut pair.hosts[0].endpoint;
    for (request, error) in cases {
        assert_eq!(endpoint.post_send(now, qpn, request), Err(error));
    }
    let small = SendRequest::send(1, Data::empty());
    assert_eq!(endpoint.send_room(qpn), 2);
    endpoint.post_send(now, qpn, small.clone()).unwrap();
    endpoint.post_send(now, qpn, small.clone()).unwrap();
    assert_eq!(endpoint.send_room(qpn), 0);
    assert_eq!(endpoint.post_send(now, qpn, small.clone()), Err(PostError::QueueFull { limit: 2 }));
    let nobody = Qpn::new(qpn.get() ^ 1);
    assert_eq!(endpoint.post_send(now, nobody, small), Err(PostError::NoQp { qpn: nobody }));
}

#[test]
fn invalid_congestion_control_is_refused() {
    let options = Options::default();
    let mut host = Host::new(1, &options);
    host.ready_to_receive(path(1, 2), Qpn::new(9), 0, &options);
    let settings = roce::qp::RtsSettings {
        send_psn: roce::Psn::new(0),
        ack_timeout: roce::qp::AckTimeout::new(14),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        congestion: roce::qp::Congestion::new(CongestionAlgorithm::Fixed {
            window: 1,
            rate: Some(Rate::from_bps(0)),
        }),
    };
    let refused = host.endpoint.modify_qp(NOW, host.qpn, Modify::ReadyToSend(settings));
    assert_eq!(refused, Err(ControlError::Congestion(cc::ConfigError::NoRate)));
    assert_eq!(host.endpoint.report(host.qpn).unwrap().state, State::ReadyToReceive);
}

/// The ports are from captures of Soft-RoCE.
#[test]
fn the_source_port_equals_that_of_linux() {
    let source = "10.0.0.1".parse().unwrap();
    let port = udp_source_port(source, Qpn::new(17), Qpn::new(18));
    assert_eq!(port, 0xc000 | (17 * 18));
    assert_eq!(udp_source_port(source, Qpn::new(0xffffff), Qpn::new(0xfffffe)) & 0xc000, 0xc000);
}

#[test]
fn the_source_port_names_the_core_of_the_peer() {
    for (cores, index) in [(1, 0), (2, 1), (4, 2), (16, 9)] {
        // 6 bits for the process, 0, 2 or 4 for the core, and arbitrary values in the others.
        let bits = CoreIndex::new(index, cores).low_bits();
        for qpn in [0, 1, (1 << bits) - 1].map(|low| 41 << 18 | u32::from(index) << bits | low) {
            let port = udp_source_port("10.0.0.1".parse().unwrap(), Qpn::new(17), Qpn::new(qpn));
            assert!(port >= 0xc000);
            let core = u32::from(port & CORE_BITS) >> 10 >> (bits - 14);
            assert_eq!(core, u32::from(index), "{cores} cores, QPN {qpn:#x}");
        }
    }
}

/// The rule is that of rdma-core's `ibv_flow_label_to_udp_sport`.
#[test]
fn a_flow_label_chooses_the_source_port() {
    let (ours, theirs) = (Qpn::new(17), Qpn::new(18));
    let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let default = udp_source_port(from, ours, theirs);
    assert_eq!(udp_source_port_of_flow(0, from, ours, theirs), default, "none was chosen");
    for (label, port) in [(1, 0xc001), (0x3fff, 0xffff), (0x4000, 0xc001), (0xf_ffff, 0xc000 | 0x3fc0)] {
        assert_eq!(udp_source_port_of_flow(label, from, ours, theirs), port);
        assert_eq!(udp_source_port_of_datagrams(label, from, to), port);
    }
}

#[test]
fn datagrams_to_different_hosts_leave_by_different_source_ports() {
    let from = "10.0.0.1".parse().unwrap();
    let port = |to: core::net::IpAddr| udp_source_port_of_datagrams(0, from, to);
    let v4 = (0..=255).map(|host| port([10, 0, 0, host].into()));
    let v6 = (0..=255).map(|host| port([0xfd00, 0, 0, 0, 0, 0, 0, host].into()));
    let ports: std::collections::BTreeSet<u16> = v4.chain(v6).collect();
    // 512 random values out of 1,024 include 403 different ones on average.
    assert!(ports.len() > 370, "{} ports for 512 hosts", ports.len());
    // Routers hash these ports to paths: each of 8 paths has its share.
    for path in 0..8 {
        let share = ports.iter().filter(|port| *port % 8 == path).count();
        assert!((35..=70).contains(&share), "path {path} has {share} of {}", ports.len());
    }
    assert!(ports.iter().all(|port| *port >= 0xc000 && port & CORE_BITS == 0), "they name core 0");
}
