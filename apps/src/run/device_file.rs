//! Creates the files of RDMA devices that programs search for.
//!
//! UCX uses a device only if `/dev/infiniband` contains a character device of its name that UCX may read and write; UCX never opens it.
//! This module creates one for each of eight devices, and for each name in the settings. Other programs read `/sys/class/infiniband`, a
//! folder that no process can create in sysfs. An overlay adds an empty folder, which then describes the devices of the settings
//! (`verbs/src/sysfs.rs`). All files are in a separate mount namespace of the program, where they hide the files of real devices. Only an
//! empty folder `/dev/infiniband` remains, if there was none.
//!
//! A container with default capabilities may not mount. There, links to `/dev/null` in its own `/dev` satisfy UCX, and remain. In the
//! devtmpfs of a machine no links are created, because its containers and its real devices use it, too.

use datapath::capabilities;
use datapath::mounts::PrivateMounts;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use verbs::{DeviceConfig, sysfs};

const DEVICES: &str = "/dev/infiniband";
/// The folder of descriptions, and its parent, which sysfs contains.
const CLASS: &str = sysfs::CLASS;
const CLASSES: &str = "/sys/class";
/// The source of Ferroce's mounts in the list of mounts.
const SOURCE: &str = "ferroce";

/// UCX assumes RoCE v1 if sysfs has no entry, and then receives datagrams only over IPv6. The first GID is the link-local IPv6 address.
pub const UCX_SETTING: (&str, &str) = ("UCX_IB_GID_INDEX", "0");

/// Creates the files for the program that this process executes, as far as permitted. Any program may use UCX, as `mpirun` and Python do,
/// and also runs without the files.
pub fn place(command: &[String], configs: &[DeviceConfig]) {
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let files = files(configs);
    if is_placed(&before, &files) {
        return;
    }
    let Err(error) = mount(&files) else { return };
    let forbidden = error.kind() == io::ErrorKind::PermissionDenied;
    if forbidden && !is_of_the_machine(&before) && link(&files).is_ok() {
        return;
    }
    // A user without the privilege is not warned at every start, because most programs need no file.
    if !forbidden || command.iter().any(|word| word.contains("ucx")) {
        note!("warning: {}", warning(&error, &first_name(configs)));
    }
}

/// Describes the devices that the program will have, as far as they are known before it opens them.
pub fn describe_devices(configs: &[DeviceConfig]) {
    if let Err(error) = sysfs::describe(Path::new(CLASS), configs) {
        note!("warning: {CLASS}: {error}, so programs that read it may find no device");
    }
}

/// Returns [`UCX_SETTING`], unless the user has set the variable.
pub fn setting() -> Option<(&'static str, OsString)> {
    std::env::var_os(UCX_SETTING.0).is_none().then(|| (UCX_SETTING.0, UCX_SETTING.1.into()))
}

/// Returns the name of the program's first device.
fn first_name(configs: &[DeviceConfig]) -> String {
    configs.first().unwrap_or(&DeviceConfig::new()).name_at(0)
}

/// Returns one line with the reason why the files are missing, the programs that need them, and the remedy for the device `name`.
fn warning(error: &io::Error, name: &str) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => &format!(
            "{}; or, for UCX alone, as root: mkdir -p {DEVICES} && mknod -m 666 {DEVICES}/{name} c 1 3",
            capabilities::remedy("CAP_SYS_ADMIN")
        ),
        // unshare(2): ENOSPC is the limit of mount namespaces.
        io::ErrorKind::StorageFull => "raise the limit, as root: sysctl -w user.max_mnt_namespaces=10000",
        _ => "`unshare --mount true`, as root, must succeed",
    };
    format!(
        "private mounts: {error}, so UCX finds no file {DEVICES}/{name}, and no program {CLASS}; {remedy}"
    )
}

/// Returns the paths of the device files: those of eight devices without a name, and of the devices in the settings.
fn files(configs: &[DeviceConfig]) -> BTreeSet<PathBuf> {
    let unnamed = (0..8).map(|at| DeviceConfig::new().name_at(at));
    let names = unnamed.chain(configs.iter().enumerate().map(|(at, config)| config.name_at(at)));
    names.map(|name| Path::new(DEVICES).join(name)).collect()
}

fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_char_device())
}

/// Mounts the files in a mount namespace that it creates.
fn mount(files: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mounts = PrivateMounts::enter()?;
    let devices = Path::new(DEVICES);
    let created = create(devices)?;
    if let Err(error) = mounts.tmpfs(SOURCE, 64, devices) {
        if created {
            fs::remove_dir(devices)?;
        }
        return Err(error);
    }
    for file in files {
        File::create(file)?;
        mounts.bind(Path::new("/dev/null"), file)?;
    }
    if let Err(error) = describe(&mounts) {
        tracing::debug!("{CLASS} cannot be mounted: {error}");
    }
    Ok(())
}

/// Mounts an empty folder for the descriptions.
fn describe(mounts: &PrivateMounts) -> io::Result<()> {
    if !Path::new(CLASS).is_dir() {
        let above = Path::new(DEVICES).join(".class");
        create(&above)?;
        create(&above.join("infiniband"))?;
        mounts.overlay(SOURCE, &above, Path::new(CLASSES), Path::new(CLASSES))?;
    }
    mounts.tmpfs(SOURCE, 1024, Path::new(CLASS))
}

/// Creates links to `/dev/null` where a device file is missing.
fn link(files: &BTreeSet<PathBuf>) -> io::Result<()> {
    create(Path::new(DEVICES))?;
    for file in files.iter().filter(|file| !is_device(file)) {
        std::os::unix::fs::symlink("/dev/null", file)?;
    }
    Ok(())
}

/// Creates a folder that every user may read, regardless of the umask. Returns false if it exists.
fn create(folder: &Path) -> io::Result<bool> {
    match fs::create_dir(folder) {
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o755)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the files exist, created by an outer `ferroce run`. Virtual hosts may have only the device files, because each has its
/// own sysfs.
fn is_placed(mounts: &str, files: &BTreeSet<PathBuf>) -> bool {
    files.iter().all(|file| is_device(file))
        && filesystem(mounts, CLASS).is_some_and(|(_, source)| source == SOURCE)
}

/// Returns true if the folder of device files is in the machine's devtmpfs, or if that is unknown.
fn is_of_the_machine(mounts: &str) -> bool {
    let kind = [DEVICES, "/dev", "/"].iter().find_map(|folder| filesystem(mounts, folder));
    kind.is_none_or(|(kind, _)| kind == "devtmpfs")
}

/// Returns the type and the source of the mount at `at`, from the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn filesystem<'a>(mounts: &'a str, at: &str) -> Option<(&'a str, &'a str)> {
    let mut found = mounts.lines().filter_map(|line| line.split_once(" - "));
    // Of several mounts at one place, the last is visible.
    let (_, kind) = found.rfind(|(place, _)| place.split(' ').nth(4) == Some(at))?;
    let mut words = kind.split(' ');
    Some((words.next()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_mounts_at_one_place_the_last_is_visible() {
        let mounts = "23 27 0:22 / /sys rw,relatime - sysfs sysfs rw\n\
                      24 27 0:6 / /dev rw shared:2 master:1 - devtmpfs udev rw,mode=755\n\
                      25 24 0:9 / /dev rw - tmpfs ferroce rw\n";
        assert_eq!(filesystem(mounts, "/dev"), Some(("tmpfs", "ferroce")));
        assert_eq!(filesystem(mounts, "/sys"), Some(("sysfs", "sysfs")));
        assert_eq!(filesystem(mounts, "/dev/infiniband"), None);
    }

    #[test]
    fn a_folder_in_devtmpfs_belongs_to_the_machine() {
        let machine = "24 27 0:6 / /dev rw - devtmpfs udev rw\n";
        let container = "24 27 0:6 / /dev rw - tmpfs tmpfs rw\n";
        // `docker run --volume /dev/infiniband:/dev/infiniband`.
        let shared = format!("{container}25 24 0:6 /infiniband /dev/infiniband rw - devtmpfs udev rw\n");
        assert_eq!([machine, container, &shared, ""].map(is_of_the_machine), [true, false, true, true]);
    }

    #[test]
    fn the_remedy_fits_the_error_code() {
        let remedy = |code| warning(&io::Error::from_raw_os_error(code), "mlx5_0");
        for code in [1, 13] {
            assert!(remedy(code).ends_with("mknod -m 666 /dev/infiniband/mlx5_0 c 1 3"), "{}", remedy(code));
        }
        assert!(remedy(22).contains("no file /dev/infiniband/mlx5_0,"), "{}", remedy(22));
        assert!(remedy(28).contains("user.max_mnt_namespaces"));
        assert!(remedy(22).contains("unshare --mount true"));
    }
}
