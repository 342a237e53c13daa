//! Reads the kernel's addresses, neighbours and routes through netlink.

use super::Address;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use roce::wire::Mac;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

/// Most messages read of one answer: more than any table of a host has.
const MAX_DUMP: usize = 1 << 20;

pub(super) struct Netlink {
    socket: Socket,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    pub(super) fn addresses(&mut self, index: u32) -> io::Result<Vec<Address>> {
        let mut found = Vec::new();
        self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer
                && message.header.index == index
            {
                found.extend(local_address(&message));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Returns the gateway to `address`, or `address` itself if it is on the link. Fails unless the route uses the interface `index`. With
    /// `only`, the kernel considers only routes of that interface.
    pub(super) fn next_hop(&mut self, address: IpAddr, index: u32, only: Option<u32>) -> io::Result<IpAddr> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(address);
        request.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        let destination = match address {
            IpAddr::V4(ip) => RouteAddress::Inet(ip),
            IpAddr::V6(ip) => RouteAddress::Inet6(ip),
        };
        request.attributes = vec![RouteAttribute::Destination(destination)];
        request.attributes.extend(only.map(RouteAttribute::Oif));
        let mut hop = None;
        self.request(RouteNetlinkMessage::GetRoute(request), 0, |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                hop = Some(gateway(&route, address, index));
            }
            ControlFlow::Break(())
        })?;
        hop.unwrap_or_else(|| Err(io::Error::other("the kernel returned no route")))
    }

    pub(super) fn neighbour(&mut self, address: IpAddr, index: u32) -> io::Result<Option<Mac>> {
        let mut request = NeighbourMessage::default();
        request.header.family = family(address);
        let mut found = None;
        self.request(RouteNetlinkMessage::GetNeighbour(request), NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(entry) = answer
                && entry.header.ifindex == index
                && is_usable(entry.header.state)
                && entry.attributes.iter().any(|attribute| names(attribute, address))
            {
                found = entry.attributes.iter().find_map(mac);
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Sends a request, and passes each message of the answer to `take` until `take` breaks or the answer ends.
    pub(super) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut take: impl FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut left = MAX_DUMP;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                left =
                    left.checked_sub(1).ok_or_else(|| io::Error::other("netlink's answer does not end"))?;
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::other(format!("netlink: {error}")))?;
                let length = (message.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_acknowledged) => return Ok(()),
                    NetlinkPayload::InnerMessage(inner) => match take(inner) {
                        ControlFlow::Break(()) => return Ok(()),
                        ControlFlow::Continue(()) => {}
                    },
                    _ => {}
                }
            }
        }
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Returns the local address of a message. On a point-to-point link, `Address` is the peer's and `Local` ours. IPv6 has only `Address`.
pub(super) fn local_address(message: &AddressMessage) -> Option<Address> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    });
    let ip = local.or(address)?;
    Some(Address { ip, prefix: message.header.prefix_len })
}

fn gateway(route: &RouteMessage, address: IpAddr, index: u32) -> io::Result<IpAddr> {
    if route.header.kind != RouteType::Unicast {
        return Err(io::Error::other(format!("the kernel's route to it is of type {:?}", route.header.kind)));
    }
    let by = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(by) => Some(*by),
        _ => None,
    });
    if by != Some(index) {
        return Err(io::Error::other("the kernel's route uses another interface"));
    }
    let gateway = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    });
    Ok(gateway.unwrap_or(address))
}

fn is_usable(state: NeighbourState) -> bool {
    matches!(
        state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    )
}

fn names(attribute: &NeighbourAttribute, address: IpAddr) -> bool {
    match (attribute, address) {
        (NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)), IpAddr::V4(asked)) => *ip == asked,
        (NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)), IpAddr::V6(asked)) => *ip == asked,
        _ => false,
    }
}

fn mac(attribute: &NeighbourAttribute) -> Option<Mac> {
    match attribute {
        NeighbourAttribute::LinkLocalAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    }
}
