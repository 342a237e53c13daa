//! Packets allocate no memory, whether sent, received, acknowledged or retransmitted.

use crate::harness::{BASE, Host, Options, Random, path};
use cc::{HpccConfig, Instant, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{CongestionAlgorithm, RecvRequest, Remote, SendRequest};
use roce::wire::MAX_OVERHEAD;

/// Runs one round: a request of each kind from host 0 to host 1, and all packets that follow. One packet in ten is lost.
fn round(hosts: &mut [Host; 2], now: &mut Instant, frame: &mut [u8], random: &mut Random) -> u64 {
    let rkey = hosts[1].region.rkey;
    let remote = |offset| Remote { address: BASE + offset, rkey };
    let [from, into, word] =
        [(0, 9000), (20_000, 9000), (30_000, 8)].map(|(at, length)| hosts[0].sge(at, length));
    let (qpn, peer) = (hosts[0].qpn, hosts[1].qpn);
    let receive = hosts[1].sge(40_000, 9000);
    hosts[1].endpoint.post_recv(peer, RecvRequest::new(1, receive)).unwrap();
    for request in [
        SendRequest::send(1, from),
        SendRequest::write(2, from, remote(60_000)),
        SendRequest::read(3, into, remote(80_000)),
        SendRequest::fetch_add(4, word, remote(0), 1),
    ] {
        hosts[0].endpoint.post_send(*now, qpn, request).unwrap();
    }
    let (mut done, mut packets) = (0, 0);
    while done < 5 {
        assert!(now.as_nanos() < 1_000_000_000, "{:?}", hosts[0].endpoint.report(qpn));
        for host in 0..2 {
            let [a, b] = hosts;
            let (us, them) = if host == 0 { (a, b) } else { (b, a) };
            while let Some(length) = us.endpoint.poll_transmit(*now, &us.ram, frame) {
                packets += 1;
                if !random.chance(100) {
                    let _ = them.endpoint.on_frame(*now, &mut them.ram, &frame[..length]);
                }
            }
            us.endpoint.on_timeout(*now);
            for cq in [us.send_cq, us.recv_cq] {
                done += us.endpoint.poll_cq(cq, &mut |_| true);
            }
        }
        *now = *now + Duration::from_micros(1);
    }
    packets
}

#[test]
fn packets_allocate_nothing() {
    exchange(false);
}

#[test]
fn packets_that_are_held_and_retransmitted_singly_allocate_nothing() {
    let hosts = exchange(true);
    assert!(hosts[1].endpoint.counters().held_early > 100);
}

fn exchange(selective_repeat: bool) -> [Host; 2] {
    let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(10), NonZeroU32::MIN);
    let options = Options {
        congestion: CongestionAlgorithm::Hpcc(config),
        probe_interval: Some(Duration::from_micros(10)),
        selective_repeat,
        ..Options::default()
    };
    let mut hosts = [Host::new(1, &options), Host::new(2, &options)];
    let qpns = [hosts[0].qpn, hosts[1].qpn];
    for (i, host) in hosts.iter_mut().enumerate() {
        let (from, to) = if i == 0 { (1, 2) } else { (2, 1) };
        host.ready_to_receive(path(from, to), qpns[1 - i], options.send_psn, &options);
        host.ready_to_send(&options);
    }
    let (mut now, mut random, mut packets) = (Instant::from_nanos(1), Random(1), 0);
    let mut frame = vec![0; 1024 + MAX_OVERHEAD];
    // A peer's first telemetry allocates the state of the responses.
    while hosts[0].endpoint.counters().probe_responses == 0 {
        packets += round(&mut hosts, &mut now, &mut frame, &mut random);
    }
    // Held and missing packets allocate memory up to their maximum so far.
    for _ in 0..300 {
        packets += round(&mut hosts, &mut now, &mut frame, &mut random);
    }
    let allocated = allocation_counter::measure(|| {
        for _ in 0..100 {
            packets += round(&mut hosts, &mut now, &mut frame, &mut random);
        }
    });
    assert!(packets > 3000);
    assert!(hosts[0].endpoint.counters().retransmitted > 100);
    assert!(hosts[0].endpoint.counters().probe_responses > 0);
    assert_eq!(allocated.count_total, 0, "allocations over {packets} packets");
    hosts
}
