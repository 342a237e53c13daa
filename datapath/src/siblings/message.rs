//! The messages between processes of one interface over their socket.

use super::socket::MESSAGE;

/// The first word of each message. It differs between versions.
const VERSION: u32 = 0x4652_5303;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// From a new process in this slot. Its memory, eventfd and life line accompany it.
    Hello { slot: u8 },
    /// In an answer: a process has joined. Its memory, eventfd and life line accompany it.
    Joined { slot: u8 },
    /// The end of an answer. A process that is not settled has itself just joined, and may not know all others.
    Welcome { is_settled: bool },
    /// The answer to a process of another version, or one with invalid memory or an invalid slot.
    Refused,
}

impl Message {
    pub(super) fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        let (kind, value): (u8, u32) = match self {
            Self::Hello { slot } => (1, slot.into()),
            Self::Joined { slot } => (2, slot.into()),
            Self::Welcome { is_settled } => (3, is_settled.into()),
            Self::Refused => (4, 0),
        };
        bytes[4] = kind;
        bytes[8..12].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Parses a message. Returns `None` if it is of another version or malformed.
    pub(super) fn from_bytes(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        if word(0)? != VERSION {
            return None;
        }
        let value = word(8)?;
        let slot = u8::try_from(value).ok().filter(|slot| usize::from(*slot) < super::memory::MEMBERS);
        Some(match bytes[4] {
            1 => Self::Hello { slot: slot? },
            2 => Self::Joined { slot: slot? },
            3 => Self::Welcome { is_settled: value != 0 },
            4 => Self::Refused,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_read_as_it_was_written() {
        for message in [
            Message::Hello { slot: 63 },
            Message::Joined { slot: 0 },
            Message::Welcome { is_settled: false },
            Message::Welcome { is_settled: true },
            Message::Refused,
        ] {
            assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        let good = Message::Joined { slot: 1 }.to_bytes();
        for (at, byte) in [(0, 9), (4, 0), (4, 77), (8, 64), (9, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Message::from_bytes(&bad), None, "{at}");
        }
    }
}
