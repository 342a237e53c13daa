//! Tests of ports on Linux interfaces: AF_PACKET on a veth pair, taps on a bridge. Runs as root, in its own network namespace.

mod common;

use common::{as_in_a_container, carry, eal, frame, ip, open, open_with, own_network, small};
use ferroce_datapath::dpdk::{Port, PortConfig};
use ferroce_datapath::io::{BURST, Burst, PacketIo};
use ferroce_datapath::linux;
use roce::wire::Mtu;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Runs the tests one at a time, because the `ip` that one test starts would inherit the descriptors that another closes.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    alone
}

fn refusal(spec: &str, config: &PortConfig) -> String {
    match Port::open(eal(), &spec.parse().unwrap(), config) {
        Ok(_) => panic!("{spec} opens"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn af_packet_carries_up_to_the_interfaces_mtu() {
    let _alone = alone();
    for (mtu, path_mtu, lengths) in [
        (1500, Mtu::M1024, [60, 1514, 1000]),
        (4200, Mtu::M4096, [60, 4186, 4214]),
        (9000, Mtu::M4096, [4186, 9014, 60]),
    ] {
        ip(&format!("link add dpdk0 mtu {mtu} type veth peer name dpdk1 mtu {mtu}"));
        ip("link set dpdk0 up");
        ip("link set dpdk1 up");
        let (mut one, mut other) = (open("af_packet:dpdk0"), open("af_packet:dpdk1"));
        let interface = linux::interface("dpdk0").unwrap();
        assert_eq!(one.info().mac, interface.mac);
        assert_eq!((one.info().mtu, one.info().ip_mtu), (path_mtu, mtu));
        assert_eq!(one.info().linux_interface.as_ref().unwrap().index, interface.index);
        carry(&mut one, &mut other, &lengths);
        carry(&mut other, &mut one, &lengths);
        drop((one, other));
        ip("link delete dpdk0");
    }
}

#[test]
fn a_tap_port_reaches_its_bridge_from_its_own_address() {
    let _alone = alone();
    ip("link add dpdkbr0 type bridge");
    ip("link set dpdkbr0 up");
    let (mut one, mut other) = (open("tap:dpdkt0"), open("tap:dpdkt1"));
    for name in ["dpdkt0", "dpdkt1"] {
        ip(&format!("link set {name} master dpdkbr0"));
    }
    assert_ne!(one.info().mac, linux::interface("dpdkt0").unwrap().mac);
    assert_eq!(one.info().linux_interface, None);
    assert_eq!((one.info().mtu, one.info().ip_mtu), (Mtu::M1024, 1500));
    carry(&mut one, &mut other, &[60, 1514, 1518]);
    carry(&mut other, &mut one, &[1514]);
    drop((one, other));
    assert!(linux::interface("dpdkt0").is_err(), "the tap goes with its port");
}

#[test]
fn an_unusable_interface_is_refused_with_a_remedy() {
    let _alone = alone();
    ip("link add dpdk0 type veth peer name dpdk1");
    assert!(refusal("dpdk0", &small()).contains("`ip link set dev dpdk0 up`"));
    ip("link set dpdk0 up");
    let large = PortConfig { mtu: Some(4200), ..small() };
    assert!(refusal("dpdk0", &large).contains("`ip link set dev dpdk0 mtu 4200`"));
    assert!(refusal("dpdk9", &small()).contains("there are: lo, dpdk1, dpdk0"));
    assert!(refusal("tap:dpdk0", &small()).contains("exists already"));
    assert!(refusal("tap:dpdkt0", &large).contains("340 to 1500"));
    assert!(refusal("lo", &small()).contains("lo"));
    ip("link set dpdk1 up");
    let mut smaller = open_with("af_packet:dpdk0", &PortConfig { mtu: Some(1000), ..small() });
    assert_eq!(smaller.info().max_frame, 1018);
    carry(&mut smaller, &mut open("af_packet:dpdk1"), &[1014]);
}

#[test]
fn an_interface_port_fits_the_memory_limit_of_a_container() {
    let _alone = alone();
    ip("link add dpdk0 type veth peer name dpdk1");
    ip("link set dpdk0 up");
    ip("link set dpdk1 up");
    as_in_a_container();
    let mut one = open("af_packet:dpdk0");
    let mut all = open_with("af_packet:dpdk1", &PortConfig { promiscuous: true, ..small() });
    carry(&mut one, &mut all, &[60, 1514]);
    carry(&mut all, &mut one, &[60, 1514]);
    let mut stranger = frame(&mut one, 60, 7);
    stranger[..6].copy_from_slice(&[2, 0, 0, 0, 0, 99]);
    let sent = stranger.to_vec();
    let (mut out, mut came) = (Burst::new(), Burst::new());
    out.push(stranger);
    let arrives = (0..20_000_000).any(|_| {
        one.transmit(&mut out);
        came.clear();
        all.receive(&mut came);
        came.iter().any(|frame| frame[..] == sent)
    });
    assert!(arrives);
}

/// Two ports of one process have the same process id, as processes in two containers may. With the driver's fan-out group, the kernel would
/// deliver each frame to only one of them.
#[test]
fn each_of_two_ports_on_an_interface_receives_every_frame() {
    let _alone = alone();
    ip("link add dpdk0 type veth peer name dpdk1");
    ip("link set dpdk0 up");
    ip("link set dpdk1 up");
    let (mut one, mut two, mut sender) =
        (open("af_packet:dpdk0"), open("af_packet:dpdk0"), open("af_packet:dpdk1"));
    let lengths = [60, 1514];
    carry(&mut sender, &mut one, &lengths);
    let (mut came, mut burst) = (Vec::new(), Burst::new());
    let all_came = (0..20_000_000).any(|_| {
        two.receive(&mut burst);
        came.extend(burst.drain(..).filter(|f| f[12..14] == [0x88, 0xb5]).map(|f| f.len()));
        came.len() >= lengths.len()
    });
    assert!(all_came && came == lengths, "{came:?}");
}

#[test]
fn transmit_does_not_block_when_the_ring_is_full() {
    let _alone = alone();
    ip("link add dpdk0 type veth peer name dpdk1");
    ip("link set dpdk0 up");
    ip("link set dpdk1 up");
    // The queueing discipline sends one byte per second, so sent frames stay in the queue.
    let words = "qdisc add dev dpdk0 root tbf rate 8bit burst 2000 limit 100000000";
    assert!(Command::new("tc").args(words.split(' ')).status().unwrap().success());
    let mut port = open_with("af_packet:dpdk0", &PortConfig { qdisc_bypass: false, ..small() });
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut out = Burst::new();
        let mut taken = 0;
        for _ in 0..100 {
            while !out.is_full() {
                out.push(frame(&mut port, 1514, 0));
            }
            port.transmit(&mut out);
            taken += BURST - out.len();
        }
        sender.send((taken, out.len())).unwrap();
    });
    let (taken, left) =
        receiver.recv_timeout(Duration::from_secs(60)).expect("the sender waits for the kernel");
    // The ring has 256 slots.
    assert!((256..1000).contains(&taken) && left == BURST, "{taken} taken, {left} left");
}
