use super::layers::{Family, Layers, UDP_LENGTH};
use super::{BTH_LENGTH, ICRC_LENGTH};
use crc32fast::Hasher;

/// The CRC of the eight bytes of ones that stand for a link header (IBA A17.3.3).
const LINK_HEADER: u32 = 0x2144_df1c;

/// BTH bytes up to and with the reserved byte that is masked.
const BTH_MASKED: usize = 5;

/// The ICRC that belongs to the packet (IBA 9.2, A17.3.3), to be stored least significant byte first.
///
/// What routers and switches may change counts as ones. The last `hidden` bytes before the ICRC, and their share
/// of the IP and UDP lengths, count as absent. Everything after the masked fields is one update over contiguous
/// bytes.
pub(super) fn compute(frame: &[u8], layers: &Layers, hidden: usize) -> u32 {
    let mut hasher = Hasher::new_with_initial(LINK_HEADER);
    match layers.family {
        Family::V4 => hasher.update(&mask::<{ 20 + UDP_LENGTH + BTH_MASKED }>(frame, layers, hidden)),
        Family::V6 => hasher.update(&mask::<{ 40 + UDP_LENGTH + BTH_MASKED }>(frame, layers, hidden)),
    }
    let covered = layers.end - ICRC_LENGTH - hidden;
    debug_assert!(covered >= layers.bth + BTH_LENGTH);
    hasher.update(&frame[layers.bth + BTH_MASKED..covered]);
    hasher.finalize()
}

fn mask<const N: usize>(frame: &[u8], layers: &Layers, hidden: usize) -> [u8; N] {
    let mut copy = [0; N];
    copy.copy_from_slice(&frame[layers.ip..layers.ip + N]);
    let length_at = match layers.family {
        Family::V4 => {
            copy[1] = 0xff;
            copy[8] = 0xff;
            copy[10..12].fill(0xff);
            2
        }
        Family::V6 => {
            copy[0] |= 0x0f;
            copy[1..4].fill(0xff);
            copy[7] = 0xff;
            4
        }
    };
    let udp = layers.udp - layers.ip;
    copy[udp + 6..udp + 8].fill(0xff);
    copy[N - 1] = 0xff;
    if hidden > 0 {
        shorten(&mut copy, length_at, hidden);
        shorten(&mut copy, udp + 4, hidden);
    }
    copy
}

fn shorten(bytes: &mut [u8], at: usize, by: usize) {
    let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    bytes[at..at + 2].copy_from_slice(&length.wrapping_sub(by as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_header_is_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), LINK_HEADER);
    }
}
