//! Settings of a device: built in code, read from the environment, or from `ferroce.toml`.

use crate::congestion::{CongestionRule, DeviceKey, FeedbackKey, KeySource};
use crate::device_names::{all_named, each_once};
use crate::fault::{FaultError, PortFault};
use crate::{config_file, default_file, fault, log};
use cc::Rate;
use datapath::engine::{Idle, MAX_SLOTS, Progress, ProgressError};
use datapath::{environment, neighbour};
use roce::CoreIndex;
use roce::wire::format::{Numbers, NumbersError};
use roce::wire::{Mtu, Vlan};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// A local address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address: one of the device's GIDs.
    pub ip: IpAddr,
    /// The length of the prefix that all neighbours share. With 0, every host is a neighbour.
    pub prefix: u8,
}

/// The settings of a device: its port, addresses, progress and limits.
///
/// ```
/// # use ferroce_verbs::{DeviceConfig, Progress};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = DeviceConfig::on("memif:/tmp/x.sock,server")
///     .address("10.0.0.1/24".parse()?)
///     .queue_pairs(4096)?
///     .progress(Progress::Dedicated { core: Some(1) });
/// // A file ferroce.toml, and variables such as FERROCE_PORT, say the same without a change of the program.
/// let from_outside = DeviceConfig::from_env();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceConfig {
    pub(crate) port: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) vlan: Option<Vlan>,
    pub(crate) progress: Option<Progress>,
    pub(crate) polls_always: bool,
    pub(crate) cores: u8,
    pub(crate) idle: Idle,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) buffers: u32,
    pub(crate) queue_pairs: u32,
    pub(crate) selective_repeat: bool,
    pub(crate) early_memory: u64,
    pub(crate) link_rate: Option<Rate>,
    pub(crate) rules: Vec<CongestionRule>,
    pub(crate) feedback_key: Option<DeviceKey>,
    pub(crate) numbers: Numbers,
    /// Faults that are injected when the device is opened.
    pub(crate) faults: Vec<PortFault>,
}

/// An error in a configuration.
#[derive(Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(
        "no port is named; set FERROCE_PORT, or port = \"...\" in ferroce.toml, such as veth0, tap:rdma0 or memif:/run/x.sock"
    )]
    NoPort,
    #[error("{place}: {reason}")]
    File { place: String, reason: String },
    #[error("address {0:?}: not an IP address; write 10.0.0.1, 10.0.0.1/24 or fd00::1/64")]
    Address(String),
    #[error(
        "`ip` and FERROCE_IP apply to a single device, but there are {devices}; \
         give each its own in ferroce.toml: [[device]] with port = \"...\" and ip = [\"...\"]"
    )]
    AddressesOfSeveral { devices: usize },
    #[error("port `{0}` is named twice; name each port once")]
    PortTwice(String),
    #[error("name {0:?}: not a device's name; write letters, digits, - and _, at most 63, such as mlx5_0")]
    Name(String),
    #[error(
        "two devices have the name `{0}`; give each its own in ferroce.toml: [[device]] with name = \"...\""
    )]
    NameTwice(String),
    #[error("name `{0}`: a device of the kernel has it; choose another")]
    NameOfKernel(String),
    #[error("name `{0}`: the port of another device; choose another")]
    NameOfPort(String),
    #[error("MTU {0}: not a path MTU; write 256, 512, 1024, 2048 or 4096")]
    Mtu(u32),
    #[error("VLAN {0:?}: not a VLAN; write 1 to 4094")]
    Vlan(String),
    #[error(transparent)]
    Progress(#[from] ProgressError),
    #[error("{0}")]
    Cpus(String),
    #[error("idle {0:?}: no such policy; write busy or yield")]
    Idle(String),
    #[error("congestion control {text:?}: {reason}")]
    Congestion { text: String, reason: String },
    #[error("congestion rule {number}: {reason}")]
    Rule { number: usize, reason: String },
    #[error(transparent)]
    Key(#[from] crate::congestion::KeyError),
    #[error("link_rate {text:?}: {reason}")]
    LinkRate { text: String, reason: String },
    #[error(transparent)]
    Numbers(#[from] NumbersError),
    #[error("AECN option {0:?}: not an option type; write it as 0x3e or 62")]
    AecnOption(String),
    #[error("CSIG TPID {0:?}: not an EtherType; write it as 0x9900 or 39168")]
    CsigTpid(String),
    #[error("INT port {0:?}: not a UDP port; write 1 to 65535")]
    IntPort(String),
    #[error("buffers = {given}: out of range; write 256 to 1048576")]
    Buffers { given: u32 },
    #[error("FERROCE_QUEUE_PAIRS {0:?}: not a number; write 1 to {MAX_SLOTS}")]
    QueuePairsText(String),
    #[error("queue_pairs = {given}: out of range; write 1 to {MAX_SLOTS}")]
    QueuePairs { given: u32 },
    #[error("FERROCE_SELECTIVE_REPEAT {0:?}: neither true nor false; write false to stay with go-back-N")]
    SelectiveRepeat(String),
    #[error("early_memory {text:?}: {reason}")]
    EarlyMemory { text: String, reason: String },
    #[error("FERROCE_CORES {0:?}: not a number of cores; write 1 to {most}", most = CoreIndex::MAX)]
    CoresText(String),
    #[error("cores = {given}: out of range; write 1 to {most}", most = CoreIndex::MAX)]
    Cores { given: u8 },
    #[error("FERROCE_FAULTS: {0}")]
    Faults(#[from] FaultError),
}

roce::debug_as_display!(ConfigError);

impl ConfigError {
    fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { place: path.display().to_string(), reason: reason.to_string() }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            port: None,
            name: None,
            addresses: Vec::new(),
            gateway: None,
            vlan: None,
            progress: None,
            polls_always: false,
            cores: 1,
            idle: Idle::default(),
            mtu: None,
            buffers: 8192,
            queue_pairs: 1024,
            selective_repeat: true,
            early_memory: 64 << 20,
            link_rate: None,
            rules: Vec::new(),
            feedback_key: None,
            numbers: Numbers::DEFAULT,
            faults: Vec::new(),
        }
    }
}

impl DeviceConfig {
    /// Returns settings without a port, for a port that the program provides.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns settings for a port by its short name: `veth0`, `tap:rdma0`, `memif:/run/x.sock`, `pci:0000:01:00.0`.
    #[must_use]
    pub fn on(port: impl Into<String>) -> Self {
        Self { port: Some(port.into()), ..Self::default() }
    }

    /// Reads `FERROCE_PORT`, `FERROCE_NAME`, `FERROCE_IP` (comma-separated), `FERROCE_VLAN`, `FERROCE_PROGRESS`, `FERROCE_CORES`,
    /// `FERROCE_QUEUE_PAIRS`, `FERROCE_SELECTIVE_REPEAT`, `FERROCE_CC` (a congestion rule in one line, such as
    /// `hpcc,line_rate=1G,base_rtt=2ms`) and `FERROCE_FAULTS` ([faults on demand](crate::fault)). These variables override the file that
    /// `FERROCE_CONFIG` names, or else `ferroce.toml` in the current folder if it exists.
    ///
    /// A `ferroce.toml` in the current folder that `FERROCE_CONFIG` does not name is checked: it is ignored with a warning if it belongs to
    /// neither the caller nor root, or if others can write to it. Its port is ignored if it is a `pcap:` or `eal:` port.
    ///
    /// A program that is setuid, setgid or has file capabilities ignores all variables and the current folder, which its caller chooses. It
    /// reads `/etc/ferroce.toml`, under the same conditions.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file or a value is invalid.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::all_from_env().map(first)
    }

    /// Like [`from_env`](Self::from_env), but returns the settings of every device. `FERROCE_PORT` may name several ports: `eth0,eth1`, or
    /// separated by semicolons if a port contains a colon. A file may contain a list of ports or `[[device]]` tables. The result has at
    /// least one element; its port may be unset.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file or a value is invalid.
    pub fn all_from_env() -> Result<Vec<Self>, ConfigError> {
        Self::all_from(None, None)
    }

    /// Like [`all_from_env`](Self::all_from_env). `file` replaces the one that `FERROCE_CONFIG` names, and `ports` replace those of
    /// `FERROCE_PORT`, if they are given.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file or a value is invalid.
    pub fn all_from(file: Option<&Path>, ports: Option<&str>) -> Result<Vec<Self>, ConfigError> {
        let configs = match file {
            Some(file) => Self::all_from_file(file)?,
            None => Self::all_from_files()?,
        };
        with_env(configs, ports)
    }

    /// Reads the file that `FERROCE_CONFIG` names, or the default file.
    fn all_from_files() -> Result<Vec<Self>, ConfigError> {
        log::start_if_asked_for();
        match environment::variable("FERROCE_CONFIG") {
            Some(file) => Self::all_from_file(Path::new(&file)),
            None => default_file::read(default_file::file()),
        }
    }

    /// Returns the file that [`from_env`](Self::from_env) reads: the one that `FERROCE_CONFIG` names, or else `ferroce.toml` in the current
    /// folder, or in `/etc` if the program is privileged. Returns `None` if that file does not exist or is ignored.
    #[must_use]
    pub fn file() -> Option<PathBuf> {
        let named = environment::variable("FERROCE_CONFIG").map(PathBuf::from);
        named.or_else(|| default_file::is_read(default_file::file()).then(|| default_file::file().to_owned()))
    }

    /// Applies the variables that concern every device.
    fn with_env(self) -> Result<Self, ConfigError> {
        let mut config = self;
        if let Some(text) = environment::text("FERROCE_CC") {
            let rule = text.parse().map_err(|reason| ConfigError::Congestion { text, reason })?;
            config.rules.insert(0, rule);
        }
        for setting in Self::SETTINGS {
            let text = environment::text(setting.variable);
            if let (Some(set), Some(text)) = (setting.set, text) {
                config = set(config, &text)?;
            }
        }
        Ok(config)
    }

    /// Sets the numbers that are given; the others keep their values.
    pub(crate) fn set_numbers(
        &mut self,
        int_port: Option<u16>,
        aecn_option: Option<&str>,
    ) -> Result<(), ConfigError> {
        let before = self.numbers;
        let option = aecn_option
            .map(|text| parse_option_type(text).map_err(|_| ConfigError::AecnOption(text.to_owned())));
        let (port, option) =
            (int_port.unwrap_or(before.int_port()), option.transpose()?.unwrap_or(before.aecn_option()));
        self.numbers = Numbers::new(port, option)?.with_csig_tpid(before.csig_tpid())?;
        Ok(())
    }

    pub(crate) fn set_csig_tpid(&mut self, text: &str) -> Result<(), ConfigError> {
        let tpid = parse_ethertype(text).map_err(|_| ConfigError::CsigTpid(text.to_owned()))?;
        self.numbers = self.numbers.with_csig_tpid(tpid)?;
        Ok(())
    }

    /// Reads a TOML file of at most 1 MiB. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file or a value is invalid; the message names both.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        Self::all_from_file(path).map(first)
    }

    /// Like [`from_file`](Self::from_file), but returns the settings of every device in the file, at least one.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn all_from_file(path: &Path) -> Result<Vec<Self>, ConfigError> {
        let file = File::open(path)
            .map_err(|error| ConfigError::file(path, format!("{error}; name a file that can be read")))?;
        Self::read(file, path)
    }

    pub(crate) fn read(file: File, path: &Path) -> Result<Vec<Self>, ConfigError> {
        let text = default_file::text_of(file)
            .map_err(|error| ConfigError::file(path, format!("{error}; name a file of settings")))?;
        config_file::devices(&text, path.parent().unwrap_or(Path::new(""))).map_err(|error| match error {
            ConfigError::File { reason, .. } => ConfigError::file(path, reason),
            other => ConfigError::file(path, other),
        })
    }

    pub(crate) fn without_port(self) -> Self {
        Self { port: None, ..self }
    }

    /// Replaces the port.
    #[must_use]
    pub fn port_named(self, port: impl Into<String>) -> Self {
        Self { port: Some(port.into()), ..self }
    }

    /// Returns the port, if one is set.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        self.port.as_deref()
    }

    /// Returns the thread that runs the core. The default is [`Progress::Adaptive`], which also runs the core while the program waits
    /// without polling.
    #[must_use]
    pub fn who_runs(&self) -> Progress {
        self.progress.unwrap_or(Progress::Adaptive)
    }

    /// Adds a local address. Without any, a port on a Linux interface uses the interface's addresses, and any other
    /// port an IPv6 link-local address derived from its MAC.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Replaces the local addresses.
    #[must_use]
    pub fn addresses(self, addresses: impl IntoIterator<Item = Address>) -> Self {
        Self { addresses: addresses.into_iter().collect(), ..self }
    }

    /// Sets the gateway to peers outside the addresses' prefixes. Ports on a Linux interface use its routes instead.
    #[must_use]
    pub fn gateway(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    /// Sets the VLAN of the frames that the port sends and receives, 1 to 4094. The device then needs its own addresses, because those of a
    /// Linux interface belong to the untagged network.
    ///
    /// # Errors
    /// Returns [`ConfigError::Vlan`] for any other number.
    pub fn vlan(self, id: u16) -> Result<Self, ConfigError> {
        Ok(Self { vlan: Some(vlan(id)?), ..self })
    }

    /// Sets the thread that runs the core.
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Sets the thread that runs the core, unless one is set already.
    #[must_use]
    pub fn progress_by_default(self, progress: Progress) -> Self {
        Self { progress: self.progress.or(Some(progress)), ..self }
    }

    /// Declares that the program polls until it closes the device. An ACK then waits for the program's reply if the last eight came within
    /// 10 µs, as it does with [`Progress::Adaptive`]. Without this, a slow handler would keep the peer waiting for the ACK.
    #[must_use]
    pub fn polls_always(self) -> Self {
        Self { polls_always: true, ..self }
    }

    /// Sets the number of poll-mode cores behind the port, 1 to 16. The default is 1. With [`Progress::Dedicated`], the process needs as
    /// many CPUs.
    ///
    /// # Errors
    /// Returns [`ConfigError::Cores`] for any other number.
    pub fn cores(self, cores: u8) -> Result<Self, ConfigError> {
        if !(1..=CoreIndex::MAX).contains(&cores) {
            return Err(ConfigError::Cores { given: cores });
        }
        Ok(Self { cores, ..self })
    }

    /// Checks that this process may use the CPUs of dedicated cores. Opening a device does the same.
    ///
    /// # Errors
    /// Returns [`ConfigError::Cpus`] if it may not.
    pub fn check_cpus(&self) -> Result<(), ConfigError> {
        self.who_runs().check_cpus(self.cores).map_err(|error| ConfigError::Cpus(error.to_string()))
    }

    /// Sets how a dedicated core waits when idle.
    #[must_use]
    pub fn idle(self, idle: Idle) -> Self {
        Self { idle, ..self }
    }

    /// Sets the largest path MTU to offer. The default is the largest that the port carries.
    #[must_use]
    pub fn mtu(self, mtu: Mtu) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Sets the rules of congestion control for queue pairs without a choice of their own. The first matching rule
    /// applies.
    #[must_use]
    pub fn congestion_rules(self, rules: impl IntoIterator<Item = CongestionRule>) -> Self {
        Self { rules: rules.into_iter().collect(), ..self }
    }

    /// Sets the key that authenticates the telemetry responses of all queue pairs. They accept no other responses. Their peers need the
    /// same key.
    #[must_use]
    pub fn feedback_key(self, key: FeedbackKey) -> Self {
        Self { feedback_key: Some(DeviceKey { key, source: KeySource::Program }), ..self }
    }

    /// As [`feedback_key`](Self::feedback_key), with the key in a [file](crate::congestion::feedback_key_from_file).
    ///
    /// # Errors
    /// Returns [`ConfigError::Key`] if the file does not contain a key, or users other than its owner may read it.
    pub fn feedback_key_file(self, path: &Path) -> Result<Self, ConfigError> {
        Ok(Self { feedback_key: Some(DeviceKey::from_file(path)?), ..self })
    }

    /// Returns the source of the key, or `None` if telemetry responses are not authenticated.
    #[must_use]
    pub fn key_source(&self) -> Option<&KeySource> {
        self.feedback_key.as_ref().map(|key| &key.source)
    }

    /// Limits sending to the rate of a link, for ports without a physical link (veth, tap, memif).
    #[must_use]
    pub fn link_rate(self, rate: Rate) -> Self {
        Self { link_rate: Some(rate), ..self }
    }

    /// Sets the UDP port of INT-MD, the option type of AECN and the TPID of CSIG. They must be the same in the whole network.
    #[must_use]
    pub fn numbers(self, numbers: Numbers) -> Self {
        Self { numbers, ..self }
    }

    /// Sets the number of packet buffers in the port's pool, 256 to 1048576.
    #[must_use]
    pub fn buffers(self, buffers: u32) -> Self {
        Self { buffers, ..self }
    }

    /// Limits the device's queue pairs and shared receive queues together, and its completion queues, to 1 to 262144. The default is 1024.
    /// Each unused slot takes about 50 bytes.
    ///
    /// # Errors
    /// Returns [`ConfigError::QueuePairs`] for any other number.
    pub fn queue_pairs(self, most: u32) -> Result<Self, ConfigError> {
        if !(1..=MAX_SLOTS as u32).contains(&most) {
            return Err(ConfigError::QueuePairs { given: most });
        }
        Ok(Self { queue_pairs: most, ..self })
    }

    /// Allows reliable queue pairs to use selective repeat. The default is `true`. With `false`, all of them use go-back-N, whatever a
    /// program or a peer offers.
    #[must_use]
    pub fn selective_repeat(self, allow: bool) -> Self {
        Self { selective_repeat: allow, ..self }
    }

    /// Limits each core's memory for packets that arrive before a packet that was sent earlier, in bytes. The default is 64 MiB. All queue
    /// pairs of the core share it. A packet that does not fit is dropped, and its sender retransmits it. With 0, no such packet is stored.
    #[must_use]
    pub fn early_memory(self, bytes: u64) -> Self {
        Self { early_memory: bytes, ..self }
    }
}

pub(crate) fn first(configs: Vec<DeviceConfig>) -> DeviceConfig {
    configs.into_iter().next().unwrap_or_default()
}

/// Splits a list of ports: `eth0,eth1`. A port with a colon may contain commas, so a semicolon ends it: `memif:/run/a.sock,server;eth1`.
pub fn port_list(text: &str) -> Vec<&str> {
    let pieces = text.split(';').flat_map(|piece| match piece.contains(':') {
        true => vec![piece],
        false => piece.split(',').collect(),
    });
    pieces.map(str::trim).filter(|port| !port.is_empty()).collect()
}

/// Replaces the devices of a file by those of `ports`, of which each is a port or a device's name. A port with a table in the file keeps
/// it. Any other port has only the common settings, and addresses only if the file has a single device.
fn of_ports(configs: Vec<DeviceConfig>, ports: &[&str]) -> Result<Vec<DeviceConfig>, ConfigError> {
    let common = match configs.as_slice() {
        // The name belongs to the file's port, or to the only port if the file has none.
        [only] if only.port.is_some() || ports.len() > 1 => DeviceConfig { name: None, ..only.clone() },
        [only] => only.clone(),
        several => {
            let first = several.first().cloned().unwrap_or_default();
            DeviceConfig { name: None, addresses: Vec::new(), gateway: None, vlan: None, ..first }
        }
    };
    let named = |text: &str| {
        let mut of_file = configs.iter().filter(|config| config.port.is_some());
        let by_port = of_file.clone().find(|config| config.port() == Some(text));
        by_port.or_else(|| of_file.find(|config| config.name.as_deref() == Some(text))).cloned()
    };
    let listed: Vec<_> =
        ports.iter().map(|port| named(port).unwrap_or_else(|| common.clone().port_named(*port))).collect();
    let addresses =
        |config: &DeviceConfig| !config.addresses.is_empty() && config.addresses == common.addresses;
    if listed.iter().filter(|config| addresses(config)).count() > 1 {
        return Err(ConfigError::AddressesOfSeveral { devices: listed.len() });
    }
    each_once(&listed)?;
    Ok(listed)
}

/// Applies the environment over the file, and `ports` over both. An empty `FERROCE_PORT` or `FERROCE_NAME` counts as unset.
fn with_env(configs: Vec<DeviceConfig>, ports: Option<&str>) -> Result<Vec<DeviceConfig>, ConfigError> {
    let mut configs = configs;
    let variable = environment::text("FERROCE_PORT");
    let listed = ports.or(variable.as_deref()).map(port_list).unwrap_or_default();
    if !listed.is_empty() {
        configs = of_ports(configs, &listed)?;
    }
    configs = configs.into_iter().map(DeviceConfig::with_env).collect::<Result<_, _>>()?;
    let faults = fault::from_env()?;
    configs.iter_mut().for_each(|config| config.faults.clone_from(&faults));
    configs = all_named(configs, &environment::text("FERROCE_NAME").unwrap_or_default())?;
    if let Some(addresses) = environment::text("FERROCE_IP") {
        let [config] = configs.as_mut_slice() else {
            return Err(ConfigError::AddressesOfSeveral { devices: configs.len() });
        };
        config.addresses = addresses.split(',').map(|a| a.trim().parse()).collect::<Result<_, _>>()?;
    }
    Ok(configs)
}

impl FromStr for Address {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let neighbour::Address { ip, prefix } =
            text.parse().map_err(|neighbour::AddressError(text)| ConfigError::Address(text))?;
        Ok(Self { ip, prefix })
    }
}

impl From<Address> for neighbour::Address {
    fn from(Address { ip, prefix }: Address) -> Self {
        Self { ip, prefix }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self { ip, prefix: 0 }
    }
}

/// Parses the type of an IPv6 option: `0x3e` or `62`.
///
/// # Errors
/// Returns an error if `text` is not a number of 8 bits.
pub fn parse_option_type(text: &str) -> Result<u8, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| format!("`{text}` is not an option type; write 0x3e or 62"))
}

/// Parses an EtherType: `0x9900` or `39168`.
///
/// # Errors
/// Returns an error if `text` is not a number of 16 bits.
pub fn parse_ethertype(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| format!("`{text}` is not an EtherType; write 0x9900 or 39168"))
}

pub(crate) fn vlan(id: u16) -> Result<Vlan, ConfigError> {
    if (1..=4094).contains(&id) { Ok(Vlan(id)) } else { Err(ConfigError::Vlan(id.to_string())) }
}

#[cfg(test)]
mod tests;
