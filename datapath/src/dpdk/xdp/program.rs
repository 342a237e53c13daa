//! The XDP program of an AF_XDP port, which selects the port's frames. All others continue to the kernel: ARP, ssh, ping.

use crate::bpf::{Assembler, Instruction, Label, R0, R1, R2, R3, R4, R6};
use roce::wire::{Mac, Numbers, ROCE_PORT};

/// Passes the frame to the kernel (`XDP_PASS`), also if the port's socket is closed.
const PASS: i32 = 2;
/// `bpf_redirect_map` of `linux/bpf.h`.
const REDIRECT_MAP: i32 = 51;
/// Offsets in `struct xdp_md` of the frame's start, its end, and its receive queue.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

const VLAN: u32 = 0x8100;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const HOP_BY_HOP: u32 = 0;
const UDP: u32 = 17;
/// IP protocol number of IFA 2.0, whose header is between the IP header and UDP.
const IFA: u32 = 253;
/// Most tags of a frame: a VLAN tag and CSIG's compact tag.
const TAGS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum Selection {
    /// Every frame, as a port of a switch.
    All,
    /// RoCEv2 packets to this address or to a multicast group, with any telemetry format, and all frames of this VLAN.
    Roce { mac: Mac, numbers: Numbers, vlan: Option<u16> },
}

/// Returns the program, and the index of the instruction that loads the map of sockets, which libbpf relocates.
pub(super) fn program(selection: Selection) -> (Vec<Instruction>, usize) {
    let mut asm = Assembler::default();
    let [redirect, pass] = std::array::from_fn(|_| asm.label());
    asm.copy(R6, R1);
    if let Selection::Roce { mac, numbers, vlan } = selection {
        asm.load_word(R2, R6, DATA);
        asm.load_word(R3, R6, DATA_END);
        needs(&mut asm, 14 + 20 + 8, pass);
        destination(&mut asm, mac, pass);
        asm.load_network_half(R2, 12);
        tags(&mut asm, numbers, vlan, redirect, pass);
        network(&mut asm, numbers, redirect, pass);
        asm.place(pass);
        asm.set(R0, PASS);
        asm.emit(0x95, 0, 0, 0, 0);
    }
    asm.place(redirect);
    let map = asm.length();
    // The address of a map is a 64-bit immediate in two instructions (BPF_LD | BPF_IMM | BPF_DW).
    asm.emit(0x18, R1, 0, 0, 0);
    asm.emit(0, 0, 0, 0, 0);
    asm.load_word(R2, R6, QUEUE);
    asm.set(R3, PASS);
    asm.emit(0x85, 0, 0, 0, REDIRECT_MAP);
    asm.emit(0x95, 0, 0, 0, 0);
    (asm.finish(), map)
}

/// Passes a frame to the kernel if fewer than `bytes` bytes follow R2. The verifier requires this check before an access.
fn needs(asm: &mut Assembler, bytes: i32, pass: Label) {
    asm.copy(R4, R2);
    asm.add(R4, bytes);
    asm.if_above(R4, R3, pass);
}

/// Passes a frame for another unicast address to the kernel, which may forward it.
fn destination(asm: &mut Assembler, mac: Mac, pass: Label) {
    let ours = asm.label();
    let [a, b, c, d, e, f] = mac.0;
    asm.load_byte(R0, R2, 0);
    asm.jump(0x45, 1, ours);
    asm.load_word(R0, R2, 0);
    asm.unless_equal(u32::from_ne_bytes([a, b, c, d]), pass);
    asm.load_half(R0, R2, 4);
    asm.unless_equal(u16::from_ne_bytes([e, f]).into(), pass);
    asm.place(ours);
}

/// Advances R2 past tags, so that the EtherType is at R2 + 12, and loads it into R0.
fn tags(asm: &mut Assembler, numbers: Numbers, vlan: Option<u16>, redirect: Label, pass: Label) {
    let untagged = asm.label();
    for _ in 0..TAGS {
        let [tag, skip] = std::array::from_fn(|_| asm.label());
        asm.if_equal(VLAN, tag);
        asm.if_equal(numbers.csig_tpid().into(), skip);
        asm.always(untagged);
        asm.place(tag);
        if let Some(vlan) = vlan {
            asm.load_network_half(R2, 14);
            asm.emit(0x57, R0, 0, 0, 0x0fff);
            asm.if_equal(vlan.into(), redirect);
        }
        asm.place(skip);
        asm.add(R2, 4);
        needs(asm, 14 + 20 + 8, pass);
        asm.load_network_half(R2, 12);
    }
    asm.place(untagged);
}

/// Redirects RoCEv2 packets: UDP in an unfragmented IPv4 packet, or in an IPv6 packet with at most a hop-by-hop header.
fn network(asm: &mut Assembler, numbers: Numbers, redirect: Label, pass: Label) {
    let [v4, v6, plain, port] = std::array::from_fn(|_| asm.label());
    asm.if_equal(IPV4, v4);
    asm.if_equal(IPV6, v6);
    asm.always(pass);
    asm.place(v4);
    asm.load_network_half(R2, 14 + 6);
    asm.jump(0x45, 0x3fff, pass);
    asm.load_byte(R0, R2, 14 + 9);
    asm.if_equal(IFA, redirect);
    asm.unless_equal(UDP, pass);
    // The low four bits of the first byte are the header's length in 32-bit words.
    asm.load_byte(R0, R2, 14);
    asm.emit(0x57, R0, 0, 0, 0x0f);
    asm.emit(0x67, R0, 0, 0, 2);
    asm.emit(0x0f, R2, R0, 0, 0);
    asm.always(port);
    asm.place(v6);
    needs(asm, 14 + 40 + 8, pass);
    asm.load_byte(R0, R2, 14 + 6);
    asm.unless_equal(HOP_BY_HOP, plain);
    // Byte 0 is the next header; byte 1 is the header's length in units of 8 bytes, minus one.
    asm.load_byte(R4, R2, 14 + 40 + 1);
    asm.load_byte(R0, R2, 14 + 40);
    asm.add(R4, 1);
    asm.emit(0x67, R4, 0, 0, 3);
    asm.emit(0x0f, R2, R4, 0, 0);
    asm.place(plain);
    asm.add(R2, 40);
    asm.if_equal(IFA, redirect);
    asm.unless_equal(UDP, pass);
    asm.place(port);
    needs(asm, 14 + 4, pass);
    asm.load_network_half(R2, 14 + 2);
    for number in [ROCE_PORT, numbers.int_port()] {
        asm.if_equal(number.into(), redirect);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::processor;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const SOCKET: i32 = processor::CALLED;

    /// Runs the program; a call of `bpf_redirect_map` returns [`SOCKET`].
    fn run(program: &[Instruction], frame: &[u8]) -> i32 {
        let length = frame.len() as u64;
        processor::run(program, frame, |field| processor::FRAME + if field == DATA_END { length } else { 0 })
    }

    fn udp(protocol: &[u8], port: u16) -> Vec<u8> {
        let mut frame = MAC.0.to_vec();
        frame.extend([2, 0, 0, 0, 0, 9]);
        frame.extend(protocol);
        frame.extend([0xc0, 0]);
        frame.extend(port.to_be_bytes());
        frame.extend([0; 20]);
        frame
    }

    fn v4(port: u16) -> Vec<u8> {
        let ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 7];
        udp(&[&[0x08, 0x00], &ip[..]].concat(), port)
    }

    fn v6(extension: &[u8], next: u8, port: u16) -> Vec<u8> {
        let header = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 28, next, 64], &[0; 32][..], extension].concat();
        udp(&header, port)
    }

    fn tagged(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
        [&frame[..12], &tag, &frame[12..]].concat()
    }

    fn selection(vlan: Option<u16>) -> Vec<Instruction> {
        program(Selection::Roce { mac: MAC, numbers: Numbers::DEFAULT, vlan }).0
    }

    #[test]
    fn roce_packets_go_to_the_port_and_others_to_the_kernel() {
        let program = selection(None);
        let int = Numbers::DEFAULT.int_port();
        for (port, verdict) in [(ROCE_PORT, SOCKET), (int, SOCKET), (53, PASS), (4790, PASS)] {
            assert_eq!(run(&program, &v4(port)), verdict, "IPv4, {port}");
            assert_eq!(run(&program, &v6(&[], 17, port)), verdict, "IPv6, {port}");
            let options = [&[17, 1], &[0; 14][..]].concat();
            assert_eq!(run(&program, &v6(&options, 0, port)), verdict, "IPv6 with options, {port}");
            assert_eq!(run(&program, &tagged(&v4(port), [0x81, 0, 0, 5])), verdict, "VLAN, {port}");
            let csig = tagged(&v4(port), [0x99, 0, 0x28, 0x42]);
            assert_eq!(run(&program, &csig), verdict, "CSIG, {port}");
            assert_eq!(run(&program, &tagged(&csig, [0x81, 0, 0, 5])), verdict, "VLAN and CSIG, {port}");
        }
        let mut group = v4(ROCE_PORT);
        group[..6].copy_from_slice(&[1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(run(&program, &group), SOCKET);
        for (at, byte, what) in [
            (5, 8, "another station's"),
            (20, 0x20, "a first fragment"),
            (21, 1, "a later one"),
            (23, 6, "TCP"),
            (23, 1, "ICMP"),
            (13, 6, "ARP"),
        ] {
            let mut other = v4(ROCE_PORT);
            other[at] = byte;
            assert_eq!(run(&program, &other), PASS, "{what}");
        }
    }

    #[test]
    fn all_frames_of_the_ports_vlan_go_to_the_port() {
        let arp = [&MAC.0[..], &[0; 6], &[0x08, 0x06], &[0; 40]].concat();
        let frame = tagged(&arp, [0x81, 0, 0xe0, 5]);
        assert_eq!(run(&selection(Some(5)), &frame), SOCKET);
        assert_eq!(run(&selection(Some(6)), &frame), PASS);
        assert_eq!(run(&selection(None), &frame), PASS);
        assert_eq!(run(&selection(Some(5)), &arp), PASS);
        assert_eq!(run(&program(Selection::All).0, &arp), SOCKET);
    }

    #[test]
    fn truncated_frames_are_not_read_beyond_their_end() {
        let options = [&[17, 1], &[0; 14][..]].concat();
        let program = selection(Some(5));
        for whole in [v4(ROCE_PORT), v6(&[], 17, ROCE_PORT), v6(&options, 0, ROCE_PORT)] {
            for frame in [tagged(&whole, [0x81, 0, 0, 6]), whole] {
                (0..frame.len()).for_each(|length| _ = run(&program, &frame[..length]));
            }
        }
    }
}
