//! Tests with a sender and a receiver that write into each other's memory, as a device would.

use super::memory::Registered;
use super::receiver::{ENTRIES, Overrun, Receiver};
use super::sender::{LIST, Sender, Write};
use super::wire::{Mapping, Message, Target};
use std::collections::VecDeque;

struct Pair {
    sender: Sender,
    receiver: Receiver,
    /// WRITEs that were sent and have not arrived.
    forth: VecDeque<Write>,
    back: VecDeque<Write>,
    /// Number of credits that are being sent.
    controls: usize,
}

impl Pair {
    fn new(send_buffer: usize, receive_buffer: usize, window: u16) -> Self {
        let memory = Registered::unregistered;
        let mut sender = Sender::new(memory(send_buffer), memory(LIST * Target::SIZE), window.into());
        let mut receiver = Receiver::new(memory(receive_buffer), memory(ENTRIES * Target::SIZE), window);
        let list = sender.list();
        sender.on_greeting(&receiver.greeting(list, 0));
        receiver.on_greeting(&receiver.greeting(list, 0));
        Self { sender, receiver, forth: VecDeque::new(), back: VecDeque::new(), controls: 0 }
    }

    fn send(&mut self, data: &[u8]) -> usize {
        let forth = &mut self.forth;
        let mut post = |write: &Write| {
            forth.push_back(*write);
            Ok(())
        };
        self.sender.send(data, &mut post).unwrap()
    }

    fn credit(&mut self) {
        while self.controls < ENTRIES
            && let Some(write) = self.receiver.credit()
        {
            self.controls += 1;
            self.back.push_back(write);
        }
    }

    fn forward(&mut self) -> bool {
        let Some(write) = self.forth.pop_front() else { return false };
        place(&write);
        let Message::Data(length) = write.message else { panic!("{write:?}") };
        assert_eq!(self.receiver.arrived(length), Ok(()));
        self.sender.completed(Some(write.message));
        true
    }

    fn backward(&mut self) -> bool {
        let Some(write) = self.back.pop_front() else { return false };
        place(&write);
        let Message::Credit(limit) = write.message else { panic!("{write:?}") };
        self.sender.on_credit(limit, write.length > 0);
        self.controls -= 1;
        true
    }
}

/// Executes a WRITE as the device would.
fn place(write: &Write) {
    let (from, to) = (write.from as usize, write.to as usize);
    // SAFETY: both ranges must be in the pair's memory. This test checks that with Miri and valgrind, which detect other accesses.
    unsafe {
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        std::ptr::with_exposed_provenance_mut::<u8>(to).copy_from(from, write.length as usize);
    }
}

/// A random number generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn bytes_are_received_in_order_with_any_schedule() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let (send_buffer, half) = (1 + rng.below(5000), 1 + rng.below(3000));
        let mut pair = Pair::new(send_buffer, 2 * half, 16 + rng.below(64) as u16);
        let data: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut sent, mut received) = (0, Vec::new());
        let mut turns = 0;
        while received.len() < data.len() {
            turns += 1;
            assert!(turns < 10_000_000, "seed {seed}: stuck at {sent}, {}", received.len());
            match rng.below(5) {
                0 => sent += pair.send(&data[sent..data.len().min(sent + rng.below(4000))]),
                1 => drop(pair.forward()),
                2 => pair.credit(),
                3 => drop(pair.backward()),
                _ => {
                    let mut room = vec![0; rng.below(4000)];
                    let peeked = pair.receiver.peek(&mut room.clone());
                    let read = pair.receiver.receive(&mut room);
                    assert_eq!(read, peeked);
                    received.extend_from_slice(&room[..read]);
                }
            }
        }
        assert!(received == data, "seed {seed}");
        while pair.forward() || pair.backward() {}
        assert!(pair.sender.all_arrived());
    }
}

#[test]
fn a_peer_that_exceeds_its_credits_is_detected() {
    let mut pair = Pair::new(4096, 4096, 16);
    for _ in 0..16 {
        assert_eq!(pair.receiver.arrived(1), Ok(()));
    }
    assert_eq!(pair.receiver.arrived(1), Err(Overrun), "more messages");
    let mut pair = Pair::new(4096, 4096, 16);
    assert_eq!(pair.receiver.arrived(4096), Ok(()));
    assert_eq!(pair.receiver.arrived(1), Err(Overrun), "more bytes");
    assert_eq!(pair.receiver.arrived(u32::MAX), Err(Overrun));
}

#[test]
fn a_sender_stops_where_the_peer_has_no_room() {
    let mut pair = Pair::new(1 << 16, 4096, 16);
    // The greeting announces half of the buffer.
    assert_eq!(pair.send(&[1; 10_000]), 2048);
    assert!(!pair.sender.has_room());
    pair.credit();
    pair.backward();
    assert_eq!(pair.send(&[1; 10_000]), 2048);
    // The program has read nothing, so no more room is announced.
    pair.credit();
    assert!(!pair.backward());
    assert_eq!(pair.send(&[1; 10_000]), 0);
}

#[test]
fn a_message_without_bytes_is_not_end_of_file() {
    let mut pair = Pair::new(4096, 4096, 16);
    assert_eq!(pair.receiver.arrived(0), Ok(()));
    assert!(!pair.receiver.has_data());
}

#[test]
fn bytes_are_written_where_the_peer_mapped_memory() {
    let memory = Registered::unregistered;
    let mut pair = Pair::new(64, 128, 8);
    let mut sender = Sender::new(memory(64), memory(LIST * Target::SIZE + 2 * Mapping::SIZE), 8);
    let list = sender.list();
    sender.on_greeting(&pair.receiver.greeting(list, 0));
    let mut writes = VecDeque::new();
    let mut write = |sender: &mut Sender, data: &[u8], offset| {
        sender.write(data, offset, &mut |write| {
            writes.push_back(*write);
            Ok(())
        })
    };
    assert_eq!(write(&mut sender, &[1; 10], 1000), Ok(None), "nothing is mapped");
    // The peer announces its second mapping, as `Mappings` does.
    let mapped = memory(100);
    let target = Target { address: mapped.address(), key: 0, length: 100 };
    let mut entry = memory(Mapping::SIZE);
    entry.write(0, &Mapping { offset: 1000, memory: target }.to_entry(cfg!(target_endian = "big")));
    let announced = pair.receiver.empty(Message::Mapped(1));
    let to = list.address + (LIST * Target::SIZE + Mapping::SIZE) as u64;
    place(&Write { from: entry.address(), length: Mapping::SIZE as u32, to, ..announced });
    assert_eq!(pair.receiver.arrived(0), Ok(()));
    let data: Vec<u8> = (1..=100).collect();
    assert_eq!(write(&mut sender, &data[..40], 1000), Ok(Some(40)));
    // The write ends at the end of the buffer or of the mapping.
    assert_eq!(write(&mut sender, &data[40..], 1040), Ok(Some(24)));
    assert!(!sender.has_space(), "the buffer is full");
    for _ in 0..2 {
        let write = writes.pop_front().unwrap();
        assert!(write.silent);
        place(&write);
        sender.completed(Some(write.message));
    }
    assert!(sender.all_arrived());
    let write = |sender: &mut Sender, data: &[u8], offset| {
        sender.write(data, offset, &mut |write| {
            place(write);
            Ok(())
        })
    };
    assert_eq!(write(&mut sender, &[9; 60], 1064), Ok(Some(36)));
    assert_eq!(write(&mut sender, &[9; 1], 1100), Ok(None));
    let mut received = [0; 100];
    mapped.read(0, &mut received);
    assert_eq!((&received[..64], &received[64..]), (&data[..64], &[9; 36][..]));
}
