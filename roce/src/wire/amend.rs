//! Amends the ICRC of a packet whose identification and source port changed, as on a UDP socket, which determines both.
//!
//! A CRC is linear: changing two bytes changes the ICRC by a value that depends on the change and on the number of covered bytes from there
//! on. So the payload is not read again.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::constants::ICRC_LENGTH;
use super::crc::{self, multiply};
use super::format::Numbers;
use super::layers::{Family, Layers};
use super::parse::split;
use super::{inband, reseal};
use crate::Discard;

/// Covered bytes below which it costs less to compute the ICRC than to fill the tables.
const SHORT: usize = 256;
/// Bytes from the identification to the source port.
const APART: usize = 16;
/// The change of the ICRC by each change of two bytes with the same number of covered bytes from there on: a table for each half-byte.
#[derive(Clone, Debug)]
struct IcrcChanges([[u32; 16]; 4]);

impl IcrcChanges {
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "four tables of four bits each"
    )]
    fn new(covered: usize) -> Self {
        let mut tables = [[0; 16]; 4];
        // The change by the highest bit. Each lower one is the next multiple by x.
        let mut bit = crc::with_zeros(1 << 15, covered);
        for table in tables.iter_mut().rev() {
            for place in [8, 4, 2, 1] {
                table[place] = bit;
                bit = multiply(1 << 30, bit);
            }
            for value in 1..16_usize {
                let rest = value & (value - 1);
                table[value] = table[rest] ^ table[value ^ rest];
            }
        }
        Self(tables)
    }

    /// Returns the change of the ICRC if two bytes change by `bits`, which has the first byte in its lowest bits.
    #[expect(clippy::indexing_slicing, reason = "four bits are below 16")]
    fn by(&self, bits: u16) -> u32 {
        (0..)
            .step_by(4)
            .zip(&self.0)
            .fold(0, |sum, (shift, table)| sum ^ table[usize::from(bits >> shift & 15)])
    }
}

/// The changes of packets of one length.
#[derive(Clone, Debug)]
struct Tables {
    covered: usize,
    source_port: IcrcChanges,
    identification: IcrcChanges,
}

impl Tables {
    #[expect(clippy::arithmetic_side_effects, reason = "a packet has less than 64 KiB")]
    fn new(covered: usize) -> Self {
        Self {
            covered,
            source_port: IcrcChanges::new(covered),
            identification: IcrcChanges::new(covered + APART),
        }
    }
}

/// Amends ICRCs. Keeps the tables of two lengths, because a message often has packets of two: the first has a RETH.
#[derive(Clone, Debug)]
pub struct IcrcAmender {
    last: Tables,
    other: Tables,
}

impl Default for IcrcAmender {
    fn default() -> Self {
        Self { last: Tables::new(0), other: Tables::new(0) }
    }
}

impl IcrcAmender {
    /// Amends the ICRC of a frame that was right until its source port, and its identification over IPv4, changed. `before` are their earlier
    /// values.
    ///
    /// # Errors
    /// Returns the [`Discard`] reason if the frame has no room for an ICRC.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`Layers` lie within the frame, and `excluded` bytes behind the BTH"
    )]
    pub fn amend(&mut self, frame: &mut [u8], before: SourceFields) -> Result<(), Discard> {
        let layers = Layers::locate(frame, Numbers::DEFAULT)?;
        let (bth, rest, _) = split(frame, &layers)?;
        let excluded = inband::excluded_length(bth, rest)?;
        let covered = (layers.end - ICRC_LENGTH - layers.udp).saturating_sub(excluded);
        let is_plain = layers.carried.is_none() && layers.before_udp() == 0 && layers.after_udp() == 0;
        if covered < SHORT || !is_plain {
            return reseal(frame);
        }
        if covered != self.last.covered {
            core::mem::swap(&mut self.last, &mut self.other);
        }
        if covered != self.last.covered {
            self.last = Tables::new(covered);
        }
        let after = SourceFields::of(frame, &layers).ok_or(Discard::Truncated)?;
        let change = self.last.source_port.by((before.source_port ^ after.source_port).swap_bytes())
            ^ self.last.identification.by((before.identification ^ after.identification).swap_bytes());
        let place: &mut [u8; ICRC_LENGTH] =
            frame.get_mut(..layers.end).and_then(<[u8]>::last_chunk_mut).ok_or(Discard::Truncated)?;
        *place = (u32::from_le_bytes(*place) ^ change).to_le_bytes();
        Ok(())
    }
}

/// The fields that a sending UDP socket determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFields {
    /// The UDP source port.
    pub source_port: u16,
    /// The IPv4 identification; 0 over IPv6.
    pub identification: u16,
}

impl SourceFields {
    fn of(frame: &[u8], layers: &Layers) -> Option<Self> {
        let word = |at: usize| frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        let identification = match layers.family {
            Family::V4 => word(layers.udp.checked_sub(APART)?)?,
            Family::V6 => 0,
        };
        Some(Self { source_port: word(layers.udp)?, identification })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::layers::{fold, sum};
    use crate::wire::{Bth, Header, Mac, Path, emit, verify};
    use crate::{Psn, Qpn};
    use alloc::vec;
    use alloc::vec::Vec;
    use core::net::IpAddr;

    const UDP: [usize; 2] = [14 + 20, 14 + 40];

    fn packet(addresses: [IpAddr; 2], payload: usize) -> Vec<u8> {
        let path = Path::new((Mac([2; 6]), addresses[0]), (Mac([4; 6]), addresses[1]));
        let header = Header::Datagram {
            bth: Bth::new(Qpn::new(7), Psn::new(9)),
            queue_key: 1,
            source: Qpn::new(1),
            immediate: None,
        };
        let mut frame = vec![0; 120 + payload];
        let mut draft = emit(&path, 0x1234, &header, payload, &mut frame).unwrap();
        draft.payload().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let length = draft.seal();
        frame.truncate(length);
        frame
    }

    #[test]
    fn the_icrc_is_right_after_source_port_and_identification_changed() {
        let v4: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let v6: [IpAddr; 2] = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
        let mut amender = IcrcAmender::default();
        for payload in [0, 64, 256, 1024, 1024, 257, 4096] {
            for (addresses, udp) in [v4, v6].into_iter().zip(UDP) {
                let whole = packet(addresses, payload);
                let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                let is_v4 = addresses[0].is_ipv4();
                for (port, identification) in [(1, 0), (0xffff, 63), (4791, 0xffff), (0x8000, 0x1234)] {
                    let before = SourceFields {
                        source_port: word(&whole, udp),
                        identification: if is_v4 { word(&whole, udp - 16) } else { 0 },
                    };
                    let mut frame = whole.clone();
                    frame[udp..udp + 2].copy_from_slice(&u16::to_be_bytes(port));
                    if is_v4 {
                        frame[udp - 16..udp - 14].copy_from_slice(&u16::to_be_bytes(identification));
                        frame[24..26].fill(0);
                        let checksum = !fold(sum(&frame[14..34]));
                        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
                    }
                    amender.amend(&mut frame, before).unwrap();
                    assert_eq!(verify(&frame), Ok(()), "{payload} bytes, port {port}, {identification:#x}");
                }
            }
        }
    }

    #[test]
    fn a_frame_without_an_icrc_is_refused() {
        let v4: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let mut frame = packet(v4, 0);
        frame.truncate(50);
        let before = SourceFields { source_port: 1, identification: 2 };
        assert!(IcrcAmender::default().amend(&mut frame, before).is_err());
    }
}
