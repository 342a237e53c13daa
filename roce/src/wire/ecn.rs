//! The ECN bits of the traffic class (RFC 3168).

use super::layers::{Family, fold};
use super::locate::locate_class;

/// The ECN field of an IP packet (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not react to marks.
    NotCapable,
    /// ECT(1).
    Ect1,
    /// ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Returns the field of a traffic class; DSCP bits are ignored.
    #[must_use]
    pub const fn from_traffic_class(class: u8) -> Self {
        match class & 3 {
            0 => Self::NotCapable,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// Returns the ECN field of an IP packet in an Ethernet frame; `None` if there is no IP packet.
#[must_use]
pub fn ecn(frame: &[u8]) -> Option<Ecn> {
    traffic_class(frame).map(Ecn::from_traffic_class)
}

/// Returns the traffic class (DSCP 6, ECN 2) of an IP packet in an Ethernet frame; `None` if there is no IP packet.
#[must_use]
pub fn traffic_class(frame: &[u8]) -> Option<u8> {
    let (family, ip) = locate_class(frame)?;
    let bytes: &[u8; 2] = frame.get(ip..)?.first_chunk()?;
    Some(match family {
        Family::V4 => bytes[1],
        Family::V6 => bytes[0] << 4 | bytes[1] >> 4,
    })
}

/// Sets CE on a packet whose sender reacts to marks, and updates the IPv4 checksum; the ICRC does not cover the field. Returns whether the
/// packet now carries CE.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    match ecn(frame) {
        None | Some(Ecn::NotCapable) => return false,
        Some(Ecn::Ce) => return true,
        Some(Ecn::Ect0 | Ecn::Ect1) => {}
    }
    let Some((family, ip)) = locate_class(frame) else { return false };
    match (family, frame.get_mut(ip..)) {
        (Family::V4, Some([first, second, _, _, _, _, _, _, _, _, high, low, ..])) => {
            let before = u16::from_be_bytes([*first, *second]);
            *second |= 3;
            let after = u16::from_be_bytes([*first, *second]);
            let checksum = !u16::from_be_bytes([*high, *low]);
            // RFC 1624, equation 3.
            let sum = [checksum, !before, after].into_iter().map(u64::from).sum();
            [*high, *low] = (!fold(sum)).to_be_bytes();
            true
        }
        (Family::V6, Some([_, second, ..])) => {
            *second |= 0x30;
            true
        }
        _ => false,
    }
}
