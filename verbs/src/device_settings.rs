//! The table of a device's settings: their keys in `ferroce.toml`, their variables, descriptions and values. `ferroce config`, the man page
//! and the reference are made from it. `config_file.rs` parses the keys, whose types differ.

use crate::DeviceConfig;
use crate::congestion::{CongestionRule, bytes_text};
use crate::errors::ConfigError;
use datapath::engine::Idle;
use datapath::neighbour;
use std::str::FromStr;

/// Returns the settings with the value of a variable.
type Set = fn(DeviceConfig, &str) -> Result<DeviceConfig, ConfigError>;

/// A setting of a device.
///
/// ```
/// use ferroce_verbs::DeviceConfig;
///
/// let vlan = DeviceConfig::SETTINGS.iter().find(|setting| setting.key == "vlan").unwrap();
/// assert_eq!(vlan.variable, "FERROCE_VLAN");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeviceSetting {
    /// The key in `ferroce.toml`.
    pub key: &'static str,
    /// The variable that overrides the file. Empty if there is none.
    pub variable: &'static str,
    /// The effect, for help texts.
    pub help: &'static str,
    /// Returns the value in effect, or `None` if the port decides. The key file's contents are not shown.
    pub(crate) get: Option<fn(&DeviceConfig) -> Option<String>>,
    /// Sets the value of the variable. `config.rs` reads the other variables, which do not concern every device.
    pub(crate) set: Option<Set>,
}

fn number<T: FromStr>(text: &str, wrong: fn(String) -> ConfigError) -> Result<T, ConfigError> {
    text.parse().map_err(|_| wrong(text.to_owned()))
}

fn addresses(config: &DeviceConfig) -> Option<String> {
    let addresses = config.addresses.iter().map(|address| neighbour::Address::from(*address).to_string());
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    (!addresses.is_empty()).then_some(addresses)
}

impl DeviceConfig {
    /// All settings, in the order of the reference.
    pub const SETTINGS: &'static [DeviceSetting] = &[
        DeviceSetting {
            key: "port",
            variable: "FERROCE_PORT",
            help: "The port: a Linux interface, tap:NAME, memif:SOCKET, or another form that `ferroce info` lists. A list names several devices; the variable separates them by commas, or by a semicolon after a port with a colon.",
            get: Some(|config| config.port.clone()),
            set: None,
        },
        DeviceSetting {
            key: "ip",
            variable: "FERROCE_IP",
            help: "A list of the port's addresses with their prefixes; the variable separates them by commas. Without it the interface's own are used, or one made from the MAC.",
            get: Some(addresses),
            set: None,
        },
        DeviceSetting {
            key: "name",
            variable: "FERROCE_NAME",
            help: "The name that programs see, such as mlx5_0 or rxe0, for scripts that expect it: letters, digits, - and _, at most 63. Without it, the devices are ferroce0, ferroce1 and so on. FERROCE_PORT and --port may name the port by it.",
            get: Some(|config| config.name.clone()),
            set: None,
        },
        DeviceSetting {
            key: "gateway",
            variable: "",
            help: "The address through which peers outside the prefixes are reached. A Linux interface uses its routes instead.",
            get: Some(|config| config.gateway.map(|gateway| gateway.to_string())),
            set: None,
        },
        DeviceSetting {
            key: "vlan",
            variable: "FERROCE_VLAN",
            help: "The VLAN of the frames that the port sends and receives, 1 to 4094. The addresses are then those of `ip`.",
            get: Some(|config| config.vlan.map(|vlan| vlan.id().to_string())),
            set: Some(|config, text| config.vlan(number(text, ConfigError::Vlan)?)),
        },
        DeviceSetting {
            key: "progress",
            variable: "FERROCE_PROGRESS",
            help: "The thread that runs the core: inline, adaptive, dedicated, or dedicated:CPU.",
            get: Some(|config| Some(config.who_runs().to_string())),
            set: Some(|config, text| Ok(config.progress(text.parse()?))),
        },
        DeviceSetting {
            key: "cores",
            variable: "FERROCE_CORES",
            help: "The number of poll-mode cores behind the port, 1 to 16. Dedicated cores need as many CPUs.",
            get: Some(|config| Some(config.cores.to_string())),
            set: Some(|config, text| config.cores(number(text, ConfigError::CoresText)?)),
        },
        DeviceSetting {
            key: "idle",
            variable: "",
            help: "What a dedicated core does when it finds no work: yield (sleeps at most 50 us) or busy.",
            get: Some(|config| Some(if config.idle == Idle::Busy { "busy" } else { "yield" }.into())),
            set: None,
        },
        DeviceSetting {
            key: "mtu",
            variable: "",
            help: "The largest path MTU to offer: 256, 512, 1024, 2048 or 4096. Without it, the largest that the port carries.",
            get: Some(|config| config.mtu.map(|mtu| mtu.bytes().to_string())),
            set: None,
        },
        DeviceSetting {
            key: "buffers",
            variable: "",
            help: "The number of the port's packet buffers, 256 to 1048576.",
            get: Some(|config| Some(config.buffers.to_string())),
            set: None,
        },
        DeviceSetting {
            key: "queue_pairs",
            variable: "FERROCE_QUEUE_PAIRS",
            help: "The number of queue pairs and shared receive queues together, 1 to 262144.",
            get: Some(|config| Some(config.queue_pairs.to_string())),
            set: Some(|config, text| config.queue_pairs(number(text, ConfigError::QueuePairsText)?)),
        },
        DeviceSetting {
            key: "selective_repeat",
            variable: "FERROCE_SELECTIVE_REPEAT",
            help: "Whether reliable queue pairs may use selective repeat, also those of unmodified C programs. With false, they use go-back-N, whatever a program or a peer offers.",
            get: Some(|config| Some(config.selective_repeat.to_string())),
            set: Some(
                |config, text| Ok(config.selective_repeat(number(text, ConfigError::SelectiveRepeat)?)),
            ),
        },
        DeviceSetting {
            key: "early_memory",
            variable: "",
            help: "The memory of each core for packets that arrive before one that was sent earlier (selective repeat), such as 64M. All queue pairs of the core share it, because peers choose how much of it they use. A packet that finds no room is dropped, and its sender repeats it. With 0, none are held.",
            get: Some(|config| Some(bytes_text(config.early_memory))),
            set: None,
        },
        DeviceSetting {
            key: "link_rate",
            variable: "",
            help: "Sends frames no faster than a link of this rate would. It is for ports without a rate: veth, tap and memif.",
            get: Some(|config| config.link_rate.map(|rate| rate.to_string())),
            set: None,
        },
        DeviceSetting {
            key: "feedback_key_file",
            variable: "FERROCE_FEEDBACK_KEY",
            help: "A file of mode 0600 that contains 32 hex digits (a relative path is relative to the folder of ferroce.toml), the key with which all queue pairs of the device seal their answers to telemetry; they accept no others, so both ends need the same key. The variable contains the key itself, for devices for which the file names none.",
            get: None,
            set: None,
        },
        DeviceSetting {
            key: "int_port",
            variable: "FERROCE_INT_PORT",
            help: "The UDP port of INT-MD in the whole network.",
            get: Some(|config| Some(config.numbers.int_port().to_string())),
            set: Some(|mut config, text| {
                config.set_numbers(Some(number(text, ConfigError::IntPort)?), None)?;
                Ok(config)
            }),
        },
        DeviceSetting {
            key: "aecn_option",
            variable: "FERROCE_AECN_OPTION",
            help: "The type of AECN's IPv6 option in the whole network.",
            get: Some(|config| Some(format!("{:#04x}", config.numbers.aecn_option()))),
            set: Some(|mut config, text| {
                config.set_numbers(None, Some(text))?;
                Ok(config)
            }),
        },
        DeviceSetting {
            key: "csig_tpid",
            variable: "FERROCE_CSIG_TPID",
            help: "The EtherType of CSIG's compact tag in the whole network. The wide tag has the next one.",
            get: Some(|config| Some(format!("{:#06x}", config.numbers.csig_tpid()))),
            set: Some(|mut config, text| {
                config.set_csig_tpid(text)?;
                Ok(config)
            }),
        },
    ];

    /// Returns each setting by its key in `ferroce.toml`, with its value. The value is `None` if the port decides. [`rules`](Self::rules)
    /// returns the congestion rules.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, Option<String>)> {
        Self::SETTINGS.iter().filter_map(|setting| Some((setting.key, setting.get?(self)))).collect()
    }

    /// Returns the congestion rules in the order in which they are tried.
    #[must_use]
    pub fn rules(&self) -> &[CongestionRule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_shown_as_it_is_written() {
        let text = "port = 'veth0'\nname = 'mlx5_0'\nip = ['10.0.0.1/24']\nprogress = 'dedicated:1'\ncores = 2\nvlan = 7\nmtu = 2048\nidle = 'busy'\n\
                    buffers = 512\nqueue_pairs = 9\nselective_repeat = false\nearly_memory = '1536K'\naecn_option = '0x3f'\ngateway = '10.0.0.9'\nlink_rate = '10G'";
        let config: DeviceConfig = text.parse().unwrap();
        let shown: std::collections::HashMap<_, _> = config.settings().into_iter().collect();
        for (key, value) in [
            ("port", "veth0"),
            ("ip", "10.0.0.1/24"),
            ("name", "mlx5_0"),
            ("gateway", "10.0.0.9"),
            ("vlan", "7"),
            ("progress", "dedicated:1"),
            ("cores", "2"),
            ("idle", "busy"),
            ("mtu", "2048"),
            ("buffers", "512"),
            ("queue_pairs", "9"),
            ("selective_repeat", "false"),
            ("early_memory", "1536K"),
            ("int_port", "1021"),
            ("aecn_option", "0x3f"),
            ("csig_tpid", "0x9900"),
        ] {
            assert_eq!(shown[key].as_deref(), Some(value), "{key}");
        }
        assert!(shown["link_rate"].is_some());
        assert_eq!(DeviceConfig::new().settings()[0], ("port", None));
        let bare: DeviceConfig = "ip = ['10.0.0.1', 'fd00::1/64']".parse().unwrap();
        assert_eq!(bare.settings()[1], ("ip", Some("10.0.0.1, fd00::1/64".into())));
    }
}
