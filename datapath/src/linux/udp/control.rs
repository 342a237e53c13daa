//! Control messages of a socket (cmsg(3)), read and written as bytes.

/// Most bytes of the control messages of one datagram. Those used here occupy 136 bytes on 64-bit machines.
const ROOM: usize = 256;
const WORD: usize = size_of::<usize>();
const HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER >= WORD + 8);

/// Control messages, aligned as the kernel requires.
#[derive(Debug)]
#[repr(align(8))]
pub(super) struct ControlMessages {
    bytes: [u8; ROOM],
    length: usize,
}

impl ControlMessages {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; ROOM], length: 0 }
    }

    pub(super) const ROOM: usize = ROOM;

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.length = length.min(ROOM);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Replaces the contents by `bytes`, truncated to the room.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        self.set_length(bytes.len());
        self.bytes[..self.length].copy_from_slice(&bytes[..self.length]);
    }

    /// Appends a message.
    ///
    /// # Panics
    /// Panics if there is no room.
    pub(super) fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let at = self.length;
        let length = HEADER + data.len();
        self.bytes[at..at + WORD].copy_from_slice(&length.to_ne_bytes());
        self.bytes[at + HEADER - 8..at + HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + HEADER - 4..at + HEADER].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..at + length].copy_from_slice(data);
        self.length = at + length.next_multiple_of(WORD);
    }

    /// Returns the messages: level, type and data. Ends at the first incomplete one.
    pub(super) fn messages(&self) -> impl Iterator<Item = (libc::c_int, libc::c_int, &[u8])> {
        let mut rest = &self.bytes[..self.length];
        std::iter::from_fn(move || {
            let length = usize::from_ne_bytes(*rest.first_chunk()?);
            let message = rest.get(..length)?;
            let level = libc::c_int::from_ne_bytes(*message.get(HEADER - 8..)?.first_chunk()?);
            let kind = libc::c_int::from_ne_bytes(*message.get(HEADER - 4..)?.first_chunk()?);
            rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or_default();
            Some((level, kind, message.get(HEADER..)?))
        })
    }
}

/// Returns the `int` or byte at the start of a message's data.
pub(super) fn number(data: &[u8]) -> Option<libc::c_int> {
    match data.first_chunk() {
        Some(bytes) => Some(libc::c_int::from_ne_bytes(*bytes)),
        None => data.first().map(|byte| libc::c_int::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_were_written() {
        let mut control = ControlMessages::new();
        control.push(1, 2, &[3; 12]);
        control.push(4, 5, &7_i32.to_ne_bytes());
        control.push(6, 7, &[9]);
        let read: Vec<_> = control.messages().collect();
        assert_eq!(read, [(1, 2, &[3; 12][..]), (4, 5, &7_i32.to_ne_bytes()[..]), (6, 7, &[9][..])]);
        assert_eq!((number(read[1].2), number(read[2].2), number(&[])), (Some(7), Some(9), None));
    }

    #[test]
    fn a_truncated_message_or_a_wrong_length_ends_the_messages() {
        let mut control = ControlMessages::new();
        control.push(1, 2, &[3; 12]);
        let end = control.length();
        for cut in 0..HEADER + 12 {
            control.set_length(cut);
            assert_eq!(control.messages().count(), 0, "{cut}");
        }
        control.set_length(end);
        for length in [0, 1, HEADER - 1, end + 1, usize::MAX] {
            control.bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(control.messages().count(), 0, "{length}");
        }
        control.set_length(usize::MAX);
        assert_eq!(control.length(), ROOM);
    }
}
