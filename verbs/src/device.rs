use crate::{CompletionQueue, DeviceConfig, Error, ProtectionDomain};
use roce::Counters;
use roce::wire::{Mac, Mtu};
use std::net::IpAddr;

/// An open port with its poll-mode core. Clones are the same device; it closes when the last object made from
/// it is gone.
#[derive(Clone, Debug)]
pub struct Device {}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The port's name.
    pub port: String,
    /// What drives it, such as `net_af_packet`.
    pub driver: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its addresses; a GID index counts these.
    pub gids: Vec<IpAddr>,
    /// The largest path MTU that its frames carry.
    pub mtu: Mtu,
    /// Link speed in Mb/s, where the port knows one.
    pub speed_mbps: Option<u32>,
    /// How many of what it makes.
    pub limits: DeviceLimits,
}

/// How many objects a device makes, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeviceLimits {
    pub max_qps: u32,
    pub max_cqs: u32,
    pub max_regions: u32,
    /// Completions of one completion queue.
    pub max_cq_depth: u32,
    /// Outstanding requests of one send or receive queue.
    pub max_requests: u32,
    /// Buffers of one request.
    pub max_sge: u32,
    /// Bytes inline in one request.
    pub max_inline: u32,
    /// READs and atomics outstanding at one responder.
    pub max_rd_atomic: u8,
}

impl Device {
    /// Opens the port that `config` names and starts its core.
    ///
    /// # Errors
    /// Where the port can't be opened, or the configuration does not fit it.
    pub fn open(config: &DeviceConfig) -> Result<Self, Error> {
        let _ = config;
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// What the device is.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn query(&self) -> Result<DeviceInfo, Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// What was counted since it was opened, by reason for what was dropped.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn counters(&self) -> Result<Counters, Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn allocate_pd(&self) -> Result<ProtectionDomain, Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// Makes a completion queue that holds `depth` completions not yet polled, 1 to
    /// [`max_cq_depth`](DeviceLimits::max_cq_depth).
    ///
    /// # Errors
    /// Where a limit is passed or the core has stopped.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, Error> {
        let _ = depth;
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// Names a neighbour's Ethernet address for good, so that nobody is asked for it.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn set_neighbour(&self, ip: IpAddr, mac: Mac) -> Result<(), Error> {
        let _ = (ip, mac);
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// Runs one turn of an [`Inline`](crate::Progress::Inline) core, for a program that waits for something else
    /// than completions. Does nothing with a dedicated core, or while another thread runs the turn. Gives whether the
    /// turn moved anything, so that whoever waits knows when to yield.
    pub fn progress(&self) -> bool {
        false
    }
}
