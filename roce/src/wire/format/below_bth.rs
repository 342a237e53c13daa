//! Finds telemetry below a packet's BTH: hop-by-hop options, IFA's headers, INT-MD's shim. Called only for packets in which UDP with
//! RoCEv2's port does not directly follow the IP header.

use super::{Numbers, hop_by_hop, ifa, int_md};
use crate::Discard;
use crate::wire::constants::{ROCE_PORT, UDP, UDP_LENGTH};
use crate::wire::layers::{Family, InsertedTelemetry, Layers, chunk};

/// Replaces the UDP and BTH offsets of `layers`, which are those of a plain packet, by the actual ones. `protocol` is the protocol in the
/// IP header.
#[expect(clippy::arithmetic_side_effects, reason = "each length was checked to be in the packet")]
pub fn find(
    packet: &[u8],
    mut layers: Layers,
    mut protocol: u8,
    numbers: Numbers,
) -> Result<Layers, Discard> {
    if protocol == hop_by_hop::PROTOCOL && layers.family == Family::V6 {
        let (length, found) = hop_by_hop::options(packet, layers.udp, numbers)?;
        [protocol] = *chunk(packet, layers.udp)?;
        (layers.udp, layers.carried) = (layers.udp + length, found);
    }
    if protocol == ifa::PROTOCOL && layers.carried.is_none() {
        protocol = ifa::next_header(chunk(packet, layers.udp)?)?;
        (layers.udp, layers.carried) = (layers.udp + ifa::HEADER_LENGTH, Some(InsertedTelemetry::Ifa));
    }
    if protocol != UDP {
        return Err(Discard::NotRoce);
    }
    layers.bth = layers.udp + UDP_LENGTH;
    match (layers.port(packet)?, layers.carried) {
        (ROCE_PORT, Some(InsertedTelemetry::Ifa)) => layers.bth += ifa::metadata_length(packet, layers.bth)?,
        (ROCE_PORT, _) => {}
        (port, None) if port == numbers.int_port() => {
            layers.bth += int_md::length(packet, layers.bth)?;
            layers.carried = Some(InsertedTelemetry::IntMd);
        }
        _ => return Err(Discard::NotRoce),
    }
    Ok(layers)
}
