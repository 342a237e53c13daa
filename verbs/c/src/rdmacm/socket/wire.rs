//! The messages between two sockets, as in rdma-core's rsockets.
//!
//! Each side sends a greeting in the private data of the request or reply. It contains the addresses of the first half of its receive
//! buffer, and of its list of two targets. Data is sent by WRITEs into the buffer, whose immediate data contains the length. When half a
//! buffer is free again, a WRITE into the peer's list announces its address. The immediate data of that WRITE contains the number of
//! messages that the peer may have sent by then.

/// A message in the 32 bits of immediate data: its type in the upper 3 bits, and its value in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Number of bytes that were written.
    Data(u32),
    /// Total number of messages that the peer may have sent.
    Credit(u16),
    /// The peer has written a [`Mapping`] to this index of our table.
    Mapped(u16),
    /// The peer sends no more data, and accepts none.
    Disconnect,
    /// The peer sends no more data.
    Shutdown,
    KeepAlive,
}

const DATA: u32 = 0;
const CREDIT: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;
const VALUE: u32 = (1 << 29) - 1;

impl Message {
    pub(super) const fn encode(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credit(limit) => (CREDIT, limit as u32),
            Self::Mapped(index) => (MAPPED, index as u32),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
        };
        kind << 29 | value & VALUE
    }

    /// Returns the message, or `None` for an unknown type.
    pub(super) const fn decode(word: u32) -> Option<Self> {
        match (word >> 29, word & VALUE) {
            (DATA, bytes) => Some(Self::Data(bytes)),
            (CREDIT, limit) => Some(Self::Credit(limit as u16)),
            (MAPPED, index) => Some(Self::Mapped(index as u16)),
            (CONTROL, 0) => Some(Self::Disconnect),
            (CONTROL, 1) => Some(Self::KeepAlive),
            (CONTROL, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}

/// Memory that the peer may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
    /// Length in bytes, or for a list the number of its entries.
    pub(super) length: u32,
}

impl Target {
    pub(super) const SIZE: usize = 16;

    /// Returns the entry of a list in the byte order of the host that reads it.
    pub(super) fn to_entry(self, big_endian: bool) -> [u8; Self::SIZE] {
        let whole = self.to_bytes();
        if big_endian {
            return whole;
        }
        let swap = |from: usize, length: usize| whole[from..from + length].iter().rev();
        let mut entry = [0; Self::SIZE];
        let swapped = swap(0, 8).chain(swap(8, 4)).chain(swap(12, 4));
        entry.iter_mut().zip(swapped).for_each(|(into, byte)| *into = *byte);
        entry
    }

    /// Reads an entry of this host's own list.
    pub(super) fn from_entry(entry: [u8; Self::SIZE]) -> Self {
        let [address, rest] = [0, 8].map(|at| std::array::from_fn(|n| entry[at + n]));
        let [key, length] = [0, 4].map(|at| std::array::from_fn(|n| rest[at + n]));
        Self {
            address: u64::from_ne_bytes(address),
            key: u32::from_ne_bytes(key),
            length: u32::from_ne_bytes(length),
        }
    }

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|n| bytes[at + n]));
        Self { address: u64::from(word(0)) << 32 | u64::from(word(4)), key: word(8), length: word(12) }
    }
}

/// Memory that the peer may write by `riowrite`, from `offset` on, as an entry of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) offset: u64,
    pub(super) memory: Target,
}

impl Mapping {
    pub(super) const SIZE: usize = 8 + Target::SIZE;

    /// Returns the entry of a table in the byte order of the host that reads it.
    pub(super) fn to_entry(self, big_endian: bool) -> [u8; Self::SIZE] {
        let offset = if big_endian { self.offset.to_be_bytes() } else { self.offset.to_le_bytes() };
        let mut entry = [0; Self::SIZE];
        entry[..8].copy_from_slice(&offset);
        entry[8..].copy_from_slice(&self.memory.to_entry(big_endian));
        entry
    }

    /// Reads an entry of this host's own table.
    pub(super) fn from_entry(entry: [u8; Self::SIZE]) -> Self {
        let offset = u64::from_ne_bytes(std::array::from_fn(|n| entry[n]));
        Self { offset, memory: Target::from_entry(std::array::from_fn(|n| entry[8 + n])) }
    }

    /// Returns the memory at `offset` up to the mapping's end, or `None` if the offset is not in the mapping.
    pub(super) fn at(&self, offset: u64) -> Option<Target> {
        let into = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let length = self.memory.length.checked_sub(into).filter(|length| *length > 0)?;
        Some(Target { address: self.memory.address.wrapping_add(into.into()), length, ..self.memory })
    }
}

/// Encodes a number of mappings in 8 bits. If the top bit is set, the others count multiples of 256.
pub(super) const fn to_scale(mappings: u16) -> u8 {
    if mappings <= 128 { mappings as u8 } else { 128 | (mappings >> 8) as u8 }
}

pub(super) const fn from_scale(scale: u8) -> u16 {
    if scale <= 128 { scale as u16 } else { ((scale & 127) as u16) << 8 }
}

const VERSION: u8 = 1;
/// Flag: the list of the sending side is in network byte order.
const BIG_ENDIAN: u8 = 1;
/// Flag: the sending side has a table of mappings after its list, with the number of entries in byte 7.
const MAPPINGS: u8 = 2;

/// The data that a side sends when a connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) big_endian: bool,
    /// Number of data messages that the side accepts at once.
    pub(super) credits: u16,
    /// Number of mappings for which the side has room.
    pub(super) mappings: u16,
    pub(super) list: Target,
    pub(super) buffer: Target,
}

impl Greeting {
    pub(super) const SIZE: usize = 40;

    pub(super) fn write(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        (bytes[0], bytes[1]) = (VERSION, MAPPINGS | if self.big_endian { BIG_ENDIAN } else { 0 });
        bytes[7] = to_scale(self.mappings);
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.list.to_bytes());
        bytes[24..].copy_from_slice(&self.buffer.to_bytes());
        bytes
    }

    /// Parses a greeting. Returns `None` if the data is no greeting, or allows no data to be sent.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        if data.len() < Self::SIZE || data[0] != VERSION {
            return None;
        }
        let (list, buffer) = (Target::from_bytes(&data[8..24]), Target::from_bytes(&data[24..40]));
        let greeting = Self {
            big_endian: data[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([data[2], data[3]]),
            mappings: if data[1] & MAPPINGS == 0 { 0 } else { from_scale(data[7]) },
            list,
            buffer,
        };
        (greeting.credits > 0 && list.length > 0 && buffer.length > 0).then_some(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let all = [
            Message::Data(0x1fff_ffff),
            Message::Credit(0xffff),
            Message::Mapped(127),
            Message::Disconnect,
            Message::KeepAlive,
            Message::Shutdown,
        ];
        for message in all {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        assert_eq!(Message::Data(5).encode(), 5);
        assert_eq!(Message::Credit(384).encode(), 0x8000_0180);
        for word in [0x2000_0000, 0x4000_0000, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::decode(word), None, "{word:#x}");
        }
    }

    #[test]
    fn a_greeting_is_in_network_byte_order() {
        let list = Target { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, length: 2 };
        let buffer = Target { address: 1, key: 2, length: 65536 };
        let greeting = Greeting { big_endian: false, credits: 384, mappings: 256, list, buffer };
        let bytes = greeting.write();
        assert_eq!(bytes[..12], [1, 2, 1, 0x80, 0, 0, 0, 0x81, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        // The private data of a peer is longer.
        assert_eq!(Greeting::read(&[&bytes[..], &[0; 16]].concat()), Some(greeting));
    }

    #[test]
    fn a_malformed_greeting_is_refused() {
        let some = Target { address: 1, key: 2, length: 2 };
        let good = Greeting { big_endian: false, credits: 1, mappings: 0, list: some, buffer: some };
        assert_eq!(Greeting::read(&good.write()[..39]), None);
        assert_eq!(Greeting::read(&[0; 56]), None);
        let none = Target::default();
        for bad in [
            Greeting { credits: 0, ..good },
            Greeting { list: none, ..good },
            Greeting { buffer: none, ..good },
        ] {
            assert_eq!(Greeting::read(&bad.write()), None);
        }
    }

    #[test]
    fn an_entry_is_in_its_host_s_order() {
        let target = Target { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, length: 0xddee_ff00 };
        assert_eq!(target.to_entry(true)[..4], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(target.to_entry(false)[8..], [0xcc, 0xbb, 0xaa, 0x99, 0x00, 0xff, 0xee, 0xdd]);
        assert_eq!(Target::from_entry(target.to_entry(cfg!(target_endian = "big"))), target);
    }

    #[test]
    fn numbers_of_mappings_fit_in_a_byte() {
        for (mappings, scale) in [(0, 0), (1, 1), (128, 128), (256, 129), (300, 129), (32_512, 255)] {
            assert_eq!(to_scale(mappings), scale);
        }
        for scale in 0..=255 {
            assert_eq!(to_scale(from_scale(scale)), scale);
        }
    }

    #[test]
    fn a_write_ends_at_the_end_of_its_mapping() {
        let memory = Target { address: 0x1000, key: 7, length: 100 };
        let mapping = Mapping { offset: 500, memory };
        assert_eq!(mapping.at(500), Some(memory));
        assert_eq!(mapping.at(599), Some(Target { address: 0x1063, key: 7, length: 1 }));
        for outside in [0, 499, 600, u64::MAX] {
            assert_eq!(mapping.at(outside), None);
        }
        assert_eq!(Mapping::from_entry(mapping.to_entry(cfg!(target_endian = "big"))), mapping);
        assert_eq!(mapping.to_entry(false)[..9], [0xf4, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mapping.to_entry(true)[6..10], [1, 0xf4, 0, 0]);
    }
}
