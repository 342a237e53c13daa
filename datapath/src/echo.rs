//! Sends ICMP echo requests (RFC 792, RFC 4443) through a Linux interface, to determine the packet sizes that a path carries.

use crate::socket_option;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Number of requests, and longest wait for the answer to each.
const TRIES: u16 = 3;
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);
/// Bytes of the ICMP header.
const HEADER: usize = 8;

/// Types of request and reply, bytes of the IP header, and bytes before the reply in a received message.
struct Family {
    domain: libc::c_int,
    protocol: libc::c_int,
    types: [u8; 2],
    ip_header: usize,
    skipped: usize,
}

const V4: Family = Family {
    domain: libc::AF_INET,
    protocol: libc::IPPROTO_ICMP,
    types: [8, 0],
    ip_header: 20,
    // A raw IPv4 socket receives the IP header too.
    skipped: 20,
};
const V6: Family = Family {
    domain: libc::AF_INET6,
    protocol: libc::IPPROTO_ICMPV6,
    types: [128, 129],
    ip_header: 40,
    skipped: 0,
};

/// Returns true if `to` answers an IP packet of `bytes` bytes, sent through `interface` with fragmentation disabled.
///
/// # Errors
/// Returns the kernel's error: `EPERM` without CAP_NET_RAW, `ENODEV` if there is no such interface, or another if the host is unreachable.
pub fn echo(interface: &str, to: IpAddr, bytes: usize) -> io::Result<bool> {
    let family = if to.is_ipv4() { V4 } else { V6 };
    let socket = open(&family, interface)?;
    let scope = crate::linux::interface(interface)?.index;
    let there = match to {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => {
            SocketAddrV6::new(ip, 0, 0, if ip.is_unicast_link_local() { scope } else { 0 }).into()
        }
    };
    let length = bytes.saturating_sub(family.ip_header).max(HEADER);
    let id = std::process::id() as u16;
    for number in 0..TRIES {
        match socket.send_to(&request(&family, id, number, length), there) {
            Ok(_) => {}
            // The packet is larger than the interface's MTU.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return Ok(false),
            Err(error) => return Err(error),
        }
        if is_answered(&socket, &family, id, length)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens a raw socket on the interface that neither fragments packets nor applies a known path MTU.
fn open(family: &Family, interface: &str) -> io::Result<UdpSocket> {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(family.domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, family.protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let (level, option) = match family.domain {
        libc::AF_INET => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        _ => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    // The same value for both families.
    socket_option::set(&fd, level, option, &libc::IP_PMTUDISC_PROBE)?;
    socket_option::set(&fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_bytes())?;
    Ok(UdpSocket::from(fd))
}

fn request(family: &Family, id: u16, number: u16, length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[0] = family.types[0];
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes());
    // For ICMPv6 the kernel computes the checksum, which covers the addresses.
    let sum = checksum(&packet).to_be_bytes();
    packet[2..4].copy_from_slice(&sum);
    packet
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(packet: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = packet.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

/// Waits for a reply of the request's length. A reply to an earlier request also counts.
fn is_answered(socket: &UdpSocket, family: &Family, id: u16, length: usize) -> io::Result<bool> {
    let until = Instant::now() + REPLY_TIMEOUT;
    let mut packet = vec![0; family.skipped + length + 1];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut packet) {
            Ok((count, _)) => {
                let reply = packet.get(family.skipped..count).unwrap_or_default();
                if reply.len() == length && reply[0] == family.types[1] && reply[4..6] == id.to_be_bytes() {
                    return Ok(true);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 792, RFC 4443: a host answers an echo request with an echo reply.
    #[test]
    fn this_host_answers_an_echo_request_on_loopback() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            match echo("lo", ip, 1000) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return,
                // No IPv6, or the loopback interface is down.
                Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
                Ok(answered) => assert!(answered, "{ip}"),
            }
        }
        assert!(echo("nosuchif0", IpAddr::from([127, 0, 0, 1]), 100).is_err());
    }

    /// RFC 1071: the checksum is the one's complement of the one's complement sum.
    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff]), !0xff00);
    }
}
