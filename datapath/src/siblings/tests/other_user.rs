//! Tests with another user of the machine at each step of the protocol. In the kernel, credentials belong to a thread (credentials(7)). So
//! a thread represents the other user, and `SO_PEERCRED` reports it as it would report a process.

use super::super::watch::waits;
use super::*;
use std::thread;

/// `nobody` on Linux distributions.
const OTHER: u32 = 65534;
/// The user of all other threads.
const ROOT: User = User(0);

fn as_other_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(|| {
        // SAFETY: plain numbers; changes the credentials of this thread alone, which ends with `act`.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
        assert_eq!(changed, 0, "these tests run as root");
        act()
    })
}

/// The other user's process, which listens at a name and does not check users.
struct Squatter {
    stop: Arc<EventFd>,
    thread: thread::JoinHandle<usize>,
}

impl Squatter {
    /// Listens at the name, and fails if any process sends anything there.
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

    /// Closes the listener, and returns the number of connections to it.
    fn end(self) -> usize {
        self.stop.signal();
        self.thread.join().unwrap()
    }
}

/// Sends a hello of the other user to a name. Returns the messages that the process there answers, each with the number of its descriptors.
fn hello_of_other_user(name: &str, slot: u8) -> Vec<(Option<Message>, usize)> {
    let name = name.to_owned();
    let hello = move || {
        let own = OwnMemory::new(1).unwrap();
        let event_fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let socket = Unknown::connect(&name).unwrap().authenticate(ROOT).unwrap();
        // The connection may be closed by now.
        let _ =
            socket.send(&Message::Hello { slot }.to_bytes(), &[own.file(), event_fd.as_fd(), reader.as_fd()]);
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

/// Checks that `error` contains the other user's process id, which here is this process's, and a remedy.
fn names_other_user(error: &dyn std::error::Error) {
    let text = error.to_string();
    let process = format!("(process {})", std::process::id());
    for words in
        ["user 65534 uses the interface", &process, "belongs to user 0; run as that user, end that process"]
    {
        assert!(text.contains(words) && !text.contains('\n'), "{text}");
    }
}

/// Joins and waits until it knows `others` processes.
fn newcomer(name: &str, others: usize) -> Process {
    let mut newcomer = Process::new(name);
    newcomer.meets(others);
    newcomer
}

#[test]
fn another_user_with_a_dead_process_s_name_delays_no_process() {
    let name = name();
    let [first, mut second, mut third] = processes(&name);
    let gone = first.siblings.slot();
    // The two detect the end only after the other user has the name.
    let stopped = [&second, &third].map(|process| process.siblings.shared.lock());
    drop(first);
    let squatter = Squatter::start(&slot_name(&name, gone));
    drop(stopped);
    second.receives_end_of(gone);
    third.receives_end_of(gone);
    assert_eq!(errno(second.siblings.claim(&claim(1))), 0);
    assert_eq!(errno(third.siblings.claim(&claim(1))), libc::EADDRINUSE);
    let fourth = newcomer(&name, 2);
    assert_eq!(errno(fourth.siblings.claim(&claim(1))), libc::EADDRINUSE);
    assert!(squatter.end() >= 1, "the new process connected");
}

/// The kernel does not report the owner of a name at which no process listens. It queues no more connections than the listening process
/// allows.
#[test]
fn names_held_by_another_user_do_not_block_an_introduced_process() {
    let name = name();
    let first = Process::new(&name);
    let free = |n: u8| slot_name(&name, (first.siblings.slot() + n) % MEMBERS as u8);
    let [held, full] = [free(1), free(2)];
    let take = move || {
        let listener = Listener::new(&full).unwrap();
        // SAFETY: plain numbers for an open socket.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let queued: Vec<_> = (0..).map_while(|_| Unknown::connect(&full).ok()).collect();
        (Name::reserve(&held).unwrap(), listener, queued)
    };
    let taken = as_other_user(take).join().unwrap();
    newcomer(&name, 1);
    drop(first);
    // No process introduces it, and the process with the full queue may be of this user.
    let why = Siblings::join_within(name.clone(), Duration::ZERO).unwrap_err();
    assert!(matches!(&why, JoinError::Name { name: full } if full.starts_with(&name)), "{why}");
    drop(taken);
    Siblings::join_within(name, Duration::ZERO).unwrap();
}

#[test]
fn a_hello_from_another_user_gets_no_answer() {
    let name = name();
    let [one, other] = &processes(&name);
    let slots = [one, other].map(|process| process.siblings.slot());
    let free = (0..MEMBERS as u8).find(|slot| !slots.contains(slot)).unwrap();
    for at in slots {
        for slot in [free, slots[0], slots[1]] {
            let received = hello_of_other_user(&slot_name(&name, at), slot);
            assert!(received.is_empty(), "slot {slot} at {at}: {received:?}");
        }
    }
    for (process, sibling) in [(one, slots[1]), (other, slots[0])] {
        let state = process.siblings.shared.lock();
        assert_eq!(state.present().map(|(slot, _)| slot).collect::<Vec<_>>(), [sibling]);
    }
}

#[test]
fn a_first_process_sends_nothing_and_fails_if_another_user_has_a_slot() {
    let name = name();
    for taken in [slot_name(&name, 7), name.clone()] {
        let squatter = Squatter::start(&taken);
        let refused = Siblings::join_at(name.clone()).unwrap_err();
        assert!(
            matches!(&refused, JoinError::User(stranger) if (stranger.theirs, stranger.ours) == (OTHER, 0))
        );
        names_other_user(&refused);
        assert_eq!(squatter.end(), 1);
    }
    Siblings::join_at(name).unwrap();
}

#[test]
fn the_error_without_a_free_slot_has_a_command_that_lists_the_holders() {
    let name = name();
    let first = Process::new(&name);
    let (ours, prefix) = (first.siblings.slot(), name.clone());
    let hold = move || {
        let others = (0..MEMBERS as u8).filter(|slot| *slot != ours);
        others.map(|slot| Name::reserve(&slot_name(&prefix, slot)).unwrap()).collect::<Vec<_>>()
    };
    let held = as_other_user(hold).join().unwrap();
    let why = Siblings::join_within(name.clone(), Duration::ZERO).unwrap_err().to_string();
    assert!(why.contains(&format!("`ss -xap | grep {name}`")), "{why}");
    drop(held);
    Siblings::join_at(name).unwrap();
}

/// A daemon that joined as root and then dropped its privileges has the memory of root's processes. It introduces none of them to processes
/// of its new user, and still accepts those of root.
#[test]
fn a_process_that_changed_its_user_belongs_to_the_former_user() {
    let name = name();
    let dropped = Arc::new(Siblings::join_at(name.clone()).unwrap());
    let [theirs, ours] = [name.clone(), name.clone()];
    let join = |name| Siblings::join_at(name).map(|it| it.slot());
    let refused = serves(&dropped, as_other_user(move || join(theirs))).unwrap_err();
    assert!(matches!(&refused, JoinError::User(stranger) if (stranger.theirs, stranger.ours) == (0, OTHER)));
    let joined = serves(&dropped, thread::spawn(move || join(ours))).unwrap();
    assert_ne!(joined, dropped.slot());
    let at = slot_name(&name, dropped.slot());
    let received = serves(&dropped, thread::spawn(move || hello_of_other_user(&at, joined)));
    assert!(received.is_empty(), "{received:?}");
}

/// Answers siblings in a thread of the other user until `until` has ended.
fn serves<T: Send + 'static>(process: &Arc<Siblings>, until: thread::JoinHandle<T>) -> T {
    let process = process.clone();
    let serve = move || {
        while !until.is_finished() {
            drop(process.shared.catch_up());
            thread::yield_now();
        }
        until.join().unwrap()
    };
    as_other_user(serve).join().unwrap()
}
