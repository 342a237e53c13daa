//! Environment variables. All libraries read them through this module: `clippy.toml` forbids the functions of the standard library.
//!
//! The caller of a setuid or setgid program, or of one with file capabilities, chooses its environment but lacks its privileges. So such a
//! program ignores the environment, as secure_getenv(3) does. Otherwise `FERROCE_PORT=pcap:,FILE` could overwrite any file that the program
//! can write to.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

const OURS: &str = "FERROCE_";

/// Variables that select the directory that the EAL creates, and the one in which DPDK finds PCI devices.
#[cfg(feature = "dpdk")]
const OF_DPDK: [&std::ffi::CStr; 3] = [c"RUNTIME_DIRECTORY", c"XDG_RUNTIME_DIR", c"SYSFS_PCI_DEVICES"];

static OBEYS_CALLER: AtomicBool = AtomicBool::new(false);

/// Makes a privileged program use its environment. For a program whose options let its caller choose the same settings anyway.
pub fn obey_caller() {
    OBEYS_CALLER.store(true, Ordering::Relaxed);
}

/// Returns true if the environment is ignored, because the program has privileges that its caller lacks.
#[must_use]
pub fn is_ignored() -> bool {
    // SAFETY: getauxval reads a value that the kernel passed to the process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    is_privileged && !OBEYS_CALLER.load(Ordering::Relaxed)
}

/// Returns the value of a variable, or `None` if it is not set or the environment is ignored. Reports the first of Ferroce's variables that
/// is ignored.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    let value = std::env::var_os(name)?;
    if !is_ignored() {
        return Some(value);
    }
    if name.starts_with(OURS) {
        report(name);
    }
    None
}

/// Returns the value of a variable as [`variable`] does. Also returns `None` if it is not Unicode.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Returns the directory for temporary files: the value of `TMPDIR`, or `/tmp`.
#[must_use]
pub fn temporary_folder() -> PathBuf {
    variable("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

/// Removes the variables that DPDK reads if the environment is ignored, because DPDK also reads them in privileged programs.
#[cfg(feature = "dpdk")]
pub(crate) fn hide_from_dpdk() {
    if is_ignored() {
        for name in OF_DPDK {
            // SAFETY: the name is NUL-terminated. glibc changes the list under its own lock and frees no string of it, so a concurrent
            // getenv of another thread can at most miss a variable.
            unsafe { libc::unsetenv(name.as_ptr()) };
        }
    }
}

/// Reports once that variables are ignored: on standard error if there is no log, because `FERROCE_LOG` is also ignored.
fn report(name: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let line = format!(
            "{name} and all other variables are ignored: this program is setuid, setgid or has file capabilities; \
             configure it in /etc/ferroce.toml"
        );
        if tracing::dispatcher::has_been_set() {
            tracing::warn!("{line}");
        } else {
            let _ = writeln!(std::io::stderr(), "ferroce: warning: {line}");
        }
    });
}
