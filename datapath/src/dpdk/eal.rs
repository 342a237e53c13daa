//! DPDK's environment (EAL). It starts once in a process, as any user, with hugepages or without. If the program already runs DPDK, devices
//! share its environment.

use super::{descriptor, log, private_memory};
use crate::fork::{self, Process};
use crate::{environment, machine, signals};
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

/// The lcore id of a thread without one (LCORE_ID_ANY).
const NO_LCORE: u32 = u32::MAX;

/// Most CPUs that the EAL numbers (RTE_MAX_LCORE).
const MAX_CORES: usize = dpdk_sys::RTE_MAX_LCORE as usize;

/// The kind of pages of DPDK's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Hugepages if enough are free, otherwise ordinary pages.
    #[default]
    Auto,
    /// Hugepages. Without them, DPDK does not start.
    Require,
    /// Ordinary pages.
    Never,
}

/// Settings with which DPDK starts.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// DPDK's memory in MiB, which contains the pools of all ports. Ordinary pages are allocated only when touched.
    pub memory_mb: u32,
    /// The kind of pages of that memory.
    pub hugepages: Hugepages,
    /// PCI addresses (`0000:01:00.0`) of the NICs to use. If empty, DPDK does not scan the PCI bus.
    pub pci: Vec<String>,
    /// Whether a port's peer may map that memory. If not, and without hugepages, a forked child can also open ports.
    pub shared: bool,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self { memory_mb: 512, hugepages: Hugepages::Auto, pci: Vec::new(), shared: true }
    }
}

impl EalConfig {
    /// Returns settings with memory for one port of `buffers` buffers, and for DPDK itself.
    #[must_use]
    pub fn for_buffers(buffers: u32) -> Self {
        /// Bytes of a buffer for jumbo frames, with its headers.
        const BUFFER: u64 = 10 << 10;
        let default = Self::default();
        let memory_mb = ((u64::from(buffers) * BUFFER) >> 20) as u32 + 128;
        Self { memory_mb: memory_mb.max(default.memory_mb), ..default }
    }
}

/// Reasons why DPDK did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EalError {
    /// The library loaded at run time is not the release for which this crate was built.
    #[error(
        "the DPDK loaded is `{found}`, but this build needs {0}; `apt-get install {1}`",
        dpdk_sys::RELEASE,
        dpdk_sys::package("eal")
    )]
    Version {
        /// Name and version of the library found.
        found: String,
    },
    /// Hugepages are required, but too few are free.
    #[error(
        "only {free_mb} MiB of hugepages are free, but {need_mb} MiB are needed; \
         `echo {} > /proc/sys/vm/nr_hugepages`, or run without hugepages", need_mb.div_ceil(2)
    )]
    NoHugepages {
        /// Required memory in MiB.
        need_mb: u32,
        /// Free memory in MiB.
        free_mb: u64,
    },
    /// No CPU is listed in sysfs, as in a container with an empty `/sys`.
    #[error("{}: no CPU is there, but DPDK looks for them there; `mount -t sysfs sysfs /sys`, or start the container with /sys", folder.display())]
    NoSysfs {
        /// The directory that should list the CPUs.
        folder: PathBuf,
    },
    /// `rte_eal_init` failed.
    #[error("DPDK does not start ({errno}): {messages}")]
    Refused {
        /// DPDK's error number in words.
        errno: String,
        /// DPDK's error messages.
        messages: String,
    },
    /// DPDK already runs with other settings, which it accepts only when it starts.
    #[error(
        "DPDK already runs in this process {has}; this device needs {wants}, which DPDK accepts only when it \
         starts: {remedy}"
    )]
    Running {
        /// The setting with which DPDK runs.
        has: String,
        /// The setting that the device needs.
        wants: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// An earlier start failed. DPDK starts only once in a process.
    #[error("DPDK failed to start earlier in this process and cannot start again: {0}")]
    Before(Box<EalError>),
    /// DPDK runs in the parent, with memory that this process shares: hugepages, or memory that a port's peer maps.
    #[error(
        "this process was forked from one that runs DPDK, and shares its memory; open the first device after the fork, or start a program"
    )]
    Forked,
    /// The thread that starts DPDK could not be created.
    #[error("cannot create the thread that starts DPDK: {0}")]
    NoThread(String),
}

enum EalState {
    NotStarted,
    /// The settings, whether the memory is in hugepages, and the process that runs DPDK: this one, or one from which it was forked. A child
    /// has a copy of memory that is not shared.
    Running(EalConfig, bool, Process),
    Failed(EalError),
}

static STATE: Mutex<EalState> = Mutex::new(EalState::NotStarted);

/// Proof that DPDK runs in this process. It runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

impl Eal {
    /// Starts DPDK, or returns the running one if it has the settings that `config` requires. The program may have started it.
    ///
    /// The calling thread keeps its CPU affinity.
    ///
    /// # Errors
    /// Returns an [`EalError`] if DPDK cannot start or runs with other settings.
    pub fn start(config: &EalConfig) -> Result<Self, EalError> {
        let mut state = fork::lock(&STATE).ok_or(EalError::Forked)?;
        match &mut *state {
            EalState::Running(running, _, process) if process.is_parent() && running.shared => {
                return Err(EalError::Forked);
            }
            EalState::Running(running, huge, process) => {
                suits(running, *huge, config)?;
                *process = Process::this();
                return Ok(Self(()));
            }
            EalState::Failed(why) => return Err(EalError::Before(Box::new(why.clone()))),
            EalState::NotStarted => {
                check_version()?;
            }
        }
        if let Some(huge) = started_by_program() {
            // Whether the memory is enough is found when a port creates its pools.
            let running = EalConfig { memory_mb: u32::MAX, ..EalConfig::default() };
            suits(&running, huge, config)?;
            let _ = STARTED_IN.set(Process::this());
            *state = EalState::Running(running, huge, Process::this());
            return Ok(Self(()));
        }
        // After a failure before `rte_eal_init`, another attempt is possible.
        let huge = check(config)?;
        match init(command_line(config, huge)?) {
            Ok(()) => {
                let shared = huge || config.shared || !becomes_private();
                let config = EalConfig { shared, ..config.clone() };
                *state = EalState::Running(config, huge, Process::this());
                Ok(Self(()))
            }
            Err(error) => {
                *state = EalState::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Registers the calling thread with DPDK until the thread ends, which gives it a cache in every buffer pool. Without the cache, each
    /// buffer costs a few more atomic operations. Returns false if all 128 lcore ids are in use, and during the thread's destructors and
    /// `atexit` handlers.
    pub fn register_thread(self) -> bool {
        // SAFETY: reads a variable of this thread.
        if unsafe { dpdk_sys::ferroce_lcore_id() } != NO_LCORE {
            // The thread was registered earlier, or is a thread of the program's own DPDK and keeps its id.
            return true;
        }
        thread_local!(static HERE: OnceCell<Registration> = const { OnceCell::new() });
        HERE.try_with(|here| here.get_or_init(Registration::new).0).unwrap_or(false)
    }
}

struct Registration(bool);

impl Registration {
    fn new() -> Self {
        // SAFETY: the EAL runs, because only a method of `Eal` calls this, and the thread is not registered: the cell is filled once.
        Self(unsafe { dpdk_sys::rte_thread_register() } == 0)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: this thread registered itself, and is ending.
            unsafe { dpdk_sys::rte_thread_unregister() };
        }
    }
}

/// Returns the name and version of the loaded library, as `rte_version` formats them.
#[must_use]
pub fn version() -> String {
    // SAFETY: rte_version works before the EAL starts and returns a static NUL-terminated string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

pub(super) fn errno() -> String {
    // SAFETY: only reads a variable of this thread.
    words(unsafe { dpdk_sys::ferroce_errno() })
}

pub(super) fn words(errno: c_int) -> String {
    // SAFETY: rte_strerror returns a NUL-terminated string of this thread, which is copied before its next call.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) }.to_string_lossy().into_owned()
}

/// Makes DPDK's memory private to this process. Returns false on failure, which only affects forked children.
fn becomes_private() -> bool {
    let taken = private_memory::take();
    if let Err(error) = &taken {
        tracing::debug!("forked processes cannot open ports: {error}");
    }
    taken.is_ok()
}

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

/// Returns the name and version of the loaded library if it is the release for which this crate was built.
pub(crate) fn check_version() -> Result<String, EalError> {
    let found = version();
    if dpdk_sys::is_supported(&found) { Ok(found) } else { Err(EalError::Version { found }) }
}

/// Returns whether the program started DPDK with hugepages, or `None` if the program did not start it.
fn started_by_program() -> Option<bool> {
    // SAFETY: works before the EAL starts and returns a static NUL-terminated string, which is empty until then.
    let directory = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    // SAFETY: the EAL runs, as it has a directory.
    (!directory.is_empty()).then(|| unsafe { dpdk_sys::rte_eal_has_hugepages() } != 0)
}

/// Returns true if DPDK will use hugepages.
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
                messages: "a PCI address contains a NUL".into(),
            })
        })
        .collect()
}

/// Checks that `folder` lists one of the CPUs. Otherwise DPDK would find none, and print its usage to standard output.
fn check_sysfs(cores: &[usize], folder: &Path) -> Result<(), EalError> {
    let is_there = |core: &usize| folder.join(format!("cpu{core}/topology/core_id")).exists();
    if cores.iter().any(is_there) { Ok(()) } else { Err(EalError::NoSysfs { folder: folder.to_owned() }) }
}

fn arguments(config: &EalConfig, huge: bool, cores: &[usize], prefix: &str) -> Vec<String> {
    let mut words: Vec<String> =
        vec!["ferroce".into(), "--no-telemetry".into(), format!("--file-prefix={prefix}")];
    words.extend(["-m".into(), config.memory_mb.max(1).to_string(), "--single-file-segments".into()]);
    // Without hugepages DPDK uses its legacy memory mode, which `--in-memory` excludes. Neither mode shares files with secondary processes.
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
    // One lcore on all CPUs that this process may use: then the EAL pins no thread and starts no worker.
    let cores: Vec<String> = cores.iter().filter(|&&core| core < MAX_CORES).map(usize::to_string).collect();
    if !cores.is_empty() {
        words.push(format!("--lcores=0@({})", cores.join(",")));
    }
    words
}

/// Calls `rte_eal_init` on a separate thread, because it changes the affinity of its caller. DPDK's interrupt thread inherits the blocked
/// signals of that thread.
fn init(arguments: Vec<CString>) -> Result<(), EalError> {
    log::redirect();
    environment::hide_from_dpdk();
    let run = move || {
        // DPDK keeps pointers to its arguments. This static keeps them reachable for LeakSanitizer. Nothing reads it, so without the
        // attribute the compiler would remove it from release builds.
        #[used]
        static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
        let arguments: Vec<_> = arguments.into_iter().map(CString::into_raw).collect();
        let arguments = arguments.leak();
        ARGUMENTS.store(arguments.as_mut_ptr(), Ordering::Relaxed);
        let start = || {
            // SAFETY: the pointers are NUL-terminated strings that are never freed, and STATE ensures that the EAL starts once.
            unsafe { dpdk_sys::rte_eal_init(arguments.len() as c_int, arguments.as_mut_ptr()) }
        };
        let _ = STARTED_IN.set(Process::this());
        let before = descriptor::inheritable();
        let (result, messages) = log::errors_of(start);
        if result < 0 {
            return Err(EalError::Refused { errno: errno(), messages });
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

/// Removes the directory that DPDK creates for shared files although its options disable sharing.
fn remove_runtime_directory() {
    // SAFETY: the EAL runs, and this returns a static NUL-terminated string.
    let directory = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    // Removal fails if the directory is not empty, which is harmless.
    let directory = PathBuf::from(directory.to_string_lossy().into_owned());
    let removed = std::fs::remove_dir(&directory);
    tracing::trace!("{directory:?} removed: {removed:?}");
    // A parent directory that stays in /tmp would belong to this user, and other users could not use it.
    if let Some(above) = directory.parent().filter(|above| above.starts_with("/tmp")) {
        let _ = std::fs::remove_dir(above);
    }
}

static STARTED_IN: OnceLock<Process> = OnceLock::new();

/// Returns true if DPDK was started in a process from which this one was forked.
pub(super) fn is_forked() -> bool {
    STARTED_IN.get().is_some_and(|process| process.is_parent())
}

/// Runs `f` on DPDK's interrupt thread, between its handlers, and waits until it has run. A forked child has no such thread and no
/// handlers: there `f` runs on the calling thread.
pub(super) fn on_interrupt_thread(f: impl FnOnce() + Send) {
    if is_forked() {
        return f();
    }
    struct Call<'a> {
        f: Option<Box<dyn FnOnce() + Send + 'a>>,
        done: std::sync::mpsc::SyncSender<()>,
    }
    unsafe extern "C" fn run(call: *mut c_void) {
        // SAFETY: the alarm fires once, and its creator leaves the call alone until it receives the message below.
        let call = unsafe { &mut *call.cast::<Call>() };
        let done = call.done.clone();
        if let Some(f) = call.f.take() {
            f();
        }
        // Cannot fail: the caller holds the receiver until the message arrives.
        let _ = done.send(());
    }
    let (done, wait) = std::sync::mpsc::sync_channel(1);
    let mut call = Call { f: Some(Box::new(f)), done };
    // SAFETY: the EAL runs, and `call` lives until `run` no longer uses it, because this function waits for its message.
    let set = unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(run), (&raw mut call).cast()) };
    if set == 0 {
        wait.recv().expect("the call below holds the sender");
    } else if let Some(f) = call.f.take() {
        // No memory for an alarm. Running `f` here risks the race that this function avoids, but not running it would be worse.
        f();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugepages_are_in_memory_and_ordinary_pages_are_not() {
        let config = EalConfig::default();
        let huge = arguments(&config, true, &[0, 1], "x").join(" ");
        assert!(huge.contains("--in-memory") && !huge.contains("--no-huge"), "{huge}");
        let ordinary = arguments(&config, false, &[0, 1], "x").join(" ");
        assert!(ordinary.contains("--no-huge") && !ordinary.contains("--in-memory"), "{ordinary}");
        assert!(ordinary.contains("--lcores=0@(0,1)") && ordinary.contains("--no-pci"), "{ordinary}");
    }

    #[test]
    fn dpdk_is_not_started_without_cpus_in_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        let error = check_sysfs(&[0, 1], folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(folder.path().to_str().unwrap()), "{error}");
        assert!(error.contains("`mount -t sysfs sysfs /sys`"), "{error}");
        std::fs::create_dir_all(folder.path().join("cpu1/topology/core_id")).unwrap();
        check_sysfs(&[0, 1], folder.path()).unwrap();
    }

    #[test]
    fn a_setting_that_needs_a_new_start_of_dpdk_is_refused() {
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
    fn dpdk_scans_only_the_pci_addresses_given() {
        let config = EalConfig { pci: vec!["0000:01:00.0".into()], ..EalConfig::default() };
        let words = arguments(&config, true, &[MAX_CORES], "x").join(" ");
        assert!(words.contains("-a 0000:01:00.0") && !words.contains("--no-pci"), "{words}");
        assert!(!words.contains("--lcores"), "a core that the EAL can't number: {words}");
    }
}
