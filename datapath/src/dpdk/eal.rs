//! DPDK's environment: once in a process, with hugepages or without, as any user. Devices of a program that runs DPDK share its
//! environment.

use super::{descriptor, log, private_memory};
use crate::fork::{self, Process};
use crate::{environment, machine, signals};
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

/// The number of a thread that has no place among DPDK's (LCORE_ID_ANY).
const NO_LCORE: u32 = u32::MAX;

/// The EAL numbers at most this many cores (RTE_MAX_LCORE).
const MAX_CORES: usize = dpdk_sys::RTE_MAX_LCORE as usize;

/// The kind of memory that DPDK uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// In hugepages if enough are free, else in ordinary pages.
    #[default]
    Auto,
    /// In hugepages, or an error.
    Require,
    /// In ordinary pages.
    Never,
}

/// The settings that DPDK starts with.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// DPDK's memory in MiB: all pools of all ports come from it. Ordinary pages are taken only when touched.
    pub memory_mb: u32,
    /// The kind of that memory.
    pub hugepages: Hugepages,
    /// PCI addresses (`0000:01:00.0`) of the NICs to take; with none, DPDK leaves the PCI bus alone.
    pub pci: Vec<String>,
    /// A port's peer may map that memory. Without such a peer, and without hugepages, a forked child can open ports too.
    pub shared: bool,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self { memory_mb: 512, hugepages: Hugepages::Auto, pci: Vec::new(), shared: true }
    }
}

impl EalConfig {
    /// With memory for one port of so many buffers, and for what DPDK needs beside them.
    #[must_use]
    pub fn for_buffers(buffers: u32) -> Self {
        /// Bytes of a buffer for jumbo frames, with its headers.
        const BUFFER: u64 = 10 << 10;
        let default = Self::default();
        let memory_mb = ((u64::from(buffers) * BUFFER) >> 20) as u32 + 128;
        Self { memory_mb: memory_mb.max(default.memory_mb), ..default }
    }
}

/// Why DPDK didn't start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EalError {
    /// The library found at run time isn't the one that this was built for.
    #[error("the DPDK loaded is `{found}`, but this build needs 22.11; install librte-eal23 22.11")]
    Version {
        /// The library's own name and version.
        found: String,
    },
    /// Hugepages are required and too few are free.
    #[error(
        "only {free_mb} MiB of hugepages are free, but {need_mb} MiB are needed; \
         `echo {} > /proc/sys/vm/nr_hugepages`, or run without hugepages", need_mb.div_ceil(2)
    )]
    NoHugepages {
        /// The requested amount.
        need_mb: u32,
        /// The free amount.
        free_mb: u64,
    },
    /// No CPU is in sysfs, as in a container whose `/sys` is empty.
    #[error("{}: no CPU is there, but DPDK looks for them there; `mount -t sysfs sysfs /sys`, or start the container with /sys", folder.display())]
    NoSysfs {
        /// The folder that has the CPUs.
        folder: PathBuf,
    },
    /// DPDK refused.
    #[error("DPDK does not start ({errno}): {said}")]
    Refused {
        /// DPDK's error number in words.
        errno: String,
        /// DPDK's own words.
        said: String,
    },
    /// DPDK runs with other settings, which it takes only when it starts.
    #[error(
        "DPDK already runs in this process {has}; this device needs {wants}, which DPDK accepts only when it \
         starts: {remedy}"
    )]
    Running {
        /// The settings that it runs with.
        has: String,
        /// The requested settings.
        wants: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// An earlier start failed, and DPDK takes only one in a process.
    #[error("DPDK failed to start earlier in this process and cannot start again: {0}")]
    Before(Box<EalError>),
    /// DPDK runs in the parent, with which this process shares DPDK's memory: hugepages, or those of a port whose peer maps them.
    #[error(
        "this process was forked from one that runs DPDK, and shares its memory; open the first device after the fork, or start a program"
    )]
    Forked,
    /// The thread that starts DPDK could not be created.
    #[error("cannot create the thread that starts DPDK: {0}")]
    NoThread(String),
}

enum State {
    NotStarted,
    /// With these settings, in hugepages or not, in this process or one from which this one was forked. Memory that is not shared
    /// goes to a child as a copy.
    Running(EalConfig, bool, Process),
    Failed(EalError),
}

static STATE: Mutex<State> = Mutex::new(State::NotStarted);

/// The proof that DPDK runs in this process. It runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

impl Eal {
    /// Starts DPDK, or returns the running one, if that has what `config` wants. The program may have started it.
    ///
    /// The caller's thread keeps its affinity.
    ///
    /// # Errors
    /// Returns an [`EalError`] if DPDK cannot start.
    pub fn start(config: &EalConfig) -> Result<Self, EalError> {
        let mut state = fork::lock(&STATE).ok_or(EalError::Forked)?;
        match &mut *state {
            State::Running(running, _, process) if process.is_parent() && running.shared => {
                return Err(EalError::Forked);
            }
            State::Running(running, huge, process) => {
                suits(running, *huge, config)?;
                *process = Process::this();
                return Ok(Self(()));
            }
            State::Failed(why) => return Err(EalError::Before(Box::new(why.clone()))),
            State::NotStarted => check_version()?,
        }
        if let Some(huge) = started_by_program() {
            // How much memory it has shows when a port's pools are created.
            let running = EalConfig { memory_mb: u32::MAX, ..EalConfig::default() };
            suits(&running, huge, config)?;
            let _ = STARTED_IN.set(Process::this());
            *state = State::Running(running, huge, Process::this());
            return Ok(Self(()));
        }
        // A failure before DPDK is called leaves room for another try.
        let huge = check(config)?;
        match init(command_line(config, huge)?) {
            Ok(()) => {
                let shared = huge || config.shared || !becomes_private();
                let config = EalConfig { shared, ..config.clone() };
                *state = State::Running(config, huge, Process::this());
                Ok(Self(()))
            }
            Err(error) => {
                *state = State::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Creates a cache in every buffer pool for the calling thread, until the thread ends. Without it a thread works too, and pays a few
    /// atomic operations more per buffer. Returns false if all of DPDK's places (128) are taken. It also returns false in a thread that
    /// ends and has given its place back: key destructors and `atexit` handlers run then.
    pub fn register_thread(self) -> bool {
        // SAFETY: reads a variable of this thread.
        if unsafe { dpdk_sys::ferroce_lcore_id() } != NO_LCORE {
            // Registered before, or a thread of the program's DPDK, which keeps its number.
            return true;
        }
        thread_local!(static HERE: OnceCell<Registration> = const { OnceCell::new() });
        HERE.try_with(|here| here.get_or_init(Registration::new).0).unwrap_or(false)
    }
}

/// A thread's place among DPDK's, given back when the thread ends.
struct Registration(bool);

impl Registration {
    fn new() -> Self {
        // SAFETY: the EAL runs (only `Eal` gets here) and this thread isn't registered: the cell fills once.
        Self(unsafe { dpdk_sys::rte_thread_register() } == 0)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: this thread registered itself, and ends now.
            unsafe { dpdk_sys::rte_thread_unregister() };
        }
    }
}

/// Returns the loaded library's name and version, as in `DPDK 22.11.11`.
#[must_use]
pub fn version() -> String {
    // SAFETY: rte_version needs no EAL and returns a static NUL-terminated text.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// DPDK's error number of this thread, in words.
pub(super) fn errno() -> String {
    // SAFETY: reads a variable of this thread.
    words(unsafe { dpdk_sys::ferroce_errno() })
}

/// An error number in words; DPDK returns them negated too.
pub(super) fn words(errno: c_int) -> String {
    // SAFETY: rte_strerror returns NUL-terminated text of this thread, copied before the next call.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) }.to_string_lossy().into_owned()
}

/// Takes DPDK's memory from all other processes; `false` if that fails, which only forked children notice.
fn becomes_private() -> bool {
    let taken = private_memory::take();
    if let Err(error) = &taken {
        tracing::debug!("forked processes cannot open ports: {error}");
    }
    taken.is_ok()
}

/// Checks that DPDK, as it runs, has what another device wants.
fn suits(running: &EalConfig, huge: bool, wanted: &EalConfig) -> Result<(), EalError> {
    let refused = |has: String, wants: String, remedy| Err(EalError::Running { has, wants, remedy });
    if let Some(address) = wanted.pci.iter().find(|address| !running.pci.contains(address)) {
        let has = match running.pci.as_slice() {
            [] => "without PCI devices".to_owned(),
            devices => format!("with the PCI devices {}", devices.join(", ")),
        };
        let remedy = "open the port on the PCI device first, or in a process of its own";
        return refused(has, format!("the PCI device {address}"), remedy);
    }
    if wanted.memory_mb > running.memory_mb {
        let [has, wants] = [running, wanted].map(|config| format!("{} MiB of memory", config.memory_mb));
        let remedy = "open the device that needs most memory first, or set fewer buffers";
        return refused(format!("with {has}"), wants, remedy);
    }
    if wanted.shared && !running.shared {
        let remedy = "open the port whose peer maps it first, or in a process of its own";
        let has = "with memory that is this process's own".to_owned();
        return refused(has, "memory that a peer can map".to_owned(), remedy);
    }
    let kind = |huge| if huge { "hugepages" } else { "ordinary pages" };
    let wants = match wanted.hugepages {
        Hugepages::Auto => huge,
        Hugepages::Require => true,
        Hugepages::Never => false,
    };
    if wants == huge {
        return Ok(());
    }
    let remedy = "open the device that names a kind of pages first, or in a process of its own";
    refused(format!("in {}", kind(huge)), kind(wants).to_owned(), remedy)
}

fn check_version() -> Result<(), EalError> {
    let found = version();
    if found.starts_with("DPDK 22.11") { Ok(()) } else { Err(EalError::Version { found }) }
}

/// Returns whether DPDK's memory is in hugepages, if the program started DPDK before the first device; else `None`.
fn started_by_program() -> Option<bool> {
    // SAFETY: needs no EAL and returns a static NUL-terminated text, which is empty until the EAL starts.
    let directory = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    // SAFETY: the EAL runs.
    (!directory.is_empty()).then(|| unsafe { dpdk_sys::rte_eal_has_hugepages() } != 0)
}

/// Returns true if DPDK's memory will be in hugepages, once it is certain that DPDK can start.
fn check(config: &EalConfig) -> Result<bool, EalError> {
    let free_mb = machine::free_hugepage_bytes() >> 20;
    let enough = free_mb >= u64::from(config.memory_mb);
    match config.hugepages {
        Hugepages::Auto => Ok(enough),
        Hugepages::Never => Ok(false),
        Hugepages::Require if enough => Ok(true),
        Hugepages::Require => Err(EalError::NoHugepages { need_mb: config.memory_mb, free_mb }),
    }
}

fn command_line(config: &EalConfig, huge: bool) -> Result<Vec<CString>, EalError> {
    let prefix = format!("ferroce-{}", std::process::id());
    let cores = machine::allowed_cores();
    check_sysfs(&cores, Path::new("/sys/devices/system/cpu"))?;
    let words = arguments(config, huge, &cores, &prefix);
    words
        .into_iter()
        .map(|word| {
            CString::new(word).map_err(|_| EalError::Refused {
                errno: "invalid argument".into(),
                said: "a PCI address contains a NUL".into(),
            })
        })
        .collect()
}

/// Checks that `folder` has one of the CPUs. DPDK finds them there, and prints its usage to standard output if there is none.
fn check_sysfs(cores: &[usize], folder: &Path) -> Result<(), EalError> {
    let is_there = |core: &usize| folder.join(format!("cpu{core}/topology/core_id")).exists();
    if cores.iter().any(is_there) { Ok(()) } else { Err(EalError::NoSysfs { folder: folder.to_owned() }) }
}

/// The EAL's command line.
fn arguments(config: &EalConfig, huge: bool, cores: &[usize], prefix: &str) -> Vec<String> {
    let mut words: Vec<String> =
        vec!["ferroce".into(), "--no-telemetry".into(), format!("--file-prefix={prefix}")];
    words.extend(["-m".into(), config.memory_mb.max(1).to_string(), "--single-file-segments".into()]);
    // Without hugepages the memory is a legacy one, which `--in-memory` refuses. Either way nothing is shared with secondary processes, so
    // no file is created and no directory is needed.
    words.extend(if huge {
        vec!["--in-memory".into()]
    } else {
        vec!["--no-huge".into(), "--no-shconf".into()]
    });
    if config.pci.is_empty() {
        words.extend(["--no-pci".into(), "--iova-mode=va".into()]);
    }
    for address in &config.pci {
        words.extend(["-a".into(), address.clone()]);
    }
    // One lcore that floats over all cores that this process may use: the EAL then pins no thread and starts no worker.
    let cores: Vec<String> = cores.iter().filter(|&&core| core < MAX_CORES).map(usize::to_string).collect();
    if !cores.is_empty() {
        words.push(format!("--lcores=0@({})", cores.join(",")));
    }
    words
}

/// Calls `rte_eal_init` on a separate thread, since it changes its caller's affinity. DPDK's interrupt thread inherits that
/// thread's blocked signals.
fn init(arguments: Vec<CString>) -> Result<(), EalError> {
    log::take_over();
    environment::hide_from_dpdk();
    let run = move || {
        // DPDK keeps pointers into its arguments. They stay reachable, so that LeakSanitizer does not report them. Nothing reads the
        // static: without the attribute, the compiler removes it from release builds.
        #[used]
        static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
        let arguments: Vec<_> = arguments.into_iter().map(CString::into_raw).collect();
        let arguments = arguments.leak();
        ARGUMENTS.store(arguments.as_mut_ptr(), Ordering::Relaxed);
        let start = || {
            // SAFETY: the pointers are NUL-terminated texts that are never freed; the EAL starts once, as STATE says.
            unsafe { dpdk_sys::rte_eal_init(arguments.len() as c_int, arguments.as_mut_ptr()) }
        };
        let _ = STARTED_IN.set(Process::this());
        let before = descriptor::inheritable();
        let (result, said) = log::complaints_of(start);
        if result < 0 {
            return Err(EalError::Refused { errno: errno(), said });
        }
        descriptor::note_timer(&before);
        descriptor::close_new_on_exec(&before);
        remove_runtime_directory();
        Ok(())
    };
    let no_thread = |why: String| EalError::NoThread(why);
    let thread = signals::spawn("ferroce-eal", run).map_err(|e| no_thread(e.to_string()))?;
    thread.join().unwrap_or_else(|_| Err(no_thread("it panicked".into())))
}

/// DPDK creates a directory for shared files, even if its options say to share none.
fn remove_runtime_directory() {
    // SAFETY: the EAL runs and returns a static NUL-terminated text.
    let directory = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    // It is empty; if not, it stays.
    let directory = PathBuf::from(directory.to_string_lossy().into_owned());
    let removed = std::fs::remove_dir(&directory);
    tracing::trace!("{directory:?} removed: {removed:?}");
    // Left in /tmp, the one above would shut other users out, because it belongs to this user alone.
    if let Some(above) = directory.parent().filter(|above| above.starts_with("/tmp")) {
        let _ = std::fs::remove_dir(above);
    }
}

/// The process that has DPDK's interrupt thread.
static STARTED_IN: OnceLock<Process> = OnceLock::new();

/// Returns true if DPDK was started in a process from which this one was forked.
pub(super) fn is_forked() -> bool {
    STARTED_IN.get().is_some_and(|process| process.is_parent())
}

/// Runs `f` on DPDK's interrupt thread, between its handlers, and waits for it. A forked child has no such thread, and no handlers.
pub(super) fn on_interrupt_thread(f: impl FnOnce() + Send) {
    if is_forked() {
        return f();
    }
    /// The closure, and the channel on which to report that it ran.
    struct Call<'a> {
        f: Option<Box<dyn FnOnce() + Send + 'a>>,
        done: std::sync::mpsc::SyncSender<()>,
    }
    unsafe extern "C" fn run(call: *mut c_void) {
        // SAFETY: the alarm fires once, with the call that waits below until this has reported.
        let call = unsafe { &mut *call.cast::<Call>() };
        let done = call.done.clone();
        if let Some(f) = call.f.take() {
            f();
        }
        // Cannot fail: the caller keeps the receiver until it gets this.
        let _ = done.send(());
    }
    let (done, wait) = std::sync::mpsc::sync_channel(1);
    let mut call = Call { f: Some(Box::new(f)), done };
    // SAFETY: the EAL runs; `call` lives until `run` is through with it, since this waits for it.
    let set = unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(run), (&raw mut call).cast()) };
    if set == 0 {
        wait.recv().expect("the call below holds the sender");
    } else if let Some(f) = call.f.take() {
        // Out of memory for an alarm: the race that this avoids is the lesser evil.
        f();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugepages_go_in_memory_and_ordinary_pages_never_do() {
        let config = EalConfig::default();
        let huge = arguments(&config, true, &[0, 1], "x").join(" ");
        assert!(huge.contains("--in-memory") && !huge.contains("--no-huge"), "{huge}");
        let ordinary = arguments(&config, false, &[0, 1], "x").join(" ");
        assert!(ordinary.contains("--no-huge") && !ordinary.contains("--in-memory"), "{ordinary}");
        assert!(ordinary.contains("--lcores=0@(0,1)") && ordinary.contains("--no-pci"), "{ordinary}");
    }

    #[test]
    fn without_cpus_in_sysfs_dpdk_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let error = check_sysfs(&[0, 1], folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(folder.path().to_str().unwrap()), "{error}");
        assert!(error.contains("`mount -t sysfs sysfs /sys`"), "{error}");
        std::fs::create_dir_all(folder.path().join("cpu1/topology/core_id")).unwrap();
        check_sysfs(&[0, 1], folder.path()).unwrap();
    }

    #[test]
    fn what_dpdk_takes_only_when_it_starts_is_not_silently_ignored() {
        let first = EalConfig { pci: vec!["0000:01:00.0".into()], ..EalConfig::default() };
        let others = EalConfig::default();
        suits(&first, true, &first).unwrap();
        suits(&first, true, &others).unwrap();
        suits(&first, false, &EalConfig { memory_mb: 64, ..others.clone() }).unwrap();
        let never = EalConfig { hugepages: Hugepages::Never, ..others.clone() };
        let require = EalConfig { hugepages: Hugepages::Require, ..others.clone() };
        suits(&others, false, &never).unwrap();
        suits(&EalConfig::for_buffers(8192), true, &others).unwrap();
        suits(&others, true, &EalConfig::for_buffers(1 << 18)).unwrap_err();
        suits(&others, true, &require).unwrap();
        let second = EalConfig { pci: vec!["0000:02:00.0".into()], ..EalConfig::default() };
        let more = EalConfig { memory_mb: 1024, ..others.clone() };
        for (running, huge, wanted, words) in [
            (
                &others,
                true,
                &first,
                ["without PCI devices", "0000:01:00.0", "open the port on the PCI device first"],
            ),
            (
                &first,
                true,
                &second,
                ["with the PCI devices 0000:01:00.0", "0000:02:00.0", "process of its own"],
            ),
            (&others, true, &more, ["512 MiB", "1024 MiB", "fewer buffers"]),
            (&others, true, &never, ["in hugepages", "needs ordinary pages", "first"]),
            (&others, false, &require, ["in ordinary pages", "needs hugepages", "first"]),
        ] {
            let said = suits(running, huge, wanted).unwrap_err().to_string();
            assert!(words.iter().all(|words| said.contains(words)) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn a_nic_is_taken_by_its_address_alone() {
        let config = EalConfig { pci: vec!["0000:01:00.0".into()], ..EalConfig::default() };
        let words = arguments(&config, true, &[MAX_CORES], "x").join(" ");
        assert!(words.contains("-a 0000:01:00.0") && !words.contains("--no-pci"), "{words}");
        assert!(!words.contains("--lcores"), "a core that the EAL can't number: {words}");
    }
}
