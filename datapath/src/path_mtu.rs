//! The path MTU that an interface carries.

use roce::wire::Mtu;

/// Most bytes of the headers and the ICRC of a RoCEv2 packet: IPv6 40, UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4.
pub(crate) const ROCE_OVERHEAD: u16 = 84;

/// Returns the largest path MTU whose packets fit an IP MTU of `ip_mtu` bytes, or 256 if none fits.
#[must_use]
pub fn path_mtu(ip_mtu: u32) -> Mtu {
    let fits = |mtu: &&Mtu| mtu.bytes() + u32::from(ROCE_OVERHEAD) <= ip_mtu;
    Mtu::ALL.iter().rev().find(fits).copied().unwrap_or(Mtu::M256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_leaves_room_for_the_headers() {
        assert_eq!(path_mtu(1500), Mtu::M1024);
        assert_eq!(path_mtu(4179), Mtu::M2048);
        assert_eq!(path_mtu(4180), Mtu::M4096);
        assert_eq!(path_mtu(9000), Mtu::M4096);
        assert_eq!(path_mtu(68), Mtu::M256);
    }
}
