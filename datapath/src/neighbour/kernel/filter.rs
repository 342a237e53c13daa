//! The eBPF program at an interface's ingress, which drops packets that only a port should receive.

use crate::bpf::{Assembler, Instruction, Label, R0, R1, R6, R7};
use std::net::IpAddr;

/// Most addresses in the program. The kernel's IP layer drops packets to further ones, at a higher cost.
const MAX_ADDRESSES: usize = 32;

/// Verdicts: run the next program (`TCX_NEXT`), or drop the packet (`TCX_DROP`).
const NEXT: i32 = -1;
const DROP: i32 = 2;

/// Offsets in `struct __sk_buff` of the packet type (0: to this host), and of the flag of a VLAN tag.
const PKT_TYPE: i16 = 4;
const VLAN_PRESENT: i16 = 20;

const UDP: u32 = 17;

/// Returns a program that drops unfragmented UDP datagrams to one of `ports` at one of `addresses`. It drops only those for this host
/// without a VLAN tag. The kernel refuses a program with unreachable code, so a family without addresses has no code in it.
pub(super) fn program(addresses: &[IpAddr], ports: &[u16]) -> Vec<Instruction> {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let mut asm = Assembler::default();
    let [v4, v6, next, drop, port] = std::array::from_fn(|_| asm.label());
    asm.emit(0xbf, R6, R1, 0, 0);
    for field in [PKT_TYPE, VLAN_PRESENT] {
        asm.emit(0x61, R0, R6, field, 0);
        asm.unless_equal(0, next);
    }
    asm.half(12);
    let has_v4 = addresses.iter().any(IpAddr::is_ipv4);
    let has_v6 = addresses.iter().any(IpAddr::is_ipv6);
    if has_v4 {
        asm.if_equal(0x0800, v4);
    }
    if has_v6 {
        asm.if_equal(0x86dd, v6);
    }
    asm.always(next);
    if has_v4 {
        asm.place(v4);
        port_of_v4(&mut asm, addresses, next);
        asm.always(port);
    }
    if has_v6 {
        asm.place(v6);
        port_of_v6(&mut asm, addresses, next);
    }
    if has_v4 || has_v6 {
        asm.place(port);
        for &number in ports {
            asm.if_equal(number.into(), drop);
        }
    }
    asm.place(next);
    asm.verdict(NEXT);
    if has_v4 || has_v6 {
        asm.place(drop);
        asm.verdict(DROP);
    }
    asm.finish()
}

/// Loads the UDP destination port of an IPv4 packet.
fn port_of_v4(asm: &mut Assembler, addresses: &[IpAddr], next: Label) {
    asm.byte(14 + 9);
    asm.unless_equal(UDP, next);
    // Fragment offset and more-fragments flag.
    asm.half(14 + 6);
    asm.jump(0x45, 0x3fff, next);
    asm.word(14 + 16);
    let ours = asm.label();
    for address in addresses {
        if let IpAddr::V4(address) = address {
            asm.if_equal(address.to_bits(), ours);
        }
    }
    asm.always(next);
    asm.place(ours);
    // The low four bits of the first byte are the header's length in 32-bit words.
    asm.byte(14);
    asm.emit(0x57, R0, 0, 0, 0x0f);
    asm.emit(0x67, R0, 0, 0, 2);
    asm.emit(0xbf, R7, R0, 0, 0);
    asm.emit(0x48, 0, R7, 0, 14 + 2);
}

/// Loads the UDP destination port of an IPv6 packet without extension headers.
fn port_of_v6(asm: &mut Assembler, addresses: &[IpAddr], next: Label) {
    asm.byte(14 + 6);
    asm.unless_equal(UDP, next);
    let ours = asm.label();
    for address in addresses {
        if let IpAddr::V6(address) = address {
            let other = asm.label();
            for n in 0..4 {
                asm.word(14 + 24 + 4 * n);
                asm.unless_equal((address.to_bits() >> (96 - 32 * n)) as u32, other);
            }
            asm.always(ours);
            asm.place(other);
        }
    }
    asm.always(next);
    asm.place(ours);
    asm.half(14 + 40 + 2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::processor;

    fn run(program: &[Instruction], frame: &[u8], pkt_type: u64, tagged: u64) -> i32 {
        processor::run(program, frame, |field| if field == PKT_TYPE { pkt_type } else { tagged })
    }

    fn frame(to: IpAddr, port: u16) -> Vec<u8> {
        let mut frame = vec![0; 14];
        match to {
            IpAddr::V4(to) => {
                frame[12..14].copy_from_slice(&[0x08, 0x00]);
                frame.extend([0x46, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9]);
                frame.extend(to.octets());
                frame.extend([1, 1, 1, 0]);
            }
            IpAddr::V6(to) => {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                frame.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
                frame.extend([0; 16]);
                frame.extend(to.octets());
            }
        }
        frame.extend([0xc0, 0]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        frame
    }

    fn addresses() -> Vec<IpAddr> {
        ["10.0.0.1", "200.1.2.3", "fd00::1", "fe80::12:ff:fe00:1"].map(|text| text.parse().unwrap()).into()
    }

    #[test]
    fn packets_to_the_addresses_are_dropped_and_others_pass() {
        let program = program(&addresses(), &[4791, 5000]);
        for address in addresses() {
            for (port, verdict) in [(4791, DROP), (5000, DROP), (4790, NEXT), (53, NEXT)] {
                assert_eq!(run(&program, &frame(address, port), 0, 0), verdict, "{address} {port}");
            }
        }
        for stranger in ["10.0.0.2", "fd00::2", "fd01::1", "224.0.0.1"] {
            assert_eq!(run(&program, &frame(stranger.parse().unwrap(), 4791), 0, 0), NEXT, "{stranger}");
        }
    }

    #[test]
    fn other_hosts_tags_fragments_and_protocols_pass() {
        let program = program(&addresses(), &[4791]);
        let ours = frame("10.0.0.1".parse().unwrap(), 4791);
        assert_eq!(run(&program, &ours, 3, 0), NEXT, "to another host");
        assert_eq!(run(&program, &ours, 0, 1), NEXT, "with a VLAN tag");
        for (at, byte, what) in
            [(20, 0x20, "a first fragment"), (21, 1, "a later one"), (23, 6, "TCP"), (13, 6, "ARP")]
        {
            let mut other = ours.clone();
            other[at] = byte;
            assert_eq!(run(&program, &other, 0, 0), NEXT, "{what}");
        }
        for length in 0..ours.len() {
            assert!([0, NEXT, DROP].contains(&run(&program, &ours[..length], 0, 0)), "{length} bytes");
        }
    }

    #[test]
    fn every_instruction_is_reachable_by_forward_jumps() {
        let many: Vec<IpAddr> = (0..200_u32).map(|n| IpAddr::V6((u128::from(n) << 64).into())).collect();
        for addresses in [&many[..], &addresses(), &addresses()[..1], &addresses()[2..3], &[]] {
            let program = program(addresses, &[4791, 5000]);
            let mut reached = vec![false; program.len()];
            reached[0] = true;
            for (at, it) in program.iter().enumerate() {
                assert!(reached[at], "{at}: {it:?}");
                if matches!(it.code, 0x05 | 0x16 | 0x56 | 0x45) {
                    reached[at + 1 + usize::try_from(it.offset).unwrap()] = true;
                }
                if !matches!(it.code, 0x05 | 0x95) {
                    reached[at + 1] = true;
                }
            }
        }
    }
}
