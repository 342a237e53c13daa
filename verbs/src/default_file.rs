//! Reads `ferroce.toml` from the current folder, unless another user could have written the file.
//!
//! [`DeviceConfig::from_env`] calls it. Without the check, a program of root that runs in another user's folder would open a port that this
//! user chose. The port `pcap:,/path` overwrites a file.

use crate::errors::ConfigError;
use crate::{DeviceConfig, config_file};
use datapath::capabilities::effective_user;
use datapath::environment;
use datapath::port_spec::PortSpec;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Once;

const FILE: &str = "ferroce.toml";
/// The file for privileged programs, because their callers choose the current folder.
const OF_PRIVILEGED: &str = "/etc/ferroce.toml";
/// Size limit of a configuration file, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The remedy for a program that needs the ignored file.
const NAME_IT: &str = "name it by FERROCE_CONFIG or --config to use it anyway";

/// Returns the file to read if neither a variable nor a flag names one.
pub(crate) fn file() -> &'static Path {
    Path::new(if environment::is_ignored() { OF_PRIVILEGED } else { FILE })
}

/// Reads the settings of `path`, if the file exists and only the caller or root can have written it.
///
/// A warning about an ignored file or port is logged once in a process.
///
/// # Errors
/// Returns [`ConfigError`] if the file belongs to the caller or root and is invalid.
pub(crate) fn read(path: &Path) -> Result<Vec<DeviceConfig>, ConfigError> {
    let nothing = || config_file::devices("", Path::new(""));
    match open(path) {
        Ok(None) => nothing(),
        Ok(Some(file)) => {
            let configs = DeviceConfig::read(file, path)?.into_iter();
            let (configs, ignored): (_, Vec<_>) =
                configs.map(|config| without_file_ports(config, path)).unzip();
            ignored.iter().flatten().for_each(|line| report(line));
            Ok(configs)
        }
        Err(why) => {
            report(&why);
            nothing()
        }
    }
}

/// Returns whether [`read`] uses the settings of `path`.
pub(crate) fn is_read(path: &Path) -> bool {
    matches!(open(path), Ok(Some(_)))
}

/// Opens the file. Returns `None` if it does not exist.
///
/// # Errors
/// Returns the warning if another user could have written the file.
fn open(path: &Path) -> Result<Option<File>, String> {
    let distrusted = |why: String| format!("{} is ignored: {why}", path.display());
    let caller = effective_user();
    let Ok(entry) = fs::symlink_metadata(path) else { return Ok(None) };
    // The mode of a symbolic link has no effect, but its owner chose its target.
    if entry.is_symlink() {
        check_owner(entry.uid(), caller).map_err(distrusted)?;
    }
    // Without O_NONBLOCK, opening a pipe or a device could block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let (file, found) = match file.and_then(|file| Ok((file.metadata()?, file))) {
        Ok((found, file)) => (file, found),
        Err(error) => return Err(distrusted(format!("{error}; remove it, or let the caller read it"))),
    };
    check(path, &found, caller).map_err(distrusted)?;
    Ok(Some(file))
}

/// Checks that only the caller or root can have written the file.
fn check(path: &Path, found: &Metadata, caller: u32) -> Result<(), String> {
    if !found.is_file() {
        return Err("it is not a regular file; remove it".into());
    }
    check_owner(found.uid(), caller)?;
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(format!(
            "its mode {mode:o} allows users other than its owner, user {}, to write it; run chmod go-w {}, or {NAME_IT}",
            found.uid(),
            path.display()
        ));
    }
    Ok(())
}

fn check_owner(owner: u32, caller: u32) -> Result<(), String> {
    if owner == caller || owner == 0 {
        return Ok(());
    }
    Err(format!("it belongs to user {owner}, and not to the caller, user {caller}, or to root; {NAME_IT}"))
}

/// Removes a port that opens files or arbitrary DPDK devices. Returns the warning.
fn without_file_ports(config: DeviceConfig, path: &Path) -> (DeviceConfig, Option<String>) {
    let kind = match config.port().map(str::parse) {
        Some(Ok(PortSpec::Pcap { .. } | PortSpec::PcapInterface(_))) => "pcap:",
        Some(Ok(PortSpec::Eal(_))) => "eal:",
        _ => return (config, None),
    };
    let port = config.port().unwrap_or_default().escape_debug().to_string();
    let line = format!(
        "port `{port}` of {} is ignored: only a file that is named may choose a {kind} port; {NAME_IT}",
        path.display()
    );
    (config.without_port(), Some(line))
}

/// Logs a warning only once, because a process may read its settings several times.
fn report(line: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::warn!("{line}"));
}

/// Reads a configuration file of at most [`MAX_BYTES`].
///
/// # Errors
/// Returns an error if the file cannot be read or exceeds the limit.
pub(crate) fn text_of(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("longer than {MAX_BYTES} bytes: not a configuration file")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn file(folder: &Path, text: &str, mode: u32) -> std::path::PathBuf {
        let path = folder.join(FILE);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn only_the_callers_and_roots_files_are_read() {
        assert!(check_owner(7, 7).is_ok() && check_owner(0, 7).is_ok());
        let why = check_owner(7, 0).unwrap_err();
        assert!(why.contains("user 7") && why.contains("FERROCE_CONFIG"), "{why}");
    }

    #[test]
    fn a_file_that_others_can_write_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, port) in [(0o600, Some("veth0")), (0o644, Some("veth0")), (0o664, None), (0o646, None)] {
            let path = file(folder.path(), "port = 'veth0'", mode);
            assert_eq!(read(&path).unwrap()[0].port(), port, "{mode:o}");
        }
        let path = file(folder.path(), "port = 'veth0'", 0o666);
        let why = open(&path).unwrap_err();
        assert!(
            why.contains("ferroce.toml is ignored: its mode 666")
                && why.contains(&format!("run chmod go-w {}", path.display())),
            "{why}"
        );
    }

    #[test]
    fn a_file_or_link_of_another_user_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), "port = 'veth0'", 0o644);
        if chown(&path, Some(65534), None).is_err() {
            return; // Only root can create another user's file.
        }
        assert_eq!(read(&path).unwrap()[0].port(), None);
        assert!(open(&path).unwrap_err().contains("belongs to user 65534"));
        let (target, link) = (folder.path().join("mine"), folder.path().join("link"));
        fs::write(&target, "port = 'veth0'").unwrap();
        symlink(&target, &link).unwrap();
        assert_eq!(read(&link).unwrap()[0].port(), Some("veth0"));
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert_eq!(read(&link).unwrap()[0].port(), None);
    }

    #[test]
    fn a_port_in_the_default_file_cannot_open_other_files() {
        let folder = tempfile::tempdir().unwrap();
        for port in ["pcap:,/etc/passwd", "pcap:eth0", "eal:net_pcap0,tx_pcap=/etc/passwd"] {
            let path = file(folder.path(), &format!("port = '{port}'\nmtu = 1024"), 0o644);
            let config = &read(&path).unwrap()[0];
            assert_eq!((config.port(), config.mtu.is_some()), (None, true), "{port}");
            assert_eq!(DeviceConfig::from_file(&path).unwrap().port(), Some(port), "named");
        }
    }

    #[test]
    fn a_file_that_is_not_regular_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&folder.path().join("nothing")).unwrap(), [DeviceConfig::default()]);
        assert_eq!(read(folder.path()).unwrap(), [DeviceConfig::default()]);
        assert_eq!(read(Path::new("/dev/zero")).unwrap(), [DeviceConfig::default()]);
        let error = DeviceConfig::from_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("1048576"), "{error}");
    }
}
