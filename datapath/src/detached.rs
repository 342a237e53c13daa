//! Starts a program that outlives this process and is not its child: wait(2) of this process does not return it, and SIGCHLD does not
//! report it.
//!
//! `siblings::guard` uses it in programs that are not ours. So their handlers of pthread_atfork(3) do not run, and their memory is not
//! copied. The intermediate processes before exec share it, as those of posix_spawn(3) do.

use crate::signals;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The number of the first descriptor that the program receives. It receives no others, except `/dev/null` as its standard streams.
pub(crate) const FIRST: RawFd = 3;

/// The number of descriptors that the program receives.
pub(crate) const DESCRIPTORS: usize = 3;

/// The alignment of a stack in bytes, on all processors of Linux.
const ALIGNMENT: usize = align_of::<u128>();
/// Bytes of the stack of a process before exec.
const STACK: usize = 64 << 10;

/// State that the processes before exec read and write. They allocate nothing, because other threads may hold the allocator's lock.
struct Order<'a> {
    program: &'a CStr,
    /// Ends with a null pointer.
    arguments: *const *const c_char,
    descriptors: [RawFd; DESCRIPTORS],
    /// The top of the second process's stack.
    stack: *mut c_void,
    /// The error of the first step that failed, or 0.
    failed: AtomicI32,
}

/// Starts `program` with its name and these arguments, an empty environment, and copies of `descriptors` as [`FIRST`] and the numbers after
/// it. The program has its own session, the root directory as its working directory, and all signals blocked except faults. Waits until the
/// program runs.
///
/// # Errors
/// Returns the error of exec, or that of the system if it cannot create a process.
pub(crate) fn start(
    program: &CStr,
    arguments: &[&CStr],
    descriptors: [BorrowedFd<'_>; DESCRIPTORS],
) -> io::Result<()> {
    let (mut first, mut second) = (stack()?, stack()?);
    let null = std::ptr::null();
    let arguments: Vec<_> =
        [program].iter().chain(arguments).map(|word| word.as_ptr()).chain([null]).collect();
    let order = Order {
        program,
        arguments: arguments.as_ptr(),
        descriptors: descriptors.map(|descriptor| descriptor.as_raw_fd()),
        stack: top(&mut second),
        failed: AtomicI32::new(0),
    };
    signals::blocked(|| {
        // SAFETY: `between` runs on its own stack while this thread waits for its end, and `order` lives longer.
        let child = unsafe { run(between, top(&mut first), &order) };
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: waits for the process just created, which no other wait of this process returns. Nothing is to be learned from its
        // status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WCLONE) };
        match order.failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    })
}

fn stack() -> io::Result<Vec<u128>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(STACK / ALIGNMENT).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(memory)
}

/// Returns the end of the memory, where a stack starts.
fn top(stack: &mut Vec<u128>) -> *mut c_void {
    stack.as_mut_ptr().wrapping_add(STACK / ALIGNMENT).cast()
}

/// Runs `body` in a process that shares this one's memory, and waits until that process executes a program or ends. It has no exit signal,
/// so only a wait for clone children returns it (clone(2)).
///
/// # Safety
/// The caller must pass the top of [`STACK`] unused bytes as `stack`, and a `body` that does only what a signal handler may do.
unsafe fn run(body: extern "C" fn(*mut c_void) -> c_int, stack: *mut c_void, order: &Order<'_>) -> c_int {
    let order = std::ptr::from_ref(order).cast_mut().cast();
    // SAFETY: the caller promises the stack. With CLONE_VFORK this thread does not run before the process has left the memory.
    unsafe { libc::clone(body, stack, libc::CLONE_VM | libc::CLONE_VFORK, order) }
}

/// The intermediate process. Its end leaves the program without a parent.
extern "C" fn between(order: *mut c_void) -> c_int {
    // SAFETY: `run` passes an order, which `start` keeps until this process has ended.
    let order = unsafe { &*order.cast::<Order<'_>>() };
    // SAFETY: the second stack is used here alone, and `execute` only makes system calls.
    if unsafe { run(execute, order.stack, order) } < 0 {
        order.fail();
    }
    0
}

/// The process that becomes the program.
extern "C" fn execute(order: *mut c_void) -> c_int {
    // SAFETY: as in `between`.
    let order = unsafe { &*order.cast::<Order<'_>>() };
    let environment = [std::ptr::null::<c_char>()];
    if order.prepare() {
        // SAFETY: the strings are NUL-terminated, and both lists end with a null pointer.
        unsafe {
            libc::syscall(libc::SYS_execve, order.program.as_ptr(), order.arguments, environment.as_ptr())
        };
    }
    order.fail();
    0
}

impl Order<'_> {
    /// Stores the calling thread's errno, which the processes share.
    fn fail(&self) {
        // SAFETY: the location is valid.
        self.failed.store(unsafe { *libc::__errno_location() }, Ordering::Relaxed);
    }

    /// Starts a new session, changes to the root directory, and places the descriptors. Returns false if a system call fails.
    ///
    /// Makes system calls directly, without functions of libc. A preloaded library may replace `dup2` or `close`, as librspreload does, and
    /// would then lose track of the program's descriptors.
    fn prepare(&self) -> bool {
        let past = FIRST + DESCRIPTORS as RawFd;
        // SAFETY: all calls take integers or NUL-terminated strings, and change this process's own copies of the descriptors.
        unsafe {
            let null = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_RDWR);
            // Moves them first to numbers that no other descriptor gets.
            let away =
                |descriptor: RawFd| libc::syscall(libc::SYS_fcntl, descriptor, libc::F_DUPFD, past) as RawFd;
            let place = |copy: RawFd, at: RawFd| copy >= 0 && libc::syscall(libc::SYS_dup3, copy, at, 0) >= 0;
            let (copies, null) = (self.descriptors.map(away), away(null as RawFd));
            (0..FIRST).all(|standard| place(null, standard))
                && (FIRST..).zip(copies).all(|(at, copy)| place(copy, at))
                && libc::syscall(libc::SYS_close_range, past, RawFd::MAX, 0) >= 0
                && libc::syscall(libc::SYS_setsid) >= 0
                && libc::syscall(libc::SYS_chdir, c"/".as_ptr()) >= 0
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    /// Starts a program with a pipe as each descriptor. Returns what the program writes until it has closed them.
    fn output(program: &CStr, arguments: &[&CStr]) -> String {
        let (mut reader, writer) = io::pipe().unwrap();
        start(program, arguments, [writer.as_fd(); DESCRIPTORS]).unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_program_is_no_child_and_has_its_own_session_and_the_root_directory() {
        let script = c"read -r process name state parent group session rest </proc/$$/stat; \
            echo $process $parent $session $(pwd) >&3";
        let text = output(c"/bin/sh", &[c"-c", script]);
        let words: Vec<_> = text.split_whitespace().collect();
        let [process, parent, session, folder] = words[..] else { panic!("{text}") };
        assert_ne!(parent, std::process::id().to_string());
        assert_eq!((session, folder), (process, "/"));
    }

    #[test]
    fn the_program_has_no_descriptor_but_those_passed_on_and_no_variable() {
        let (_reader, writer) = io::pipe().unwrap();
        // SAFETY: makes a descriptor that programs inherit.
        let inherited = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_DUPFD, 7) };
        let script = c"for number in 0 1 2 3 4 5 6 7 8 9; do \
            [ ! -e /proc/$$/fd/$number ] || there=$there$number; \
            [ ! /proc/$$/fd/$number -ef /dev/null ] || null=$null$number; \
            done; echo $there $null $(wc -c </proc/$$/environ) >&3";
        let text = output(c"/bin/sh", &[c"-c", script]);
        // SAFETY: the descriptor belongs to this test.
        unsafe { libc::close(inherited) };
        assert_eq!(text, "012345 012 0\n");
    }

    #[test]
    fn the_program_blocks_the_signals_of_a_terminal() {
        let text = output(c"/bin/cp", &[c"/proc/self/status", c"/dev/fd/3"]);
        let line = text.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(line.trim(), 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM] {
            assert_ne!(blocked & 1 << (signal - 1), 0, "{signal}");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let (_, writer) = io::pipe().unwrap();
        let error = start(c"/nonexistent", &[], [writer.as_fd(); DESCRIPTORS]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
