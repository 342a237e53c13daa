//! Another user of the machine at each step of the protocol. Credentials belong to a thread in the kernel (credentials(7)), so a thread plays
//! the other user, and `SO_PEERCRED` shows it as it would show a process.

use super::super::message::{Message, Refusal};
use super::super::socket::{Listener, Unknown};
use super::super::watch::waits;
use super::*;
use std::thread;

/// `nobody` on Linux distributions.
const OTHER: u32 = 65534;
/// The user of all other threads.
const ROOT: User = User(0);

/// Runs `act` in a thread of the other user.
fn as_other_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(|| {
        // SAFETY: plain numbers; changes the credentials of this thread alone, which ends with `act`.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
        assert_eq!(changed, 0, "these tests run as root");
        act()
    })
}

/// The other user's process, which listens at a name and checks nobody.
struct Squatter {
    stop: Arc<EventFd>,
    thread: thread::JoinHandle<usize>,
}

impl Squatter {
    /// Takes the name, and fails if any process sends anything there.
    fn start(name: &str) -> Self {
        let stop = Arc::new(EventFd::new(0).unwrap());
        let (name, until) = (name.to_owned(), stop.clone());
        let (took, taken) = channel();
        let thread = as_other_user(move || {
            let listener = Listener::new(&name).unwrap();
            took.send(()).unwrap();
            let mut connections = 0;
            loop {
                let stops = waits(&[until.as_raw_fd(), listener.as_raw_fd()], -1);
                while let Ok(unknown) = listener.accept() {
                    let socket = unknown.authenticate(ROOT).unwrap();
                    assert!(socket.wait(LONG.as_millis() as i32));
                    let received = socket.receive();
                    let closed =
                        matches!(&received, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof);
                    assert!(closed, "{received:?}");
                    connections += 1;
                }
                if stops {
                    return connections;
                }
            }
        });
        taken.recv_timeout(LONG).unwrap();
        Self { stop, thread }
    }

    /// Gives the name up, and returns the number of connections to it.
    fn end(self) -> usize {
        self.stop.signal();
        self.thread.join().unwrap()
    }
}

/// What the owner sends to a process of the other user that says hello: messages, each with the number of its descriptors.
fn hello_of_other_user(name: &str, slot: Option<u8>) -> Vec<(Option<Message>, usize)> {
    let name = name.to_owned();
    let hello = move || {
        let own = Own::new(1).unwrap();
        let bell = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let socket = Unknown::connect(&name).unwrap().authenticate(ROOT).unwrap();
        // The owner may have closed it by now.
        let _ = socket.send(&Message::Hello { slot }.to_bytes(), &[own.file(), bell.as_fd(), reader.as_fd()]);
        let mut received = Vec::new();
        loop {
            assert!(socket.wait(LONG.as_millis() as i32));
            match socket.receive() {
                Ok((bytes, descriptors)) => {
                    received.push((Message::from_bytes(&bytes), descriptors.len()));
                    if matches!(received.last(), Some((Some(Message::Welcome { .. }), _))) {
                        return received;
                    }
                }
                Err(_) => return received,
            }
        }
    };
    as_other_user(hello).join().unwrap()
}

/// The time after which a process without an owner looks for one again.
fn pause(process: &Process) -> Option<Duration> {
    match &process.siblings.shared.lock().role {
        Role::Nobody(vacancy) => Some(vacancy.pause()),
        Role::Owner(_) | Role::Sibling(_) => None,
    }
}

/// Checks that `error` names the other user's process, which here is this one, and a remedy.
fn names_other_user(error: &dyn std::error::Error) {
    let text = error.to_string();
    let process = format!("(process {})", std::process::id());
    for words in
        ["user 65534 uses the interface", &process, "belongs to user 0; run as that user, end that process"]
    {
        assert!(text.contains(words) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn another_user_with_the_dead_owner_s_name_receives_nothing_and_is_named_by_claims() {
    let name = name();
    let [owner, mut second, mut third] = processes(&name);
    let gone = owner.siblings.slot();
    // The two look for an owner only when the other user has the name.
    let stopped = [&second, &third].map(|process| process.siblings.shared.lock());
    drop(owner);
    let squatter = Squatter::start(&name);
    drop(stopped);
    for process in [&second, &third] {
        let error = process.siblings.claim(&claim(1)).unwrap_err();
        assert_eq!(error.errno(), libc::EACCES);
        names_other_user(&error);
        assert_eq!(pause(process), Some(PAUSE));
    }
    // Frames between the two go on.
    assert_eq!(second.lanes.push(third.siblings.slot(), &[1; 100], cc::Instant::ZERO), Pushed::Done);
    second.lanes.publish();
    let (mut port, _far) = pair(64, 9000);
    let mut burst: Burst<LoopbackBuf> = Burst::new();
    third.lanes.receive(&mut burst, || port.alloc());
    assert_eq!(burst.len(), 1);
    assert!(squatter.end() >= 2, "both connected");
    let (one, other) = (&second.siblings, &third.siblings);
    assert_eq!(errno(one.claim(&claim(1))), 0, "the refused claims left nothing");
    assert_eq!(errno(other.claim(&claim(1))), libc::EADDRINUSE);
    assert_eq!(errno(other.claim(&claim(2))), 0);
    assert_eq!(errno(one.claim(&claim(2))), libc::EADDRINUSE);
    second.hears_end_of(gone);
    third.hears_end_of(gone);
}

/// Nothing but the thread looks for the name here.
#[test]
fn processes_meet_again_without_a_claim_when_another_user_gives_the_name_up() {
    let name = name();
    let [owner, mut second, mut third] = processes(&name);
    let gone = owner.siblings.slot();
    let stopped = [&second, &third].map(|process| process.siblings.shared.lock());
    drop(owner);
    let squatter = Squatter::start(&name);
    drop(stopped);
    squatter.end();
    second.hears_end_of(gone);
    third.hears_end_of(gone);
    let mut newcomer = Process::new(&name);
    newcomer.meets(2);
}

/// The kernel does not say whose a name is at which no process listens.
#[test]
fn a_claim_fails_while_the_dead_owner_s_name_is_held_without_a_listener() {
    let name = name();
    let [owner, second] = processes(&name);
    let stopped = second.siblings.shared.lock();
    drop(owner);
    let held = name.clone();
    let held = as_other_user(move || Name::hold(&held).unwrap()).join().unwrap();
    drop(stopped);
    let error = second.siblings.claim(&claim(1)).unwrap_err();
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    assert!(error.to_string().contains(&format!("`ss -xap | grep {name}`")), "{error}");
    assert_eq!(pause(&second), Some(PAUSE));
    drop(held);
    assert_eq!(errno(second.siblings.claim(&claim(1))), 0);
}

#[test]
fn another_user_that_says_hello_is_refused_without_a_descriptor() {
    let name = name();
    let [one, other] = &processes(&name);
    let slots = [one, other].map(|process| process.siblings.slot());
    let free = (0..MEMBERS as u8).find(|slot| !slots.contains(slot)).unwrap();
    for slot in [None, Some(free), Some(slots[0]), Some(slots[1])] {
        let refused = Message::Refused(Refusal::User(ROOT.0));
        assert_eq!(hello_of_other_user(&name, slot), [(Some(refused), 0)], "{slot:?}");
    }
    for (process, sibling) in [(one, slots[1]), (other, slots[0])] {
        let state = process.siblings.shared.lock();
        assert_eq!(state.present().map(|(slot, _)| slot).collect::<Vec<_>>(), [sibling]);
    }
}

#[test]
fn a_first_process_is_refused_when_another_user_has_the_name_and_sends_nothing() {
    let name = name();
    let squatter = Squatter::start(&name);
    let refused = Siblings::join_at(name.clone()).unwrap_err();
    assert!(matches!(&refused, JoinError::User(stranger) if (stranger.theirs, stranger.ours) == (OTHER, 0)));
    names_other_user(&refused);
    assert_eq!(squatter.end(), 1);
    Siblings::join_at(name).unwrap();
}

/// None of these names its user, and each lasts as long as its process likes: the join ends all the same.
#[test]
fn a_join_ends_with_the_name_that_a_silent_process_has() {
    let refused = |name: &str, held: &str| {
        let why = Siblings::join_within(name.into(), Duration::ZERO).unwrap_err();
        assert!(matches!(&why, JoinError::Name { name } if name == held), "{why}");
        assert!(why.to_string().contains(&format!("end the process that `ss -xap | grep {held}` shows")));
    };
    let name = name();
    for held in [name.clone(), format!("{name}/{}", MEMBERS - 1)] {
        let taken = held.clone();
        let taken = as_other_user(move || Name::hold(&taken).unwrap()).join().unwrap();
        refused(&name, &held);
        drop(taken);
    }
    let theirs = name.clone();
    let listener = as_other_user(move || Listener::new(&theirs).unwrap()).join().unwrap();
    // It accepts none, until the kernel queues no more.
    let queued: Vec<_> = (0..).map_while(|_| Unknown::connect(&name).ok()).collect();
    refused(&name, &name);
    drop((queued, listener));
    Siblings::join_within(name, Duration::ZERO).unwrap();
}

/// The slots that an owner assigns are held by another user, all but this one's: the name of one is in the error.
#[test]
fn a_join_ends_with_the_slot_that_another_user_has() {
    let name = name();
    let owner = Process::new(&name);
    let (ours, prefix) = (owner.siblings.slot(), name.clone());
    let hold = move || {
        let others = (0..MEMBERS as u8).filter(|slot| *slot != ours);
        others.map(|slot| Name::hold(&format!("{prefix}/{slot}")).unwrap()).collect::<Vec<_>>()
    };
    let held = as_other_user(hold).join().unwrap();
    let why = Siblings::join_within(name.clone(), Duration::ZERO).unwrap_err();
    assert!(matches!(&why, JoinError::Name { name: held } if held.starts_with(&format!("{name}/"))), "{why}");
    drop(held);
    Siblings::join_at(name).unwrap();
}

/// A daemon that joined as root and then dropped its privileges has the memory of root's processes. As the owner, it introduces none of them
/// to processes of its new user.
#[test]
fn an_owner_that_changed_its_user_introduces_no_process_of_the_former_user() {
    let name = name();
    let first = Process::new(&name);
    let dropped = Siblings::join_at(name.clone()).unwrap();
    let remaining = Process::new(&name);
    let slot = remaining.siblings.slot();
    drop(dropped.shared.catch_up());
    let stopped = remaining.siblings.shared.lock();
    drop(first);
    let dropped = Arc::new(dropped);
    let joins = || {
        let (name, owner) = (name.clone(), dropped.clone());
        let serve = move || {
            owner.claim(&claim(1)).unwrap();
            let newcomer = thread::spawn(|| Siblings::join_at(name).map(|it| it.slot()));
            while !newcomer.is_finished() {
                drop(owner.shared.catch_up());
                thread::yield_now();
            }
            newcomer.join().unwrap()
        };
        as_other_user(serve).join().unwrap()
    };
    let refused = joins().unwrap_err();
    assert!(matches!(&refused, JoinError::User(stranger) if (stranger.theirs, stranger.ours) == (0, OTHER)));
    assert!(dropped.shared.lock().present().any(|(known, _)| known == slot));
    drop(stopped);
    drop(remaining);
    assert_ne!(joins().unwrap(), slot);
}
