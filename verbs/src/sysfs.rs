//! Describes devices in `/sys/class/infiniband`, in the kernel's layout, for programs that read it. `ferroce run` and the drop-in library
//! use it; Rust programs do not need it.
//!
//! `ferroce run` mounts an empty folder there, if it has the permission (`apps/src/run/device_file.rs`), and describes the devices of its
//! settings before the program starts. The drop-in library describes a device again when the program lists it, and its port when the
//! program opens it. sysfs itself allows no new folders, so without that mount only devices of the kernel have one. Their files are never
//! written: a NIC stores its `node_desc` in its firmware.
//!
//! These are plain files, which no process keeps current with traffic, so there are no `counters` and `hw_counters`. `ferroce metrics
//! --sysfs` writes these into a folder of its own, for all processes.

use crate::DeviceConfig;
use crate::device::addresses;
pub use crate::device_names::CLASS;
use crate::device_names::is_of_kernel;
use datapath::linux::Interface;
use datapath::neighbour::GidTable;
use datapath::port_spec::PortSpec;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The value of `board_id`.
pub const BOARD: &str = "FERROCE_SOFT";
/// The value of `hca_type`, which ibstat(8) shows as "CA type".
pub const TYPE: &str = "Ferroce";
/// `IBV_PORT_CM_SUP`, `IBV_PORT_IP_BASED_GIDS`: the capabilities of a port.
pub const PORT_CAPABILITIES: u32 = 1 << 16 | 1 << 26;

/// Returns the Linux interface of a device, if it has one.
#[must_use]
pub fn interface(config: &DeviceConfig) -> Option<Interface> {
    let port: PortSpec = config.port()?.parse().ok()?;
    let interface = datapath::linux::interface(port.shared_interface()?).ok()?;
    let mac = match port.resolve() {
        PortSpec::Udp(_) => datapath::linux::udp::own_address(&interface),
        _ => interface.mac,
    };
    Some(Interface { mac, ..interface })
}

/// Returns a device's GUID: the EUI-64 of the interface's address. For a port without an interface, returns a locally administered number
/// derived from its name and addresses.
#[must_use]
pub fn guid(config: &DeviceConfig) -> [u8; 8] {
    if let Some(interface) = interface(config) {
        let [a, b, c, d, e, f] = interface.mac.0;
        return [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    }
    let mut hasher = DefaultHasher::new();
    let named = config.settings().into_iter().filter(|(key, _)| ["port", "ip"].contains(key));
    named.for_each(|(_, value)| value.hash(&mut hasher));
    let mut guid = hasher.finish().to_be_bytes();
    guid[0] = guid[0] & 0xfc | 2;
    guid
}

/// Describes the devices of a configuration in the folder `class` before any of them is open. Describes the port, too, if it is on a Linux
/// interface. Writes nothing if [`Folder::create`] fails.
///
/// # Errors
/// Returns the file system's error.
pub fn describe(class: &Path, configs: &[DeviceConfig]) -> io::Result<()> {
    for (at, config) in configs.iter().filter(|config| config.port().is_some()).enumerate() {
        let name = config.name_at(at);
        let Ok(folder) = Folder::create(class, &name) else { return Ok(()) };
        let interface = interface(config);
        folder.describe(&name, guid(config), interface.as_ref().map(|interface| &*interface.name))?;
        let Some(Interface { name, index, mac, running, speed_mbps, .. }) = interface else { continue };
        // A device without an address cannot be opened, and the error of the opening says so.
        let addresses = addresses(&name, mac, Some(index), config).unwrap_or_default();
        let gids = GidTable::new(mac, addresses.iter().map(|address| address.ip));
        folder.describe_port(&PortState { is_up: running, speed_mbps, gids: &gids, interface: &name })?;
    }
    Ok(())
}

/// The properties of a port that its files contain.
#[derive(Clone, Copy, Debug)]
pub struct PortState<'a> {
    /// Whether the link is up.
    pub is_up: bool,
    /// The link's speed in Mb/s, if it is known.
    pub speed_mbps: Option<u32>,
    /// The addresses, by GID index.
    pub gids: &'a GidTable,
    /// The name of the interface.
    pub interface: &'a str,
}

/// The folder of one device.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Returns the folder of the device `name` in `class`, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns the file system's error if the folder cannot be created, as in sysfs, and [`io::ErrorKind::AlreadyExists`] if `name` is a
    /// folder of sysfs or a symbolic link: sysfs contains a link for each device of the kernel.
    pub fn create(class: &Path, name: &str) -> io::Result<Self> {
        let folder = class.join(name);
        if is_of_kernel(&folder) {
            let reason = "a device of the kernel, or a link, has this name";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        if !folder.is_dir() {
            std::fs::create_dir(&folder)?;
        }
        Ok(Self(folder))
    }

    /// Writes the properties of a device that are known before its port is open. `interface` is its Linux interface, if it has one.
    ///
    /// # Errors
    /// Returns the file system's error.
    pub fn describe(&self, name: &str, guid: [u8; 8], interface: Option<&str>) -> io::Result<()> {
        self.write("node_type", "1: CA")?;
        self.write("node_desc", name)?;
        self.write("node_guid", &words(&guid))?;
        self.write("sys_image_guid", &words(&guid))?;
        self.write("fw_ver", env!("CARGO_PKG_VERSION"))?;
        self.write("board_id", BOARD)?;
        self.write("hca_type", TYPE)?;
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
    pub fn describe_port(&self, port: &PortState<'_>) -> io::Result<()> {
        let (state, link) = if port.is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "2: Polling") };
        let (width, speed) = width_and_speed(port.speed_mbps);
        self.write("ports/1/state", state)?;
        self.write("ports/1/phys_state", link)?;
        self.write("ports/1/link_layer", "Ethernet")?;
        self.write("ports/1/rate", &rate(width, speed))?;
        self.write("ports/1/cap_mask", &format!("{PORT_CAPABILITIES:#010x}"))?;
        for number in ["lid", "sm_lid"] {
            self.write(&format!("ports/1/{number}"), "0x0")?;
        }
        for number in ["lid_mask_count", "sm_sl"] {
            self.write(&format!("ports/1/{number}"), "0")?;
        }
        self.write("ports/1/pkeys/0", "0xffff")?;
        for (index, gid) in port.gids.entries() {
            self.write(&format!("ports/1/gids/{index}"), &words(&octets(gid)))?;
            self.write(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2")?;
            self.write(&format!("ports/1/gid_attrs/ndevs/{index}"), port.interface)?;
        }
        // Another process may have described the device with more addresses.
        for index in (0..GidTable::LIMIT).filter(|index| port.gids.get(*index).is_none()) {
            for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
                let _ = std::fs::remove_file(self.0.join(format!("ports/1/{folder}/{index}")));
            }
        }
        Ok(())
    }

    /// Writes a file that changes often, such as a counter, in one step, so that other processes never read it while it is truncated.
    ///
    /// # Errors
    /// As [`Folder::describe`].
    pub fn replace(&self, file: &str, text: &str) -> io::Result<()> {
        let (file, new) = (self.0.join(file), self.0.join(".new"));
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&new, format!("{text}\n"))?;
        std::fs::rename(new, file)
    }

    /// Writes a file only if its contents change, so that other processes never read it while it is truncated.
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

/// Returns the smallest codes of width and speed in `ibv_port_attr` that carry the link's Mb/s. If the speed is unknown, assumes 10 Gb/s.
#[must_use]
pub fn width_and_speed(mbps: Option<u32>) -> (u8, u8) {
    const ONE_LANE: u8 = 1;
    const FOUR_LANES: u8 = 2;
    match mbps.unwrap_or(10_000) {
        0..=2_500 => (ONE_LANE, 1),
        2_501..=5_000 => (ONE_LANE, 2),
        5_001..=10_000 => (FOUR_LANES, 1),
        10_001..=14_000 => (ONE_LANE, 16),
        14_001..=25_000 => (ONE_LANE, 32),
        25_001..=40_000 => (FOUR_LANES, 4),
        40_001..=56_000 => (FOUR_LANES, 16),
        56_001..=100_000 => (FOUR_LANES, 32),
        100_001..=200_000 => (FOUR_LANES, 64),
        200_001.. => (FOUR_LANES, 128),
    }
}

/// Returns an address as a GID: IPv4 is mapped into IPv6 (IBA A17.5).
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Formats words of 16 bits, in the kernel's form of GUIDs and GIDs.
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
    use crate::device_names::check_name;
    use roce::wire::Mac;

    #[test]
    fn a_device_is_described_as_the_kernel_does_it() {
        let class = tempfile::tempdir().unwrap();
        let folder = Folder::create(class.path(), "ferroce0").unwrap();
        folder.describe("ferroce0", [2, 0, 0, 0xff, 0xfe, 0, 0, 1], Some("eth7")).unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let [gids, fewer] = [vec!["10.0.0.1".parse().unwrap()], vec![]].map(|it| GidTable::new(mac, it));
        let port = PortState { is_up: true, speed_mbps: Some(100_000), gids: &gids, interface: "eth7" };
        folder.describe_port(&port).unwrap();
        let read = |file: &str| std::fs::read_to_string(class.path().join("ferroce0").join(file)).unwrap();
        assert_eq!(read("node_guid"), "0200:00ff:fe00:0001\n");
        assert_eq!(read("hca_type"), "Ferroce\n");
        assert_eq!(read("ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read("ports/1/rate"), "100 Gb/sec (4X EDR)\n");
        assert_eq!(read("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "eth7\n");
        let link = std::fs::read_link(class.path().join("ferroce0/device/net/eth7")).unwrap();
        assert_eq!(link, Path::new("/sys/class/net/eth7"));
        // The device's IPv4 address is removed, and then another process describes the device.
        let folder = Folder::create(class.path(), "ferroce0").unwrap();
        folder.describe("ferroce0", [2, 0, 0, 0xff, 0xfe, 0, 0, 1], Some("eth7")).unwrap();
        folder.describe_port(&PortState { gids: &fewer, ..port }).unwrap();
        let names = std::fs::read_dir(class.path().join("ferroce0/ports/1/gids")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["0"]);
    }

    #[test]
    fn nothing_is_written_without_the_folder_of_ferroce_run() {
        assert!(Folder::create(Path::new("/sys/class/net"), "ferroce0").is_err());
        assert!(Folder::create(Path::new("/nowhere/infiniband"), "ferroce0").is_err());
    }

    #[test]
    fn a_device_of_the_kernel_is_never_written() {
        let [class, kernel] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(kernel.path(), class.path().join("mlx5_0")).unwrap();
        let config = DeviceConfig::on("eth7").named("mlx5_0").unwrap();
        assert_eq!(Folder::create(class.path(), "mlx5_0").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // A container may have no sysfs.
        if Path::new("/sys/kernel").is_dir() {
            let error = Folder::create(Path::new("/sys"), "kernel").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        describe(class.path(), std::slice::from_ref(&config)).unwrap();
        assert_eq!(std::fs::read_dir(kernel.path()).unwrap().count(), 0);
        let error = check_name(class.path(), &config).unwrap_err();
        assert_eq!(error.to_string(), "name `mlx5_0`: a device of the kernel has it; choose another");
        // The folder of an earlier description is Ferroce's own.
        Folder::create(class.path(), "mlx5_1").unwrap();
        assert_eq!(check_name(class.path(), &config.named("mlx5_1").unwrap()), Ok(()));
    }

    #[test]
    fn rates_are_in_the_kernel_s_form() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(2, 1), "10 Gb/sec (4X SDR)");
        assert_eq!(rate(2, 128), "400 Gb/sec (4X NDR)");
    }
}
