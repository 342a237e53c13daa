//! Describes devices in `/sys/class/infiniband`, in the kernel's layout, for programs that read it.
//!
//! `ferroce run` mounts an empty folder there, if it may (`apps/src/run/device_file.rs`). sysfs itself refuses new files, so without that
//! mount nothing is written. The files are a snapshot: of the device when the program lists it, of its port when the program opens it. No
//! file changes with traffic, so there are no counters; `ferroce metrics` has those.

use crate::abi::{IBV_PORT_ACTIVE, ibv_port_attr};
use crate::ibverbs::query::gid_of;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The folder of all RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// The folder of one device.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Returns the folder of the device `name` in `class`, and creates it. `None` if the file system does not allow that.
    pub(crate) fn create(class: &Path, name: &str) -> Option<Self> {
        let folder = class.join(name);
        if !folder.is_dir() {
            std::fs::create_dir(&folder).ok()?;
        }
        Some(Self(folder))
    }

    /// Writes what is known of a device before its port is open. `interface` is its Linux interface, if it has one.
    ///
    /// # Errors
    /// Returns the file system's error.
    pub(crate) fn describe(&self, name: &str, guid: [u8; 8], interface: Option<&str>) -> io::Result<()> {
        self.write("node_type", "1: CA")?;
        self.write("node_desc", name)?;
        self.write("node_guid", &words(&guid))?;
        self.write("sys_image_guid", &words(&guid))?;
        self.write("fw_ver", env!("CARGO_PKG_VERSION"))?;
        self.write("board_id", BOARD)?;
        self.write("device/numa_node", "-1")?;
        let Some(interface) = interface else { return Ok(()) };
        let link = self.0.join("device/net").join(interface);
        std::fs::create_dir_all(self.0.join("device/net"))?;
        match std::os::unix::fs::symlink(Path::new("/sys/class/net").join(interface), link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the attributes and GIDs of the device's only port.
    ///
    /// # Errors
    /// As [`Folder::describe`].
    pub(crate) fn describe_port(
        &self,
        port: &ibv_port_attr,
        gids: &[IpAddr],
        interface: &str,
    ) -> io::Result<()> {
        let (state, link) = match port.state {
            IBV_PORT_ACTIVE => ("4: ACTIVE", "5: LinkUp"),
            _ => ("1: DOWN", "2: Polling"),
        };
        self.write("ports/1/state", state)?;
        self.write("ports/1/phys_state", link)?;
        self.write("ports/1/link_layer", "Ethernet")?;
        self.write("ports/1/rate", &rate(port.active_width, port.active_speed))?;
        self.write("ports/1/cap_mask", &format!("{:#010x}", port.port_cap_flags))?;
        for number in ["lid", "sm_lid"] {
            self.write(&format!("ports/1/{number}"), "0x0")?;
        }
        for number in ["lid_mask_count", "sm_sl"] {
            self.write(&format!("ports/1/{number}"), "0")?;
        }
        self.write("ports/1/pkeys/0", "0xffff")?;
        for (index, gid) in gids.iter().enumerate() {
            self.write(&format!("ports/1/gids/{index}"), &words(&gid_of(*gid)))?;
            self.write(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2")?;
            self.write(&format!("ports/1/gid_attrs/ndevs/{index}"), interface)?;
        }
        // The device had more addresses when another process described it.
        for index in gids.len().. {
            let files = ["gids", "gid_attrs/types", "gid_attrs/ndevs"];
            let gone =
                files.map(|folder| std::fs::remove_file(self.0.join(format!("ports/1/{folder}/{index}"))));
            if gone.iter().any(Result::is_err) {
                break;
            }
        }
        Ok(())
    }

    /// Writes a file that has other contents, so that other processes of the device read it undisturbed.
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let (file, text) = (self.0.join(file), format!("{text}\n"));
        if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, text)
    }
}

/// The value of `board_id`.
pub(crate) const BOARD: &str = "FERROCE_SOFT";

/// Returns words of 16 bits, in the kernel's form of GUIDs and GIDs.
fn words(bytes: &[u8]) -> String {
    let words: Vec<_> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        .collect();
    words.join(":")
}

/// Returns the rate of a link as the kernel's `rate_show` does, from the codes of `ibv_port_attr`.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 1,
    };
    let (tenths, name) = match speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, " SDR"),
    };
    let total = tenths * lanes;
    let half = if total % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", total / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described_as_the_kernel_does_it() {
        let class = tempfile::tempdir().unwrap();
        let folder = Folder::create(class.path(), "ferroce0").unwrap();
        folder.describe("ferroce0", [2, 0, 0, 0xff, 0xfe, 0, 0, 1], Some("eth7")).unwrap();
        let port =
            ibv_port_attr { state: IBV_PORT_ACTIVE, active_width: 2, active_speed: 32, ..Default::default() };
        let gids = ["fe80::1", "10.0.0.1"].map(|gid| gid.parse().unwrap());
        folder.describe_port(&port, &gids, "eth7").unwrap();
        let read = |file: &str| std::fs::read_to_string(class.path().join("ferroce0").join(file)).unwrap();
        assert_eq!(read("node_guid"), "0200:00ff:fe00:0001\n");
        assert_eq!(read("ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read("ports/1/rate"), "100 Gb/sec (4X EDR)\n");
        assert_eq!(read("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "eth7\n");
        let link = std::fs::read_link(class.path().join("ferroce0/device/net/eth7")).unwrap();
        assert_eq!(link, Path::new("/sys/class/net/eth7"));
        // Another process describes the device after its IPv4 address was removed.
        let folder = Folder::create(class.path(), "ferroce0").unwrap();
        folder.describe("ferroce0", [2, 0, 0, 0xff, 0xfe, 0, 0, 1], Some("eth7")).unwrap();
        folder.describe_port(&port, &gids[..1], "eth7").unwrap();
        let names = std::fs::read_dir(class.path().join("ferroce0/ports/1/gids")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["0"]);
    }

    #[test]
    fn without_the_folder_of_ferroce_run_nothing_is_written() {
        assert!(Folder::create(Path::new("/sys/class/net"), "ferroce0").is_none());
        assert!(Folder::create(Path::new("/nowhere/infiniband"), "ferroce0").is_none());
    }

    #[test]
    fn rates_are_in_the_kernel_s_form() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(2, 1), "10 Gb/sec (4X SDR)");
        assert_eq!(rate(2, 128), "400 Gb/sec (4X NDR)");
    }
}
