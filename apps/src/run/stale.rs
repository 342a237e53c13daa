//! Removes the remains of runs whose `ferroce run --namespaces` was killed: their namespaces, the programs in these, and DPDK's empty
//! runtime folders.
//!
//! A namespace's name contains the id of the process that created it. The namespace is stale if no process has this id. Processes in
//! another PID namespace are invisible: do not share `/run/netns` with one.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::{fs, io};

/// The prefix of the names of namespaces. The process and the rank follow.
pub const PREFIX: &str = "ferroce-";
/// The folder in which `ip netns` stores names.
const NAMES: &str = "/run/netns";

/// The folder in which DPDK, as root, creates a folder per process.
const FOLDERS: &str = "/var/run/dpdk";

/// Removes every stale namespace and folder. Those that cannot be removed remain for the next run.
pub fn sweep() {
    sweep_folders(Path::new(FOLDERS));
    let Ok(names) = fs::read_dir(NAMES) else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|owner| !lives(owner)) {
            remove(&name);
        }
    }
}

/// Removes the empty folders of processes that have ended.
fn sweep_folders(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !lives(owner)) {
            // A folder that is not empty remains.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the process that created a namespace; `None` if `ferroce run` did not create it.
fn owner(name: &str) -> Option<u32> {
    let (owner, place) = name.strip_prefix(PREFIX)?.split_once('-')?;
    (place == "switch" || place.parse::<u8>().is_ok()).then(|| owner.parse().ok())?
}

/// Returns whether the process exists. If another process now has its id, the namespaces remain until that process ends. A check of the
/// name could end the programs of a run whose binary has another name.
fn lives(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

fn remove(name: &str) {
    note!("removing the stale namespace {name}: the run that created it was killed");
    end_programs(name);
    // Another run may have removed it in the meantime.
    let _ = output("ip", &["netns", "del", name]);
}

/// Ends every process in this namespace, including those whose parent has ended.
pub fn end_programs(namespace: &str) {
    let inside = output("ip", &["netns", "pids", namespace]).map(|out| out.stdout).unwrap_or_default();
    for process in String::from_utf8_lossy(&inside).split_whitespace() {
        // The process may have ended already.
        let _ = output("kill", &["-KILL", process]);
    }
}

fn output(program: &str, arguments: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespace_names_made_by_ferroce_have_an_owner() {
        assert_eq!([owner("ferroce-17-0"), owner("ferroce-17-switch")], [Some(17); 2]);
        for other in
            ["ferroce", "ferroce-17", "ferroce-x-0", "ferroce-17-left", "other-17-0", "ferroce-17-300"]
        {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn only_empty_folders_of_processes_that_are_gone_are_removed() {
        let above = tempfile::tempdir().unwrap();
        let here = format!("ferroce-{}", std::process::id());
        for name in ["ferroce-4294967295", "ferroce-4294967294/full", &here, "ferroce-x", "other-4294967295"]
        {
            fs::create_dir_all(above.path().join(name)).unwrap();
        }
        sweep_folders(above.path());
        let mut left: Vec<_> = fs::read_dir(above.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = ["ferroce-4294967294", &here, "ferroce-x", "other-4294967295"];
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn only_a_process_that_is_gone_leaves_stale_namespaces() {
        assert!(lives(std::process::id()) && lives(1));
        assert!(!lives(u32::MAX));
    }
}
