//! Registered memory that the program unmaps, protects, or loses by truncating the underlying file: requests that use it fail, locally or
//! at the peer, and all others continue. Also tests that other SIGSEGV and SIGBUS signals are delivered to the program.

mod common;

use common::*;
use ferroce_verbs::state::State;
use ferroce_verbs::{
    Access, Capabilities, CompletionStatus, ConnectOptions, Data, MemoryRegion, Progress, ProtectionDomain,
    RecvRequest, SendRequest,
};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::{null, null_mut};

const LENGTH: usize = 1 << 16;
/// Offset of a message. Only its first page remains mapped.
const AT: usize = 4096;
const BYTES: u32 = 12_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unmap,
    Protect,
    Shorten,
}

/// Pages of a file, of which all but the first two may vanish.
struct Pages {
    start: *mut u8,
    file: File,
}

impl Pages {
    fn new() -> Self {
        // SAFETY: creates a new file, and maps it at an address that the kernel chooses.
        unsafe {
            let file = File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC));
            file.set_len(LENGTH as u64).unwrap();
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(null_mut(), LENGTH, rights, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            Self { start: start.cast(), file }
        }
    }

    fn register(&self, pd: &ProtectionDomain) -> MemoryRegion {
        // SAFETY: the memory is mapped. After it vanishes, nothing else is mapped there while the region lives.
        unsafe { MemoryRegion::register_raw(pd, self.start, LENGTH, Access::ALL) }.unwrap()
    }

    fn vanish(&self, way: Way) {
        let (rest, length) = (self.start.wrapping_add(2 * 4096).cast(), LENGTH - 2 * 4096);
        // SAFETY: there is no reference to the pages.
        let result = unsafe {
            match way {
                Way::Unmap => libc::munmap(rest, length),
                Way::Protect => libc::mprotect(rest, length, libc::PROT_NONE),
                Way::Shorten => libc::ftruncate(self.file.as_raw_fd(), 2 * 4096),
            }
        };
        assert_eq!(result, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: unmaps the rest of the mapping, which is no longer used.
        unsafe { libc::munmap(self.start.cast(), LENGTH) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Write,
    Read,
    Send,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
}

const VERBS: [Verb; 6] =
    [Verb::Write, Verb::Read, Verb::Send, Verb::FetchAdd, Verb::CompareSwap, Verb::AtomicWrite];

fn another(a: &Side, b: &Side) -> (Side, Side) {
    let make = |side: &Side| common::side(&side.device, 4096, Capabilities::default(), 64);
    let (mut a, mut b) = (make(a), make(b));
    connect(&mut a, &mut b, &ConnectOptions::default());
    (a, b)
}

/// Posts a request whose memory on side `loser` has vanished. Returns the status of the request, and of the receive if `loser` is 1.
fn ends(progress: Progress, way: Way, verb: Verb, loser: usize) -> [Option<CompletionStatus>; 2] {
    let (mut a, mut b) = connected(progress, 4096);
    let (mut c, d) = another(&a, &b);
    let pages = [Pages::new(), Pages::new()];
    let regions = [pages[0].register(&a.pd), pages[1].register(&b.pd)];
    b.qp.post_recv(RecvRequest::new(2, regions[1].sge(AT, BYTES).unwrap())).unwrap();
    pages[loser].vanish(way);
    let (sge, word) = (regions[0].sge(AT, BYTES).unwrap(), regions[0].sge(2 * 4096 + 8, 8).unwrap());
    let (remote, remote_word) = (regions[1].remote().at(AT as u64), regions[1].remote().at(2 * 4096 + 8));
    let request = match verb {
        Verb::Write => SendRequest::write(1, sge, remote),
        Verb::Read => SendRequest::read(1, sge, remote),
        Verb::Send => SendRequest::send(1, sge),
        Verb::FetchAdd => SendRequest::fetch_add(1, word, remote_word, 1),
        Verb::CompareSwap => SendRequest::compare_swap(1, word, remote_word, 0, 1),
        Verb::AtomicWrite => SendRequest::atomic_write(1, word, remote_word),
    };
    a.qp.post_send(request).unwrap();
    let sent = next(&mut a.send_cq, &b.device).status;
    assert_eq!(a.qp.query().unwrap().state, State::Error, "{way:?} {verb:?} {loser}");
    let received = (loser == 1).then(|| next(&mut b.recv_cq, &a.device).status);
    c.qp.post_send(SendRequest::write(3, Data::inline(b"goes on"), d.region.remote().at(0))).unwrap();
    success(&mut c.send_cq, &d.device);
    assert_eq!(contents(&d.region, 0, 7), b"goes on");
    // Dropped before the pages, so that nothing else is mapped at their addresses before.
    drop((regions, a, b, c, d));
    [Some(sent), received]
}

/// The side whose memory vanished reports a protection error, and the peer a remote error.
#[test]
fn a_request_with_unmapped_memory_fails_and_others_continue() {
    use CompletionStatus::{Flushed, LocalProtection, RemoteAccess, RemoteOperation};
    for way in [Way::Unmap, Way::Protect, Way::Shorten] {
        for verb in VERBS {
            // An unmapped address range could become another thread's stack, so this case requires a process without such threads.
            for progress in [Progress::Inline, Progress::Dedicated { core: None }] {
                if way == Way::Unmap && progress != Progress::Inline {
                    continue;
                }
                let what = format!("{way:?} {verb:?} {progress:?}");
                assert_eq!(ends(progress, way, verb, 0), [Some(LocalProtection), None], "{what}");
                let (sent, received) = match verb {
                    Verb::Send => (RemoteOperation, LocalProtection),
                    _ => (RemoteAccess, Flushed),
                };
                assert_eq!(ends(progress, way, verb, 1), [Some(sent), Some(received)], "{what}");
            }
        }
    }
}

/// The programs that [`child`] runs, with their expected endings.
const PROGRAMS: [(&str, fn(), Ending); 6] = [
    ("no handler", no_handler, Ending::Signal(libc::SIGSEGV)),
    ("a handler before the device", before, Ending::Code(42)),
    ("a handler after the device", after, Ending::Code(42)),
    ("a handler that passes on what it does not know", passes_on, Ending::Signal(libc::SIGBUS)),
    ("a signal that another process sends", sent, Ending::Signal(libc::SIGSEGV)),
    ("handlers after the device is closed", closed, Ending::Code(43)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Code(i32),
    Signal(i32),
}

#[test]
fn a_fault_of_the_program_has_its_usual_exit_status() {
    for (name, _, ending) in PROGRAMS {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let done =
            program.args(["--exact", "child", "--nocapture"]).env("FERROCE_FAULTS", name).output().unwrap();
        let status: ExitStatus = done.status;
        let found = status.code().map_or_else(|| Ending::Signal(status.signal().unwrap()), Ending::Code);
        assert_eq!(found, ending, "{name}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Does nothing unless [`a_fault_of_the_program_has_its_usual_exit_status`] started it.
#[test]
fn child() {
    let Ok(wanted) = std::env::var("FERROCE_FAULTS") else { return };
    let (_, program, _) = PROGRAMS.into_iter().find(|(name, ..)| *name == wanted).unwrap();
    program();
}

/// Runs a peer's WRITE to vanished memory. The process must survive it.
fn survive() {
    let ended = ends(Progress::Inline, Way::Shorten, Verb::Write, 1);
    assert_eq!(ended[0], Some(CompletionStatus::RemoteAccess));
}

/// Causes a fault that does not belong to the library.
fn fault() {
    let pages = Pages::new();
    pages.vanish(Way::Protect);
    // SAFETY: the address is mapped without access, so the store only faults.
    unsafe { pages.start.add(3 * 4096).write_volatile(1) };
    std::process::exit(1);
}

extern "C" fn leave(_: libc::c_int) {
    // SAFETY: ends only this process.
    unsafe { libc::_exit(42) };
}

fn set(signal: libc::c_int, handler: usize, flags: libc::c_int) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid action.
    unsafe {
        let (mut action, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(signal, &action, &mut old), 0);
        old
    }
}

fn handler_of(signal: libc::c_int) -> usize {
    // SAFETY: all-zero bytes are a valid action, and the call only writes to it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal, null(), &mut action), 0);
        action.sa_sigaction
    }
}

fn no_handler() {
    let _device = devices(Progress::Inline);
    survive();
    fault();
}

fn before() {
    set(libc::SIGSEGV, leave as *const () as usize, 0);
    let _device = devices(Progress::Inline);
    survive();
    fault();
}

fn after() {
    let device = devices(Progress::Inline);
    set(libc::SIGSEGV, leave as *const () as usize, 0);
    set(libc::SIGBUS, leave as *const () as usize, 0);
    device[0].core_counters().unwrap();
    survive();
    fault();
}

static OLD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn pass(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: sigaction returned this handler, which was installed with SA_SIGINFO.
    let old: Handler = unsafe { std::mem::transmute(OLD.load(std::sync::atomic::Ordering::Relaxed)) };
    old(signal, info, context);
}

fn passes_on() {
    let device = devices(Progress::Inline);
    let old = set(libc::SIGBUS, pass as *const () as usize, libc::SA_SIGINFO);
    OLD.store(old.sa_sigaction, std::sync::atomic::Ordering::Relaxed);
    // The program's handler calls the library's one.
    survive();
    device[0].core_counters().unwrap();
    // Now the library's handler calls the program's one.
    survive();
    let pages = Pages::new();
    pages.vanish(Way::Shorten);
    // SAFETY: the address is beyond the end of the file, so the store only faults.
    unsafe { pages.start.add(3 * 4096).write_volatile(1) };
}

fn sent() {
    set(libc::SIGBUS, libc::SIG_IGN, 0);
    // Replaces the handler of std, which would treat a sent signal as a fault.
    set(libc::SIGSEGV, libc::SIG_DFL, 0);
    let _device = devices(Progress::Inline);
    // SAFETY: raise has only a number as argument.
    unsafe {
        libc::raise(libc::SIGBUS);
        libc::raise(libc::SIGSEGV);
    }
}

fn closed() {
    set(libc::SIGSEGV, leave as *const () as usize, 0);
    let first = handler_of(libc::SIGBUS);
    survive();
    assert_eq!(handler_of(libc::SIGSEGV), leave as *const () as usize);
    assert_eq!(handler_of(libc::SIGBUS), first);
    std::process::exit(43);
}
