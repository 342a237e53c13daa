//! IPv6 neighbour discovery: solicitations and advertisements (RFC 4861).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::{ETHERNET, ICMPV6, IPV6_TYPE, Malformed};
use roce::wire::Mac;
use std::net::Ipv6Addr;

/// Bytes of the Ethernet and IPv6 headers, the message, and one link-layer address option.
pub(super) const FRAME: usize = ETHERNET + 40 + 24 + 8;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NdpMessage {
    /// A request for the Ethernet address of `target`.
    Solicitation {
        /// The sender's address; `None` in duplicate address detection.
        source_mac: Option<Mac>,
    },
    /// An answer: `target` has the Ethernet address `target_mac`.
    Advertisement {
        target_mac: Option<Mac>,
        /// Solicited flag: the message answers a solicitation.
        solicited: bool,
        /// Override flag: the message replaces a cached address.
        override_: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ndp {
    pub(super) source: Ipv6Addr,
    pub(super) destination: Ipv6Addr,
    pub(super) target: Ipv6Addr,
    pub(super) message: NdpMessage,
}

impl Ndp {
    /// Parses a message, with the checks of RFC 4861 7.1.1 and 7.1.2.
    #[expect(clippy::indexing_slicing, reason = "24 bytes were checked to be there")]
    pub(super) fn parse(frame: &[u8]) -> Result<Self, Malformed> {
        let ip: &[u8; 40] = frame.get(ETHERNET..).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        let body = frame.get(ETHERNET + 40..ETHERNET + 40 + length).ok_or(Malformed)?;
        let address = |bytes: &[u8]| -> Ipv6Addr {
            let bytes: [u8; 16] = bytes.try_into().expect("16 bytes");
            bytes.into()
        };
        let (source, destination) = (address(&ip[8..24]), address(&ip[24..40]));
        // A hop limit of 255 proves that no router has forwarded it.
        let legal = ip[0] >> 4 == 6
            && ip[6] == ICMPV6
            && ip[7] == 255
            && length >= 24
            && body[1] == 0
            && checksum(source, destination, body) == 0;
        if !legal || source.is_multicast() {
            return Err(Malformed);
        }
        let target = address(&body[8..24]);
        if target.is_multicast() {
            return Err(Malformed);
        }
        let message = match body[0] {
            SOLICITATION => NdpMessage::Solicitation { source_mac: option(&body[24..], SOURCE_OPTION)? },
            ADVERTISEMENT => NdpMessage::Advertisement {
                target_mac: option(&body[24..], TARGET_OPTION)?,
                solicited: body[4] & 0x40 != 0,
                override_: body[4] & 0x20 != 0,
            },
            _ => return Err(Malformed),
        };
        match message {
            NdpMessage::Solicitation { source_mac: Some(_) } if source.is_unspecified() => Err(Malformed),
            NdpMessage::Advertisement { solicited: true, .. } if destination.is_multicast() => Err(Malformed),
            _ => Ok(Self { source, destination, target, message }),
        }
    }

    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "the buffer is FRAME bytes")]
    pub(super) fn emit(&self, from: Mac, to: Mac, frame: &mut [u8; FRAME]) -> usize {
        frame.fill(0);
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        frame[12..14].copy_from_slice(&IPV6_TYPE);
        let (kind, flags, option, mac) = match self.message {
            NdpMessage::Solicitation { source_mac } => (SOLICITATION, 0, SOURCE_OPTION, source_mac),
            NdpMessage::Advertisement { target_mac, solicited, override_ } => {
                let flags = u8::from(solicited) << 6 | u8::from(override_) << 5;
                (ADVERTISEMENT, flags, TARGET_OPTION, target_mac)
            }
        };
        let length = if mac.is_some() { 32 } else { 24 };
        let (headers, body) = frame.split_at_mut(ETHERNET + 40);
        let ip = &mut headers[ETHERNET..];
        ip[0] = 0x60;
        ip[5] = length as u8;
        ip[6] = ICMPV6;
        ip[7] = 255;
        ip[8..24].copy_from_slice(&self.source.octets());
        ip[24..40].copy_from_slice(&self.destination.octets());
        body[0] = kind;
        body[4] = flags;
        body[8..24].copy_from_slice(&self.target.octets());
        if let Some(mac) = mac {
            body[24..26].copy_from_slice(&[option, 1]);
            body[26..32].copy_from_slice(&mac.0);
        }
        let sum = checksum(self.source, self.destination, &body[..length]);
        body[2..4].copy_from_slice(&sum.to_be_bytes());
        ETHERNET + 40 + length
    }
}

/// Returns the solicited-node group of an address (RFC 4291 2.7.1), and the group's Ethernet address.
pub(super) fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let low = target.to_bits() & 0xff_ffff;
    let group = Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low);
    (group, multicast(group))
}

/// Returns the Ethernet address of a group (RFC 2464 7).
pub(super) fn multicast(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// Returns the first Ethernet address in the options. Every option must have a length above 0.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`length` bytes were checked to be there"
)]
fn option(mut options: &[u8], kind: u8) -> Result<Option<Mac>, Malformed> {
    let mut found = None;
    while !options.is_empty() {
        let length = 8 * usize::from(*options.get(1).ok_or(Malformed)?);
        if length == 0 || length > options.len() {
            return Err(Malformed);
        }
        if options[0] == kind && found.is_none() {
            let mac = Mac(std::array::from_fn(|i| options[2 + i]));
            if mac.0[0] & 1 == 1 {
                return Err(Malformed);
            }
            found = Some(mac);
        }
        options = &options[length..];
    }
    Ok(found)
}

/// Computes the checksum over a pseudo-header and the message (RFC 4443 2.3). It is 0 over a message with a correct checksum.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a pair has at least one byte; 64 KiB of 16-bit words fit 32 bits"
)]
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> u16 {
    let words = source.segments().into_iter().chain(destination.segments());
    let mut sum: u32 = words.map(u32::from).sum::<u32>() + body.len() as u32 + u32::from(ICMPV6);
    for pair in body.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unicast() -> impl Strategy<Value = Ipv6Addr> {
        any::<[u8; 15]>().prop_map(|rest| {
            Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| if i == 0 { 0xfd } else { rest[i - 1] }))
        })
    }

    fn mac() -> impl Strategy<Value = Mac> {
        any::<[u8; 6]>().prop_map(|mut mac| {
            mac[0] &= !1;
            Mac(mac)
        })
    }

    fn message() -> impl Strategy<Value = NdpMessage> {
        (any::<[bool; 3]>(), proptest::option::of(mac())).prop_map(|([ask, solicited, override_], mac)| {
            if ask {
                NdpMessage::Solicitation { source_mac: mac }
            } else {
                NdpMessage::Advertisement { target_mac: mac, solicited, override_ }
            }
        })
    }

    proptest! {
        /// RFC 4861 4.3, 4.4: the message formats.
        #[test]
        fn an_emitted_packet_parses_to_the_same(
            source in unicast(), destination in unicast(), target in unicast(), message in message(), mac in mac(),
        ) {
            let ndp = Ndp { source, destination, target, message };
            let mut frame = [0; FRAME];
            let length = ndp.emit(mac, mac, &mut frame);
            prop_assert!(super::super::is_resolution(&frame[..length]));
            prop_assert_eq!(Ndp::parse(&frame[..length]), Ok(ndp));
            for cut in 0..length {
                prop_assert_eq!(Ndp::parse(&frame[..cut]), Err(Malformed));
            }
        }

        /// RFC 4443 2.3, RFC 4861 7.1.1, 7.1.2: a packet with a wrong checksum is discarded.
        #[test]
        fn a_flipped_bit_is_detected(message in message(), mac in mac(), bit in 0..8_usize, at in 22..78_usize) {
            let ndp = Ndp { source: Ipv6Addr::LOCALHOST, destination: Ipv6Addr::LOCALHOST, target: Ipv6Addr::LOCALHOST, message };
            let mut frame = [0; FRAME];
            let length = ndp.emit(mac, mac, &mut frame);
            frame[at] ^= 1 << bit;
            prop_assert_eq!(Ndp::parse(&frame[..length]), Err(Malformed));
        }

        #[test]
        fn any_options_are_parsed_or_refused(options in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some(mac)) = option(&options, TARGET_OPTION) {
                prop_assert!(options.windows(6).any(|window| window == mac.0));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(frame in proptest::collection::vec(any::<u8>(), 0..120)) {
            // Random bytes almost never have a correct checksum. The test requires only that `parse` returns.
            prop_assert!(Ndp::parse(&frame).is_ok() || Ndp::parse(&frame) == Err(Malformed));
        }
    }

    /// RFC 4861 7.1.1, 7.1.2: a packet with a hop limit other than 255 is discarded.
    #[test]
    fn a_routed_packet_is_refused() {
        let ndp = Ndp {
            source: Ipv6Addr::LOCALHOST,
            destination: Ipv6Addr::LOCALHOST,
            target: Ipv6Addr::LOCALHOST,
            message: NdpMessage::Solicitation { source_mac: None },
        };
        let mut frame = [0; FRAME];
        let length = ndp.emit(Mac([2; 6]), Mac([4; 6]), &mut frame);
        frame[ETHERNET + 7] = 254;
        assert_eq!(Ndp::parse(&frame[..length]), Err(Malformed));
    }

    /// RFC 4291 2.7.1, RFC 2464 7: the solicited-node group of an address, and the Ethernet address of that group.
    #[test]
    fn groups_have_their_own_addresses() {
        let (group, mac) = solicited_node("fe80::5054:ff:fe12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(mac, Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
    }
}
