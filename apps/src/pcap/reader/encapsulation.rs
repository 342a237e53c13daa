//! Removes QinQ (IEEE 802.1ad) and VXLAN headers from Ethernet frames.

/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and the type that devices older than 802.1ad use.
const TAGS: [[u8; 2]; 3] = [[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]];
/// The UDP port of VXLAN.
const VXLAN: [u8; 2] = 4789_u16.to_be_bytes();
/// The limit on removed headers.
const DEPTH: usize = 8;

/// Reduces a frame to the innermost Ethernet frame, with at most one VLAN tag.
pub fn strip(frame: &mut Vec<u8>) {
    for _ in 0..DEPTH {
        if ethertype(frame, 12).is_some_and(is_tag) && ethertype(frame, 16).is_some_and(is_tag) {
            frame.drain(12..16);
        } else if let Some(inner) = vxlan(frame) {
            frame.drain(..inner);
        } else if ethertype(frame, 12).is_some_and(is_tag) {
            // A single tag of 802.1ad has the same meaning as a tag of 802.1Q.
            frame[12..14].copy_from_slice(&TAGS[0]);
            break;
        } else {
            break;
        }
    }
}

fn ethertype(frame: &[u8], at: usize) -> Option<[u8; 2]> {
    frame.get(at..at + 2)?.try_into().ok()
}

fn is_tag(ethertype: [u8; 2]) -> bool {
    TAGS.contains(&ethertype)
}

/// Returns the offset of the Ethernet frame within a VXLAN packet.
fn vxlan(frame: &[u8]) -> Option<usize> {
    const UDP: u8 = 17;
    let ip = if is_tag(ethertype(frame, 12)?) { 18 } else { 14 };
    let (protocol, udp) = match ethertype(frame, ip - 2)? {
        [0x08, 0x00] => (*frame.get(ip + 9)?, ip + usize::from(frame[ip] & 0xf) * 4),
        [0x86, 0xdd] => (*frame.get(ip + 6)?, ip + 40),
        _ => return None,
    };
    let inner = udp + 16;
    (protocol == UDP && ethertype(frame, udp + 2)? == VXLAN && frame.len() > inner).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn innermost(frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        strip(&mut frame);
        frame
    }

    const INNER: [u8; 16] = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x08, 0x00, 0x45, 7];

    fn ethernet(rest: &[&[u8]]) -> Vec<u8> {
        [&[0; 12][..]].iter().chain(rest).flat_map(|part| part.iter().copied()).collect()
    }

    #[test]
    fn the_inner_frame_of_vxlan_is_found_behind_either_ip_header() {
        let (mut v4, mut v6) = ([0; 20], [0; 40]);
        (v4[0], v4[9], v6[6]) = (0x45, 17, 17);
        let udp = [0, 1, VXLAN[0], VXLAN[1], 0, 0, 0, 0];
        for (ethertype, ip) in [([0x08, 0x00], &v4[..]), ([0x86, 0xdd], &v6[..])] {
            let outer = ethernet(&[&ethertype, ip, &udp, &[8, 0, 0, 0, 0, 0, 5, 0], &INNER]);
            assert_eq!(innermost(&outer), &INNER[..]);
            let tagged =
                ethernet(&[&[0x81, 0, 0, 9], &ethertype, ip, &udp, &[8, 0, 0, 0, 0, 0, 5, 0], &INNER]);
            assert_eq!(innermost(&tagged), &INNER[..]);
        }
    }

    #[test]
    fn the_innermost_of_several_vlan_tags_is_kept() {
        let tags: &[&[u8]] = &[&[0x88, 0xa8, 0, 1], &[0x91, 0, 0, 2], &[0x81, 0, 0, 3], &[0x08, 0, 0x45]];
        assert_eq!(innermost(&ethernet(tags)), ethernet(&tags[2..]));
        let provider: &[&[u8]] = &[&[0x88, 0xa8, 0, 1], &[0x08, 0, 0x45]];
        assert_eq!(innermost(&ethernet(provider)), ethernet(&[&[0x81, 0, 0, 1], &[0x08, 0, 0x45]]));
    }

    #[test]
    fn other_and_truncated_frames_are_unchanged() {
        let plain = ethernet(&[&[0x08, 0x00], &[0x45; 60]]);
        for length in 0..=plain.len() {
            assert_eq!(innermost(&plain[..length]), &plain[..length]);
        }
        let endless = ethernet(&[&[0x88, 0xa8, 0, 1].repeat(100)]);
        assert_eq!(innermost(&endless).len(), endless.len() - 4 * DEPTH);
    }
}
