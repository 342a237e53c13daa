//! Parses `ferroce.toml` into the settings of devices.

use crate::config::{ConfigError, DeviceConfig, first, vlan};
use crate::congestion::{DeviceKey, RuleError, RuleText};
use crate::device_names::each_once;
use crate::toml_error::{line_of, with_remedy};
use datapath::engine::Idle;
use roce::wire::Mtu;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

/// The contents of a file: settings of all devices, and a `[[device]]` table for each device.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    port: Option<Ports>,
    name: Option<String>,
    #[serde(default)]
    ip: Vec<String>,
    gateway: Option<IpAddr>,
    vlan: Option<u16>,
    progress: Option<String>,
    cores: Option<u8>,
    idle: Option<String>,
    mtu: Option<u32>,
    buffers: Option<u32>,
    queue_pairs: Option<u32>,
    selective_repeat: Option<bool>,
    early_memory: Option<String>,
    link_rate: Option<String>,
    feedback_key_file: Option<String>,
    int_port: Option<u16>,
    aecn_option: Option<String>,
    csig_tpid: Option<String>,
    #[serde(default)]
    congestion: Vec<RuleText>,
    #[serde(default)]
    device: Vec<DeviceText>,
}

#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "port is neither a string nor a list of strings; write port = \"eth0\"")]
enum Ports {
    One(String),
    Several(Vec<String>),
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceText {
    port: Option<String>,
    name: Option<String>,
    #[serde(default)]
    ip: Vec<String>,
    gateway: Option<IpAddr>,
    vlan: Option<u16>,
    progress: Option<String>,
    cores: Option<u8>,
    idle: Option<String>,
    mtu: Option<u32>,
    buffers: Option<u32>,
    queue_pairs: Option<u32>,
    selective_repeat: Option<bool>,
    early_memory: Option<String>,
    link_rate: Option<String>,
    feedback_key_file: Option<String>,
}

impl DeviceText {
    /// Returns `config` with the settings of this table. Relative paths are relative to `folder`.
    fn over(self, mut config: DeviceConfig, folder: &Path) -> Result<DeviceConfig, ConfigError> {
        config.port = self.port.or(config.port);
        if let Some(name) = self.name {
            config = config.named(name)?;
        }
        config.gateway = self.gateway.or(config.gateway);
        if !self.ip.is_empty() {
            config.addresses = self.ip.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
        }
        if let Some(bytes) = self.mtu {
            config.mtu =
                Some(Mtu::ALL.into_iter().find(|m| m.bytes() == bytes).ok_or(ConfigError::Mtu(bytes))?);
        }
        if let Some(id) = self.vlan {
            config.vlan = Some(vlan(id)?);
        }
        if let Some(text) = self.progress {
            config.progress = Some(text.parse()?);
        }
        if let Some(cores) = self.cores {
            config = config.cores(cores)?;
        }
        config.idle = match self.idle.as_deref() {
            None => config.idle,
            Some("busy") => Idle::Busy,
            Some("yield") => Idle::default(),
            Some(other) => return Err(ConfigError::Idle(other.to_owned())),
        };
        if let Some(given) = self.buffers {
            if !(256..=1 << 20).contains(&given) {
                return Err(ConfigError::Buffers { given });
            }
            config.buffers = given;
        }
        if let Some(most) = self.queue_pairs {
            config = config.queue_pairs(most)?;
        }
        config.selective_repeat = self.selective_repeat.unwrap_or(config.selective_repeat);
        if let Some(text) = self.early_memory {
            let bytes = crate::congestion::parse_bytes(&text);
            config.early_memory = bytes.map_err(|reason| ConfigError::EarlyMemory { text, reason })?;
        }
        if let Some(text) = self.link_rate {
            let rate = crate::congestion::parse_rate(&text);
            config.link_rate = Some(rate.map_err(|reason| ConfigError::LinkRate { text, reason })?);
        }
        if let Some(path) = self.feedback_key_file {
            config = config.feedback_key_file(&folder.join(path))?;
        }
        Ok(config)
    }
}

/// Returns the devices of a file in `folder`: those of its `[[device]]` tables, or one for each entry of `port`. Returns at least one.
///
/// # Errors
/// Returns [`ConfigError`] if the text is invalid or contradicts itself.
pub(crate) fn devices(text: &str, folder: &Path) -> Result<Vec<DeviceConfig>, ConfigError> {
    let file: Text = toml::from_str(text).map_err(|error| wrong(one_line(text, &error)))?;
    // The key in the environment applies to devices without a key in the file.
    let mut all = DeviceConfig { feedback_key: DeviceKey::from_env()?, ..DeviceConfig::default() };
    all.set_numbers(file.int_port, file.aecn_option.as_deref())?;
    if let Some(text) = &file.csig_tpid {
        all.set_csig_tpid(text)?;
    }
    for (number, rule) in (1..).zip(&file.congestion) {
        let rule = rule.build().map_err(|RuleError { offset, reason }| {
            let line = line_of(text, offset);
            ConfigError::Rule { number, reason: format!("line {line}: {reason}") }
        })?;
        all.rules.push(rule);
    }
    let ports = match file.port {
        None => Vec::new(),
        Some(Ports::One(port)) => vec![port],
        Some(Ports::Several(ports)) => ports,
    };
    if !file.device.is_empty() && (!ports.is_empty() || !file.ip.is_empty()) {
        return Err(wrong("port and ip are outside the [[device]] tables; move them into the tables".into()));
    }
    if ports.len() > 1 && !file.ip.is_empty() {
        return Err(wrong(format!(
            "ip applies to a single port, but there are {}; give each port a [[device]] table with its own ip",
            ports.len()
        )));
    }
    let common = DeviceText {
        port: None,
        name: file.name,
        ip: file.ip,
        gateway: file.gateway,
        vlan: file.vlan,
        progress: file.progress,
        cores: file.cores,
        idle: file.idle,
        mtu: file.mtu,
        buffers: file.buffers,
        queue_pairs: file.queue_pairs,
        selective_repeat: file.selective_repeat,
        early_memory: file.early_memory,
        link_rate: file.link_rate,
        feedback_key_file: file.feedback_key_file,
    };
    let all = common.over(all, folder)?;
    let tables = file.device.len();
    let configs: Vec<_> = match (file.device.is_empty(), ports.is_empty()) {
        (true, true) => vec![all],
        (true, false) => ports.into_iter().map(|port| all.clone().port_named(port)).collect(),
        (false, _) => file
            .device
            .into_iter()
            .map(|device| device.over(all.clone(), folder))
            .collect::<Result<_, _>>()?,
    };
    let nameless = (1..=tables).zip(&configs).find(|(_, config)| config.port().is_none());
    if let Some((number, _)) = nameless {
        return Err(wrong(format!("[[device]] {number} names no port; add port = \"eth0\" to its table")));
    }
    each_once(&configs)?;
    Ok(configs)
}

fn wrong(reason: String) -> ConfigError {
    ConfigError::File { place: "ferroce.toml".into(), reason }
}

/// Reads the `ferroce.toml` format: `port` (one, or a list), `name`, `ip` (a list), `gateway`, `vlan`, `progress`, `cores`, `idle`, `mtu`,
/// `buffers`, `queue_pairs`, `selective_repeat`, `early_memory`, `link_rate`, `feedback_key_file`, `int_port`, `aecn_option` (`"0x3e"`),
/// `csig_tpid` (`"0x9900"`), `[[congestion]]` rules, and `[[device]]` tables, which override the keys up to `feedback_key_file` for one
/// device. A relative path is relative to the current folder. Returns the first of several devices.
impl FromStr for DeviceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        devices(text, Path::new("")).map(first)
    }
}

/// Returns the parser's message with its line number, without the excerpt of the text.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let line = line_of(text, error.span().map_or(0, |span| span.start));
    format!("line {line}: {}", with_remedy(error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(text: &str) -> Result<Vec<DeviceConfig>, ConfigError> {
        super::devices(text, Path::new(""))
    }

    fn ports(text: &str) -> Vec<Option<String>> {
        devices(text).unwrap().iter().map(|config| config.port().map(str::to_owned)).collect()
    }

    #[test]
    fn a_list_of_ports_or_tables_are_several_devices() {
        let named = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
        assert_eq!(ports("mtu = 1024"), [None]);
        assert_eq!(ports("port = ['eth0', 'eth1']"), named(&["eth0", "eth1"]));
        let text = "mtu = 1024\n[[device]]\nport = 'eth0'\n[[device]]\nport = 'memif:/run/x.sock'\nip = ['10.0.0.1/24']\nmtu = 4096";
        assert_eq!(ports(text), named(&["eth0", "memif:/run/x.sock"]));
        let configs = devices(text).unwrap();
        assert_eq!(configs[0], DeviceConfig::on("eth0").mtu(Mtu::M1024));
        let second = DeviceConfig::on("memif:/run/x.sock").address("10.0.0.1/24".parse().unwrap());
        assert_eq!(configs[1], second.mtu(Mtu::M4096));
    }

    #[test]
    fn devices_that_contradict_each_other_are_refused() {
        for (text, part) in [
            ("port = [1]", "line 1: port is neither a string nor a list of strings; write port = \"eth0\""),
            ("port = 'eth0'\n[[device]]\nport = 'eth1'", "move them into the tables"),
            ("port = ['eth0', 'eth1']\nip = ['10.0.0.1']", "ip applies to a single port, but there are 2"),
            ("port = ['eth0', 'eth0']", "`eth0` is named twice"),
            ("[[device]]\nport = 'eth0'\n[[device]]\nmtu = 1024", "[[device]] 2 names no port"),
            ("[[device]]\nmtu = 1024", "[[device]] 1 names no port; add port = "),
            ("port = ['eth0', 'eth1']\nname = 'rxe0'", "two devices have the name `rxe0`"),
            (
                "[[device]]\nport = 'eth0'\nname = 'ferroce1'\n[[device]]\nport = 'eth1'",
                "the name `ferroce1`",
            ),
            (
                "[[device]]\nport = 'eth0'\nname = 'mlx5/0'",
                "name \"mlx5/0\": not a device's name; write letters",
            ),
            ("name = ''", "name \"\": not a device's name"),
            ("[[device]]\ncolour = 'red'", "colour"),
            ("[[device]]\nport = 'eth0'\nmtu = 1500", "1500"),
        ] {
            let error = devices(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
