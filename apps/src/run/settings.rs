//! The settings that `ferroce run` and `ferroce env` pass to the libraries of a program, as variables of its environment.

use super::hosts::INTERFACE;
use super::{device_file, library};
use crate::completion;
use crate::failure::Failure;
use datapath::port_spec::PortSpec;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use verbs::DeviceConfig;
use verbs::congestion::CongestionRule;
use verbs::errors::ConfigError;
use verbs::port::{Address, port_list};

/// The flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Settings {
    /// Port: veth0, xdp:eth0, tap:rdma0, memif:/run/x.sock, pci:0000:01:00.0; each port of a list is a device: eth0,eth1 [default: the port in ferroce.toml]
    #[arg(short = 'd', long, value_name = "PORT", env = "FERROCE_PORT", add = completion::ports())]
    port: Option<String>,
    /// Name of the device that the program sees, such as mlx5_0, for scripts that expect it [default: ferroce0]
    #[arg(long, value_name = "NAME", env = "FERROCE_NAME")]
    name: Option<String>,
    /// The port's addresses, if the kernel assigns none: 10.0.0.1/24,fd00::1/64
    #[arg(long, value_name = "ADDRESS", env = "FERROCE_IP")]
    ip: Option<String>,
    /// VLAN of the frames that the port sends and receives, 1 to 4094; its addresses come from --ip
    #[arg(long, value_name = "ID", env = "FERROCE_VLAN", value_parser = clap::value_parser!(u16).range(1..=4094))]
    vlan: Option<u16>,
    /// Congestion control of queue pairs: an algorithm, such as hpcc, dcqcn, fixed or auto, followed by the keys of a congestion rule:
    /// hpcc,line_rate=1G,base_rtt=2ms
    #[arg(long, value_name = "NAME[,KEY=VALUE...]", env = "FERROCE_CC", add = completion::congestion())]
    cc: Option<String>,
    /// File of settings [default: ferroce.toml in this folder, if it exists]
    #[arg(long, value_name = "FILE", env = "FERROCE_CONFIG")]
    config: Option<PathBuf>,
    /// Number of poll-mode cores behind the port, 1 to 16 [default: 1]
    #[arg(long, value_name = "N", env = "FERROCE_CORES", value_parser = clap::value_parser!(u8).range(1..=16))]
    cores: Option<u8>,
    /// Limit on the device's queue pairs, and on its completion queues [default: 1024]
    #[arg(long, value_name = "N", env = "FERROCE_QUEUE_PAIRS")]
    queue_pairs: Option<u32>,
    /// Load the libraries by LD_PRELOAD, too: for a program with a copy of libibverbs of its own, such as a Python wheel
    #[arg(long)]
    preload: bool,
}

impl Settings {
    /// Returns the settings for hosts that `--namespaces` creates, which have their own ports and addresses. Environment variables that
    /// select others, such as those that `ferroce env` sets in a shell, are ignored.
    ///
    /// # Errors
    /// Returns a usage failure if a flag selects a port, an address or a VLAN.
    pub fn for_namespaces(&self) -> Result<Self, Failure> {
        let vlan = self.vlan.map(|vlan| vlan.to_string());
        for (flag, variable, value) in [
            ("--port", "FERROCE_PORT", self.port.as_deref()),
            ("--ip", "FERROCE_IP", self.ip.as_deref()),
            ("--vlan", "FERROCE_VLAN", vlan.as_deref()),
        ] {
            if let Some(value) = given(value, std::env::var(variable).ok().as_deref()) {
                let own = "the virtual hosts have their own";
                return Err(Failure::usage(format!(
                    "{flag} {value}: {own}; leave out {flag} or --namespaces"
                )));
            }
        }
        Ok(Self { port: Some(INTERFACE.to_owned()), ip: None, vlan: None, ..self.clone() })
    }

    /// Returns the device's name. An empty `FERROCE_NAME` counts as unset, as in the libraries.
    fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// Refuses a setting that the libraries would refuse.
    fn check(&self) -> Result<(), Failure> {
        let wrong = |wrong: &dyn std::fmt::Display| Failure::usage(wrong.to_string());
        let configs = match self.config.clone().or_else(DeviceConfig::file) {
            Some(file) => DeviceConfig::all_from_file(&file).map_err(|error| wrong(&error))?,
            None => vec![DeviceConfig::new()],
        };
        if let Some(text) = &self.cc {
            text.parse::<CongestionRule>().map_err(|why| wrong(&format!("--cc {text}: {why}")))?;
        }
        let ports = match &self.port {
            Some(ports) => port_list(ports),
            None => configs.iter().filter_map(DeviceConfig::port).collect(),
        };
        if let Some(name) = self.name() {
            DeviceConfig::new().named(name).map_err(|error| wrong(&error))?;
            if ports.len() > 1 {
                return Err(wrong(&ConfigError::NameTwice(name.to_owned())));
            }
        }
        if let Some(addresses) = &self.ip {
            if ports.len() > 1 {
                return Err(wrong(&ConfigError::AddressesOfSeveral { devices: ports.len() }));
            }
            for address in addresses.split(',') {
                let _: Address = address.trim().parse().map_err(|error: ConfigError| wrong(&error))?;
            }
        }
        if let Some(most) = self.queue_pairs {
            DeviceConfig::new().queue_pairs(most).map_err(|error| wrong(&error))?;
        }
        for port in ports {
            port.parse::<PortSpec>().map_err(|error| wrong(&error))?;
        }
        Ok(())
    }

    /// Warns if no flag, variable or file selects a port, because programs would then find no device.
    pub fn warn_without_port(&self) {
        let configs = DeviceConfig::all_from(self.config.as_deref(), self.port.as_deref());
        if configs.is_ok_and(|configs| configs.iter().all(|config| config.port().is_none())) {
            note!(
                "warning: no port is named, so programs see no device; give --port eth0, or set FERROCE_PORT"
            );
        }
    }

    /// Returns the settings of the devices that the program will have, if they are valid.
    pub fn devices(&self) -> Vec<DeviceConfig> {
        let configs = DeviceConfig::all_from(self.config.as_deref(), self.port.as_deref());
        let mut configs = configs.unwrap_or_default();
        if let (Some(text), [config]) = (&self.ip, &mut configs[..]) {
            let addresses = text.split(',').filter_map(|address| address.trim().parse::<Address>().ok());
            *config = std::mem::take(config).addresses(addresses);
        }
        if let (Some(name), [config]) = (self.name(), &mut configs[..]) {
            *config = std::mem::take(config).named(name).unwrap_or_default();
        }
        let in_vlan = |config: DeviceConfig| match self.vlan {
            Some(id) => config.vlan(id),
            None => Ok(config),
        };
        configs.into_iter().filter_map(|config| in_vlan(config).ok()).collect()
    }

    /// Returns the variables that the loader and the libraries in `folder` read, with their values.
    ///
    /// # Errors
    /// Returns a usage failure if a setting is wrong. The program itself would report it only when it opens its device.
    pub fn variables(&self, folder: &Path) -> Result<Vec<(&'static str, OsString)>, Failure> {
        self.check()?;
        let mut settings = vec![("LD_LIBRARY_PATH", library::search_path(folder))];
        settings.extend(self.preload.then(|| ("LD_PRELOAD", library::preload(folder))));
        for (name, value) in [
            ("FERROCE_PORT", &self.port),
            ("FERROCE_NAME", &self.name),
            ("FERROCE_IP", &self.ip),
            ("FERROCE_CC", &self.cc),
        ] {
            settings.extend(value.as_ref().map(|value| (name, value.into())));
        }
        settings.extend(self.cores.map(|cores| ("FERROCE_CORES", cores.to_string().into())));
        settings.extend(self.queue_pairs.map(|most| ("FERROCE_QUEUE_PAIRS", most.to_string().into())));
        settings.extend(self.vlan.map(|vlan| ("FERROCE_VLAN", vlan.to_string().into())));
        if let Some(file) = &self.config {
            let file = file
                .canonicalize()
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            settings.push(("FERROCE_CONFIG", file.into()));
        }
        settings.extend(device_file::setting());
        Ok(settings)
    }
}

/// Returns a flag's value, unless it comes from the variable.
fn given<'a>(value: Option<&'a str>, variable: Option<&str>) -> Option<&'a str> {
    value.filter(|value| Some(*value) != variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_for_hosts_may_come_from_the_shell_but_not_from_a_flag() {
        assert_eq!(given(Some("eth0"), Some("eth0")), None);
        assert_eq!(given(Some("eth0"), Some("eth1")), Some("eth0"));
        assert_eq!([given(Some("eth0"), None), given(None, Some("eth0"))], [Some("eth0"), None]);
    }

    #[test]
    fn hosts_of_namespaces_have_one_device_each_whatever_the_file_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ferroce.toml");
        std::fs::write(&file, "[[device]]\nport = 'eth0'\n[[device]]\nport = 'eth1'\n").unwrap();
        let settings = Settings { name: Some("mlx5_0".into()), config: Some(file), ..Settings::default() };
        let error = settings.variables(folder.path()).unwrap_err().to_string();
        assert!(error.contains("mlx5_0"), "{error}");
        let variables = settings.for_namespaces().unwrap().variables(folder.path()).unwrap();
        let of = |name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_str());
        assert_eq!([of("FERROCE_PORT"), of("FERROCE_IP")], [Some(Some("eth0")), None]);
    }
}
