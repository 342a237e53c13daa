//! Finds NICs on the PCI bus, and changes their kernel drivers. DPDK's drivers access most NICs through `vfio-pci`.
//!
//! Reads and writes sysfs as described in Linux's `Documentation/ABI/testing/sysfs-bus-pci`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const VFIO: &str = "vfio-pci";
/// Kernel drivers with which DPDK can drive a NIC: those that give DPDK access to the NIC, and those that share the NIC with DPDK.
const USABLE: [&str; 6] = [VFIO, "igb_uio", "uio_pci_generic", "mlx4_core", "mlx5_core", "mana"];
/// The class of an Ethernet controller in sysfs, without the programming interface.
const ETHERNET: &str = "0x0200";

/// Reasons why a NIC cannot be used or bound: one line, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum PciError {
    #[error("no PCI device {address}; Ethernet controllers of this machine: {existing}")]
    Missing { address: String, existing: String },
    #[error("PCI device {address} is not an Ethernet controller; those of this machine: {existing}")]
    NotEthernet { address: String, existing: String },
    #[error(
        "PCI device {address} is bound to {}; `ferroce doctor --bind {address}` binds it to {VFIO}",
        driver.as_ref().map_or_else(|| "no driver of the kernel".into(), |driver| format!("the kernel's driver {driver}"))
    )]
    Kernels { address: String, driver: Option<String> },
    #[error(
        "PCI device {address} has no IOMMU; switch it on (BIOS: VT-d or AMD-Vi; Linux: intel_iommu=on), or, without protection from \
         the NIC, write Y to /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
    )]
    NoIommu { address: String },
    #[error("interface {interface} of PCI device {address} is up; `ip link set dev {interface} down` first")]
    Up { address: String, interface: String },
    #[error("a process uses PCI device {address}; end it first: `fuser -v /dev/vfio/{group}`")]
    InUse { address: String, group: String },
    #[error("the kernel's driver {VFIO} is not loaded; `modprobe {VFIO}`")]
    NoVfio,
    #[error("cannot write {file}: {why}; {}", crate::capabilities::remedy_for_root_file())]
    Write { file: String, why: String },
    #[error("PCI device {address} did not change to {VFIO}, and has {}; read the kernel's reason in dmesg", driver.as_deref().unwrap_or("no driver"))]
    Stays { address: String, driver: Option<String> },
}

/// A device on the PCI bus, identified by its address, such as `0000:01:00.0`.
#[derive(Clone, Debug)]
pub struct Nic {
    address: String,
    bus: PathBuf,
}

impl Nic {
    /// Returns the device at `address`, which need not exist.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self::on(Path::new("/sys/bus/pci"), address)
    }

    fn on(bus: &Path, address: &str) -> Self {
        Self { address: address.into(), bus: bus.into() }
    }

    fn place(&self) -> PathBuf {
        self.bus.join("devices").join(&self.address)
    }

    /// Returns the kernel driver to which the device is bound.
    #[must_use]
    pub fn driver(&self) -> Option<String> {
        let driver = fs::read_link(self.place().join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Checks that a DPDK driver can use the device.
    ///
    /// # Errors
    /// Returns [`PciError`] if it does not exist, is not an Ethernet controller, is bound to another kernel driver, or has no IOMMU.
    pub fn check(&self) -> Result<(), PciError> {
        self.exists()?;
        let driver = self.driver();
        if !driver.as_deref().is_some_and(|driver| USABLE.contains(&driver)) {
            return Err(PciError::Kernels { address: self.address.clone(), driver });
        }
        self.has_iommu(driver.as_deref())
    }

    fn exists(&self) -> Result<(), PciError> {
        let (address, existing) = (self.address.clone(), || ethernet_controllers(&self.bus));
        match fs::read_to_string(self.place().join("class")) {
            Err(_) => Err(PciError::Missing { address, existing: existing() }),
            Ok(class) if !class.starts_with(ETHERNET) => {
                Err(PciError::NotEthernet { address, existing: existing() })
            }
            Ok(_) => Ok(()),
        }
    }

    /// Checks for an IOMMU. Without one, `vfio-pci` binds devices only in its unsafe mode, in which each has its own group.
    fn has_iommu(&self, driver: Option<&str>) -> Result<(), PciError> {
        if driver == Some(VFIO) && !self.place().join("iommu_group").exists() {
            return Err(PciError::NoIommu { address: self.address.clone() });
        }
        Ok(())
    }

    /// Binds the device to `vfio-pci` instead of its kernel driver. Does nothing if it is already bound to `vfio-pci`.
    ///
    /// # Errors
    /// Returns [`PciError`] if the device is not an Ethernet controller, its interface is up, or the kernel refuses.
    pub fn bind(&self) -> Result<(), PciError> {
        self.exists()?;
        let before = self.driver();
        if before.as_deref() == Some(VFIO) {
            return self.has_iommu(before.as_deref());
        }
        if let Some(interface) = self.interface_that_is_up() {
            return Err(PciError::Up { address: self.address.clone(), interface });
        }
        if !self.bus.join("drivers").join(VFIO).exists() {
            return Err(PciError::NoVfio);
        }
        self.hand_to(VFIO)?;
        let driver = self.driver();
        if driver.as_deref() == Some(VFIO) {
            return self.has_iommu(driver.as_deref());
        }
        // Binds it to its usual driver again, so that it is not left without a driver.
        let _ = self.hand_to("");
        Err(PciError::Stays { address: self.address.clone(), driver: self.driver() })
    }

    /// Binds the device to the kernel driver that supports it.
    ///
    /// # Errors
    /// Returns [`PciError`] if the device does not exist, or the kernel refuses.
    pub fn unbind(&self) -> Result<(), PciError> {
        self.exists()?;
        if self.interface_that_is_up().is_some() {
            return Ok(());
        }
        self.is_free()?;
        self.hand_to("")
    }

    /// Returns an error if a process uses the device, because the kernel would wait until that process closes it.
    fn is_free(&self) -> Result<(), PciError> {
        let Ok(link) = fs::read_link(self.place().join("iommu_group")) else { return Ok(()) };
        let group = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match fs::File::open(Path::new("/dev/vfio").join(&group)) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(PciError::InUse { address: self.address.clone(), group })
            }
            _ => Ok(()),
        }
    }

    /// Makes the kernel bind the device to `driver`, or to the driver that supports it if the name is empty.
    fn hand_to(&self, driver: &str) -> Result<(), PciError> {
        // An empty line clears the override.
        write(&self.place().join("driver_override"), &format!("{driver}\n"))?;
        if self.driver().is_some() {
            write(&self.place().join("driver/unbind"), &self.address)?;
        }
        write(&self.bus.join("drivers_probe"), &self.address)
    }

    /// Returns an interface of the device that is up. Interfaces are in the device's directory, or in that of its virtio device.
    fn interface_that_is_up(&self) -> Option<String> {
        let place = self.place();
        let virtio = names(&place).into_iter().filter(|name| name.starts_with("virtio"));
        let folders = virtio.map(|name| place.join(name).join("net")).chain([place.join("net")]);
        let interfaces = folders.flat_map(|net| names(&net).into_iter().map(move |name| net.join(name)));
        let is_up = |interface: &PathBuf| {
            let flags = fs::read_to_string(interface.join("flags")).unwrap_or_default();
            let flags = flags.trim().strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
            flags.is_some_and(|flags| flags & libc::IFF_UP as u32 != 0)
        };
        let up = interfaces.into_iter().find(is_up)?;
        Some(up.file_name()?.to_string_lossy().into_owned())
    }
}

/// Returns the addresses of the machine's Ethernet controllers with their drivers, as text for an error message.
fn ethernet_controllers(bus: &Path) -> String {
    let found: Vec<String> = names(&bus.join("devices"))
        .into_iter()
        .map(|address| Nic::on(bus, &address))
        .filter(|nic| {
            fs::read_to_string(nic.place().join("class")).is_ok_and(|class| class.starts_with(ETHERNET))
        })
        .map(|nic| format!("{} ({})", nic.address, nic.driver().unwrap_or_else(|| "no driver".into())))
        .collect();
    if found.is_empty() { "none".into() } else { found.join(", ") }
}

/// Returns the sorted names in a directory, or none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn write(file: &Path, text: &str) -> Result<(), PciError> {
    let written = fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| PciError::Write { file: file.display().to_string(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const ADDRESS: &str = "0000:01:00.0";

    struct Bus(tempfile::TempDir);

    impl Bus {
        fn new(class: &str, driver: Option<&str>) -> Self {
            let bus = Self(tempfile::tempdir().unwrap());
            let device = bus.device();
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("class"), class).unwrap();
            fs::write(device.join("driver_override"), "(null)").unwrap();
            fs::write(bus.path().join("drivers_probe"), "").unwrap();
            for name in ["e1000e", VFIO] {
                fs::create_dir_all(bus.path().join("drivers").join(name)).unwrap();
                fs::write(bus.path().join("drivers").join(name).join("unbind"), "").unwrap();
            }
            if let Some(name) = driver {
                symlink(bus.path().join("drivers").join(name), device.join("driver")).unwrap();
            }
            bus
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn device(&self) -> PathBuf {
            self.path().join("devices").join(ADDRESS)
        }

        fn nic(&self) -> Nic {
            Nic::on(self.path(), ADDRESS)
        }

        fn with_interface(self, name: &str, flags: &str) -> Self {
            let net = self.device().join("net").join(name);
            fs::create_dir_all(&net).unwrap();
            fs::write(net.join("flags"), flags).unwrap();
            self
        }

        fn with_group(self) -> Self {
            fs::create_dir_all(self.device().join("iommu_group")).unwrap();
            self
        }

        fn content(&self, file: &str) -> String {
            fs::read_to_string(self.path().join(file)).unwrap()
        }
    }

    #[test]
    fn each_state_of_a_nic_is_named_with_its_remedy() {
        let refusal = |bus: &Bus| bus.nic().check().unwrap_err().to_string();
        let kernels = Bus::new("0x020000", Some("e1000e"));
        assert_eq!(
            refusal(&kernels),
            "PCI device 0000:01:00.0 is bound to the kernel's driver e1000e; `ferroce doctor --bind 0000:01:00.0` binds it to vfio-pci"
        );
        assert!(refusal(&Bus::new("0x020000", None)).contains("bound to no driver of the kernel"));
        assert!(refusal(&Bus::new("0x020000", Some(VFIO))).contains("intel_iommu=on"));
        let disk = refusal(&Bus::new("0x010802", Some("nvme")));
        assert!(disk.contains("is not an Ethernet controller") && disk.ends_with("none"), "{disk}");
        let missing = Nic::on(kernels.path(), "0000:02:00.0").check().unwrap_err().to_string();
        assert!(
            missing.ends_with("Ethernet controllers of this machine: 0000:01:00.0 (e1000e)"),
            "{missing}"
        );
        Bus::new("0x020000", Some(VFIO)).with_group().nic().check().unwrap();
        Bus::new("0x020000", Some("mlx5_core")).nic().check().expect("the kernel and DPDK share these");
    }

    #[test]
    fn an_interface_that_is_up_keeps_its_nic() {
        let bus = Bus::new("0x020000", Some("e1000e")).with_interface("eth7", "0x1003\n");
        let refusal = bus.nic().bind().unwrap_err().to_string();
        assert_eq!(
            refusal,
            "interface eth7 of PCI device 0000:01:00.0 is up; `ip link set dev eth7 down` first"
        );
        assert_eq!(bus.content("drivers/e1000e/unbind"), "", "nothing was changed");
        assert_eq!(bus.content(&format!("devices/{ADDRESS}/driver_override")), "(null)");
    }

    /// This directory is not the kernel's, so `vfio-pci` never binds the device. The device gets its usual driver back.
    #[test]
    fn a_nic_that_vfio_does_not_bind_gets_its_driver_back() {
        let bus = Bus::new("0x020000", Some("e1000e")).with_interface("eth7", "0x1002\n");
        let refusal = bus.nic().bind().unwrap_err();
        assert_eq!(refusal, PciError::Stays { address: ADDRESS.into(), driver: Some("e1000e".into()) });
        assert!(bus.content(&format!("devices/{ADDRESS}/driver_override")).starts_with('\n'));
        assert_eq!(bus.content("drivers_probe"), ADDRESS);
        fs::remove_dir_all(bus.path().join("drivers").join(VFIO)).unwrap();
        assert_eq!(bus.nic().bind().unwrap_err(), PciError::NoVfio);
    }
}
