//! The kernel's notifications about one interface (rtnetlink(7)): its addresses, its link, its removal.

use super::netlink::local_address;
use crate::neighbour::Address;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The interface has this address. May be repeated, for example when duplicate address detection has ended.
    Added(Address),
    /// The interface lost this address.
    Removed(Address),
    /// Whether it has a carrier, and the largest IP packet in bytes. Either may be unchanged.
    Link { is_running: bool, mtu: Option<u32> },
    /// It was deleted, or moved to another network namespace.
    Gone,
    /// Notifications were lost. The caller must read the current state.
    Lost,
}

pub(crate) struct Notifications {
    socket: Socket,
    index: u32,
}

impl Notifications {
    /// Starts receiving notifications about the interface with this index, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no descriptor left.
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        // A signal may end the wait for a notification. The read must not block then.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, index })
    }

    /// Returns the changes of the interface in the next notification, or none if no notification is queued.
    pub(crate) fn receive(&self) -> Vec<Change> {
        match self.socket.recv_from_full() {
            Ok((datagram, _)) => changes(&datagram, self.index),
            // The kernel's buffer overflowed.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => vec![Change::Lost],
            Err(_) => Vec::new(),
        }
    }
}

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Returns the changes of the interface with this index in a datagram.
fn changes(datagram: &[u8], index: u32) -> Vec<Change> {
    let mut found = Vec::new();
    let mut rest = datagram;
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
            found.push(Change::Lost);
            break;
        };
        if let NetlinkPayload::InnerMessage(message) = message.payload {
            found.extend(change(&message, index));
        }
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        rest = rest.get(length..).unwrap_or_default();
    }
    found
}

fn change(message: &RouteNetlinkMessage, index: u32) -> Option<Change> {
    // A bridge reports its ports by messages of its own family. A port that leaves the bridge is not deleted.
    let is_ours = |link: &LinkMessage| {
        link.header.index == index && link.header.interface_family == AddressFamily::Unspec
    };
    match message {
        RouteNetlinkMessage::NewAddress(address) if address.header.index == index => {
            local_address(address).map(Change::Added)
        }
        RouteNetlinkMessage::DelAddress(address) if address.header.index == index => {
            local_address(address).map(Change::Removed)
        }
        RouteNetlinkMessage::NewLink(link) if is_ours(link) => Some(Change::Link {
            is_running: link.header.flags.contains(LinkFlags::Running),
            mtu: link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            }),
        }),
        RouteNetlinkMessage::DelLink(link) if is_ours(link) => Some(Change::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_LINK: u16 = 16;
    const DEL_LINK: u16 = 17;
    const NEW_ADDRESS: u16 = 20;
    const DEL_ADDRESS: u16 = 21;
    const AF_BRIDGE: u8 = 7;
    const RUNNING: u32 = 0x40;

    fn message(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = header.to_vec();
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut whole = (16 + body.len() as u32).to_ne_bytes().to_vec();
        whole.extend(kind.to_ne_bytes());
        whole.extend([0; 10]);
        whole.extend(body);
        whole
    }

    /// Returns a message with `struct ifaddrmsg`, with `IFA_ADDRESS`, and `IFA_LOCAL` for IPv4.
    fn address(kind: u16, index: u32, address: &str) -> Vec<u8> {
        let Address { ip, prefix } = address.parse().unwrap();
        let [family, bytes] = match ip {
            std::net::IpAddr::V4(ip) => [vec![2], ip.octets().to_vec()],
            std::net::IpAddr::V6(ip) => [vec![10], ip.octets().to_vec()],
        };
        let header = [&[family[0], prefix, 0, 0][..], &index.to_ne_bytes()].concat();
        let local = (2, &bytes[..]);
        let attributes = [(1, &bytes[..]), local];
        message(kind, &header, if ip.is_ipv4() { &attributes } else { &attributes[..1] })
    }

    /// Returns a message with `struct ifinfomsg`, with `IFLA_MTU`.
    fn link(kind: u16, family: u8, index: u32, flags: u32, mtu: u32) -> Vec<u8> {
        let header = [&[family, 0, 1, 0][..], &index.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat();
        message(kind, &header, &[(4, &mtu.to_ne_bytes())])
    }

    #[test]
    fn added_and_removed_addresses_are_reported() {
        let v4 = || "10.0.0.1/24".parse().unwrap();
        let v6 = || "fd00::1/64".parse().unwrap();
        assert_eq!(changes(&address(NEW_ADDRESS, 7, "10.0.0.1/24"), 7), [Change::Added(v4())]);
        assert_eq!(changes(&address(DEL_ADDRESS, 7, "10.0.0.1/24"), 7), [Change::Removed(v4())]);
        assert_eq!(changes(&address(NEW_ADDRESS, 7, "fd00::1/64"), 7), [Change::Added(v6())]);
        assert_eq!(changes(&address(DEL_ADDRESS, 7, "fd00::1/64"), 7), [Change::Removed(v6())]);
        assert_eq!(changes(&address(NEW_ADDRESS, 8, "10.0.0.1/24"), 7), [], "of another interface");
    }

    #[test]
    fn a_link_message_has_the_carrier_and_the_mtu() {
        let up = Change::Link { is_running: true, mtu: Some(1500) };
        let down = Change::Link { is_running: false, mtu: Some(9000) };
        assert_eq!(changes(&link(NEW_LINK, 0, 7, RUNNING, 1500), 7), [up]);
        assert_eq!(changes(&link(NEW_LINK, 0, 7, 0, 9000), 7), [down]);
        assert_eq!(changes(&link(NEW_LINK, 0, 8, 0, 9000), 7), []);
        assert_eq!(changes(&link(DEL_LINK, 0, 7, 0, 1500), 7), [Change::Gone]);
        assert_eq!(changes(&link(DEL_LINK, 0, 8, 0, 1500), 7), []);
    }

    /// rtnetlink(7): a bridge sends RTM_DELLINK of the family AF_BRIDGE when an interface leaves it.
    #[test]
    fn an_interface_that_leaves_a_bridge_is_not_gone() {
        assert_eq!(changes(&link(DEL_LINK, AF_BRIDGE, 7, 0, 1500), 7), []);
        assert_eq!(changes(&link(NEW_LINK, AF_BRIDGE, 7, 0, 1500), 7), []);
    }

    #[test]
    fn a_datagram_has_several_messages_and_a_malformed_one_loses_the_rest() {
        let many = [address(DEL_ADDRESS, 7, "10.0.0.1/24"), link(DEL_LINK, 0, 7, 0, 1500)].concat();
        assert_eq!(changes(&many, 7).len(), 2);
        assert_eq!(changes(&many[..many.len() - 1], 7).last(), Some(&Change::Lost));
        assert_eq!(changes(&[], 7), []);
    }

    /// A signal may end the wait for a notification before there is one.
    #[test]
    #[cfg(not(miri))]
    fn a_read_without_a_notification_returns_at_once() {
        let none = 0x7fff_fff0;
        assert_eq!(Notifications::open(none).unwrap().receive(), []);
    }
}
