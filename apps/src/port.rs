//! The flags that select and configure a port, common to all tools.

use crate::failure::Failure;
use crate::{completion, units};
use cc::Rate;
use datapath::port_spec::PortSpec;
use std::path::PathBuf;
use verbs::port::Address;
use verbs::{Device, DeviceConfig, Mtu, Progress};

/// Flags of the port. The variables that the help names are read by [`DeviceConfig`].
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Port")]
pub struct PortArgs {
    /// Port: veth0, xdp:eth0, tap:rdma0, memif:/run/x.sock, pci:0000:01:00.0, or raw EAL arguments [env: FERROCE_PORT]
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "PORT", add = completion::port())]
    pub port: Option<String>,
    /// The port's addresses, if the kernel assigns none: 10.0.0.1/24,fd00::1/64. Without a prefix, every host is a neighbour
    /// [env: FERROCE_IP]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = address)]
    pub ip: Vec<Address>,
    /// VLAN of the frames that the port sends and receives, 1 to 4094; its addresses come from --ip [env: FERROCE_VLAN]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Thread that runs the port's core: `inline` (this thread), `adaptive`, `dedicated` or `dedicated:CPU`
    #[arg(long, value_name = "MODE")]
    pub progress: Option<Progress>,
    /// Number of poll-mode cores behind the port, 1 to 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub cores: Option<u8>,
    /// Send frames no faster than a link of this rate would; for ports without a link (veth, tap, memif)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub link_rate: Option<Rate>,
    /// File of settings; flags override it [default: ferroce.toml in this folder, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl PortArgs {
    /// Returns the settings of the flags, the variables and the file, with or without a port.
    fn settings(&self) -> Result<DeviceConfig, Failure> {
        let configs = DeviceConfig::all_from(self.config.as_deref(), self.port.as_deref())
            .map_err(|wrong| Failure::usage(wrong.to_string()))?;
        // The tools use only the first device.
        let mut config = configs.into_iter().next().unwrap_or_default();
        if !self.ip.is_empty() {
            config = config.addresses(self.ip.iter().copied());
        }
        if let Some(vlan) = self.vlan {
            config = config.vlan(vlan).map_err(|wrong| Failure::usage(wrong.to_string()))?;
        }
        if let Some(progress) = self.progress {
            config = config.progress(progress);
        }
        if let Some(cores) = self.cores {
            config = config.cores(cores).map_err(|wrong| Failure::usage(wrong.to_string()))?;
        }
        if let Some(rate) = self.link_rate {
            config = config.link_rate(rate);
        }
        Ok(config)
    }

    /// Returns the settings after checks of the port's name, if it has one, and of the CPUs of dedicated cores.
    ///
    /// # Errors
    /// Returns a failure if a file, a variable or a flag is wrong.
    pub fn checked(&self) -> Result<DeviceConfig, Failure> {
        let config = self.settings()?;
        let port = config.port().map(str::parse::<PortSpec>).transpose();
        port.map_err(|wrong| Failure::usage(wrong.to_string()))?;
        config.check_cpus().map_err(|wrong| Failure::usage(wrong.to_string()))?;
        Ok(config)
    }

    /// Returns true if a flag, a variable or the file selects a port.
    ///
    /// # Errors
    /// Returns a failure if a file, a variable or a flag is wrong.
    pub fn names_a_port(&self) -> Result<bool, Failure> {
        Ok(self.settings()?.port().is_some())
    }

    /// Returns the settings of a tool's device. Its progress is [`Progress::Inline`] unless configured, because tools poll continuously.
    ///
    /// # Errors
    /// Returns a failure if a file, a variable or a flag is wrong, or if none of them selects a port.
    pub fn device_config(&self) -> Result<DeviceConfig, Failure> {
        let config = self.settings()?;
        if config.port().is_none() {
            return Err(Failure::usage(
                "no port is named; give --port veth0 (or tap:rdma0, memif:/run/x.sock), or set FERROCE_PORT",
            ));
        }
        Ok(config.progress_by_default(Progress::Inline).polls_always())
    }

    /// Returns a description of the thread that runs the core.
    ///
    /// # Errors
    /// As [`device_config`](Self::device_config).
    pub fn who_runs(&self) -> Result<String, Failure> {
        Ok(self.device_config()?.who_runs().to_string())
    }

    /// Opens the port, and [watches](crate::signals::watch) its interface.
    ///
    /// # Errors
    /// As [`device_config`](Self::device_config), and if the port cannot be opened.
    pub fn open(&self) -> Result<Device, Failure> {
        self.open_with(Ok)
    }

    /// Opens the port with the settings that `change` returns.
    ///
    /// # Errors
    /// As [`open`](Self::open), and the errors of `change`.
    pub fn open_with(
        &self,
        change: impl FnOnce(DeviceConfig) -> Result<DeviceConfig, Failure>,
    ) -> Result<Device, Failure> {
        let config = change(self.device_config()?)?;
        let device = Device::open(&config).map_err(|error| Failure::run(error.to_string()))?;
        crate::signals::watch(config.port().unwrap_or_default());
        Ok(device)
    }
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|wrong: verbs::errors::ConfigError| wrong.to_string())
}

/// Parses a path MTU in bytes.
///
/// # Errors
/// Returns an error if the text is none of 256, 512, 1024, 2048 and 4096.
pub fn mtu(text: &str) -> Result<Mtu, String> {
    Mtu::ALL
        .into_iter()
        .find(|mtu| mtu.bytes().to_string() == text)
        .ok_or_else(|| format!("`{text}`: no path MTU; use 256, 512, 1024, 2048 or 4096"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_other_than_the_five_of_the_iba_is_refused() {
        assert_eq!(mtu("1024"), Ok(Mtu::M1024));
        assert!(mtu("1500").unwrap_err().contains("4096"));
        assert!(mtu("01024").is_err());
    }
}
