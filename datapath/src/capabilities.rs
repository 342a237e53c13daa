//! Reads the capabilities of this process, and passes them to the programs that it executes.
//!
//! The dynamic loader ignores `LD_PRELOAD` in a program with file capabilities, but not in one that inherits ambient capabilities
//! (capabilities(7)). So `ferroce run` has the file capabilities and passes them on.

use std::io;

pub(crate) const NET_ADMIN: u64 = 1 << 12;
pub(crate) const NET_RAW: u64 = 1 << 13;
pub(crate) const IPC_LOCK: u64 = 1 << 14;
pub(crate) const BPF: u64 = 1 << 39;
const SYS_ADMIN: u64 = 1 << 21;
const PERFMON: u64 = 1 << 38;
/// Names of capabilities, without `CAP_`.
const NAMES: [(&str, u64); 6] = [
    ("NET_ADMIN", NET_ADMIN),
    ("NET_RAW", NET_RAW),
    ("IPC_LOCK", IPC_LOCK),
    ("SYS_ADMIN", SYS_ADMIN),
    ("PERFMON", PERFMON),
    ("BPF", BPF),
];
const WANTED: u64 = NET_ADMIN | NET_RAW | IPC_LOCK | BPF;
/// `_LINUX_CAPABILITY_VERSION_3`: masks of two 32-bit words.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Words {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The capabilities of a process, as masks.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    /// Capabilities that it has.
    pub(crate) effective: u64,
    /// Capabilities that it could gain by executing a file (the bounding set). A container's bounding set limits all users in it.
    pub(crate) bounding: u64,
}

impl Held {
    /// Reads the capabilities of this process. If the kernel does not report them, assumes that it has none but could gain all.
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = |name| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        };
        Self { effective: mask("CapEff:").unwrap_or(0), bounding: mask("CapBnd:").unwrap_or(u64::MAX) }
    }
}

/// Returns the effective capabilities of this process as a mask, or 0 if the kernel does not report them.
pub(crate) fn effective() -> u64 {
    Held::read().effective
}

/// Returns true if Linux lets this process open packet sockets. In a user namespace, CAP_NET_RAW may not suffice.
#[must_use]
pub fn opens_packet_sockets() -> bool {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd >= 0 {
        // SAFETY: the descriptor is new and is closed once.
        unsafe { libc::close(fd) };
    }
    fd >= 0
}

/// Returns the remedy for a process that lacks `needs`, a list such as `CAP_NET_RAW,CAP_BPF`. If root lacks capabilities, or no user can
/// gain them, the process runs in a container, and the remedy is for a container. If root has them but is refused, it runs in a user
/// namespace or a sandbox.
#[must_use]
pub fn remedy(needs: &str) -> String {
    remedy_of(effective_user(), Held::read(), needs)
}

/// Returns the remedy for a process that may not write a file that belongs to root. In a container, root cannot write such files either.
#[must_use]
pub fn remedy_for_root_file() -> &'static str {
    if effective_user() == 0 { "start the container with --privileged" } else { "run as root" }
}

/// Returns the effective user of the calling thread. It may change: programs drop privileges after they open a device.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

pub(crate) fn remedy_of(user: u32, held: Held, needs: &str) -> String {
    let lacking = |mask: u64| {
        let names = needs.split(',').map(|name| name.trim_start_matches("CAP_"));
        let lacking = names.filter(move |&name| {
            let bit = NAMES.iter().find(|(known, _)| *known == name).map_or(0, |(_, bit)| *bit);
            mask & bit == 0
        });
        lacking.map(|name| format!(" --cap-add {name}")).collect::<String>()
    };
    match (user, lacking(held.effective), lacking(held.bounding)) {
        (0, flags, _) if flags.is_empty() => {
            "start it outside of its user namespace or sandbox, which restricts root".into()
        }
        (0, flags, _) => format!("start the container with{flags}"),
        // A file with this capability would give all users what only root should have.
        (_, _, flags) if flags.is_empty() && needs.contains("SYS_ADMIN") => "run it as root".into(),
        (_, _, flags) if flags.is_empty() => format!(
            "run as root, or `setcap {}+ep $(command -v ferroce)` and start the program with `ferroce run`, which passes it on",
            needs.to_lowercase()
        ),
        (_, flags, _) => format!("start the container with --user 0{flags}"),
    }
}

/// Makes CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK and CAP_BPF ambient, as far as this process is permitted to have them. Does nothing for
/// root, whose programs have all capabilities.
///
/// # Errors
/// Returns the kernel's error if it refuses.
pub fn hand_on() -> io::Result<()> {
    if effective_user() == 0 {
        return Ok(());
    }
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [Words::default(); 2];
    // SAFETY: for a header of version 3, the kernel writes two elements.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
    let mut ours = 0;
    for (n, word) in words.iter_mut().enumerate() {
        let wanted = word.permitted & (WANTED >> (32 * n)) as u32;
        word.inheritable |= wanted;
        ours |= u64::from(wanted) << (32 * n);
    }
    // SAFETY: the kernel reads two elements.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) })?;
    for capability in (0..64).filter(|bit| ours & 1 << bit != 0) {
        let (raise, none): (libc::c_ulong, libc::c_ulong) = (libc::PR_CAP_AMBIENT_RAISE as _, 0);
        // SAFETY: these arguments of prctl are integers.
        let raised =
            unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, capability as libc::c_ulong, none, none) };
        check(raised.into())?;
    }
    Ok(())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_advised_to_become_root_only_where_that_helps() {
        let needs = "CAP_NET_RAW,CAP_NET_ADMIN";
        let all = Held { effective: 0, bounding: u64::MAX };
        let of = |user, held| remedy_of(user, held, needs);
        let user = of(1000, all);
        assert!(user.starts_with("run as root, or `setcap cap_net_raw,cap_net_admin+ep $("), "{user}");
        assert_eq!(remedy_of(1000, all, "CAP_SYS_ADMIN"), "run it as root");
        let container = Held { effective: 0, bounding: NET_ADMIN };
        assert_eq!(
            of(1000, container),
            "start the container with --user 0 --cap-add NET_RAW --cap-add NET_ADMIN"
        );
        assert_eq!(of(0, container), "start the container with --cap-add NET_RAW --cap-add NET_ADMIN");
        let raw = Held { effective: NET_RAW, bounding: NET_RAW };
        assert_eq!(of(0, raw), "start the container with --cap-add NET_ADMIN");
        let root = Held { effective: u64::MAX, bounding: u64::MAX };
        assert!(of(0, root).starts_with("start it outside of its user namespace"));
    }

    #[test]
    fn a_process_without_capabilities_passes_none_on() {
        assert!(hand_on().is_ok());
    }
}
