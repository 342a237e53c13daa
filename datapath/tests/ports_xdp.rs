//! Tests of ports on AF_XDP, on veth pairs. Runs as root, in its own network namespace.

mod common;

use common::{carry, eal, frame, ip, open, open_with, own_network, small};
use ferroce_datapath::dpdk::{Port, PortConfig};
use ferroce_datapath::io::{Burst, PacketIo, WakeDescriptor};
use roce::wire::Mtu;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs the tests one at a time, because the `ip` that one test starts would inherit the descriptors that another closes.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    alone
}

fn pair(mtu: u16) {
    ip(&format!("link add dpdk0 mtu {mtu} type veth peer name dpdk1 mtu {mtu}"));
    ip("link set dpdk0 up");
    ip("link set dpdk1 up");
}

fn refusal(spec: &str, config: &PortConfig) -> String {
    match Port::open(eal(), &spec.parse().unwrap(), config) {
        Ok(_) => panic!("{spec} opens"),
        Err(e) => e.to_string(),
    }
}

/// Sends a UDP datagram to UDP port `port` from `from`, and returns whether `to` receives it.
fn arrives(from: &mut Port, to: &mut Port, port: u16, length: usize) -> bool {
    let mut udp = frame(from, length, 3);
    udp[..6].copy_from_slice(&to.info().mac.0);
    let ip = [0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 7, 0xc0, 0];
    udp[12..36].copy_from_slice(&ip);
    udp[36..38].copy_from_slice(&port.to_be_bytes());
    let sent = udp.to_vec();
    let (mut out, mut came) = (Burst::new(), Burst::new());
    out.push(udp);
    (0..200_000).any(|_| {
        from.transmit(&mut out);
        came.clear();
        to.receive(&mut came);
        came.iter().any(|frame| frame[..] == sent)
    })
}

#[test]
fn the_port_receives_roce_packets_and_the_kernel_the_others() {
    let _alone = alone();
    for (mtu, path_mtu) in [(1500, Mtu::M1024), (3502, Mtu::M2048)] {
        pair(mtu);
        let (mut one, mut other) = (open("xdp:dpdk0"), open("dpdk1"));
        assert_eq!(
            (one.info().mtu, one.info().ip_mtu, &one.info().driver[..]),
            (path_mtu, mtu, "net_af_xdp (copy mode)")
        );
        assert!(matches!(one.descriptor(), Some(WakeDescriptor::Reliable(_))));
        let longest = usize::from(mtu) + 14;
        for length in [60, 700, longest] {
            assert!(arrives(&mut other, &mut one, 4791, length), "{length} bytes");
        }
        assert!(!arrives(&mut other, &mut one, 4790, 60));
        carry(&mut one, &mut other, &[60, 700, longest]);
        drop((one, other));
        ip("link delete dpdk0");
    }
}

#[test]
fn a_promiscuous_port_receives_all_frames() {
    let _alone = alone();
    pair(1500);
    let all = PortConfig { promiscuous: true, ..small() };
    let (mut one, mut other) = (open_with("eal:net_af_xdp0,iface=dpdk0", &all), open_with("xdp:dpdk1", &all));
    carry(&mut one, &mut other, &[60, 1514]);
    carry(&mut other, &mut one, &[60, 1514]);
    drop((one, other));
    ip("link delete dpdk0");
}

#[test]
fn an_unusable_interface_is_refused_with_a_remedy() {
    let _alone = alone();
    pair(4200);
    let said = refusal("xdp:dpdk0", &small());
    assert!(said.contains("4200") && said.contains("`ip link set dev dpdk0 mtu 3502`"), "{said}");
    assert!(refusal("xdp:dpdk9", &small()).contains("no interface `dpdk9`; there are:"));
    ip("link delete dpdk0");
    pair(1500);
    let one = open("xdp:dpdk0");
    for spec in ["xdp:dpdk0", "dpdk0"] {
        let said = refusal(spec, &small());
        assert!(said.contains("an AF_XDP port of another process"), "{said}");
    }
    drop(one);
    drop(open("dpdk0"));
    ip("link delete dpdk0");
    ip("link add dpdk0 numrxqueues 2 numtxqueues 2 type veth peer name dpdk1");
    ip("link set dpdk0 up");
    assert!(Command::new("ethtool").args(["-L", "dpdk0", "rx", "2"]).status().unwrap().success());
    let said = refusal("xdp:dpdk0", &small());
    assert!(said.contains("2 receive queues") && said.contains("`ethtool -L dpdk0 rx 1 tx 1`"), "{said}");
    ip("link delete dpdk0");
}
