//! `ferroce metrics --sysfs`: the counters of running processes as files in the layout of Linux's sysfs, for the infiniband collector of
//! node_exporter. One program writes the files of all processes, because a plain file cannot add their counters when it is read.

use crate::failure::Failure;
use crate::signals;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use verbs::observe::ProcessStatus;
use verbs::port::GidTable;
use verbs::sysfs::{Folder, PortState};

/// The interval between two updates of the files.
const PERIOD: Duration = Duration::from_secs(1);
/// The interval between checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

const SYS: &str = "/sys";

/// The counters: the file, Ferroce's counter, and the bytes of a unit. As in an InfiniBand port, data are in words of 4 bytes.
const FILES: [(&str, &str, u64); 11] = [
    ("counters/port_rcv_data", "rx_payload_bytes", 4),
    ("counters/port_xmit_data", "tx_payload_bytes", 4),
    ("counters/port_rcv_packets", "rx_frames", 1),
    ("counters/port_xmit_packets", "tx_frames", 1),
    ("hw_counters/out_of_sequence", "naks_sent", 1),
    ("hw_counters/packet_seq_err", "naks_received", 1),
    ("hw_counters/local_ack_timeout_err", "timeouts", 1),
    ("hw_counters/rnr_nak_retry_err", "rnr_naks_received", 1),
    ("hw_counters/np_cnp_sent", "cnps_sent", 1),
    ("hw_counters/rp_cnp_handled", "cnps_received", 1),
    ("hw_counters/np_ecn_marked_roce_packets", "rx_marked", 1),
];

/// Writes the files below `root` until a signal arrives. All other entries of `root` are links to those of sysfs.
///
/// # Errors
/// Returns a failure if a file cannot be written.
pub fn run(root: &Path) -> Result<(), Failure> {
    let failed = |at: &Path, error: io::Error| {
        let (at, remedy) = (at.display(), "name a folder in which this user can create files");
        Failure::run(format!("--sysfs {at}: {error}; {remedy}"))
    };
    signals::listen()?;
    link_others(Path::new(SYS), root).map_err(|error| failed(root, error))?;
    note!("writing {0}/class/infiniband for `node_exporter --path.sysfs {0}`", root.display());
    let class = root.join("class/infiniband");
    let (mut devices, mut unread) = (Devices::default(), Unread::default());
    while signals::check().is_ok() {
        let next = Instant::now() + PERIOD;
        let is_running = |pid| Path::new(&format!("/proc/{pid}")).exists();
        let (processes, errors) = super::read_all();
        unread.update(errors).iter().for_each(|error| note!("{error}"));
        devices.update(&processes, is_running);
        devices.write(&class).map_err(|(name, error)| failed(&class.join(name), error))?;
        while Instant::now() < next && signals::check().is_ok() {
            sleep(LOOK);
        }
    }
    Ok(())
}

/// Creates `root` with links to the entries of `sys`, but with a folder of its own for the RDMA devices, in which those of `sys` are links.
fn link_others(sys: &Path, root: &Path) -> io::Result<()> {
    for (folder, own) in [("", "class"), ("class", "infiniband"), ("class/infiniband", "")] {
        fs::create_dir_all(root.join(folder).join(own))?;
        for entry in fs::read_dir(sys.join(folder)).into_iter().flatten().flatten() {
            let link = root.join(folder).join(entry.file_name());
            if entry.file_name() != own && link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(entry.path(), link)?;
            }
        }
    }
    Ok(())
}

/// The errors of the processes that could not be read at the last update.
#[derive(Default)]
struct Unread(BTreeSet<String>);

impl Unread {
    /// Replaces the errors. Returns those that the last update did not have, so that each is printed once.
    fn update(&mut self, errors: Vec<String>) -> Vec<String> {
        let last = std::mem::replace(&mut self.0, errors.into_iter().collect());
        self.0.difference(&last).cloned().collect()
    }
}

/// The devices that have been seen, by the names of their folders. They stay, with their counts, when no process has them open.
#[derive(Default)]
struct Devices(BTreeMap<String, Device>);

#[derive(Default)]
struct Device {
    /// The sum of all processes, those that have ended included, for each of [`FILES`].
    sums: [u64; FILES.len()],
    /// The last counts of each process.
    last: BTreeMap<u32, [u64; FILES.len()]>,
    port: String,
    is_up: bool,
    speed_mbps: Option<u32>,
}

impl Devices {
    /// Adds what the processes have counted since the last update. A process that runs keeps its last counts if it did not answer.
    fn update(&mut self, processes: &[ProcessStatus], is_running: impl Fn(u32) -> bool) {
        self.0.values_mut().for_each(|device| device.is_up = false);
        let pids: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
        for process in processes {
            // A process may have several devices whose ports have the same folder.
            let mut counts = BTreeMap::<String, [u64; FILES.len()]>::new();
            for status in &process.devices {
                let device = self.0.entry(folder_name(&status.port)).or_default();
                device.port.clone_from(&status.port);
                device.is_up |= status.stopped.is_none();
                device.speed_mbps = status.speed_mbps.or(device.speed_mbps);
                let sums = counts.entry(folder_name(&status.port)).or_default();
                for (sum, (_, counter, _)) in sums.iter_mut().zip(FILES) {
                    *sum += status.counters.get(counter).copied().unwrap_or(0);
                }
            }
            for (folder, counts) in counts {
                self.0.entry(folder).or_default().count(process.pid, counts);
            }
        }
        for device in self.0.values_mut() {
            device.last.retain(|&pid, _| pids.contains(&pid) || is_running(pid));
        }
    }

    /// Writes the folder of each device into `class`. Returns the name of the folder that could not be written, and the reason.
    fn write(&self, class: &Path) -> Result<(), (&str, io::Error)> {
        self.0
            .iter()
            .try_for_each(|(name, device)| device.write(class, name).map_err(|error| (&**name, error)))
    }
}

impl Device {
    fn write(&self, class: &Path, name: &str) -> io::Result<()> {
        let folder = Folder::create(class, name)?;
        folder.describe(name, [0; 8], None)?;
        let (gids, interface) = (&GidTable::default(), &*self.port);
        let Self { is_up, speed_mbps, .. } = *self;
        folder.describe_port(&PortState { is_up, speed_mbps, gids, interface })?;
        for ((file, _, unit), sum) in FILES.iter().zip(self.sums) {
            folder.replace(&format!("ports/1/{file}"), &(sum / unit).to_string())?;
        }
        Ok(())
    }

    fn count(&mut self, pid: u32, counts: [u64; FILES.len()]) {
        let last = self.last.insert(pid, counts).unwrap_or_default();
        for ((sum, count), last) in self.sums.iter_mut().zip(counts).zip(last) {
            // A smaller count is that of another process with the same number, or of a device that was opened again.
            *sum += count.checked_sub(last).unwrap_or(count);
        }
    }
}

/// Returns the name of a port's folder: characters other than letters, digits, `-`, `_` and `.` become `_`.
fn folder_name(port: &str) -> String {
    port.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, port: &str, bytes: u64, frames: u64) -> ProcessStatus {
        let device = format!(
            r#"{{"port":"{port}","driver":"","addresses":[],"speed_mbps":10000,"now":0,"discards":{{}},"core":{{}},"waited":{{}},
               "cores":[],"queue_pairs":[],"counters":{{"tx_payload_bytes":{bytes},"tx_frames":{frames}}}}}"#
        );
        let report =
            format!(r#"{{"format":4,"version":"0","pid":{pid},"command":"x","devices":[{device}]}}"#);
        serde_json::from_str(&report).unwrap()
    }

    #[test]
    fn the_counts_of_processes_are_added_and_stay_when_they_end() {
        let root = tempfile::tempdir().unwrap();
        let mut devices = Devices::default();
        let mut written = |processes: &[ProcessStatus], file: &str| {
            devices.update(processes, |pid| pid == 3);
            devices.write(root.path()).unwrap();
            fs::read_to_string(root.path().join(file)).unwrap()
        };
        let packets = "memif__run_a.sock/ports/1/counters/port_xmit_packets";
        let port = "memif:/run/a.sock";
        assert_eq!(written(&[process(1, port, 4000, 7), process(2, port, 40, 1)], packets), "8\n");
        assert_eq!(written(&[process(1, port, 8000, 9)], packets), "10\n");
        assert_eq!(written(&[], packets), "10\n");
        assert_eq!(written(&[], "memif__run_a.sock/ports/1/state"), "1: DOWN\n");
        // Another process has the number of the first.
        assert_eq!(written(&[process(1, port, 400, 2)], packets), "12\n");
        // A stopped process does not answer, and counts on.
        assert_eq!(written(&[process(3, port, 0, 5)], packets), "17\n");
        assert_eq!(written(&[], packets), "17\n");
        assert_eq!(written(&[process(3, port, 0, 6)], packets), "18\n");
        let data = "memif__run_a.sock/ports/1/counters/port_xmit_data";
        assert_eq!(written(&[], data), format!("{}\n", (8000 + 40 + 400) / 4));
        assert_eq!(written(&[], "memif__run_a.sock/ports/1/hw_counters/out_of_sequence"), "0\n");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("eth0"), "a file").unwrap();
        let mut devices = Devices::default();
        devices.update(&[process(1, "eth0", 0, 0)], |_| true);
        let (name, error) = devices.write(root.path()).unwrap_err();
        assert_eq!((name, error.kind()), ("eth0", io::ErrorKind::AlreadyExists));
    }

    #[test]
    fn an_error_that_remains_is_returned_once() {
        let mut unread = Unread::default();
        let mut update = |errors: &[&str]| unread.update(errors.iter().map(|&error| error.into()).collect());
        assert_eq!(update(&["process 7"]), ["process 7"]);
        assert_eq!(update(&["process 8", "process 7"]), ["process 8"]);
        assert!(update(&[]).is_empty());
        assert_eq!(update(&["process 7"]), ["process 7"]);
    }

    #[test]
    fn other_entries_of_sysfs_are_links() {
        let (sys, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in ["devices", "class/net", "class/infiniband/mlx5_0"] {
            fs::create_dir_all(sys.path().join(folder)).unwrap();
        }
        for _ in 0..2 {
            link_others(sys.path(), root.path()).unwrap();
        }
        let link = |name: &str| fs::read_link(root.path().join(name)).ok();
        assert_eq!(link("devices"), Some(sys.path().join("devices")));
        assert_eq!(link("class/net"), Some(sys.path().join("class/net")));
        assert_eq!((link("class"), link("class/infiniband")), (None, None));
        assert_eq!(link("class/infiniband/mlx5_0"), Some(sys.path().join("class/infiniband/mlx5_0")));
    }
}
