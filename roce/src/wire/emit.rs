use super::header::{Bth, Header, Service};
use super::layers::{
    ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Family, Layers, UDP, UDP_LENGTH,
    VLAN_LENGTH, fold, sum,
};
use super::opcode::{Opcode, Writer};
use super::path::Path;
use super::telemetry::MAX_HOPS;
use super::{BTH_LENGTH, ICRC_LENGTH, MAX_PAYLOAD, ROCE_PORT, icrc};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Why a packet can't be written. Nothing was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// The frame is too short.
    #[error("the packet takes {needed} bytes, the frame has {room}: pass a longer one")]
    Room {
        /// Bytes that the packet takes.
        needed: usize,
        /// Bytes there are.
        room: usize,
    },
    /// An operation that the service does not have.
    #[error("opcode {0:#04x}: the service has no such operation")]
    Opcode(u8),
    /// More payload than the operation takes.
    #[error("a payload of {length} bytes: opcode {opcode:#04x} takes at most {limit}")]
    Payload {
        /// The first byte of the BTH.
        opcode: u8,
        /// Bytes asked for.
        length: usize,
        /// Bytes it takes: 0, the largest path MTU, or exactly a probe's room.
        limit: usize,
    },
    /// One address is IPv4, the other IPv6.
    #[error("source {from} and destination {to} are of different families: use two of one")]
    Families {
        /// Source.
        from: IpAddr,
        /// Destination.
        to: IpAddr,
    },
    /// A telemetry response whose busiest hop is not one of its hops.
    #[error("a telemetry response of {hops} hops must name one of them, and at most 15")]
    Hops {
        /// Hops on the path.
        hops: u8,
    },
}

/// A packet with its headers written: fill [`payload`](Self::payload), then [`seal`](Self::seal).
#[derive(Debug)]
#[must_use = "a packet has no ICRC before it is sealed"]
pub struct Draft<'f> {
    frame: &'f mut [u8],
    layers: Layers,
    payload: usize,
    payload_length: usize,
    hidden: usize,
}

impl Draft<'_> {
    /// Where the payload goes; it holds what the frame held before, or zeros in a probe.
    pub fn payload(&mut self) -> &mut [u8] {
        &mut self.frame[self.payload..self.payload + self.payload_length]
    }

    /// Bytes from the Ethernet header to the ICRC.
    #[must_use]
    pub fn frame_length(&self) -> usize {
        self.layers.end
    }

    /// Writes pad and ICRC, and gives the frame's length.
    pub fn seal(self) -> usize {
        let Layers { end, .. } = self.layers;
        self.frame[self.payload + self.payload_length..end - ICRC_LENGTH].fill(0);
        let crc = icrc::compute(self.frame, &self.layers, self.hidden);
        self.frame[end - ICRC_LENGTH..end].copy_from_slice(&crc.to_le_bytes());
        end
    }
}

/// Writes all headers to the start of `frame`, with room for `payload_length` bytes after them. `identification`
/// goes into an IPv4 header. UDP's checksum is 0; IPv4 says "don't fragment".
///
/// # Errors
/// What the service, the operation or the frame has no place for; `frame` is then as it was.
pub fn emit<'f>(
    path: &Path,
    identification: u16,
    header: &Header,
    payload_length: usize,
    frame: &'f mut [u8],
) -> Result<Draft<'f>, EmitError> {
    let addresses = Addresses::of(path)?;
    let family = addresses.family();
    check(header, payload_length)?;
    let ip = ETHERNET_LENGTH + if path.vlan.is_some() { VLAN_LENGTH } else { 0 };
    let udp = ip + family.header_length();
    let bth = udp + UDP_LENGTH;
    let payload = bth + BTH_LENGTH + header.extension_length();
    let end = payload + payload_length.next_multiple_of(4) + ICRC_LENGTH;
    if frame.len() < end {
        return Err(EmitError::Room { needed: end, room: frame.len() });
    }
    let layers = Layers { family, vlan: path.vlan.is_some(), ip, udp, bth, end };
    let mut writer = Writer { frame: &mut *frame, at: 0 };
    write_ethernet(&mut writer, path, family);
    write_ip(&mut writer, path, addresses, identification, &layers);
    writer.put(path.udp_source.to_be_bytes());
    writer.put(ROCE_PORT.to_be_bytes());
    writer.put(((end - udp) as u16).to_be_bytes());
    writer.put([0, 0]);
    write_bth(&mut writer, header.opcode(), header.bth(), payload_length);
    writer.extensions(header);
    let hidden = match header {
        Header::TelemetryRequest { .. } => {
            frame[payload..payload + payload_length].fill(0);
            end - ICRC_LENGTH - bth - BTH_LENGTH
        }
        _ => 0,
    };
    Ok(Draft { frame, layers, payload, payload_length, hidden })
}

#[derive(Clone, Copy)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    fn of(path: &Path) -> Result<Self, EmitError> {
        match (path.source, path.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Ok(Self::V4(from, to)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Ok(Self::V6(from, to)),
            (from, to) => Err(EmitError::Families { from, to }),
        }
    }

    const fn family(self) -> Family {
        match self {
            Self::V4(..) => Family::V4,
            Self::V6(..) => Family::V6,
        }
    }
}

fn check(header: &Header, length: usize) -> Result<(), EmitError> {
    let opcode = header.opcode();
    let shape = opcode.shape().ok_or(EmitError::Opcode(opcode.0))?;
    let (limit, legal) = match header {
        Header::Connected { service: Service::Ud, .. } => return Err(EmitError::Opcode(opcode.0)),
        Header::TelemetryRequest { int, .. } => (int.room_bytes(), length == int.room_bytes()),
        Header::TelemetryResponse { hops, busiest, .. } => {
            let named = busiest.map_or(*hops == 0, |(index, _)| index < *hops);
            if !named || *hops > MAX_HOPS {
                return Err(EmitError::Hops { hops: *hops });
            }
            (0, length == 0)
        }
        _ if shape.payload => (MAX_PAYLOAD, length <= MAX_PAYLOAD),
        _ => (0, length == 0),
    };
    if legal { Ok(()) } else { Err(EmitError::Payload { opcode: opcode.0, length, limit }) }
}

fn write_ethernet(writer: &mut Writer<'_>, path: &Path, family: Family) {
    writer.put(path.destination_mac.0);
    writer.put(path.source_mac.0);
    if let Some(vlan) = path.vlan {
        writer.put(ETHERTYPE_VLAN.to_be_bytes());
        writer.put(vlan.0.to_be_bytes());
    }
    let ethertype = match family {
        Family::V4 => ETHERTYPE_IPV4,
        Family::V6 => ETHERTYPE_IPV6,
    };
    writer.put(ethertype.to_be_bytes());
}

fn write_ip(
    writer: &mut Writer<'_>,
    path: &Path,
    addresses: Addresses,
    identification: u16,
    layers: &Layers,
) {
    let Layers { ip, udp, end, .. } = *layers;
    match addresses {
        Addresses::V4(from, to) => {
            writer.put([0x45, path.traffic_class]);
            writer.put(((end - ip) as u16).to_be_bytes());
            writer.put(identification.to_be_bytes());
            writer.put([0x40, 0, path.hop_limit, UDP, 0, 0]);
            writer.put(from.octets());
            writer.put(to.octets());
            let checksum = !fold(sum(&writer.frame[ip..udp]));
            writer.frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        Addresses::V6(from, to) => {
            let word = 6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
            writer.put(word.to_be_bytes());
            writer.put(((end - udp) as u16).to_be_bytes());
            writer.put([UDP, path.hop_limit]);
            writer.put(from.octets());
            writer.put(to.octets());
        }
    }
}

fn write_bth(writer: &mut Writer<'_>, opcode: Opcode, bth: &Bth, payload_length: usize) {
    let pad = (payload_length.wrapping_neg() & 3) as u8;
    let flags = u8::from(bth.solicited) << 7 | u8::from(bth.migration) << 6 | pad << 4;
    let [key_high, key_low] = bth.partition_key.to_be_bytes();
    let [_, dest @ ..] = bth.destination.get().to_be_bytes();
    let [_, psn @ ..] = bth.psn.get().to_be_bytes();
    writer.put([opcode.0, flags, key_high, key_low, bth.congestion]);
    writer.put(dest);
    writer.put([u8::from(bth.ack_request) << 7]);
    writer.put(psn);
}
