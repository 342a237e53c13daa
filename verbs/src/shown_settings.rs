//! The settings in effect, as text.

use crate::DeviceConfig;
use crate::congestion::{CongestionRule, bytes_text};
use datapath::engine::Idle;
use datapath::neighbour;

impl DeviceConfig {
    /// Returns each setting by its key in `ferroce.toml`, with its value. The value is `None` if the port decides. [`rules`](Self::rules)
    /// returns the congestion rules.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, Option<String>)> {
        let addresses = self.addresses.iter().map(|address| neighbour::Address::from(*address).to_string());
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        let idle = if self.idle == Idle::Busy { "busy" } else { "yield" };
        let numbers = self.numbers;
        vec![
            ("port", self.port.clone()),
            ("ip", (!addresses.is_empty()).then_some(addresses)),
            ("gateway", self.gateway.map(|gateway| gateway.to_string())),
            ("vlan", self.vlan.map(|vlan| vlan.id().to_string())),
            ("progress", Some(self.who_runs().to_string())),
            ("cores", Some(self.cores.to_string())),
            ("idle", Some(idle.into())),
            ("mtu", self.mtu.map(|mtu| mtu.bytes().to_string())),
            ("buffers", Some(self.buffers.to_string())),
            ("queue_pairs", Some(self.queue_pairs.to_string())),
            ("selective_repeat", Some(self.selective_repeat.to_string())),
            ("early_memory", Some(bytes_text(self.early_memory))),
            ("link_rate", self.link_rate.map(|rate| rate.to_string())),
            ("int_port", Some(numbers.int_port().to_string())),
            ("aecn_option", Some(format!("{:#04x}", numbers.aecn_option()))),
            ("csig_tpid", Some(format!("{:#06x}", numbers.csig_tpid()))),
        ]
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
        let text = "port = 'veth0'\nip = ['10.0.0.1/24']\nprogress = 'dedicated:1'\ncores = 2\nvlan = 7\nmtu = 2048\nidle = 'busy'\n\
                    buffers = 512\nqueue_pairs = 9\nselective_repeat = false\nearly_memory = '1536K'\naecn_option = '0x3f'\ngateway = '10.0.0.9'\nlink_rate = '10G'";
        let config: DeviceConfig = text.parse().unwrap();
        let shown: std::collections::HashMap<_, _> = config.settings().into_iter().collect();
        for (key, value) in [
            ("port", "veth0"),
            ("ip", "10.0.0.1/24"),
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
