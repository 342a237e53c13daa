//! The messages between processes of one interface over their socket.

use super::socket::MESSAGE;

/// The first word of each message. Another version begins with another.
const VERSION: u32 = 0x4652_5302;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the owner, from a new process, or from one that had `slot` of an earlier owner. Memory, bell and life line go with it.
    Hello { slot: Option<u8> },
    /// The answer, after all siblings.
    Welcome { slot: u8 },
    /// The answer to a process that cannot take part.
    Refused(Refusal),
    /// A process takes part. Its memory, bell and life line go with it.
    Joined { slot: u8 },
    /// A process takes part no longer.
    Left { slot: u8 },
}

/// Why the owner takes no further process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The process belongs to another user than the owner, which is this process.
    User(u32),
    /// All slots are taken, or were until a moment ago.
    Full,
    /// The process's slot is another's, or its memory is not as it must be.
    Wrong,
}

impl Message {
    pub(super) fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        let (kind, value) = match self {
            Self::Hello { slot } => (1, slot.map_or(u32::MAX, u32::from)),
            Self::Welcome { slot } => (2, slot.into()),
            Self::Refused(Refusal::User(user)) => (3, user),
            Self::Refused(Refusal::Full) => (4, 0),
            Self::Refused(Refusal::Wrong) => (5, 0),
            Self::Joined { slot } => (6, slot.into()),
            Self::Left { slot } => (7, slot.into()),
        };
        bytes[4] = kind;
        bytes[8..12].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// `None` of another version, or of what is no message.
    pub(super) fn from_bytes(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        if word(0)? != VERSION {
            return None;
        }
        let value = word(8)?;
        let slot = u8::try_from(value).ok().filter(|slot| usize::from(*slot) < super::MEMBERS);
        Some(match bytes[4] {
            1 => Self::Hello { slot },
            2 => Self::Welcome { slot: slot? },
            3 => Self::Refused(Refusal::User(value)),
            4 => Self::Refused(Refusal::Full),
            5 => Self::Refused(Refusal::Wrong),
            6 => Self::Joined { slot: slot? },
            7 => Self::Left { slot: slot? },
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
            Message::Hello { slot: None },
            Message::Hello { slot: Some(63) },
            Message::Welcome { slot: 3 },
            Message::Refused(Refusal::User(1000)),
            Message::Refused(Refusal::Full),
            Message::Refused(Refusal::Wrong),
            Message::Joined { slot: 0 },
            Message::Left { slot: 5 },
        ] {
            assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn strange_bytes_are_no_message() {
        let good = Message::Joined { slot: 1 }.to_bytes();
        for (at, byte) in [(0, 9), (4, 0), (4, 77), (8, 64), (9, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Message::from_bytes(&bad), None, "{at}");
        }
    }
}
