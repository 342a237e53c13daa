//! Spreads frames over queue pairs by a hash of their headers, so that a flow stays on one queue (receive side scaling).

use super::Headers;
use super::headers::{TCP, UDP};
use crate::Qpn;
use alloc::vec::Vec;

/// Length of the key of a Toeplitz hash, bytes: the longest input of two IPv6 addresses and two ports, and the 32 bits of the hash.
pub const HASH_KEY: usize = 40;
/// Limit of the entries of a [`Rss`].
pub const MAX_ENTRIES: usize = 128;

/// Header fields over which a hash is computed. A frame without one of them has the hash 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashFields {
    /// IPv4 source address.
    pub ipv4_source: bool,
    /// IPv4 destination address.
    pub ipv4_destination: bool,
    /// IPv6 source address.
    pub ipv6_source: bool,
    /// IPv6 destination address.
    pub ipv6_destination: bool,
    /// TCP source port.
    pub tcp_source: bool,
    /// TCP destination port.
    pub tcp_destination: bool,
    /// UDP source port.
    pub udp_source: bool,
    /// UDP destination port.
    pub udp_destination: bool,
}

/// Distribution of one queue pair's frames to others, by a Toeplitz hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Key of the hash.
    pub key: [u8; HASH_KEY],
    /// Fields over which the hash is computed.
    pub fields: HashFields,
    /// Queue pairs, by the low bits of the hash: 1 to [`MAX_ENTRIES`] entries, a power of two. A queue pair may have several.
    pub table: Vec<Qpn>,
}

impl Rss {
    pub(crate) fn is_legal(&self) -> bool {
        self.table.len().is_power_of_two() && self.table.len() <= MAX_ENTRIES
    }

    pub(crate) fn choose(&self, headers: &Headers<'_>) -> Option<Qpn> {
        let hash = self.hash(headers).unwrap_or(0) as usize;
        self.table.get(hash & self.table.len().wrapping_sub(1)).copied()
    }

    /// Returns the hash over the fields; `None` if the frame does not have all of them.
    fn hash(&self, headers: &Headers<'_>) -> Option<u32> {
        let HashFields { ipv4_source, ipv4_destination, ipv6_source, ipv6_destination, .. } = self.fields;
        let HashFields { tcp_source, tcp_destination, udp_source, udp_destination, .. } = self.fields;
        let mut hash = Toeplitz { key: &self.key, at: 0, hash: 0 };
        if ipv4_source | ipv4_destination {
            let [source, destination] = headers.ipv4_addresses()?;
            hash.add_if(ipv4_source, &source);
            hash.add_if(ipv4_destination, &destination);
        }
        if ipv6_source | ipv6_destination {
            let [source, destination] = headers.ipv6_addresses()?;
            hash.add_if(ipv6_source, &source);
            hash.add_if(ipv6_destination, &destination);
        }
        for (protocol, with_source, with_destination) in
            [(TCP, tcp_source, tcp_destination), (UDP, udp_source, udp_destination)]
        {
            if with_source | with_destination {
                let [source, destination] = headers.ports(protocol)?;
                hash.add_if(with_source, &source);
                hash.add_if(with_destination, &destination);
            }
        }
        Some(hash.hash)
    }
}

/// Toeplitz hash in progress: each set bit of the input adds the 32 bits of the key at its position.
struct Toeplitz<'a> {
    key: &'a [u8; HASH_KEY],
    at: usize,
    hash: u32,
}

impl Toeplitz<'_> {
    fn add_if(&mut self, wanted: bool, bytes: &[u8]) {
        for byte in bytes.iter().filter(|_| wanted) {
            // The key is 0 beyond its end.
            let window = (0..5).map(|i| self.key.get(self.at + i).copied().unwrap_or(0));
            let window = window.fold(0_u64, |bits, byte| bits << 8 | u64::from(byte));
            for bit in (0..8).filter(|bit| byte >> (7 - bit) & 1 == 1) {
                self.hash ^= (window >> (8 - bit)) as u32;
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the inputs that Microsoft publishes to verify RSS.
    const KEY: [u8; HASH_KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn frame(source: [u8; 4], to: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0];
        let ports = ports.map(u16::to_be_bytes);
        [&[0; 12][..], &[8, 0], &ip, &source, &to, &ports[0], &ports[1]].concat()
    }

    fn rss(fields: HashFields, entries: u32) -> Rss {
        Rss { key: KEY, fields, table: (0..entries).map(Qpn::new).collect() }
    }

    #[test]
    fn hashes_are_those_of_the_published_inputs() {
        let addresses = HashFields { ipv4_source: true, ipv4_destination: true, ..HashFields::default() };
        let all = HashFields { tcp_source: true, tcp_destination: true, ..addresses };
        for (source, to, ports, short, long) in [
            ([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766], 0x323e_8fc2, 0x51cc_c178),
            ([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739], 0xd718_262a, 0xc626_b0ea),
        ] {
            let frame = frame(source, to, ports);
            let headers = Headers::of(&frame).unwrap();
            assert_eq!(rss(addresses, 1).hash(&headers), Some(short));
            assert_eq!(rss(all, 1).hash(&headers), Some(long));
            assert_eq!(rss(all, 128).choose(&headers), Some(Qpn::new(long & 127)));
            let udp = HashFields { udp_source: true, ..addresses };
            assert_eq!(rss(udp, 128).choose(&headers), Some(Qpn::new(0)), "it has no such port");
        }
    }

    #[test]
    fn tables_are_powers_of_two() {
        let any = HashFields::default();
        for (entries, is_legal) in [(0, false), (1, true), (3, false), (128, true), (256, false)] {
            assert_eq!(rss(any, entries).is_legal(), is_legal, "{entries}");
        }
        assert_eq!(rss(any, 0).choose(&Headers::of(&[0; 14]).unwrap()), None);
    }
}
