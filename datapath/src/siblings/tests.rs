//! Tests with several processes of one interface, each represented by a thread. Dropping the state of a process simulates its end.

mod other_user;

use super::message::Message;
use super::socket::{Listener, Name, Socket, Unknown};
use super::*;
use crate::io::{Burst, LoopbackBuf, PacketIo, pair};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Longer than any test may take.
const LONG: Duration = Duration::from_secs(60);

/// A peer, and the communication id of its request.
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const ID: u32 = 77;

#[derive(Debug)]
enum MemberEvent {
    Joined(u8, Arc<Member>),
    Left(u8),
    Died(Box<DisconnectNotice>),
}

struct MemberEvents(Sender<MemberEvent>);

impl Events for MemberEvents {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        let _ = self.0.send(MemberEvent::Joined(slot, member));
    }

    fn left(&self, slot: u8) {
        let _ = self.0.send(MemberEvent::Left(slot));
    }

    fn died(&self, notice: DisconnectNotice) {
        let _ = self.0.send(MemberEvent::Died(Box::new(notice)));
    }
}

struct Process {
    siblings: Siblings,
    events: Receiver<MemberEvent>,
    member_rings: MemberRings,
}

impl Process {
    fn new(name: &str) -> Self {
        let mut siblings = Siblings::join_at(name.into()).unwrap();
        let (sender, events) = channel();
        siblings.watch(Box::new(MemberEvents(sender))).unwrap();
        let member_rings = siblings.member_rings();
        Self { siblings, events, member_rings }
    }

    /// Waits until `count` siblings have joined.
    fn meets(&mut self, count: usize) {
        for _ in 0..count {
            match self.events.recv_timeout(LONG).unwrap() {
                MemberEvent::Joined(slot, member) => self.member_rings.add(slot, member),
                other => panic!("{other:?}"),
            }
        }
    }

    fn receives_end_of(&mut self, gone: u8) {
        match self.events.recv_timeout(LONG).unwrap() {
            MemberEvent::Left(slot) => assert_eq!(slot, gone),
            other => panic!("{other:?}"),
        }
        self.member_rings.remove(gone);
    }
}

/// Returns a different name for each test.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("ferroce/test/{}/{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn processes<const N: usize>(name: &str) -> [Process; N] {
    let mut processes = std::array::from_fn(|_| Process::new(name));
    for process in &mut processes {
        process.meets(N - 1);
    }
    processes
}

fn claim(port: u64) -> Claim {
    let at = "10.0.0.1".parse().unwrap();
    Claim { service: 0x0106_0000 | port, at, family_only: false, shared: false, listens: true }
}

fn errno(result: Result<(), ClaimError>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

fn notice(slot: u8) -> DisconnectNotice {
    let [source, destination] = ["10.0.0.1", "fd00::2"].map(|ip| ip.parse().unwrap());
    DisconnectNotice { id: u32::from(slot) << ID_BITS | 5, source, destination, mad: [slot; 256] }
}

#[test]
fn each_process_has_its_own_slot_and_the_members_of_all_others() {
    let name = name();
    let all: [Process; 5] = processes(&name);
    let mut slots: Vec<_> = all.iter().map(|process| process.siblings.slot()).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 5, "{slots:?}");
    for process in &all {
        assert!(
            slots
                .iter()
                .all(|&slot| { process.member_rings.is_sibling(slot) == (slot != process.siblings.slot()) })
        );
    }
}

#[test]
fn only_the_process_that_claimed_a_service_answers_its_requests() {
    let [one, other] = &processes(&name());
    let (one, other) = (&one.siblings, &other.siblings);
    let at = "10.0.0.1".parse().unwrap();
    one.manage(true);
    other.manage(true);
    assert_eq!(errno(one.claim(&claim(7471))), 0);
    assert_eq!(errno(other.claim(&claim(7471))), libc::EADDRINUSE);
    assert_eq!(errno(other.claim(&claim(7472))), 0);
    assert_eq!(errno(one.claim(&claim(7472))), libc::EADDRINUSE);
    // The other process has the request.
    assert!(
        !one.answers_for(PEER, ID, 0x0106_0000 | 7472, at)
            && !other.answers_for(PEER, ID, 0x0106_0000 | 7471, at)
    );
    // No sibling listens: exactly one process answers.
    let nobody = 0x0106_0000 | 7473;
    assert!(one.answers_for(PEER, ID, nobody, at) != other.answers_for(PEER, ID, nobody, at));
    other.release(&claim(7472));
    let again = ID + 1;
    assert!(
        one.answers_for(PEER, again, 0x0106_0000 | 7472, at)
            != other.answers_for(PEER, again, 0x0106_0000 | 7472, at)
    );
    assert_eq!(errno(one.claim(&claim(7472))), 0);
    // Messages to an identifier of a running process are for that process. Those to an ended one are answered by one process.
    assert!(
        !one.answers_to(PEER, notice(other.slot()).id) && other.answers_to(PEER, notice(other.slot()).id)
    );
    let nobodys = (0..64).find(|slot| ![one.slot(), other.slot()].contains(slot)).unwrap();
    assert!(one.answers_to(PEER, notice(nobodys).id) != other.answers_to(PEER, notice(nobodys).id));
}

#[test]
fn processes_that_start_at_once_are_connected_to_each_other() {
    for _ in 0..20 {
        let (name, start) = (name(), Arc::new(std::sync::Barrier::new(8)));
        let come = || {
            let (name, start) = (name.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                Process::new(&name)
            })
        };
        let coming: Vec<_> = (0..8).map(|_| come()).collect();
        let mut all: Vec<_> = coming.into_iter().map(|process| process.join().unwrap()).collect();
        all.iter_mut().for_each(|process| process.meets(7));
        let slots: std::collections::BTreeSet<_> = all.iter().map(|it| it.siblings.slot()).collect();
        assert_eq!(slots.len(), 8, "{slots:?}");
    }
}

#[test]
fn one_sibling_informs_the_peers_of_a_dead_process_and_frees_its_claims() {
    let name = name();
    let [first, mut second, mut third] = processes(&name);
    let gone = first.siblings.slot();
    assert_eq!(errno(second.siblings.claim(&claim(1))), 0);
    assert_eq!(errno(first.siblings.claim(&claim(2))), 0);
    first.siblings.register_disconnect(&notice(gone));
    first.siblings.register_disconnect(&DisconnectNotice { id: 9, ..notice(gone) });
    first.siblings.unregister_disconnect(9);
    drop(first);
    second.receives_end_of(gone);
    third.receives_end_of(gone);
    let mut fourth = Process::new(&name);
    fourth.meets(2);
    for process in [&second, &third] {
        // The other thread has ended its step when the lock is free.
        process.siblings.meet();
    }
    let notices = [&second, &third].map(|process| {
        let died = |event| match event {
            MemberEvent::Died(last) => Some(*last),
            MemberEvent::Joined(..) | MemberEvent::Left(_) => None,
        };
        process.events.try_iter().filter_map(died).collect::<Vec<_>>()
    });
    assert_eq!(notices.concat(), [notice(gone)]);
    let slots = [&second, &third].map(|process| process.siblings.slot());
    assert!(!slots.contains(&fourth.siblings.slot()) && fourth.siblings.slot() != gone);
    assert_eq!(errno(third.siblings.claim(&claim(1))), libc::EADDRINUSE, "the second has it still");
    assert_eq!(errno(fourth.siblings.claim(&claim(1))), libc::EADDRINUSE);
    assert_eq!(errno(fourth.siblings.claim(&claim(2))), 0, "the first had it");
    assert_eq!(errno(second.siblings.claim(&claim(2))), libc::EADDRINUSE);
}

/// The watching thread waits for the descriptors that it last read. A thread that accepts a process must wake it.
#[test]
fn accepting_a_process_wakes_the_watching_thread() {
    let name = name();
    let first = Siblings::join_at(name.clone()).unwrap();
    drop(first.shared.catch_up());
    assert!(first.shared.changed.take().is_err(), "no process has come");
    let newcomer = std::thread::spawn(move || Siblings::join_at(name).map(|it| it.slot()));
    while !newcomer.is_finished() {
        drop(first.shared.catch_up());
        std::thread::yield_now();
    }
    assert_ne!(newcomer.join().unwrap().unwrap(), first.slot());
    first.shared.changed.take().expect("the thread is to look again");
}

/// Starts two processes and stops the first: its thread does not run, and the kernel queues what is sent to it.
fn with_stopped(name: &str) -> (Siblings, Process) {
    let stopped = Siblings::join_at(name.into()).unwrap();
    let theirs = name.to_owned();
    let newcomer = std::thread::spawn(move || Process::new(&theirs));
    while !newcomer.is_finished() {
        drop(stopped.shared.catch_up());
        std::thread::yield_now();
    }
    let mut newcomer = newcomer.join().unwrap();
    newcomer.meets(1);
    (stopped, newcomer)
}

#[test]
fn a_process_joins_beside_a_stopped_one_and_their_claims_conflict() {
    let name = name();
    let (stopped, mut other) = with_stopped(&name);
    assert_eq!(errno(stopped.claim(&claim(1))), 0);
    let mut newcomer = Process::new(&name);
    newcomer.meets(2);
    other.meets(1);
    assert_eq!(errno(newcomer.siblings.claim(&claim(1))), libc::EADDRINUSE);
    assert_eq!(errno(newcomer.siblings.claim(&claim(2))), 0);
    // The stopped process continues with a claim.
    assert_eq!(errno(stopped.claim(&claim(2))), libc::EADDRINUSE);
    assert_eq!(stopped.shared.lock().present().count(), 2);
}

/// Meanwhile, more processes have joined and left than there are slots. Their connections precede the newcomer's in the queue of the
/// stopped process.
#[test]
fn a_resumed_process_reads_every_hello_before_it_decides_a_claim() {
    let name = name();
    let (stopped, other) = with_stopped(&name);
    let at = slot_name(&name, stopped.slot());
    for _ in 0..2 * MEMBERS {
        drop(Unknown::connect(&at).unwrap());
    }
    let newcomer = Process::new(&name);
    assert_eq!(errno(newcomer.siblings.claim(&claim(1))), 0);
    assert_eq!(errno(stopped.claim(&claim(1))), libc::EADDRINUSE);
    drop(other);
}

/// The kernel closes the descriptors of a killed process one after the other. Its name may be free before its pipe hangs up.
#[test]
fn a_process_in_the_slot_of_one_that_is_ending_waits_for_its_end() {
    let name = name();
    let mut there = Process::new(&name);
    let slot = (there.siblings.slot() + 1) % MEMBERS as u8;
    let (reader, writer) = io::pipe().unwrap();
    let (own, event_fd) = (OwnMemory::new(1).unwrap(), EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let ending = Unknown::connect(&slot_name(&name, there.siblings.slot())).unwrap();
    let ending = ending.authenticate(User::this()).unwrap();
    let hello = Message::Hello { slot }.to_bytes();
    ending.send(&hello, &[own.file(), event_fd.as_fd(), reader.as_fd()]).unwrap();
    there.meets(1);
    // Leaves no other slot free.
    let held: Vec<_> = (0..MEMBERS as u8).filter(|it| *it != slot).collect();
    let held: Vec<_> = held.iter().filter_map(|slot| Name::reserve(&slot_name(&name, *slot)).ok()).collect();
    let newcomer = std::thread::spawn(move || Siblings::join_at(name).map(|it| (it.slot(), it)));
    while there.siblings.shared.lock().introductions.waiting().all(|waiting| waiting != slot) {
        assert!(!newcomer.is_finished(), "{:?}", newcomer.join());
        std::thread::yield_now();
    }
    drop(writer);
    assert_eq!(newcomer.join().unwrap().unwrap().0, slot);
    there.receives_end_of(slot);
    there.meets(1);
    drop(held);
}

/// The answering process has too many descriptors in flight to introduce all others.
#[test]
fn an_incomplete_list_of_introductions_is_requested_again() {
    let name = name();
    let [answering, _stopped] = [5, 6].map(|slot| Listener::new(&slot_name(&name, slot)).unwrap());
    let (reader, _writer) = io::pipe().unwrap();
    let event_fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let (own, others) = (OwnMemory::new(1).unwrap(), OwnMemory::new(2).unwrap());
    let newcomer =
        std::thread::spawn(move || Siblings::join_at(name).map(|it| it.shared.lock().present().count()));
    let joined = |slot: u8, own: &OwnMemory, socket: &Socket| {
        let descriptors = [own.file(), event_fd.as_fd(), reader.as_fd()];
        socket.send(&Message::Joined { slot }.to_bytes(), &descriptors).unwrap();
    };
    let mut hellos = 0;
    while hellos < 2 {
        assert!(!newcomer.is_finished(), "{:?}", newcomer.join());
        let Ok(unknown) = answering.accept() else { continue };
        let socket = unknown.authenticate(User::this()).unwrap();
        assert!(socket.wait(LONG.as_millis() as i32));
        // A connection that only checks the user sends no hello.
        if socket.receive().is_ok() {
            hellos += 1;
            joined(5, &own, &socket);
            if hellos == 2 {
                joined(6, &others, &socket);
            }
        }
    }
    assert_eq!(newcomer.join().unwrap().unwrap(), 2);
}

/// No other process has the stopped process's memory, so none can read its services.
#[test]
fn a_join_fails_while_the_only_other_process_is_stopped_and_names_it() {
    let name = name();
    let _stopped = Siblings::join_at(name.clone()).unwrap();
    let why = Siblings::join_within(name, Duration::ZERO).unwrap_err();
    assert!(matches!(&why, JoinError::Silent { process } if *process as u32 == std::process::id()), "{why}");
}

#[test]
fn a_stopped_process_delays_no_claim_and_keeps_its_own() {
    let (stopped, other) = with_stopped(&name());
    assert_eq!(errno(stopped.claim(&claim(1))), 0);
    let other = &other.siblings;
    assert_eq!(errno(other.claim(&claim(1))), libc::EADDRINUSE);
    assert_eq!(errno(other.claim(&claim(2))), 0);
    other.release(&claim(2));
    other.register_disconnect(&notice(other.slot()));
    assert!(!other.answers_for(PEER, ID, claim(1).service, claim(1).at), "the request waits for its process");
    assert_eq!(errno(stopped.claim(&claim(2))), 0, "and the stopped one goes on");
}

/// The process with the lowest slot answers at once. If it is stopped, only the peer's repetition shows that it did not answer.
#[test]
fn one_more_process_answers_each_repetition_of_an_unclaimed_message() {
    let all: [Process; 3] = processes(&name());
    let mut all: Vec<_> = all.iter().map(|process| &process.siblings).collect();
    all.sort_by_key(|siblings| siblings.slot());
    all.iter().for_each(|siblings| siblings.manage(true));
    let Claim { service, at, .. } = claim(1);
    let nobodys = (0..64).find(|slot| all.iter().all(|it| it.slot() != *slot)).unwrap();
    for answering in 1..=3 {
        let [requests, others] = [
            all.iter().map(|it| it.answers_for(PEER, ID, service, at)).collect::<Vec<_>>(),
            all.iter().map(|it| it.answers_to(PEER, notice(nobodys).id)).collect::<Vec<_>>(),
        ];
        let expected: Vec<_> = (0..3).map(|process| process < answering).collect();
        assert_eq!((&requests, &others), (&expected, &expected), "time {answering}");
    }
    let next = all.iter().filter(|it| it.answers_for(PEER, ID + 1, service, at)).count();
    assert_eq!(next, 1, "another request");
}

/// The process is stopped between its request for a claim and the decision.
#[test]
fn a_process_stopped_within_a_claim_has_it_and_delays_no_other() {
    let (stopped, other) = with_stopped(&name());
    let at = stopped.shared.lock().claimed.ask(&stopped.shared.own, &claim(1)).unwrap();
    assert_eq!(errno(other.siblings.claim(&claim(2))), 0);
    assert_eq!(errno(other.siblings.claim(&claim(1))), libc::EADDRINUSE);
    claims::decided(&stopped.shared.own, at, false);
    assert_eq!(errno(other.siblings.claim(&claim(1))), 0);
}

#[test]
fn a_member_with_a_descriptor_of_another_kind_is_refused() {
    let own = OwnMemory::new(1).unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
    let event_fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let blocks = EventFd::new(0).unwrap();
    let member = |descriptors: &[BorrowedFd<'_>]| {
        Member::new(descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect(), 0, 1)
    };
    let (memory, reader, writer) = (own.file(), reader.as_fd(), writer.as_fd());
    member(&[memory, event_fd.as_fd(), reader]).unwrap();
    for wrong in [
        &[memory, event_fd.as_fd()][..],
        &[event_fd.as_fd(), memory, reader],
        &[memory, blocks.as_fd(), reader],
        &[memory, event_fd.as_fd(), event_fd.as_fd()],
        &[memory, event_fd.as_fd(), writer],
        &[memory, event_fd.as_fd(), reader, reader],
    ] {
        assert_eq!(member(wrong).unwrap_err().kind(), io::ErrorKind::InvalidData, "{wrong:?}");
    }
}

#[test]
fn the_slot_of_an_ended_process_is_not_reused_at_once() {
    let name = name();
    let [mut one, other] = processes(&name);
    let gone = other.siblings.slot();
    drop(other);
    one.receives_end_of(gone);
    let taken = Name::reserve(&slot_name(&name, gone)).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_new_process_has_a_slot_that_no_other_has() {
    let name = name();
    let one = Process::new(&name);
    let last_two = MEMBERS as u8 - 2;
    let _held: Vec<_> =
        (0..last_two).filter_map(|slot| Name::reserve(&slot_name(&name, slot)).ok()).collect();
    let next = Process::new(&name);
    assert!(next.siblings.slot() >= last_two);
    assert_ne!(next.siblings.slot(), one.siblings.slot());
}

/// Sends frames of all lengths in bursts through a ring that wraps many times, and expects each one complete and in order.
#[test]
fn frames_reach_a_sibling_whole_and_in_order() {
    let name = name();
    let [mut one, mut other] = processes(&name);
    let (mut port, _far) = pair(64, 9000);
    let to = other.siblings.slot();
    let now = cc::Instant::ZERO;
    let frame = |n: usize| vec![n as u8; 60 + n * 37 % 4200];
    let (mut sent, mut came) = (0, 0);
    let mut burst: Burst<LoopbackBuf> = Burst::new();
    while came < 3000 {
        while sent < 3000 && one.member_rings.push(to, &frame(sent), now) == Pushed::Done {
            sent += 1;
        }
        assert!(
            !other.member_rings.has_received() || came > 0 || sent == 0,
            "nothing is seen before it is published"
        );
        one.member_rings.publish();
        assert!(other.member_rings.has_received());
        other.member_rings.receive(&mut burst, || port.alloc());
        assert!(!burst.is_empty());
        for buffer in burst.drain(..) {
            assert!(buffer[..] == frame(came)[..], "frame {came}");
            came += 1;
        }
    }
    assert!(!other.member_rings.has_received());
}

/// A process that joins sends to the others before their cores have added it. If its connection request were dropped, the peer would repeat
/// it only after seconds.
#[test]
fn frames_sent_before_the_sibling_adds_the_sender_are_delivered() {
    let name = name();
    let mut first = Process::new(&name);
    let mut newcomer = Process::new(&name);
    newcomer.meets(1);
    let to = first.siblings.slot();
    newcomer.member_rings.push_to_all(&[1; 100]);
    assert_eq!(newcomer.member_rings.push(to, &[2; 100], cc::Instant::ZERO), Pushed::Done);
    newcomer.member_rings.publish();
    first.meets(1);
    let (mut port, _far) = pair(64, 9000);
    let mut burst: Burst<LoopbackBuf> = Burst::new();
    first.member_rings.receive(&mut burst, || port.alloc());
    assert_eq!(burst.drain(..).map(|buffer| buffer[0]).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn frames_to_a_sibling_that_reads_nothing_are_dropped_after_a_wait() {
    let name = name();
    let [mut one, other] = processes(&name);
    let to = other.siblings.slot();
    let at = |ms| cc::Instant::ZERO + Duration::from_millis(ms);
    let frame = [7; 4096];
    while one.member_rings.push(to, &frame, at(0)) == Pushed::Done {}
    assert_eq!(one.member_rings.push(to, &frame, at(20)), Pushed::Full);
    assert_eq!(one.member_rings.push(to, &frame, at(21)), Pushed::Done, "dropped");
    assert_eq!(one.member_rings.push(to, &frame, at(22)), Pushed::Done, "and the next at once");
    assert_eq!(
        one.member_rings.push(other.siblings.slot() ^ 1, &frame, at(22)),
        Pushed::Done,
        "the slot has no process"
    );
}

/// A sibling may write any count, including one near 2^64. Frames are received across the wrap.
#[test]
fn frames_are_received_across_the_wrap_of_a_count() {
    let [one, mut other] = processes(&name());
    let sent = one.siblings.shared.own.head().sent(other.siblings.slot());
    let (mut port, _far) = pair(64, 9000);
    let mut burst: Burst<LoopbackBuf> = Burst::new();
    for (count, frames) in [(u64::MAX - 7, 0), (8, 2)] {
        sent.store(count, Ordering::Release);
        other.member_rings.receive(&mut burst, || port.alloc());
        assert_eq!(burst.len(), frames, "up to {count:#x}: empty frames of 8 bytes");
    }
}

#[test]
fn a_process_in_a_reused_slot_receives_no_frames_of_its_predecessor() {
    let name = name();
    let [mut one, mut other] = processes(&name);
    let to = other.siblings.slot();
    assert_eq!(one.member_rings.push(to, &[1; 100], cc::Instant::ZERO), Pushed::Done);
    one.member_rings.publish();
    assert!(other.member_rings.has_received());
    // From now on, another process has the slot.
    let identity = other.siblings.shared.own.head().identity();
    identity.store(identity.load(Ordering::Relaxed) ^ 2, Ordering::Relaxed);
    let known: Vec<_> = other.siblings.shared.lock().present().map(|(slot, _)| slot).collect();
    assert_eq!(known, [one.siblings.slot()]);
    let again = Member::new(
        other.siblings.shared.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect(),
        one.siblings.slot(),
        one.siblings.shared.identity,
    );
    one.member_rings.add(to, Arc::new(again.unwrap()));
    other
        .member_rings
        .add(one.siblings.slot(), other.siblings.shared.lock().present().next().unwrap().1.clone());
    assert!(!other.member_rings.has_received(), "what was sent was for the first");
}

#[test]
fn frames_of_siblings_are_recognised_before_they_are_checked() {
    let [one, other] = processes(&name());
    let frame = |slot: u8, header: fn(roce::wire::Bth) -> roce::wire::Header| {
        use roce::wire::{Bth, Mac, Path, emit};
        let address = "10.9.0.1".parse().unwrap();
        let path = Path::new((Mac([2; 6]), address), (Mac([2; 6]), address));
        let bth = Bth::new(roce::Qpn::new(u32::from(slot) << 18 | 7), roce::Psn::new(1));
        let mut frame = vec![0; 200];
        let length = emit(&path, 0, &header(bth), 0, &mut frame).unwrap().seal();
        frame.truncate(length);
        frame
    };
    let write = |bth| {
        use roce::wire::{Header, Operation, Service};
        Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle }
    };
    let (ours, theirs) = (one.siblings.slot(), other.siblings.slot());
    let nobodys = (0..64).find(|slot| ![ours, theirs].contains(slot)).unwrap();
    assert_eq!(
        [ours, theirs, nobodys].map(|slot| one.member_rings.is_siblings(&frame(slot, write))),
        [false, true, false]
    );
    assert_eq!(one.member_rings.target(&frame(theirs, write)), ProcessTarget::Sibling(theirs));
    assert_eq!(one.member_rings.target(&frame(ours, write)), ProcessTarget::Own);
    // The QPN of a direct response is the peer's.
    let mut direct = frame(theirs, write);
    direct[42] = 0xc4;
    assert!(!one.member_rings.is_siblings(&direct));
    let whole = frame(theirs, write);
    for cut in 0..whole.len() {
        assert!(!one.member_rings.is_siblings(&whole[..cut]), "{cut} bytes of {}", whole.len());
    }
}

#[test]
fn a_sleeping_core_is_woken_by_frames() {
    let [mut one, other] = processes(&name());
    let to = other.siblings.slot();
    let event_fd = other.siblings.event_fd().unwrap();
    one.member_rings.push(to, &[1; 100], cc::Instant::ZERO);
    one.member_rings.publish();
    assert!(event_fd.take().is_err(), "it is awake");
    other.member_rings.listen(true);
    one.member_rings.push(to, &[1; 100], cc::Instant::ZERO);
    one.member_rings.publish();
    event_fd.take().expect("it sleeps");
    one.member_rings.publish();
    assert!(event_fd.take().is_err(), "nothing new was published");
}
