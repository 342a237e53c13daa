//! Finds the IPv4 identification of a packet whose receiver did not get it, such as that of a UDP socket. The ICRC covers it (IBA A17.3.3),
//! and a CRC is linear. So if only the identification of a packet changes, the difference of the ICRC depends on two values: the difference
//! of the identifications, and the number of bytes that follow.

use super::constants::ICRC_LENGTH;
use super::format::Numbers;
use super::layers::{Family, Layers};
use super::{crc, icrc, inband, parse};

/// Offset of the identification in an IPv4 header.
const IDENTIFICATION_OFFSET: usize = 4;

/// Returns the identification with which the ICRC of an IPv4 packet is correct, or `None` if there is none. It is that of the packet itself
/// if its ICRC is correct, and 0 for an IPv6 packet whose ICRC is correct.
///
/// A damaged packet has such an identification with a probability of 2^-16, because 16 of the 32 bits of the ICRC are used to find it.
#[must_use]
pub fn solve_identification(frame: &[u8]) -> Option<u16> {
    let layers = Layers::locate(frame, Numbers::DEFAULT).ok()?;
    let (bth, rest, found) = parse::split(frame, &layers).ok()?;
    let excluded = inband::excluded_length(bth, rest).ok()?;
    let wrong = icrc::compute(frame, &layers, excluded) ^ u32::from_le_bytes(*found);
    if layers.family == Family::V6 {
        return (wrong == 0).then_some(0);
    }
    let place = layers.ip.checked_add(IDENTIFICATION_OFFSET)?;
    let own = u16::from_be_bytes(*frame.get(place..)?.first_chunk()?);
    if wrong == 0 {
        return Some(own);
    }
    let behind = layers.end.checked_sub(place)?;
    let absent = excluded.checked_add(layers.before_udp())?.checked_add(layers.after_udp())?;
    let covered = behind.checked_sub(ICRC_LENGTH)?.checked_sub(absent)?;
    let register = crc::without_zeros(wrong, covered);
    // Two bytes that enter an empty register become its lowest two.
    let difference = u16::try_from(register).ok()?;
    Some(own ^ difference.swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Header, Mac, Path, emit, verify};
    use crate::{Psn, Qpn};
    use alloc::vec;
    use alloc::vec::Vec;

    fn packet(identification: u16, payload: usize) -> Vec<u8> {
        let path = Path::new((Mac([2; 6]), [10, 0, 0, 1].into()), (Mac([4; 6]), [10, 0, 0, 2].into()));
        let bth = Bth::new(Qpn::new(7), Psn::new(9));
        let header = Header::Datagram { bth, queue_key: 1, source: Qpn::new(1), immediate: None };
        let mut frame = vec![0; 100 + payload];
        let mut draft = emit(&path, identification, &header, payload, &mut frame).unwrap();
        draft.payload().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let length = draft.seal();
        frame.truncate(length);
        frame
    }

    #[test]
    fn an_identification_that_was_lost_is_found() {
        for payload in [0, 1, 4, 63, 64, 256, 1024, 4096] {
            for sent in [0, 1, 0xff, 0x100, 0x1234, 0xffff] {
                let whole = packet(sent, payload);
                assert_eq!(solve_identification(&whole), Some(sent), "nothing is missing");
                for guess in [0, 7, 0xffff] {
                    let mut frame = whole.clone();
                    frame[18..20].copy_from_slice(&u16::to_be_bytes(guess));
                    assert_eq!(solve_identification(&frame), Some(sent), "{payload} bytes, guess {guess}");
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_no_other_identification() {
        for payload in [0, 64, 256] {
            let whole = packet(0x1234, payload);
            for bit in 8 * 42..8 * whole.len() {
                let mut frame = whole.clone();
                frame[bit / 8] ^= 1 << (bit % 8);
                let found = solve_identification(&frame);
                // The reserved byte of the BTH is not covered.
                let is_covered = bit / 8 != 42 + 4;
                assert_eq!(found.is_some(), !is_covered, "{payload} bytes, bit {bit}");
                assert!(is_covered || verify(&frame).is_ok());
            }
        }
    }

    #[test]
    fn a_truncated_packet_has_no_identification() {
        let whole = packet(1, 0);
        for length in 0..whole.len() {
            assert_eq!(solve_identification(&whole[..length]), None);
        }
    }
}
