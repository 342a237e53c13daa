//! Tests of ports on packet sockets with large datagrams, on a veth pair. Runs as root, in its own network namespace.

mod common;

use common::{as_in_a_container, carry, ip, open, open_with, own_network, packet, small};
use ferroce_datapath::dpdk::{Mbuf, Port, PortConfig};
use ferroce_datapath::io::{BURST, Burst, PacketIo, PortCounters};
use ferroce_datapath::steering::Steering;
use roce::CoreIndex;
use roce::wire::{self, Mac, Mtu, Numbers, Path, Vlan};
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Turns of a poll loop after which a frame is considered lost.
const TURNS: u64 = 2_000_000;

/// Runs the tests one at a time, because the `ip` that one test starts would inherit the descriptors that another closes.
static ALONE: Mutex<()> = Mutex::new(());

fn pair(mtu: u16) -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    // Otherwise the ports would receive the kernel's router solicitations.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip(&format!("link add dpdk0 mtu {mtu} type veth peer name dpdk1 mtu {mtu}"));
    ip("link set lo up");
    ip("link set dpdk0 up");
    ip("link set dpdk1 up");
    alone
}

fn run(program: &str, words: &str) -> String {
    let done = Command::new(program).args(words.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn ports() -> (Port, Port) {
    (open("packet:dpdk0"), open("packet:dpdk1"))
}

fn path(from: &Port, to: &Port, [source, destination]: [&str; 2]) -> Path {
    let [source, destination]: [IpAddr; 2] = [source, destination].map(|ip| ip.parse().unwrap());
    Path::new((from.info().mac, source), (to.info().mac, destination))
}

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

/// Sends a burst, and checks that the other port receives the same frames in order.
fn expect_carried(from: &mut Port, to: &mut Port, mut out: Burst<Mbuf>) {
    let sent: Vec<_> = out.iter().map(|frame| frame.to_vec()).collect();
    let (mut received, mut burst) = (Vec::new(), Burst::new());
    for _ in 0..TURNS {
        from.transmit(&mut out);
        to.receive(&mut burst);
        received.extend(burst.drain(..).map(|frame| frame.to_vec()));
        if received.len() >= sent.len() {
            break;
        }
    }
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&received), lengths(&sent));
    assert_eq!(received, sent);
    assert!(received.iter().all(|frame| wire::verify(frame).is_ok()));
}

fn burst(from: &mut Port, path: &Path, payloads: &[usize]) -> Burst<Mbuf> {
    payloads.iter().zip(1..).map(|(payload, number)| packet(from, path, number, 7, *payload)).collect()
}

/// Returns the number of packets that `dpdk0` has sent according to the kernel, which counts a large datagram as one.
fn datagrams() -> u64 {
    let text = run("ip", "-s link show dpdk0");
    let mut lines = text.lines().skip_while(|line| !line.contains("TX:")).skip(1);
    lines.next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn frames_up_to_the_interfaces_mtu_arrive() {
    for (mtu, path_mtu, lengths) in
        [(1500, Mtu::M1024, [60, 1514, 1000]), (9000, Mtu::M4096, [4186, 9014, 60])]
    {
        let _alone = pair(mtu);
        let (mut one, mut other) = ports();
        assert_eq!((one.info().mtu, one.info().ip_mtu), (path_mtu, mtu));
        assert_eq!(one.info().driver, "packet socket (large datagrams)");
        carry(&mut one, &mut other, &lengths);
        carry(&mut other, &mut one, &lengths);
        // DPDK's own driver at the other end, with frames that are sent singly.
        let mut dpdk = open("af_packet:dpdk1");
        carry(&mut one, &mut dpdk, &lengths);
        carry(&mut dpdk, &mut one, &lengths);
    }
}

#[test]
fn a_burst_of_one_connection_is_one_datagram_of_the_kernels() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    for addresses in [V4, V6] {
        let path = path(&one, &other, addresses);
        for path in [path, Path { vlan: Some(Vlan(5)), ..path }] {
            let mut payloads = [512; BURST];
            payloads[BURST - 1] = 100;
            let before = datagrams();
            let frames = burst(&mut one, &path, &payloads);
            expect_carried(&mut one, &mut other, frames);
            assert_eq!(datagrams() - before, 1, "{path:?}");
        }
    }
}

#[test]
fn a_suspected_peer_gets_each_packet_singly_and_other_peers_do_not() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    for addresses in [V4, V6] {
        let [suspected, same_host] = [path(&one, &other, addresses), path(&one, &other, [addresses[0]; 2])];
        one.suspect(suspected.destination);
        for (path, expected) in [(suspected, BURST as u64), (same_host, 1)] {
            let before = datagrams();
            let frames = burst(&mut one, &path, &[512; BURST]);
            expect_carried(&mut one, &mut other, frames);
            assert_eq!(datagrams() - before, expected, "{path:?}");
        }
    }
}

#[test]
fn a_burst_to_several_peers_arrives_in_order() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let first = path(&one, &other, V4);
    let second = Path { udp_source: 0xc123, ..first };
    let mut frames = Burst::new();
    for number in 0..BURST as u16 {
        let path = if number / 3 % 2 == 0 { &first } else { &second };
        frames.push(packet(&mut one, path, number, 7, 64 + usize::from(number / 20) * 4));
    }
    expect_carried(&mut one, &mut other, frames);
}

#[test]
fn the_kernel_splits_datagrams_that_the_device_cannot() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    let frames = burst(&mut one, &path, &[1024; BURST]);
    expect_carried(&mut one, &mut other, frames);
    // Changed while the ports are open.
    run("ethtool", "-K dpdk0 tx-udp-segmentation off");
    for checksums in ["on", "off"] {
        run("ethtool", &format!("-K dpdk0 tx {checksums}"));
        let frames = burst(&mut one, &path, &[1024; BURST]);
        let before = datagrams();
        let sent: Vec<_> = frames.iter().map(|frame| frame.len()).collect();
        let mut out = frames;
        let (mut received, mut came) = (Vec::new(), Burst::new());
        for _ in 0..TURNS {
            one.transmit(&mut out);
            other.receive(&mut came);
            received.extend(came.drain(..).map(|frame| frame.to_vec()));
            if received.len() >= sent.len() {
                break;
            }
        }
        assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), sent);
        assert!(received.iter().all(|frame| wire::verify(frame).is_ok()), "checksums {checksums}");
        assert_eq!(datagrams() - before, BURST as u64);
    }
}

#[test]
fn a_burst_for_two_cores_arrives_at_their_sockets() {
    let _alone = pair(1500);
    let config = PortConfig { buffers: 2048, ..small() };
    let (mut sender, mut main) = (open("packet:dpdk0"), open_with("packet:dpdk1", &config));
    let steering = Steering {
        mac: main.info().mac,
        process: 0,
        core: CoreIndex::new(0, 2),
        cores: 2,
        numbers: Numbers::DEFAULT,
    };
    let mut queues = main.open_queues(&steering).unwrap();
    let [worker] = &mut queues[..] else { panic!("{} queues", queues.len()) };
    let path = path(&sender, &main, V4);
    for (qpn, port) in [(5, &mut main), (1 << 16 | 5, worker)] {
        let frames = (1..=8).map(|number| packet(&mut sender, &path, number, qpn, 256)).collect();
        expect_carried(&mut sender, port, frames);
        assert_eq!(port.misdirects(), qpn != 5, "only core 0 distributes what it receives");
    }
}

#[test]
fn frames_of_an_interface_that_is_down_are_lost_and_later_ones_arrive() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    ip("link set dpdk0 down");
    let mut lost = burst(&mut one, &path, &[1024; 4]);
    one.transmit(&mut lost);
    assert!(lost.is_empty(), "an unplugged cable loses frames");
    assert_eq!(one.counters(), PortCounters { refused: 4, ..PortCounters::default() });
    assert!(!one.link_is_up());
    ip("link set dpdk0 up");
    let frames = burst(&mut one, &path, &[1024; 4]);
    expect_carried(&mut one, &mut other, frames);
}

#[test]
fn a_frame_larger_than_the_peers_mtu_is_kept_until_it_fits() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    let frames = burst(&mut one, &path, &[1024; 4]);
    expect_carried(&mut one, &mut other, frames);
    ip("link set dpdk1 mtu 600");
    // Linux forwards a large datagram across a veth pair whatever the MTU of its ends.
    let frames = burst(&mut one, &path, &[1024; 4]);
    expect_carried(&mut one, &mut other, frames);
    let mut waits = burst(&mut one, &path, &[1024]);
    one.transmit(&mut waits);
    assert_eq!(waits.len(), 1, "the kernel reports that it does not fit");
    assert_eq!(one.counters(), PortCounters::default());
    ip("link set dpdk1 mtu 1500");
    expect_carried(&mut one, &mut other, waits);
}

#[test]
fn frames_beyond_the_interfaces_mtu_are_refused_and_shorter_ones_sent() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    ip("link set dpdk0 mtu 600");
    let mut lost = burst(&mut one, &path, &[1024]);
    one.transmit(&mut lost);
    assert!(lost.is_empty());
    assert_eq!(one.counters(), PortCounters { refused: 1, ..PortCounters::default() });
    let frames = burst(&mut one, &path, &[256; 4]);
    expect_carried(&mut one, &mut other, frames);
}

/// Without CAP_NET_ADMIN, the limit on queued bytes is too small for large datagrams, so slots have room for them.
#[test]
fn in_a_container_the_ring_has_240_slots_for_datagrams_of_any_length() {
    let _alone = pair(1500);
    in_a_container(|| {
        let (mut one, mut other) = ports();
        let path = path(&one, &other, V4);
        let large = burst(&mut one, &path, &[1024; BURST]);
        expect_carried(&mut one, &mut other, large);
        for number in 0..300 {
            let mut frame = std::iter::once(packet(&mut one, &path, number, 7, 64)).collect();
            one.transmit(&mut frame);
            assert!(frame.is_empty());
        }
        let dropped = (0..TURNS).map(|_| other.counters().ring_full).find(|dropped| *dropped >= 60);
        assert_eq!((dropped, receive_all(&mut other)), (Some(60), 240));
        assert_eq!(other.counters().ring_full, 60, "each is counted once");
    });
}

/// Runs `f` on a thread with a container's capabilities.
fn in_a_container(f: impl FnOnce() + Send) {
    let body = || {
        as_in_a_container();
        f();
    };
    std::thread::scope(|scope| scope.spawn(body).join()).unwrap();
}

/// Returns the number of frames that a port has received.
fn receive_all(port: &mut Port) -> u64 {
    let (mut received, mut burst) = (0, Burst::new());
    port.receive(&mut burst);
    while !burst.is_empty() {
        received += burst.len() as u64;
        burst.clear();
        port.receive(&mut burst);
    }
    received
}

#[test]
fn large_datagrams_for_which_the_queue_has_no_room_are_counted() {
    const DATAGRAMS: u64 = 550;
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    for _ in 0..DATAGRAMS {
        let mut frames = burst(&mut one, &path, &[512; BURST]);
        one.transmit(&mut frames);
        assert!(frames.is_empty());
    }
    let received = receive_all(&mut other);
    let dropped = other.counters().ring_full;
    assert!((1..DATAGRAMS).contains(&dropped), "{dropped}");
    assert_eq!(received, (DATAGRAMS - dropped) * BURST as u64);
    let frames = burst(&mut one, &path, &[512; BURST]);
    expect_carried(&mut one, &mut other, frames);
}

#[test]
fn an_empty_pool_delays_the_frames_of_a_datagram_without_loss() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    let mut held = Vec::new();
    while let Some(buffer) = other.alloc() {
        held.push(buffer);
    }
    held.truncate(held.len() - 5);
    let mut frames = burst(&mut one, &path, &[256; BURST]);
    one.transmit(&mut frames);
    let mut first = Burst::new();
    other.receive(&mut first);
    assert_eq!(first.len(), 5, "as many as there are buffers");
    drop(held);
    let mut rest = Burst::new();
    other.receive(&mut rest);
    assert_eq!(rest.len(), BURST - 5);
    let numbers: Vec<_> = first.iter().chain(&rest).map(|frame| frame[19]).collect();
    assert_eq!(numbers, (1..=BURST as u8).collect::<Vec<_>>());
}

#[test]
fn frames_are_received_in_place_in_order_and_the_rest_of_a_datagram_too() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    assert!(!other.has_in_place());
    let expect_in_place = |other: &mut Port, sent: &[Vec<u8>]| {
        let mut in_place: Vec<Vec<u8>> = Vec::new();
        for _ in 0..TURNS {
            other.receive_in_place(&mut Burst::new(), |frame| {
                in_place.push(frame.to_vec());
                true
            });
            if in_place.len() >= sent.len() {
                break;
            }
        }
        assert_eq!(in_place, sent);
        assert!(!other.has_in_place());
    };
    for addresses in [V4, V6] {
        let path = path(&one, &other, addresses);
        for path in [path, Path { vlan: Some(Vlan(5)), ..path }] {
            for payloads in [&[1024; BURST][..], &[1024, 1024, 12], &[0, 0, 0], &[64]] {
                let mut frames = burst(&mut one, &path, payloads);
                let sent: Vec<_> = frames.iter().map(|frame| frame.to_vec()).collect();
                one.transmit(&mut frames);
                expect_in_place(&mut other, &sent);
            }
        }
    }
    let mut held: Vec<_> = std::iter::from_fn(|| other.alloc()).collect();
    held.truncate(held.len() - 5);
    let path = path(&one, &other, V4);
    let mut frames = burst(&mut one, &path, &[256; BURST]);
    let sent: Vec<_> = frames.iter().map(|frame| frame.to_vec()).collect();
    one.transmit(&mut frames);
    let mut first = Burst::new();
    for _ in 0..TURNS {
        other.receive(&mut first);
        if !first.is_empty() {
            break;
        }
    }
    assert_eq!(first.len(), 5, "as many as there are buffers");
    expect_in_place(&mut other, &sent[5..]);
}

#[test]
fn a_refused_frame_is_delivered_in_a_buffer() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    let mut frames = burst(&mut one, &path, &[256; 10]);
    let sent: Vec<_> = frames.iter().map(|frame| frame.to_vec()).collect();
    one.transmit(&mut frames);
    let (mut in_place, mut others) = (Vec::new(), Burst::new());
    for _ in 0..TURNS {
        other.receive_in_place(&mut others, |frame| {
            // Byte 19 is the low byte of the identification.
            let is_taken = frame[19] % 3 != 0;
            if is_taken {
                in_place.push(frame.to_vec());
            }
            is_taken
        });
        if in_place.len() + others.len() >= sent.len() {
            break;
        }
    }
    let (refused, taken): (Vec<_>, Vec<_>) = sent.into_iter().partition(|frame| frame[19] % 3 == 0);
    assert_eq!(in_place, taken);
    assert_eq!(others.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>(), refused);
}

#[test]
fn buffers_return_to_their_pool() {
    let _alone = pair(1500);
    let (mut one, mut other) = ports();
    let path = path(&one, &other, V4);
    for payloads in [&[64][..], &[1024; BURST], &[256, 128, 64]] {
        let frames = burst(&mut one, &path, payloads);
        expect_carried(&mut one, &mut other, frames);
    }
    assert_eq!((one.buffers_in_use(), other.buffers_in_use()), (0, 0));
    assert_ne!(one.info().mac, Mac::default());
}
