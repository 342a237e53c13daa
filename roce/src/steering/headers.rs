//! The headers of a frame, to which rules are compared. Lengths and checksums are not checked, because a raw packet queue pair also
//! receives damaged frames.

use super::{EthernetSpec, FlowSpec, Ipv4Spec, Ipv6Spec, PortSpec};

const VLAN_TYPE: [u8; 2] = [0x81, 0x00];
const IPV4_TYPE: [u8; 2] = [0x08, 0x00];
const IPV6_TYPE: [u8; 2] = [0x86, 0xdd];
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// IP header of a frame, without options.
#[derive(Clone, Copy)]
enum Network<'a> {
    V4(&'a [u8; 20]),
    V6(&'a [u8; 40]),
    Other,
}

#[derive(Clone, Copy)]
pub(crate) struct Headers<'a> {
    destination: &'a [u8; 6],
    source: &'a [u8; 6],
    vlan: Option<[u8; 2]>,
    ether_type: [u8; 2],
    network: Network<'a>,
    /// Protocol above the IP header, and the two ports if the protocol has them.
    transport: Option<(u8, &'a [u8; 4])>,
}

impl<'a> Headers<'a> {
    /// Parses the headers of a frame; `None` if it is shorter than an Ethernet header.
    pub(crate) fn of(frame: &'a [u8]) -> Option<Self> {
        let (destination, rest) = frame.split_first_chunk()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (&outer, rest) = rest.split_first_chunk()?;
        let (vlan, ether_type, rest) = match (outer, rest.first_chunk()) {
            (VLAN_TYPE, Some(&[high, low, kind, of])) => {
                (Some([high, low]), [kind, of], rest.get(4..).unwrap_or_default())
            }
            _ => (None, outer, rest),
        };
        let (network, transport) = match (ether_type, rest.first_chunk(), rest.first_chunk()) {
            (IPV4_TYPE, Some(header), _) if header[0] >> 4 == 4 => {
                let is_first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
                let ports = rest.get(usize::from(header[0] & 15) * 4..).filter(|_| is_first);
                (Network::V4(header), ports.map(|ports| (header[9], ports)))
            }
            (IPV6_TYPE, _, Some(header)) if header[0] >> 4 == 6 => {
                (Network::V6(header), rest.get(40..).map(|ports| (header[6], ports)))
            }
            _ => (Network::Other, None),
        };
        let transport =
            transport.and_then(|(protocol, ports)| ports.first_chunk().map(|ports| (protocol, ports)));
        Some(Self { destination, source, vlan, ether_type, network, transport })
    }

    /// Returns whether the destination is a multicast or broadcast address: the lowest bit of its first byte is set.
    pub(super) const fn are_of_a_group(&self) -> bool {
        self.destination[0] & 1 == 1
    }

    pub(super) fn fit(&self, spec: &FlowSpec) -> bool {
        match spec {
            FlowSpec::Ethernet(spec) => self.fit_ethernet(spec),
            FlowSpec::Ipv4(spec) => self.fit_ipv4(spec),
            FlowSpec::Ipv6(spec) => self.fit_ipv6(spec),
            FlowSpec::Tcp(spec) => self.fit_ports(TCP, spec),
            FlowSpec::Udp(spec) => self.fit_ports(UDP, spec),
        }
    }

    fn fit_ethernet(&self, spec: &EthernetSpec) -> bool {
        let EthernetSpec { destination, source, ether_type, vlan } = spec;
        destination.fits(self.destination)
            && source.fits(self.source)
            && ether_type.fits(&self.ether_type)
            && (vlan.is_any() || self.vlan.is_some_and(|tag| vlan.fits(&tag)))
    }

    fn fit_ports(&self, protocol: u8, spec: &PortSpec) -> bool {
        self.ports(protocol).is_some_and(|[source, destination]| {
            spec.source.fits(&source) && spec.destination.fits(&destination)
        })
    }

    pub(super) fn ports(&self, protocol: u8) -> Option<[[u8; 2]; 2]> {
        let (_, &[a, b, c, d]) = self.transport.filter(|(found, _)| *found == protocol)?;
        Some([[a, b], [c, d]])
    }

    pub(super) fn ipv4_addresses(&self) -> Option<[[u8; 4]; 2]> {
        let Network::V4(header) = self.network else { return None };
        Some([12, 16].map(|at| core::array::from_fn(|i| header[at + i])))
    }

    pub(super) fn ipv6_addresses(&self) -> Option<[[u8; 16]; 2]> {
        let Network::V6(header) = self.network else { return None };
        Some([8, 24].map(|at| core::array::from_fn(|i| header[at + i])))
    }

    fn fit_ipv4(&self, spec: &Ipv4Spec) -> bool {
        let (Network::V4(header), Some([source, destination])) = (self.network, self.ipv4_addresses()) else {
            return false;
        };
        // "Don't fragment" is bit 6 of the header's byte, "more fragments" is bit 5.
        let flags = header[6] >> 5 & 2 | header[6] >> 3 & 4;
        spec.source.fits(&source)
            && spec.destination.fits(&destination)
            && spec.protocol.fits(&[header[9]])
            && spec.traffic_class.fits(&[header[1]])
            && spec.time_to_live.fits(&[header[8]])
            && spec.flags.fits(&[flags])
    }

    fn fit_ipv6(&self, spec: &Ipv6Spec) -> bool {
        let (Network::V6(header), Some([source, destination])) = (self.network, self.ipv6_addresses()) else {
            return false;
        };
        spec.source.fits(&source)
            && spec.destination.fits(&destination)
            && spec.flow_label.fits(&[0, header[1] & 15, header[2], header[3]])
            && spec.next_header.fits(&[header[6]])
            && spec.traffic_class.fits(&[header[0] << 4 | header[1] >> 4])
            && spec.hop_limit.fits(&[header[7]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::Masked;
    use alloc::vec::Vec;

    const TO: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
    const FROM: [u8; 6] = [0x24, 0x8a, 7, 0xa5, 0x28, 0xc8];

    fn ethernet(tag: Option<[u8; 2]>, kind: [u8; 2]) -> Vec<u8> {
        let tag = tag.map_or_else(Vec::new, |tag| [VLAN_TYPE, tag].concat());
        [&TO[..], &FROM, &tag, &kind].concat()
    }

    /// Returns the header of a packet from 1.1.1.1 to 2.2.2.2, with "don't fragment" and `options` words of options.
    fn ipv4(protocol: u8, options: u8) -> Vec<u8> {
        let head = [0x45 + options, 0xb8, 0xff, 0xff, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        [&head[..], &[1; 4], &[2; 4], &alloc::vec![0; usize::from(options) * 4]].concat()
    }

    fn ipv6(next: u8) -> Vec<u8> {
        [&[0x6b, 0x81, 0x23, 0x45, 0xff, 0xff, next, 63][..], &[0xa0; 16], &[0xb0; 16]].concat()
    }

    /// Source port 1234, destination port 5678.
    const PORTS: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];

    fn fits(frame: &[u8], spec: FlowSpec) -> bool {
        Headers::of(frame).unwrap().fit(&spec)
    }

    fn ports(source: u16, destination: u16) -> PortSpec {
        let [source, destination] = [source, destination].map(|port| Masked::exactly(port.to_be_bytes()));
        PortSpec { source, destination }
    }

    #[test]
    fn ethernet_is_matched_by_address_type_and_tag() {
        let any = EthernetSpec::default();
        let [plain, tagged] = [None, Some([0x6c, 0x0c])].map(|tag| ethernet(tag, IPV4_TYPE));
        let vlan = |value: [u8; 2], mask| EthernetSpec { vlan: Masked { value, mask }, ..any };
        for (spec, of_plain, of_tagged) in [
            (any, true, true),
            (EthernetSpec { destination: Masked::exactly(TO), ..any }, true, true),
            (EthernetSpec { destination: Masked::exactly(FROM), ..any }, false, false),
            (
                EthernetSpec { source: Masked { value: [0x24; 6], mask: [255, 0, 0, 0, 0, 0] }, ..any },
                true,
                true,
            ),
            (EthernetSpec { ether_type: Masked::exactly(IPV4_TYPE), ..any }, true, true),
            (EthernetSpec { ether_type: Masked::exactly(VLAN_TYPE), ..any }, false, false),
            (vlan([0x0c, 0x0c], [0x0f, 0xff]), false, true),
            (vlan([0x0c, 0x0d], [0x0f, 0xff]), false, false),
            (vlan([0, 0], [0x0f, 0xff]), false, false),
        ] {
            assert_eq!(fits(&plain, FlowSpec::Ethernet(spec)), of_plain, "{spec:?}");
            assert_eq!(fits(&tagged, FlowSpec::Ethernet(spec)), of_tagged, "{spec:?}");
        }
    }

    #[test]
    fn ipv4_is_matched_by_each_field() {
        let any = Ipv4Spec::default();
        let frame = [ethernet(None, IPV4_TYPE), ipv4(UDP, 0)].concat();
        for (spec, fit) in [
            (any, true),
            (Ipv4Spec { source: Masked::exactly([1; 4]), destination: Masked::exactly([2; 4]), ..any }, true),
            (Ipv4Spec { source: Masked::exactly([2; 4]), ..any }, false),
            (Ipv4Spec { destination: Masked { value: [2, 2, 9, 9], mask: [255, 255, 0, 0] }, ..any }, true),
            (Ipv4Spec { protocol: Masked::exactly([UDP]), ..any }, true),
            (Ipv4Spec { protocol: Masked::exactly([TCP]), ..any }, false),
            (Ipv4Spec { traffic_class: Masked { value: [0xb8], mask: [0xfc] }, ..any }, true),
            (Ipv4Spec { time_to_live: Masked::exactly([64]), ..any }, true),
            (Ipv4Spec { flags: Masked { value: [2], mask: [2] }, ..any }, true),
            (Ipv4Spec { flags: Masked { value: [4], mask: [4] }, ..any }, false),
        ] {
            assert_eq!(fits(&frame, FlowSpec::Ipv4(spec)), fit, "{spec:?}");
            assert!(!fits(&frame, FlowSpec::Ipv6(Ipv6Spec::default())));
        }
    }

    #[test]
    fn ipv6_is_matched_by_each_field() {
        let any = Ipv6Spec::default();
        let frame = [ethernet(Some([0, 5]), IPV6_TYPE), ipv6(TCP)].concat();
        for (spec, fit) in [
            (any, true),
            (Ipv6Spec { source: Masked::exactly([0xa0; 16]), ..any }, true),
            (Ipv6Spec { destination: Masked::exactly([0xa0; 16]), ..any }, false),
            (Ipv6Spec { flow_label: Masked::exactly([0, 1, 0x23, 0x45]), ..any }, true),
            (Ipv6Spec { next_header: Masked::exactly([TCP]), ..any }, true),
            (Ipv6Spec { traffic_class: Masked::exactly([0xb8]), ..any }, true),
            (Ipv6Spec { hop_limit: Masked::exactly([64]), ..any }, false),
        ] {
            assert_eq!(fits(&frame, FlowSpec::Ipv6(spec)), fit, "{spec:?}");
            assert!(!fits(&frame, FlowSpec::Ipv4(Ipv4Spec::default())));
        }
    }

    #[test]
    fn ports_are_behind_either_header_and_not_in_later_fragments() {
        let v4 =
            |protocol, options| [&ethernet(None, IPV4_TYPE)[..], &ipv4(protocol, options), &PORTS].concat();
        let v6 = [&ethernet(None, IPV6_TYPE)[..], &ipv6(UDP), &PORTS].concat();
        let (udp, tcp) = (FlowSpec::Udp(ports(1234, 5678)), FlowSpec::Tcp(ports(1234, 5678)));
        for options in [0, 3, 10] {
            assert!(fits(&v4(UDP, options), udp) && !fits(&v4(UDP, options), tcp));
            assert!(fits(&v4(TCP, options), tcp) && !fits(&v4(TCP, options), udp));
        }
        assert!(fits(&v6, udp) && !fits(&v6, tcp));
        assert!(!fits(&v6, FlowSpec::Udp(ports(5678, 1234))));
        let mut fragment = v4(UDP, 0);
        fragment[21] = 1;
        assert!(!fits(&fragment, udp) && fits(&fragment, FlowSpec::Ipv4(Ipv4Spec::default())));
    }

    #[test]
    fn any_frame_is_parsed_without_a_panic() {
        let whole = [&ethernet(Some([0, 5]), IPV6_TYPE)[..], &ipv6(UDP), &PORTS].concat();
        let specs = [FlowSpec::Udp(PortSpec::default()), FlowSpec::Ipv6(Ipv6Spec::default())];
        for cut in 0..whole.len() {
            let headers = Headers::of(&whole[..cut]);
            assert_eq!(headers.is_some(), cut >= 14);
            assert!(headers.is_none_or(|headers| !headers.fit(&specs[0])), "{cut} bytes");
        }
        assert!(specs.iter().all(|spec| fits(&whole, *spec)));
        for length in 0..=15 {
            let mut frame = [&ethernet(None, IPV4_TYPE)[..], &ipv4(UDP, 0), &PORTS].concat();
            frame[14] = 0x40 | length;
            // The header length is not checked.
            let _ = fits(&frame, specs[0]);
        }
    }
}
