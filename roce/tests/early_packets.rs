//! Memory for out-of-order packets: a budget for all queue pairs of an endpoint, and the behaviour at its limit.

use crate::harness::{BASE, Faults, Host, Options, Pair, Ram, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{
    Capabilities, CompletionStatus, Congestion, CongestionAlgorithm, LossRecovery, Modify, QpInit, Remote,
    RtrSettings, RtsSettings, SendRequest,
};
use roce::wire::{Bth, Header, MAX_OVERHEAD, Mtu, Numbers, Operation, Service, emit};
use roce::{Access, CqId, Discard, Endpoint, EndpointConfig, PdId, Psn, Qpn};

const BUDGET: usize = 4 << 20;
/// Longer than the time in which the search for unused memory visits a queue pair.
const LONG: Duration = Duration::from_secs(10);

/// Creates a queue pair of host 2 whose peer is host 1.
fn connected(endpoint: &mut Endpoint, pd: PdId, cq: CqId, mtu: Mtu) -> Qpn {
    let capabilities = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
    let (service, srq) = (Service::Rc, None);
    let init = QpInit { service, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all: false, srq };
    let qpn = endpoint.create_qp(Instant::ZERO, init).unwrap();
    let settings = RtrSettings {
        mtu,
        loss_recovery: LossRecovery::SelectiveRepeat,
        ..RtrSettings::new(path(2, 1), Qpn::new(0x10_0000 + qpn.get()))
    };
    let congestion = Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 20, rate: None });
    for modify in [
        Modify::Init { access: Access::ALL, partition_key: 0xffff },
        Modify::ReadyToReceive(settings),
        Modify::ReadyToSend(RtsSettings::new(congestion)),
    ] {
        endpoint.modify_qp(Instant::ZERO, qpn, modify).unwrap();
    }
    qpn
}

fn server(count: u32) -> (Endpoint, Vec<Qpn>) {
    let mut endpoint = Endpoint::new(EndpointConfig {
        max_qps: count,
        max_cqs: 1,
        max_regions: 1,
        seed: [7; 32],
        process: 0,
        numbers: Numbers::DEFAULT,
    });
    let (pd, cq) = (endpoint.create_pd(), endpoint.create_cq(1 << 16).unwrap());
    let qpns = (0..count).map(|_| connected(&mut endpoint, pd, cq, Mtu::M4096)).collect();
    endpoint.set_early_budget(BUDGET);
    (endpoint, qpns)
}

/// Returns a packet from host 1 that continues a SEND.
fn middle(qpn: Qpn, psn: u32, payload: usize) -> Vec<u8> {
    let bth = Bth::new(qpn, Psn::new(psn));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::SendMiddle };
    let mut frame = vec![0; payload + MAX_OVERHEAD];
    let length = emit(&path(1, 2), 0, &header, payload, &mut frame).unwrap().seal();
    frame.truncate(length);
    frame
}

/// Returns the bytes that `act` allocates and does not free.
fn allocated(act: impl FnOnce()) -> i64 {
    allocation_counter::measure(act).bytes_current
}

/// Each peer sends as many early packets as a queue pair may hold, the next or the farthest ones. All of them together hold at most 64 MiB.
#[test]
fn early_packets_of_any_number_of_queue_pairs_stay_within_the_budget() {
    for count in [10, 1000, 100_000_u32] {
        let (mut endpoint, qpns) = server(count);
        let mut ram = Ram(Vec::new());
        let each = (16_384 / count).clamp(1, 512);
        let held = allocated(|| {
            for (n, &qpn) in (0_u64..).zip(&qpns) {
                for ahead in (1..=each).map(|ahead| if n % 2 == 0 { ahead } else { 4096 - ahead }) {
                    let frame = middle(qpn, ahead, 4096);
                    let _ = endpoint.on_frame(Instant::from_nanos(n), &mut ram, &frame);
                    assert!(endpoint.early_bytes() <= BUDGET, "{count} queue pairs");
                }
            }
        });
        assert!(endpoint.early_bytes() > BUDGET / 2, "{count} queue pairs: {}", endpoint.early_bytes());
        // Memory apart from packets: the queue of queue pairs that hold packets, and their reports.
        assert!(held < BUDGET as i64 + (64 << 10), "{count} queue pairs hold {held} bytes");
        let freed = -allocated(|| release(&mut endpoint));
        assert_eq!(endpoint.early_bytes(), 0, "{count} queue pairs");
        assert!(freed > held - (64 << 10), "{count} queue pairs freed {freed} of {held} bytes");
    }
}

fn release(endpoint: &mut Endpoint) {
    let mut now = Instant::ZERO;
    while let Some(next) = endpoint.poll_timeout().filter(|next| *next < Instant::ZERO + LONG) {
        now = now.max(next);
        endpoint.on_timeout(now);
    }
}

#[test]
fn a_destroyed_queue_pair_returns_its_share() {
    let (mut endpoint, qpns) = server(2);
    let mut ram = Ram(Vec::new());
    for &qpn in &qpns {
        assert_eq!(endpoint.on_frame(Instant::ZERO, &mut ram, &middle(qpn, 1, 4096)), Ok(()));
    }
    let both = endpoint.early_bytes();
    endpoint.destroy_qp(Instant::ZERO, qpns[0]).unwrap();
    assert_eq!(endpoint.early_bytes(), both / 2);
    endpoint.modify_qp(Instant::ZERO, qpns[1], Modify::Reset).unwrap();
    assert_eq!(endpoint.early_bytes(), 0);
}

#[test]
fn a_queue_pair_that_holds_much_is_evicted_for_one_that_holds_little() {
    let (mut endpoint, qpns) = server(3);
    let mut ram = Ram(Vec::new());
    let mut early = |qpn, psn| endpoint.on_frame(Instant::ZERO, &mut ram, &middle(qpn, psn, 4096));
    let fit = |fits: [bool; 2]| fits.contains(&true);
    let full = (1..4096).find(|&psn| !fit([0, 1].map(|n| early(qpns[n], psn).is_ok()))).unwrap();
    for (n, expected) in [
        // Queue pairs that hold equal amounts do not evict each other.
        (0, Err(Discard::PsnGap)),
        (1, Err(Discard::PsnGap)),
        // The packet without room is dropped, and the next one has room.
        (2, Err(Discard::PsnGap)),
        (2, Ok(())),
    ] {
        assert_eq!(early(qpns[n], full + 1), expected, "queue pair {n}");
    }
    let [held, evicted] = [endpoint.counters().held_early, endpoint.counters().evicted_early];
    assert!(evicted * 2 > held - 10 && evicted < held, "{evicted} of {held}");
}

/// Peers of other queue pairs repeatedly exhaust the budget, while data arrives over a link that loses 5 % of the packets.
#[test]
fn evicted_packets_and_those_without_room_are_retransmitted() {
    for budget in [0, 16 << 10, 64 << 10, 256 << 10] {
        let options = Options {
            memory: 1 << 21,
            selective_repeat: true,
            ack_timeout: 12,
            max_qps: 16,
            ..Options::default()
        };
        let mut hosts = [Host::new(1, &options), Host::new(2, &options)];
        hosts[0]
            .ram
            .0
            .iter_mut()
            .zip(0_u32..)
            .for_each(|(byte, n)| *byte = (n.wrapping_mul(0x9e37_79b9) >> 24) as u8);
        let sent = hosts[0].ram.0.clone();
        let Host { endpoint, pd, recv_cq, .. } = &mut hosts[1];
        let others: Vec<_> = (0..8).map(|_| connected(endpoint, *pd, *recv_cq, Mtu::M1024)).collect();
        endpoint.set_early_budget(budget);
        let mut pair = Pair::of(hosts, options);
        pair.faults = Faults { loss: 50, ..Faults::default() };
        for id in 0..16 {
            let (from, rkey) = (pair.hosts[0].sge(id << 16, 1 << 16), pair.hosts[1].region.rkey);
            pair.post(0, SendRequest::write(id, from, Remote { address: BASE + (id << 16), rkey }));
        }
        let (mut done, mut turn) = (Vec::new(), 0);
        while done.len() < 16 {
            assert!(pair.now < Instant::ZERO + LONG, "{budget} bytes: {done:?} {:?}", pair.reports());
            assert!(pair.step());
            turn += 1;
            // Delivers a packet of another queue pair for each step in which one of ours may have arrived.
            let frame = middle(others[turn % 8], 1 + (turn / 8 % 200) as u32, 1024);
            let host = &mut pair.hosts[1];
            let _ = host.endpoint.on_frame(pair.now, &mut host.ram, &frame);
            assert!(host.endpoint.early_bytes() <= budget);
            let host = &mut pair.hosts[0];
            host.endpoint.poll_cq(host.send_cq, &mut |completion| {
                done.push((completion.id, completion.status));
                true
            });
        }
        assert_eq!(done, (0..16).map(|id| (id, CompletionStatus::Success)).collect::<Vec<_>>());
        assert!(pair.hosts[1].ram.0[..1 << 20] == sent[..1 << 20], "{budget} bytes");
        let counters = pair.hosts[1].endpoint.counters();
        let [held, evicted] = [counters.held_early, counters.evicted_early].map(|count| count > 0);
        assert_eq!([held, evicted], [budget > 0; 2], "{budget} bytes");
    }
}
