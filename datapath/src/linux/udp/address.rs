//! Socket addresses as bytes (ip(7), ipv6(7)).

use std::net::{IpAddr, SocketAddr};

/// Bytes of the longest socket address used here, `sockaddr_in6`.
pub(super) const ROOM: usize = size_of::<libc::sockaddr_in6>();

/// Writes an address. Returns its bytes, and the number of bytes that the kernel reads. `interface` is the scope of a link-local address.
pub(super) fn write(address: SocketAddr, interface: u32) -> ([u8; ROOM], usize) {
    let mut bytes = [0; ROOM];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, length) = match address.ip() {
        IpAddr::V4(ip) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            if ip.is_unicast_link_local() || ip.is_multicast() {
                bytes[24..28].copy_from_slice(&interface.to_ne_bytes());
            }
            (libc::AF_INET6, ROOM)
        }
    };
    bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    (bytes, length)
}

/// Reads an address that the kernel wrote.
pub(super) fn read(bytes: &[u8; ROOM]) -> Option<SocketAddr> {
    let family = libc::sa_family_t::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match libc::c_int::from(family) {
        libc::AF_INET => (*bytes[4..].first_chunk::<4>()?).into(),
        libc::AF_INET6 => (*bytes[8..].first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_was_written() {
        for (text, length) in [("10.0.0.1:4791", 16), ("[fd00::1]:9", 28), ("[fe80::1]:9", 28)] {
            let address = text.parse().unwrap();
            let (bytes, written) = write(address, 7);
            assert_eq!((read(&bytes), written), (Some(address), length));
            assert_eq!(bytes[24] == 7, text.contains("fe80"), "the interface of {text}");
        }
        assert_eq!(read(&[0; ROOM]), None);
    }
}
