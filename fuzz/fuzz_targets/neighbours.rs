//! Feeds any ARP and neighbour discovery packets to the table, which must remember only hosts that were asked for, and send a bounded
//! number of answers.
#![no_main]

use arbitrary::Arbitrary;
use cc::Instant;
use core::time::Duration;
use datapath::neighbour::{Address, Resolution, Neighbours, is_resolution};
use libfuzzer_sys::fuzz_target;
use roce::wire::Mac;
use std::net::IpAddr;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    /// An ARP packet with valid fixed fields.
    Arp {
        operation: u8,
        sender_mac: [u8; 6],
        sender: u8,
        target: u8,
    },
    /// A neighbour discovery packet with valid lengths and a valid checksum.
    Ndp {
        kind: bool,
        flags: u8,
        source: u8,
        destination: u8,
        target: u8,
        options: &'a [u8],
    },
    Resolve {
        last: u8,
        v6: bool,
    },
    Wait(u16),
}

fn v4(last: u8) -> [u8; 4] {
    [10, 0, 0, last]
}

/// Returns an address. 0 is the unspecified address, 255 the group of all nodes.
fn v6(last: u8) -> [u8; 16] {
    match last {
        0 => [0; 16],
        255 => [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        last => [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last],
    }
}

fn arp(operation: u8, sender_mac: [u8; 6], sender: u8, target: u8) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&OURS.0[..], &sender_mac, &[8, 6], &head, &sender_mac, &v4(sender), &[0; 6], &v4(target)].concat()
}

fn ndp(kind: bool, flags: u8, [source, destination, target]: [u8; 3], options: &[u8]) -> Vec<u8> {
    let options = &options[..options.len().min(64)];
    let length = (24 + options.len()) as u16;
    let mut body = [&[135 + u8::from(kind), 0, 0, 0, flags, 0, 0, 0][..], &v6(target), options].concat();
    let pseudo = [&v6(source)[..], &v6(destination), &u32::from(length).to_be_bytes(), &[0, 0, 0, 58], &body];
    let sum: u32 = pseudo
        .concat()
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = !((folded & 0xffff) + (folded >> 16)) as u16;
    body[2..4].copy_from_slice(&folded.to_be_bytes());
    let [high, low] = length.to_be_bytes();
    let ip = [0x60, 0, 0, 0, high, low, 58, 255];
    [&OURS.0[..], &[2, 0, 0, 0, 0, 9], &[0x86, 0xdd], &ip, &v6(source), &v6(destination), &body].concat()
}

fn hear(neighbours: &mut Neighbours, now: Instant, frame: &[u8]) {
    let _ = is_resolution(frame);
    let _ = neighbours.on_frame(now, frame);
}

fuzz_target!(|inputs: Vec<Input<'_>>| {
    let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|text| text.parse::<Address>().expect("an address"));
    let mut neighbours = Neighbours::standalone(OURS, &addresses, None);
    let mut now = Instant::from_nanos(1);
    let mut frame = [0; 256];
    while neighbours.poll_transmit(&mut frame).is_some() {}
    for input in inputs.iter().take(64) {
        match *input {
            Input::Bytes(bytes) => hear(&mut neighbours, now, bytes),
            Input::Arp { operation, sender_mac, sender, target } => {
                hear(&mut neighbours, now, &arp(operation, sender_mac, sender, target));
            }
            Input::Ndp { kind, flags, source, destination, target, options } => {
                hear(&mut neighbours, now, &ndp(kind, flags, [source, destination, target], options));
            }
            Input::Resolve { last, v6: six } => {
                let address = if six { IpAddr::from(v6(last)) } else { IpAddr::from(v4(last)) };
                if let Ok(Resolution::Resolved(mac)) = neighbours.resolve(now, address) {
                    assert_eq!(mac.0[0] & 1, 0, "a group answers for nobody");
                }
            }
            Input::Wait(millis) => {
                now = now + Duration::from_millis(millis.into());
                neighbours.on_timeout(now);
                assert!(neighbours.poll_timeout().is_none_or(|at| at > now));
            }
        }
        let mut answers = 0;
        while let Some(length) = neighbours.poll_transmit(&mut frame) {
            answers += 1;
            assert!(is_resolution(&frame[..length]));
        }
        assert!(answers <= 64, "{answers} packets at once");
    }
});
