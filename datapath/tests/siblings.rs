//! Tests of siblings with real processes: killed and stopped ones, other users, other network namespaces.

mod common;

use common::{core_config, ip, open, own_network};
use ferroce_datapath::engine::{Engine, MAD_LENGTH, Progress};
use ferroce_datapath::event_fd::EventFd;
use ferroce_datapath::linux::Interface;
use ferroce_datapath::siblings::{Claim, ClaimError, Delivery, Siblings};
use roce::wire::Path;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

/// Turns of a poll loop after which a frame is considered lost.
const TURNS: u32 = 1_000_000;

fn claim(port: u64) -> Claim {
    let at = "10.9.0.1".parse().unwrap();
    Claim { service: 0x0106_0000 | port, at, family_only: false, shared: false, listens: true }
}

fn errno(result: Result<(), ClaimError>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

fn join(interface: u32) -> Siblings {
    let mut siblings = Siblings::join(interface, Delivery::ToAll).unwrap();
    siblings.run().unwrap();
    siblings
}

/// The environment variable that passes the interface and the port to claim to a process that [`Process::start`] starts.
const CHILD: &str = "FERROCE_SIBLING";
const CLAIMED: &str = "claimed";

/// A process that joins an interface, claims a service, and keeps it until it is killed.
///
/// It is started as a program, because the forked child of a process with threads would inherit locks that are never released.
struct Process(Child);

impl Process {
    fn start(interface: u32, port: u64) -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let mut child = program
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, format!("{interface} {port}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().ends_with(CLAIMED)), "{:?}", child.wait());
        Process(child)
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: sends a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as libc::pid_t, signal) }, 0);
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

/// Does nothing unless [`Process::start`] started this process.
#[test]
fn child() {
    let Ok(wanted) = std::env::var(CHILD) else { return };
    let (interface, port) = wanted.split_once(' ').unwrap();
    let siblings = join(interface.parse().unwrap());
    siblings.claim(&claim(port.parse().unwrap())).unwrap();
    println!("{CLAIMED}");
    // Ends with the parent process, unless it is killed before.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn the_services_of_a_killed_process_are_free() {
    own_network();
    let first = Process::start(7, 1);
    let ours = join(7);
    let third = Process::start(7, 3);
    assert_eq!(errno(ours.claim(&claim(1))), libc::EADDRINUSE);
    assert_eq!(errno(ours.claim(&claim(2))), 0);
    first.kill();
    assert_eq!(errno(ours.claim(&claim(1))), 0, "its process is dead");
    assert_eq!(errno(ours.claim(&claim(3))), libc::EADDRINUSE, "this one is alive");
    third.kill();
    assert_eq!(errno(ours.claim(&claim(3))), 0);
    let fourth = Process::start(7, 4);
    assert_eq!(errno(ours.claim(&claim(4))), libc::EADDRINUSE);
    fourth.kill();
}

/// Each process in turn is stopped while the others claim and release.
#[test]
fn a_stopped_process_does_not_delay_claims_of_the_others() {
    own_network();
    let first = Process::start(7, 1);
    let ours = join(7);
    let third = Process::start(7, 3);
    for stopped in [&first, &third] {
        stopped.signal(libc::SIGSTOP);
        for _ in 0..100 {
            assert_eq!(errno(ours.claim(&claim(1))), libc::EADDRINUSE);
            assert_eq!(errno(ours.claim(&claim(3))), libc::EADDRINUSE);
            assert_eq!(errno(ours.claim(&claim(2))), 0);
            ours.release(&claim(2));
        }
        stopped.signal(libc::SIGCONT);
    }
    first.kill();
    assert_eq!(errno(ours.claim(&claim(1))), 0);
    third.kill();
}

/// Each of three processes in turn is stopped while new ones join, claim and end.
#[test]
fn a_stopped_process_does_not_delay_a_new_one() {
    own_network();
    let there = [1, 2, 3].map(|port| Process::start(7, port));
    for stopped in &there {
        stopped.signal(libc::SIGSTOP);
        Process::start(7, 4).kill();
        let ours = join(7);
        for port in [1, 2, 3] {
            assert_eq!(errno(ours.claim(&claim(port))), libc::EADDRINUSE);
        }
        assert_eq!(errno(ours.claim(&claim(4))), 0);
        stopped.signal(libc::SIGCONT);
    }
    there.into_iter().for_each(Process::kill);
}

/// Does nothing unless [`processes_of_an_ordinary_user_that_start_at_once_all_join`] started this process.
#[test]
fn crowd_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut go = std::io::stdin();
    go.read_exact(&mut [0]).unwrap();
    let open_files = libc::rlimit { rlim_cur: 150, rlim_max: 150 };
    // SAFETY: the credentials of this thread, which joins, and a limit of this process, which has no other purpose.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &open_files), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0, "these tests run as root");
    }
    let _siblings = join(7);
    println!("{CLAIMED}");
    let _ = go.read(&mut [0]);
}

/// Linux limits the descriptors in flight of an ordinary user to the limit on its open files.
#[test]
fn processes_of_an_ordinary_user_that_start_at_once_all_join() {
    own_network();
    let start = |_| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let program = program.args(["--exact", "crowd_child", "--nocapture"]).env(CHILD, "");
        Process(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    };
    let mut crowd: Vec<Process> = (0..24).map(start).collect();
    for Process(child) in &mut crowd {
        child.stdin.as_mut().unwrap().write_all(&[0]).unwrap();
    }
    for Process(child) in &mut crowd {
        let said = BufReader::new(child.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().ends_with(CLAIMED)), "{:?}", child.wait());
    }
    crowd.into_iter().for_each(Process::kill);
}

#[test]
fn another_user_is_refused_in_one_line_with_the_user_and_a_remedy() {
    own_network();
    let first = join(7);
    let refused = thread::spawn(|| {
        // SAFETY: changes the credentials of this thread only, which ends with the test.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0, "these tests run as root");
        let early = Siblings::check_user(7, Delivery::ToAll).unwrap_err().to_string();
        assert_eq!(Siblings::join(7, Delivery::ToAll).unwrap_err().to_string(), early);
        early
    });
    Siblings::check_user(7, Delivery::ToAll).expect("this user has it");
    Siblings::check_user(8, Delivery::ToAll).expect("no process has it");
    let said = refused.join().unwrap();
    let process = std::process::id().to_string();
    for words in ["user 0", "user 65534", &process, "run as that user"] {
        assert!(said.contains(words) && !said.contains('\n'), "{said}");
    }
    first.claim(&claim(1)).unwrap();
}

/// Does nothing unless [`a_small_file_size_limit_is_named_and_ends_no_process`] started this process.
#[test]
fn limited_child() {
    if std::env::var_os(CHILD).is_some() {
        println!("{}", Siblings::join(7, Delivery::ToAll).unwrap_err());
    }
}

/// Linux kills a process with SIGXFSZ if it extends a file beyond RLIMIT_FSIZE, even one in memory.
#[test]
fn a_small_file_size_limit_is_named_and_ends_no_process() {
    own_network();
    for blocks in ["0", "8"] {
        let limited = Command::new("sh")
            .args(["-c", "ulimit -f $1 && exec \"$0\" --exact limited_child --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .arg(blocks)
            .env(CHILD, "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&limited.stdout);
        assert!(
            limited.status.success() && said.contains("ulimit -f unlimited"),
            "{:?}: {said}",
            limited.status
        );
    }
}

#[test]
fn claims_are_separate_per_network_namespace_and_interface() {
    own_network();
    let first = join(7);
    first.claim(&claim(1)).unwrap();
    join(8).claim(&claim(1)).unwrap();
    let elsewhere = || {
        own_network();
        errno(join(7).claim(&claim(1)))
    };
    assert_eq!(thread::spawn(elsewhere).join().unwrap(), 0);
    assert_eq!(errno(join(7).claim(&claim(1))), libc::EADDRINUSE);
}

fn start(progress: Progress) -> Engine {
    let port = open("siblings0");
    let config = core_config(&port, "10.9.0.1/24", progress);
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(port, &config).unwrap() }
}

/// Sends a datagram from one engine's queue pair 1 to the interface's own address, which is not sent to the wire. Returns whether `to`
/// receives it.
fn carry(from: &Engine, to: &Engine, mac: roce::wire::Mac, byte: u8) -> bool {
    let address = "10.9.0.1".parse().unwrap();
    assert_eq!(from.look_up(address).unwrap(), Some(mac));
    let path = Path { udp_source: 0xd872, ..Path::new((mac, address), (mac, address)) };
    assert!(from.call(move |state, _| state.send_mad(path, [byte; MAD_LENGTH])).unwrap());
    (0..TURNS).any(|_| {
        from.progress();
        to.progress();
        let came = to.call(|state, _| state.receive_mad()).unwrap();
        thread::yield_now();
        came == Some((address, [byte; MAD_LENGTH]))
    })
}

/// Creates an interface of this name, with an address.
fn interface(name: &str) -> Interface {
    ip(&format!("link add {name} mtu 4200 type veth peer name {name}p"));
    ip(&format!("addr add 10.9.0.1/24 dev {name}"));
    ip(&format!("link set {name} up"));
    ip(&format!("link set {name}p up"));
    ferroce_datapath::linux::interface(name).unwrap()
}

#[test]
fn frames_pass_between_processes_while_a_third_is_stopped() {
    own_network();
    let Interface { mac, index, .. } = interface("siblings0");
    let third = Process::start(index, 1);
    let engines = [start(Progress::Inline), start(Progress::Inline)];
    for engine in &engines {
        let event_fd = Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
        assert!(engine.call(move |state, _| state.open_management(event_fd)).unwrap());
    }
    let [one, other] = &engines;
    third.signal(libc::SIGSTOP);
    // More frames than its ring has room for.
    for byte in 0..2000 {
        assert!(carry(one, other, mac, byte as u8), "{byte}");
    }
    third.kill();
}

#[test]
fn frames_to_this_host_reach_a_sibling_with_another_slot() {
    own_network();
    let mac = interface("siblings0").mac;
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated { core: None }] {
        let engines = [start(progress), start(progress)];
        for engine in &engines {
            let event_fd = Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
            assert!(engine.call(move |state, _| state.open_management(event_fd)).unwrap());
        }
        let [one, other] = &engines;
        assert!(carry(one, other, mac, 1) && carry(other, one, mac, 2), "{progress:?}");
        let [one, other] = engines.each_ref().map(|engine| engine.siblings().unwrap().slot());
        assert_ne!(one, other);
    }
}
