//! The variables of the process's environment. All code of the libraries reads them here: `clippy.toml` forbids the functions of the standard
//! library.
//!
//! Whoever starts a setuid or setgid program, or one with file capabilities, chooses its environment but not its rights. Such a program
//! ignores the environment, as secure_getenv(3) does: `FERROCE_PORT=pcap:,FILE` would otherwise overwrite any file that the program can
//! write.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The beginning of the names of Ferroce's own variables.
const OURS: &str = "FERROCE_";

/// Variables by which DPDK chooses the folder that the EAL creates, and the one in which it looks for PCI devices.
#[cfg(feature = "dpdk")]
const OF_DPDK: [&std::ffi::CStr; 3] = [c"RUNTIME_DIRECTORY", c"XDG_RUNTIME_DIR", c"SYSFS_PCI_DEVICES"];

static OBEYS_CALLER: AtomicBool = AtomicBool::new(false);

/// Has a privileged program read its environment. It is for a program whose flags let its caller choose all that the variables choose.
pub fn obey_caller() {
    OBEYS_CALLER.store(true, Ordering::Relaxed);
}

/// Returns whether the environment is ignored, because the program has rights that its caller lacks.
#[must_use]
pub fn is_ignored() -> bool {
    // SAFETY: getauxval reads a value that the kernel gave to the process, and has no other effect.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    is_privileged && !OBEYS_CALLER.load(Ordering::Relaxed)
}

/// Returns the value of a variable, or `None` if it is not set or the environment is ignored. The first of Ferroce's variables that is ignored
/// is reported.
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

/// As [`variable`], if the value is Unicode.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Returns the folder for temporary files: the one that `TMPDIR` names, or `/tmp`.
#[must_use]
pub fn temporary_folder() -> PathBuf {
    variable("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

/// Removes the variables that DPDK reads, if the environment is ignored. DPDK itself does not distinguish privileged programs.
#[cfg(feature = "dpdk")]
pub(crate) fn hide_from_dpdk() {
    if is_ignored() {
        for name in OF_DPDK {
            // SAFETY: the name is NUL-terminated. glibc changes the list of variables under its own lock and frees no text of it, so another
            // thread's getenv at most misses a variable.
            unsafe { libc::unsetenv(name.as_ptr()) };
        }
    }
}

/// Says once why variables have no effect: on standard error if the program has no log, since `FERROCE_LOG` starts none.
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
