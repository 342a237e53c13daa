//! The link types of captures, and the conversion of their packets to Ethernet frames.

/// A link type whose packets can be RoCEv2 (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// `LINKTYPE_ETHERNET`.
    Ethernet,
    /// `LINKTYPE_RAW`, `LINKTYPE_IPV4`, `LINKTYPE_IPV6`: the packet begins with its IP header.
    Raw,
    /// `LINKTYPE_LINUX_SLL`, a capture on `any`: a header of 16 bytes, of which the last two are the EtherType.
    Sll,
    /// `LINKTYPE_LINUX_SLL2`, its newer version: a header of 20 bytes, of which the first two are the EtherType.
    Sll2,
}

impl Link {
    /// Returns the link type with this number; `None` if it cannot contain RoCEv2.
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            101 | 228 | 229 => Some(Self::Raw),
            113 => Some(Self::Sll),
            276 => Some(Self::Sll2),
            _ => None,
        }
    }

    /// Converts a captured packet to an Ethernet frame, with zero addresses if the capture has none. A packet that is truncated within the
    /// link header becomes an empty frame.
    pub fn frame(self, packet: &mut Vec<u8>) {
        let (header, ethertype) = match self {
            Self::Ethernet => return,
            Self::Raw => match packet.first().map(|first| first >> 4) {
                Some(4) => (0, Some([0x08, 0x00])),
                Some(6) => (0, Some([0x86, 0xdd])),
                _ => (0, None),
            },
            Self::Sll => (16, packet.get(14..16).and_then(|field| field.try_into().ok())),
            Self::Sll2 => (20, packet.get(..2).and_then(|field| field.try_into().ok())),
        };
        match ethertype {
            Some([high, low]) if packet.len() >= header => {
                let ethernet = [0; 12].into_iter().chain([high, low]);
                packet.splice(..header, ethernet);
            }
            _ => packet.clear(),
        }
    }
}
