//! The names of devices in programs, such as `mlx5_0`. `config.rs` and `config_file.rs` check that each is given once.

use crate::DeviceConfig;
use crate::errors::ConfigError;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The folder of all RDMA devices.
pub const CLASS: &str = "/sys/class/infiniband";

/// Most bytes of a device's name, without its NUL (`IBV_SYSFS_NAME_MAX` is 64).
const MAX_NAME: usize = 63;

impl DeviceConfig {
    /// Sets the name that programs see, such as `mlx5_0`: letters, digits, `-` and `_`, at most 63.
    ///
    /// # Errors
    /// Returns [`ConfigError::Name`] for any other name.
    pub fn named(self, name: impl Into<String>) -> Result<Self, ConfigError> {
        let name = name.into();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err(ConfigError::Name(name));
        }
        Ok(Self { name: Some(name), ..self })
    }

    /// Returns the name of the device with index `at` in the configuration, from 0: the one that is set, or `ferroce0`, `ferroce1` and so on.
    #[must_use]
    pub fn name_at(&self, at: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("ferroce{at}"))
    }
}

/// Gives all devices the name in `FERROCE_NAME`, which suits a single one. An empty name changes nothing.
pub(crate) fn all_named(configs: Vec<DeviceConfig>, name: &str) -> Result<Vec<DeviceConfig>, ConfigError> {
    if name.is_empty() {
        return Ok(configs);
    }
    let named = configs.into_iter().map(|config| config.named(name)).collect::<Result<Vec<_>, _>>()?;
    each_once(&named)?;
    Ok(named)
}

/// Checks that no port and no name is given twice, because two devices cannot share one, and that no name is the port of another device,
/// because `FERROCE_PORT` selects devices by both.
pub(crate) fn each_once(configs: &[DeviceConfig]) -> Result<(), ConfigError> {
    let ports = configs.iter().filter_map(|config| config.port.clone());
    if let Some(port) = twice(ports) {
        return Err(ConfigError::PortTwice(port));
    }
    let devices = configs.iter().filter(|config| config.port.is_some());
    let is_port = |name: &&String| configs.iter().any(|config| config.port.as_ref() == Some(*name));
    let named = devices.clone().filter(|config| config.name != config.port);
    if let Some(name) = named.filter_map(|config| config.name.as_ref()).find(is_port) {
        return Err(ConfigError::NameOfPort(name.clone()));
    }
    let name = twice(devices.enumerate().map(|(at, config)| config.name_at(at)));
    name.map_or(Ok(()), |name| Err(ConfigError::NameTwice(name)))
}

/// Checks that no device of the kernel in `class` has the name that a configuration sets. Programs would read the files of that device.
///
/// # Errors
/// Returns [`ConfigError::NameOfKernel`] if one has it.
pub(crate) fn check_name(class: &Path, config: &DeviceConfig) -> Result<(), ConfigError> {
    match &config.name {
        Some(name) if is_of_kernel(&class.join(name)) => Err(ConfigError::NameOfKernel(name.clone())),
        _ => Ok(()),
    }
}

/// Returns true if `folder` is a symbolic link or in sysfs. Ferroce creates neither.
pub(crate) fn is_of_kernel(folder: &Path) -> bool {
    if folder.is_symlink() {
        return true;
    }
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain data, for which zeros are a valid value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, and `found` is valid for writes.
    let error = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    error == 0 && found.f_type == libc::SYSFS_MAGIC
}

fn twice(texts: impl Iterator<Item = String>) -> Option<String> {
    let mut seen = BTreeSet::new();
    texts.into_iter().find(|text| !seen.insert(text.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_names_no_device() {
        let named = || vec![DeviceConfig::on("eth0").named("rxe0").unwrap()];
        assert_eq!(all_named(named(), ""), Ok(named()));
        assert_eq!(all_named(named(), "mlx5_0").unwrap()[0].name_at(0), "mlx5_0");
        let two = ["eth0", "eth1"].map(DeviceConfig::on).to_vec();
        assert_eq!(all_named(two, "mlx5_0"), Err(ConfigError::NameTwice("mlx5_0".into())));
    }
}
