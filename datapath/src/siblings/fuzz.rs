//! A hostile sibling: a fuzzer, or a test with a seed, controls what it sends and writes into its shared memory.

use super::claims::Claim;
use super::memory::{CLAIMS, NOTICES, OwnMemory, RING};
use super::message::Message;
use super::socket::{Listener, MESSAGE, Socket, Unknown, User};
use super::*;
use crate::io::{BURST, Burst, LoopbackBuf, PacketIo, pair};
use std::sync::atomic::{AtomicU32, Ordering};

/// A slot whose process joined or, without a member, left.
type MemberChange = (u8, Option<Arc<Member>>);

/// The honest process's events: it applies joins and leaves to its rings.
#[derive(Clone, Default)]
struct MemberEvents(Arc<Mutex<Vec<MemberChange>>>);

impl MemberEvents {
    fn push(&self, slot: u8, member: Option<Arc<Member>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((slot, member));
    }

    fn apply(&self, member_rings: &mut MemberRings) {
        for (slot, member) in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            match member {
                Some(member) => member_rings.add(slot, member),
                None => member_rings.remove(slot),
            }
        }
    }
}

impl Events for MemberEvents {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        self.push(slot, Some(member));
    }

    fn left(&self, slot: u8) {
        self.push(slot, None);
    }

    fn died(&self, _notice: DisconnectNotice) {}
}

/// Connects as a process of the same user. Connections of other users end before any message.
fn connect(name: &str) -> Option<Socket> {
    Unknown::connect(name).ok()?.authenticate(User::this()).ok()
}

/// A process that may put anything into its memory and its socket.
struct Hostile {
    own: OwnMemory,
    event_fd: EventFd,
    life: (OwnedFd, Option<OwnedFd>),
    socket: Option<Socket>,
}

impl Hostile {
    fn new(name: &str, identity: u64) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self {
            own: OwnMemory::new(identity)?,
            event_fd: EventFd::new(libc::EFD_NONBLOCK)?,
            life: (reader.into(), Some(writer.into())),
            socket: connect(name),
        })
    }

    /// Sends a message with the right descriptors or with wrong ones.
    fn send(&self, message: &[u8; MESSAGE], kind: u8) {
        let (memory, event_fd, life) = (self.own.file(), self.event_fd.as_fd(), self.life.0.as_fd());
        let descriptors: &[_] = match kind % 8 {
            0 => &[],
            1 => &[event_fd, memory, life],
            2 => &[memory, event_fd],
            3 => &[memory; 9],
            _ => &[memory, event_fd, life],
        };
        // The other end may have closed, or have a full queue.
        let _ = self.socket.as_ref().map(|socket| socket.send(message, descriptors));
    }
}

/// Both processes, and the bytes that control them.
struct Scene<'a> {
    bytes: &'a [u8],
    honest: Siblings,
    member_rings: MemberRings,
    events: MemberEvents,
    hostile: Hostile,
    made: u64,
}

impl Scene<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.split_off_first().copied().unwrap_or_default()
    }

    fn slot(&mut self) -> u8 {
        self.byte() % MEMBERS as u8
    }

    /// Returns a number of any magnitude. Few of all 64-bit numbers are small, or nearly all ones.
    fn number(&mut self) -> u64 {
        let (kind, low, high) = (self.byte(), self.byte(), self.byte());
        let number = u64::from(low) << (kind % 64) | u64::from(high);
        if kind >= 128 { !number } else { number }
    }

    fn content<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// Sends a message that is valid for the roles, or an arbitrary one.
    fn message(&mut self) {
        let (kind, descriptors) = (self.byte(), self.byte());
        let message = match kind % 6 {
            0 | 1 => Message::Hello { slot: self.slot() },
            2 | 3 => Message::Joined { slot: self.slot() },
            4 => Message::Welcome { is_settled: kind >= 128 },
            _ => Message::Refused,
        };
        let mut bytes = message.to_bytes();
        if kind >= 192 {
            bytes[4..].copy_from_slice(&self.content::<{ MESSAGE - 4 }>());
            bytes[4] %= 8;
        }
        self.hostile.send(&bytes, descriptors);
    }

    /// Writes into the memory that the honest process reads.
    fn write(&mut self) {
        let slot = self.honest.slot();
        let (kind, number) = (self.byte(), self.number());
        let at = number as usize;
        let head = self.hostile.own.head();
        match kind % 11 {
            // Near 2^64, which the next frames pass.
            10 => {
                head.meant_for(slot).store(self.honest.shared.identity, Ordering::Release);
                head.sent(slot).store(u64::MAX - number % 4096, Ordering::Release);
            }
            0 => head.sent(slot).store(number, Ordering::Release),
            1 => head.taken(slot).store(number, Ordering::Release),
            2 => head.meant_for(slot).store(number, Ordering::Release),
            3 => head.claims_used().store(number as u32, Ordering::Release),
            4 => head.notices_used().store((number % 64) as u32, Ordering::Release),
            5 => head.claim_state(at % CLAIMS).store(number, Ordering::Release),
            6 => head.notice_state(at % NOTICES % 64).store(number, Ordering::Release),
            7 => head.sleeping().store(number as u32, Ordering::Release),
            8 => {
                let claim: [u8; 24] = self.content();
                let mut entry = [0; super::memory::CLAIM - 8];
                entry[..24].copy_from_slice(&claim);
                self.hostile.own.write_claim(at % CLAIMS, &entry);
            }
            _ => {
                let content: [u8; 8] = self.content();
                self.hostile.own.write_ring(slot, at % (RING - 8), &content);
            }
        }
    }

    /// Sends a frame of any length, as an honest sibling does.
    fn frame(&mut self) {
        let slot = self.honest.slot();
        let length = u32::from(u16::from_le_bytes(self.content())) % 10_000;
        let head = self.hostile.own.head();
        head.meant_for(slot).store(self.honest.shared.identity, Ordering::Release);
        let sent = head.sent(slot).load(Ordering::Relaxed);
        let place = (sent % RING as u64) as usize & !7;
        self.hostile.own.write_ring(slot, place, &length.to_le_bytes());
        head.sent(slot).store(sent.wrapping_add(u64::from(length) + 15) & !7, Ordering::Release);
    }

    fn receive(&mut self) {
        let mut burst: Burst<LoopbackBuf> = Burst::new();
        let (mut port, _far) = pair(64, 9000);
        self.member_rings.receive(&mut burst, || port.alloc());
        assert!(burst.len() <= BURST / 2);
        for frame in burst.drain(..) {
            let _ = (self.member_rings.target(&frame), self.member_rings.is_siblings(&frame));
        }
    }

    fn push(&mut self) {
        let (slot, length, now) = (self.slot(), u16::from_le_bytes(self.content()), self.number() >> 1);
        let frame = vec![7; usize::from(length)];
        let _ = self.member_rings.push(slot, &frame, cc::Instant::from_nanos(now));
        self.member_rings.push_to_all(&frame);
        self.member_rings.publish();
    }

    fn ask(&mut self) {
        let claim = Claim::from_bytes(&self.content());
        let id = u32::from_le_bytes(self.content());
        let _ = self.honest.answers_for(claim.at, id, claim.service, claim.at);
        let _ = self.honest.answers_to(claim.at, id);
        if self.honest.claim(&claim).is_ok() {
            self.honest.release(&claim);
        }
    }

    /// The hostile process ends and a new one joins, or it only closes its socket and connects again.
    fn again(&mut self) -> io::Result<()> {
        let name = own_name(&self.honest);
        if self.byte().is_multiple_of(2) {
            self.made += 1;
            self.hostile = Hostile::new(&name, self.made << 1 | 1)?;
        } else {
            self.hostile.life.1 = None;
            self.hostile.socket = connect(&name);
        }
        Ok(())
    }

    /// Lets the hostile process answer as if the honest one had sent it a hello.
    fn ask_hostile(&mut self) -> io::Result<()> {
        let meeting = format!("{}/answers", self.honest.shared.name);
        let listener = Listener::new(&meeting)?;
        let theirs = connect(&meeting).ok_or(io::ErrorKind::ConnectionRefused)?;
        self.hostile.socket = listener.accept()?.authenticate(User::this()).ok();
        let slot = self.slot();
        self.honest.shared.lock().introductions.expect(slot, theirs);
        Ok(())
    }
}

fn own_name(process: &Siblings) -> String {
    slot_name(&process.shared.name, process.slot())
}

/// Runs the actions that `bytes` encode. The honest process must neither end nor block. It must not receive more frames than a burst has
/// room for, nor treat itself as a sibling.
///
/// # Errors
/// Returns an error if the process has no descriptor or no memory left.
///
/// # Panics
/// Panics if the honest process violates this.
pub fn run(bytes: &[u8]) -> Result<(), JoinError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ferroce/fuzz/{}/{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let honest = Siblings::join_at(name)?;
    let (member_rings, events) = (honest.member_rings(), MemberEvents::default());
    honest.shared.lock().events = Some(Box::new(events.clone()));
    let hostile = Hostile::new(&own_name(&honest), 1)?;
    let mut scene = Scene { bytes, honest, member_rings, events, hostile, made: 1 };
    while !scene.bytes.is_empty() {
        match scene.byte() % 12 {
            0..3 => scene.message(),
            3..5 => scene.write(),
            5..7 => scene.frame(),
            7 => scene.receive(),
            8 => scene.push(),
            9 => scene.ask(),
            10 => scene.again()?,
            _ => scene.ask_hostile()?,
        }
        drop(scene.honest.shared.catch_up());
        scene.events.apply(&mut scene.member_rings);
        let own = scene.honest.slot();
        assert!(!scene.member_rings.is_sibling(own), "slot {own} is its own");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_survives_all_messages_and_writes_of_a_sibling() {
        let mut seed = 1_u64;
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..400)
                .map(|_| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 56) as u8
                })
                .collect();
            super::run(&bytes).unwrap();
        }
    }
}
