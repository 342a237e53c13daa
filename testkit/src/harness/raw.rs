//! Packets built byte by byte, for those that the codec refuses to build.

use super::path;
use core::net::IpAddr;
use roce::Qpn;

/// A packet from the BTH to its pad. No field is checked, but the IP and UDP lengths, the checksums and the ICRC are correct: any error is
/// above UDP.
#[derive(Clone, Debug)]
pub struct Raw {
    pub opcode: u8,
    /// SE, MigReq, 2 bits of pad count, 4 bits of version.
    pub flags: u8,
    pub partition_key: u16,
    pub ack_request: bool,
    pub psn: u32,
    pub rest: Vec<u8>,
}

impl Raw {
    /// Interprets `bytes` as a packet if the first of them is even.
    pub fn around(bytes: &[u8]) -> Option<Self> {
        let [choice, opcode, flags, ack, rest @ ..] = bytes else { return None };
        (choice % 2 == 0).then(|| Self {
            opcode: *opcode,
            flags: *flags,
            partition_key: 0xffff,
            ack_request: *ack != 0,
            psn: 7,
            rest: rest.to_vec(),
        })
    }

    /// Returns the frame that host 1 sends to `destination` on host 2.
    pub fn frame(&self, destination: Qpn) -> Vec<u8> {
        let path = path(1, 2);
        let (IpAddr::V4(from), IpAddr::V4(to)) = (path.source, path.destination) else {
            panic!("the harness is IPv4")
        };
        let transport = 12 + self.rest.len() + 4;
        let mut frame = [path.destination_mac.0, path.source_mac.0].concat();
        frame.extend([0x08, 0x00, 0x45, path.traffic_class]);
        frame.extend(((28 + transport) as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, path.hop_limit, 17, 0, 0]);
        frame.extend([from.octets(), to.octets()].concat());
        let checksum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(path.udp_source.to_be_bytes());
        frame.extend(4791u16.to_be_bytes());
        frame.extend(((8 + transport) as u16).to_be_bytes());
        frame.extend([0, 0]);
        let [key_high, key_low] = self.partition_key.to_be_bytes();
        frame.extend([self.opcode, self.flags, key_high, key_low]);
        frame.extend(destination.get().to_be_bytes());
        frame.extend((self.psn | u32::from(self.ack_request) << 31).to_be_bytes());
        frame.extend(&self.rest);
        let icrc = icrc(&frame[14..]);
        frame.extend(icrc.to_le_bytes());
        frame
    }
}

fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns the ICRC of an IPv4 packet (IBA A17.3.3): eight bytes of ones, then the packet with ones in the fields that routers change.
fn icrc(packet: &[u8]) -> u32 {
    let mut masked = [&[0xff; 8], packet].concat();
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[8 + at] = 0xff;
    }
    crc32fast::hash(&masked)
}
