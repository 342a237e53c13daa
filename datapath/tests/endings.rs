//! Tests of calls from threads and processes that are ending, whose thread-local storage has already been destroyed.

mod common;

use common::{core_config, eal, open};
use ferroce_datapath::engine::{Engine, Progress};
use std::ffi::c_void;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const MODES: [Progress; 3] = [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive];

fn start(ring: &str, progress: Progress) -> Engine {
    let port = open(ring);
    let config = core_config(&port, "10.0.0.1/24", progress);
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(port, &config).unwrap() }
}

/// Calls the core ten times, and returns the number of successful calls. Each call is slow, so that the caller must wait.
fn uses(engine: &Engine) -> usize {
    let slow = |_: &mut _, now| {
        (0..1000).for_each(|_| std::thread::yield_now());
        now
    };
    (0..10).filter(|_| engine.call(slow).is_ok() && engine.check().is_ok()).count()
}

/// A value for the destructor of a pthread key, which runs after the destructors of thread-local variables.
struct Left {
    engine: &'static Engine,
    worked: &'static AtomicUsize,
}

unsafe extern "C" fn at_end_of_thread(left: *mut c_void) {
    // SAFETY: the thread stored a box, and the destructor of the key runs once for it.
    let left = unsafe { Box::from_raw(left.cast::<Left>()) };
    eal().register_thread();
    left.worked.fetch_add(uses(left.engine), Ordering::Relaxed);
}

#[test]
fn a_thread_that_ends_still_calls_the_core() {
    for (mode, ring) in MODES.into_iter().zip(["ring:ends0", "ring:ends1", "ring:ends2"]) {
        let engine: &'static Engine = Box::leak(Box::new(start(ring, mode)));
        let worked: &'static AtomicUsize = Box::leak(Box::default());
        let mut key = 0;
        // SAFETY: `key` has room, and the destructor takes the boxes that the threads below store.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(at_end_of_thread)) }, 0);
        for used_before in [true, false] {
            let body = move || {
                if used_before {
                    eal().register_thread();
                    uses(engine);
                }
                let left = Box::into_raw(Box::new(Left { engine, worked }));
                // SAFETY: the key exists, and its destructor takes the box.
                assert_eq!(unsafe { libc::pthread_setspecific(key, left.cast()) }, 0);
            };
            std::thread::spawn(body).join().unwrap();
        }
        assert_eq!(worked.load(Ordering::Relaxed), 20, "{mode:?}");
        assert_eq!(uses(engine), 10, "the device afterwards, {mode:?}");
    }
}

const WORKED: i32 = 42;
const CHILD: &str = "FERROCE_TEST_AT_EXIT";

static LAST: OnceLock<Engine> = OnceLock::new();

extern "C" fn at_end_of_process() {
    let worked = LAST.get().map_or(0, uses);
    // SAFETY: ends the process.
    unsafe { libc::_exit(if worked == 10 { WORKED } else { 1 }) };
}

#[test]
fn a_process_that_ends_still_calls_the_core() {
    let this = "a_process_that_ends_still_calls_the_core";
    if let Ok(mode) = std::env::var(CHILD) {
        let engine = LAST.get_or_init(|| start("ring:exits", MODES[mode.parse::<usize>().unwrap()]));
        eal().register_thread();
        assert_eq!(uses(engine), 10);
        // SAFETY: the handler lives as long as the program.
        assert_eq!(unsafe { libc::atexit(at_end_of_process) }, 0);
        std::process::exit(0);
    }
    for (number, mode) in MODES.into_iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let done =
            child.args(["--exact", this, "--nocapture"]).env(CHILD, number.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(WORKED), "{mode:?}: {:?}: {said}", done.status);
    }
}
