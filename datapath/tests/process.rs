//! Tests the effects of a device on its process: its threads block signals, and its descriptors are closed on exec.

mod common;

use common::{SocketPeer, core_config, ip, open, own_network, wait_for_link};
use ferroce_datapath::dpdk::Port;
use ferroce_datapath::engine::{Engine, EventQueue, Progress};
use ferroce_datapath::signals::FAULTS;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Runs the tests one at a time, because both inspect the whole process.
static TURNS: Mutex<()> = Mutex::new(());

/// Descriptors that were open before DPDK started.
static BEFORE: OnceLock<Descriptors> = OnceLock::new();

/// Descriptors by number: the target of each, and whether a started program inherits it.
type Descriptors = BTreeMap<i32, (String, bool)>;

struct Devices {
    _engines: Vec<Engine>,
    _ports: [Port; 3],
    directory: PathBuf,
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn engine(port: Port, progress: Progress) -> Engine {
    let config = core_config(&port, "10.0.0.1/24", progress);
    // SAFETY: these tests register no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    engine.subscribe(Arc::new(EventQueue::new(|_| true).unwrap()));
    engine.call(|_, _| ()).unwrap();
    engine
}

fn devices() -> Devices {
    own_network();
    ip("link add process0 mtu 4200 type veth peer name process1");
    ip("link set process0 up");
    ip("link set process1 up");
    let directory = std::env::temp_dir().join(format!("ferroce-process-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = |name: &str| directory.join(name).display().to_string();
    let server = open(&format!("memif:{},server", socket("memif")));
    let client = open(&format!("memif:{},client", socket("memif")));
    wait_for_link(&server, &client);
    let vhost = open(&format!("virtio:{},server", socket("vhost")));
    let engines = vec![
        engine(open("process0"), Progress::Adaptive),
        engine(open("process1"), Progress::Dedicated { core: None }),
    ];
    Devices { _engines: engines, _ports: [server, client, vhost], directory }
}

/// Kernel names of the threads that run this file's tests, and of those that they start. Such threads start at any time, and remain listed
/// for a short time after they end.
const TESTS: [&str; 3] = ["our_threads_rec", "a_program_that_", "a_memif_server_"];

/// Returns the process's threads by id, except those of tests, with their names and blocked signals.
fn threads() -> BTreeMap<u32, (String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let known = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
        let blocked = u64::from_str_radix(field("SigBlk:")?, 16).ok()?;
        let name = field("Name:").filter(|name| !TESTS.contains(name))?;
        Some((task.file_name().to_str()?.parse().ok()?, (name.to_owned(), blocked)))
    });
    known.collect()
}

#[test]
fn our_threads_receive_no_signal_of_the_program() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    BEFORE.get_or_init(descriptors);
    let before = threads();
    let devices = std::thread::spawn(devices).join().unwrap();
    let ours: Vec<_> = threads().into_iter().filter(|(id, _)| !before.contains_key(id)).collect();
    let names: Vec<_> = ours.iter().map(|(_, (name, _))| name.as_str()).collect();
    for name in ["ferroce-core", "ferroce-link", "ferroce-memif"].into_iter().chain(dpdk_sys::THREADS) {
        assert!(
            names.contains(&name) || before.values().any(|(other, _)| other == name),
            "{name} in {names:?}"
        );
    }
    let never = [libc::SIGKILL, libc::SIGSTOP];
    // glibc uses these two itself.
    let kept = [32, 33];
    for (_, (name, blocked)) in ours {
        for signal in (1..=64).filter(|signal| !kept.contains(signal)) {
            let open = never.contains(&signal) || FAULTS.contains(&signal);
            assert_eq!(blocked >> (signal - 1) & 1 == 0, open, "{name}: signal {signal}, of {blocked:016x}");
        }
    }
    drop(devices);
}

fn descriptors() -> Descriptors {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let known = open.filter_map(|entry| {
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        let what = std::fs::read_link(entry.path()).ok()?.display().to_string();
        // SAFETY: only reads a flag; the kernel refuses a descriptor that was closed in the meantime.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        (flags >= 0).then_some((fd, (what, flags & libc::FD_CLOEXEC == 0)))
    });
    known.collect()
}

#[test]
fn a_program_that_is_started_inherits_no_descriptor() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = BEFORE.get_or_init(descriptors);
    let devices = std::thread::spawn(devices).join().unwrap();
    let inherited = || -> Vec<_> {
        let new = descriptors().into_iter().filter(|(fd, what)| before.get(fd) != Some(what));
        new.filter(|(_, (_, inherits))| *inherits).collect()
    };
    // While a memif connects, DPDK's interrupt thread creates its epoll set again, which is set close-on-exec right afterwards.
    let mut left = inherited();
    for _ in 0..10_000 {
        if left.is_empty() {
            break;
        }
        std::thread::yield_now();
        left = inherited();
    }
    assert!(left.is_empty(), "{left:?}");
    drop(devices);
}

fn limit_descriptors(limit: libc::rlim_t) -> libc::rlim_t {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: limit, ..old }), 0);
    }
    old.rlim_cur
}

#[test]
fn a_memif_server_links_peers_again_after_a_lack_of_descriptors() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    BEFORE.get_or_init(descriptors);
    let directory = tempfile::tempdir().unwrap();
    let spec = format!("memif:{}/x.sock", directory.path().display());
    let _server = open(&format!("{spec},server"));
    let peer = SocketPeer::new();

    // One descriptor is left: for the peer, but not for its connection to the driver.
    let next = std::fs::File::open("/dev/null").unwrap();
    let limit = next.as_raw_fd() as libc::rlim_t + 1;
    drop(next);
    let old = limit_descriptors(limit);
    peer.connect(&directory.path().join("x.sock"));
    peer.wait_until_closed();
    limit_descriptors(old);

    let client = open(&format!("{spec},client"));
    wait_for_link(&client, &client);
}
