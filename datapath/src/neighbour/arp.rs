//! The Address Resolution Protocol for IPv4 over Ethernet (RFC 826).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::{ARP_TYPE, ETHERNET, Malformed};
use roce::wire::Mac;
use std::net::Ipv4Addr;

/// Bytes of an ARP frame, padded to the shortest Ethernet frame.
pub(super) const FRAME: usize = 60;

/// Hardware type Ethernet (1), protocol type IPv4, address lengths 6 and 4.
const KIND: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Request,
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arp {
    pub(super) operation: Operation,
    pub(super) sender_mac: Mac,
    pub(super) sender: Ipv4Addr,
    pub(super) target_mac: Mac,
    pub(super) target: Ipv4Addr,
}

impl Arp {
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "the array has 28 bytes")]
    pub(super) fn parse(frame: &[u8]) -> Result<Self, Malformed> {
        let body: &[u8; 28] = frame.get(ETHERNET..).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        if body[..6] != KIND {
            return Err(Malformed);
        }
        let operation = match body[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(Malformed),
        };
        let mac = |at: usize| Mac(std::array::from_fn(|i| body[at + i]));
        let ip = |at: usize| Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|i| body[at + i]));
        let arp = Self { operation, sender_mac: mac(8), sender: ip(14), target_mac: mac(18), target: ip(24) };
        // A group address does not identify a host.
        if arp.sender_mac.0[0] & 1 == 1 { Err(Malformed) } else { Ok(arp) }
    }

    pub(super) fn emit(&self, to: Mac, frame: &mut [u8; FRAME]) {
        frame.fill(0);
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&self.sender_mac.0);
        frame[12..14].copy_from_slice(&ARP_TYPE);
        frame[14..20].copy_from_slice(&KIND);
        frame[21] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        frame[22..28].copy_from_slice(&self.sender_mac.0);
        frame[28..32].copy_from_slice(&self.sender.octets());
        frame[32..38].copy_from_slice(&self.target_mac.0);
        frame[38..42].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// RFC 826: the packet format.
        #[test]
        fn an_emitted_packet_parses_to_the_same(reply: bool, mut mac: [u8; 6], to: [u8; 6], ips: [[u8; 4]; 2]) {
            mac[0] &= !1;
            let arp = Arp {
                operation: if reply { Operation::Reply } else { Operation::Request },
                sender_mac: Mac(mac), sender: ips[0].into(), target_mac: Mac(to), target: ips[1].into(),
            };
            let mut frame = [0; FRAME];
            arp.emit(Mac(to), &mut frame);
            prop_assert_eq!(Arp::parse(&frame), Ok(arp));
            for cut in 0..42 {
                prop_assert_eq!(Arp::parse(&frame[..cut]), Err(Malformed));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(frame in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(arp) = Arp::parse(&frame) {
                let mut again = [0; FRAME];
                arp.emit(Mac(std::array::from_fn(|i| frame[i])), &mut again);
                prop_assert_eq!(&again[14..42], &frame[14..42]);
            }
        }
    }
}
