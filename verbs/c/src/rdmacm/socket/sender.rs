//! The sending side of a stream: the program's bytes until they have arrived, and the peer's buffer for them.

use super::memory::Registered;
use super::wire::{Greeting, Mapping, Message, Target};
use crate::rdmacm::errno::Errno;

/// Length of the longest message, bytes. The peer reads one message while the next one is copied.
const MAX_MESSAGE: usize = 65536;
/// Maximum number of messages other than data that are being sent.
pub(super) const CONTROLS: u32 = 4;

/// A WRITE to the peer, with immediate data unless it is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) message: Message,
    /// Whether the WRITE has no immediate data. The message then only identifies the completion.
    pub(super) silent: bool,
    /// Source address in our memory.
    pub(super) from: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
    pub(super) to: u64,
    pub(super) rkey: u32,
}

/// A function that posts a WRITE.
pub(super) type Post<'a> = &'a mut dyn FnMut(&Write) -> Result<(), Errno>;

pub(super) struct Sender {
    buffer: Registered,
    /// Offset of the next bytes, and the number of free bytes from there on.
    at: usize,
    free: usize,
    /// Number of requests that fit in the send queue.
    slots: u32,
    depth: u32,
    controls: u32,
    /// Number of data messages sent, and the number that the peer allows. Both wrap.
    sent: u16,
    allowed: u16,
    target: Target,
    /// Number of unused entries of the list that the peer wrote, and the index of the next one.
    fresh: u32,
    next: usize,
    /// The list into which the peer writes the targets in its buffer.
    list: Registered,
}

/// Number of entries in the list.
pub(super) const LIST: usize = 2;

impl Sender {
    pub(super) fn new(buffer: Registered, list: Registered, depth: u32) -> Self {
        let free = buffer.len();
        let (target, next) = (Target::default(), 1);
        Self {
            buffer,
            at: 0,
            free,
            slots: depth,
            depth,
            controls: 0,
            sent: 0,
            allowed: 0,
            target,
            fresh: 0,
            next,
            list,
        }
    }

    pub(super) fn list(&self) -> Target {
        Target { address: self.list.address(), key: self.list.rkey(), length: LIST as u32 }
    }

    /// Records the greeting, which contains the first target in place of the first entry.
    pub(super) fn on_greeting(&mut self, peer: &Greeting) {
        self.target = peer.buffer;
        self.allowed = peer.credits;
    }

    /// Records the new limit of data messages, and whether the peer wrote a target.
    pub(super) fn on_credit(&mut self, limit: u16, target: bool) {
        self.allowed = limit;
        // A peer that writes more targets than allowed overwrites its earlier ones.
        self.fresh = (self.fresh + u32::from(target)).min(LIST as u32);
    }

    fn take_target(&mut self) {
        if self.target.length == 0 && self.fresh > 0 {
            let mut entry = [0; Target::SIZE];
            self.list.read(self.next * Target::SIZE, &mut entry);
            self.target = Target::from_entry(entry);
            self.fresh -= 1;
            self.next = (self.next + 1) % LIST;
        }
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.take_target();
        self.slots > 0 && self.free > 0 && self.sent != self.allowed && self.target.length > 0
    }

    /// Copies and sends as many bytes as there is room for. Returns their number.
    pub(super) fn send(&mut self, data: &[u8], post: Post<'_>) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() && self.has_room() {
            // At most up to the end of the buffer: the rest is sent in another message from the start of the buffer.
            let room = self.free.min(self.buffer.len() - self.at).min(self.target.length as usize);
            let length = room.min(data.len() - done).min(MAX_MESSAGE);
            self.buffer.write(self.at, &data[done..done + length]);
            let write = Write {
                message: Message::Data(length as u32),
                silent: false,
                from: self.buffer.address() + self.at as u64,
                length: length as u32,
                lkey: self.buffer.lkey(),
                to: self.target.address,
                rkey: self.target.key,
            };
            post(&write)?;
            self.left(length);
            self.sent = self.sent.wrapping_add(1);
            self.target.address = self.target.address.wrapping_add(length as u64);
            self.target.length -= length as u32;
            done += length;
        }
        Ok(done)
    }

    /// Marks bytes of the buffer as being sent.
    fn left(&mut self, length: usize) {
        self.at = (self.at + length) % self.buffer.len();
        self.free -= length;
        self.slots -= 1;
    }

    /// Returns whether bytes for a mapping can be sent, which use no room in the peer's buffer.
    pub(super) fn has_space(&self) -> bool {
        self.slots > 0 && self.free > 0
    }

    /// Sends as many bytes as there is room for to the memory that the peer mapped at `offset`. Returns their number, or `None` if there is
    /// no such mapping.
    pub(super) fn write(&mut self, data: &[u8], offset: u64, post: Post<'_>) -> Result<Option<usize>, Errno> {
        let Some(to) = self.mapping(offset) else { return Ok(None) };
        let room = self.free.min(self.buffer.len() - self.at).min(to.length as usize);
        let length = room.min(data.len()).min(MAX_MESSAGE);
        self.buffer.write(self.at, &data[..length]);
        post(&Write {
            message: Message::Data(length as u32),
            silent: true,
            from: self.buffer.address() + self.at as u64,
            length: length as u32,
            lkey: self.buffer.lkey(),
            to: to.address,
            rkey: to.key,
        })?;
        self.left(length);
        Ok(Some(length))
    }

    /// Finds the peer's memory in the table, which follows this side's list and is written by the peer.
    fn mapping(&self, offset: u64) -> Option<Target> {
        let table = LIST * Target::SIZE..self.list.len();
        table.step_by(Mapping::SIZE).find_map(|place| {
            let mut entry = [0; Mapping::SIZE];
            self.list.read(place, &mut entry);
            Mapping::from_entry(entry).at(offset)
        })
    }

    /// Returns whether a mapping can be announced to the peer, which uses a credit for a data message.
    pub(super) fn may_announce(&self) -> bool {
        self.slots > 0 && self.sent != self.allowed
    }

    pub(super) fn announce(&mut self, write: &Write, post: Post<'_>) -> Result<(), Errno> {
        post(write)?;
        self.slots -= 1;
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }

    pub(super) fn may_control(&self) -> bool {
        self.controls < CONTROLS
    }

    /// Sends a message other than data.
    pub(super) fn control(&mut self, write: &Write, post: Post<'_>) -> Result<(), Errno> {
        post(write)?;
        self.controls += 1;
        Ok(())
    }

    pub(super) fn completed(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Data(length)) => {
                self.free += length as usize;
                self.slots += 1;
            }
            Some(Message::Mapped(_)) => self.slots += 1,
            _ => self.controls -= 1,
        }
    }

    pub(super) fn all_arrived(&self) -> bool {
        self.slots == self.depth && self.controls == 0
    }
}
