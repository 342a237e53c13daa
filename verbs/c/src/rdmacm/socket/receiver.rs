//! The receiving side of a stream: the unread bytes that the peer wrote, and the free room that is announced to the peer.

use super::memory::Registered;
use super::sender::Write;
use super::wire::{Greeting, Message, Target};
use std::collections::VecDeque;

pub(super) struct Receiver {
    buffer: Registered,
    /// Number of unread bytes of each message.
    unread: VecDeque<u32>,
    unread_bytes: usize,
    /// Offset of the first unread byte.
    at: usize,
    /// Number of bytes that the peer may write again, and their offset.
    returned: usize,
    free_at: usize,
    /// Number of messages read, and the number at which credit is sent to the peer. Both wrap.
    taken: u16,
    credit_at: u16,
    /// Maximum number of unread messages.
    window: u16,
    peer: Greeting,
    /// Index of the next entry in the peer's list.
    entry: u32,
    /// The memory from which entries are sent to the peer, in rotation.
    entries: Registered,
    next_entry: usize,
}

/// Maximum number of entries that are being sent.
pub(super) const ENTRIES: usize = super::sender::CONTROLS as usize;

/// The error of a peer that wrote more than it is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl Receiver {
    /// Creates a receiver. `buffer` has an even length, and `entries` has room for [`ENTRIES`] entries.
    pub(super) fn new(buffer: Registered, entries: Registered, window: u16) -> Self {
        // The greeting announces the first half, and the first credit the second half.
        let half = buffer.len() / 2;
        let none = Target::default();
        let peer = Greeting { big_endian: false, credits: 0, mappings: 0, list: none, buffer: none };
        Self {
            buffer,
            unread: VecDeque::with_capacity(window.into()),
            unread_bytes: 0,
            at: 0,
            returned: half,
            free_at: half,
            taken: 0,
            credit_at: window / 2,
            window,
            peer,
            entry: 1,
            entries,
            next_entry: 0,
        }
    }

    pub(super) fn greeting(&self, list: Target, mappings: u16) -> Greeting {
        let half = (self.buffer.len() / 2) as u32;
        let buffer = Target { address: self.buffer.address(), key: self.buffer.rkey(), length: half };
        Greeting { big_endian: cfg!(target_endian = "big"), credits: self.window, mappings, list, buffer }
    }

    pub(super) fn on_greeting(&mut self, peer: &Greeting) {
        self.peer = *peer;
        self.entry = 1 % peer.list.length;
    }

    pub(super) fn arrived(&mut self, length: u32) -> Result<(), Overrun> {
        if self.unread.len() >= usize::from(self.window)
            || self.unread_bytes + length as usize > self.buffer.len()
        {
            return Err(Overrun);
        }
        if length == 0 {
            self.taken = self.taken.wrapping_add(1);
            return Ok(());
        }
        self.unread.push_back(length);
        self.unread_bytes += length as usize;
        Ok(())
    }

    pub(super) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Copies unread bytes, as many as fit, and removes them. Returns their number.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> usize {
        let length = self.peek(into);
        self.at = (self.at + length) % self.buffer.len();
        self.unread_bytes -= length;
        self.returned += length;
        let mut left = length as u32;
        while let Some(first) = self.unread.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.unread.pop_front();
            self.taken = self.taken.wrapping_add(1);
        }
        length
    }

    /// Copies unread bytes without removing them. Returns their number.
    pub(super) fn peek(&self, into: &mut [u8]) -> usize {
        let length = into.len().min(self.unread_bytes);
        let (first, second) = into[..length].split_at_mut(length.min(self.buffer.len() - self.at));
        self.buffer.read(self.at, first);
        self.buffer.read(0, second);
        length
    }

    /// Returns the WRITE that announces free room to the peer, if it is due.
    pub(super) fn credit(&mut self) -> Option<Write> {
        let half = self.buffer.len() / 2;
        let room = self.returned >= half;
        let due = self.taken.wrapping_sub(self.credit_at) as i16 >= 0;
        if !room && !due {
            return None;
        }
        let limit = self.taken.wrapping_add(self.window);
        self.credit_at = self.taken.wrapping_add(self.window / 2);
        let mut write = self.empty(Message::Credit(limit));
        if room {
            let address = self.buffer.address() + self.free_at as u64;
            let target = Target { address, key: self.buffer.rkey(), length: half as u32 };
            let place = self.next_entry * Target::SIZE;
            self.entries.write(place, &target.to_entry(self.peer.big_endian));
            self.next_entry = (self.next_entry + 1) % ENTRIES;
            write.from = self.entries.address() + place as u64;
            write.length = Target::SIZE as u32;
            write.lkey = self.entries.lkey();
            write.to = self.peer.list.address.wrapping_add(u64::from(self.entry) * Target::SIZE as u64);
            write.rkey = self.peer.list.key;
            self.entry = (self.entry + 1) % self.peer.list.length;
            self.returned -= half;
            self.free_at = (self.free_at + half) % self.buffer.len();
        }
        Some(write)
    }

    /// Returns a message without bytes.
    pub(super) fn empty(&self, message: Message) -> Write {
        Write { message, silent: false, from: 0, length: 0, lkey: 0, to: 0, rkey: 0 }
    }
}
