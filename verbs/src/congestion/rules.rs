use super::choice::CongestionChoice;
use super::units::{parse_duration, parse_rate};
use crate::connect::DEFAULT_CONGESTION;
use roce::qp::{Congestion, FeedbackKey, Reverse};
use roce::wire::Service;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Which queue pairs get which congestion control, for programs that say nothing of it. Rules are tried in the order of
/// the file, and the first that fits decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionRule {
    /// Peers whose address begins so; without one, all.
    pub peer: Option<Prefix>,
    /// Queue pairs of this service; without one, all.
    pub service: Option<Service>,
    /// Queue pairs of this service level, 0 to 7: the top three bits of the traffic class. Without one, all.
    pub service_level: Option<u8>,
    /// What they get.
    pub congestion: Congestion,
}

/// An address prefix, such as `10.0.0.0/8` or `fd00::/16`; a bare address is one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Whether an address begins so.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => (ours.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(ours), IpAddr::V6(other)) => (ours.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= u32::from(self.bits)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no prefix; write 10.0.0.0/8 or fd00::/16");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, bits)| (a, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
        if bits <= most { Ok(Self { address, bits }) } else { Err(wrong()) }
    }
}

/// What the first rule that fits gives; a fixed window where none does. What has no one peer fits no rule that names one.
pub(crate) fn choose(
    rules: &[CongestionRule],
    peer: Option<IpAddr>,
    service: Service,
    traffic_class: u8,
) -> Congestion {
    let fits = |rule: &&CongestionRule| {
        rule.peer.is_none_or(|prefix| peer.is_some_and(|peer| prefix.contains(peer)))
            && rule.service.is_none_or(|ours| ours == service)
            && rule.service_level.is_none_or(|level| level == traffic_class >> 5)
    };
    rules.iter().find(fits).map_or(DEFAULT_CONGESTION, |rule| rule.congestion)
}

/// A rule as the file has it.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleText {
    peer: Option<String>,
    qp: Option<String>,
    service_level: Option<u8>,
    cc: String,
    telemetry: Option<String>,
    #[serde(default)]
    subscribe: bool,
    format: Option<String>,
    feedback: Option<String>,
    #[serde(default)]
    all_hops: bool,
    window: Option<u64>,
    line_rate: Option<String>,
    base_rtt: Option<String>,
    min_rate: Option<String>,
    eta: Option<f64>,
    max_stage: Option<u32>,
    flows: Option<NonZeroU32>,
    probe_interval: Option<String>,
    max_rtt: Option<String>,
    paths: Option<u8>,
    #[serde(default)]
    ratio_only: bool,
}

impl RuleText {
    /// The rule, or the key that is wrong, with its value and what to write instead.
    pub(crate) fn build(&self, key: Option<FeedbackKey>) -> Result<CongestionRule, String> {
        let choice = CongestionChoice {
            cc: Some(named("cc", &self.cc, str::parse)?),
            telemetry: optional("telemetry", self.telemetry.as_deref(), str::parse)?,
            subscribe: self.subscribe,
            format: optional("format", self.format.as_deref(), |text| text.parse().map_err(str::to_owned))?,
            feedback: optional("feedback", self.feedback.as_deref(), reverse)?,
            all_hops: self.all_hops,
            window: self.window,
            line_rate: optional("line_rate", self.line_rate.as_deref(), parse_rate)?,
            base_rtt: optional("base_rtt", self.base_rtt.as_deref(), parse_duration)?,
            min_rate: optional("min_rate", self.min_rate.as_deref(), parse_rate)?,
            eta: self.eta,
            max_stage: self.max_stage,
            flows: self.flows,
            probe_interval: optional("probe_interval", self.probe_interval.as_deref(), parse_duration)?,
            max_rtt: optional("max_rtt", self.max_rtt.as_deref(), parse_duration)?,
            paths: self.paths,
            ratio_only: self.ratio_only,
            key,
        };
        if let Some(level) = self.service_level.filter(|&level| level > 7) {
            return Err(format!("service_level: {level} is not 0 to 7"));
        }
        Ok(CongestionRule {
            peer: optional("peer", self.peer.as_deref(), str::parse)?,
            service: optional("qp", self.qp.as_deref(), service)?,
            service_level: self.service_level,
            congestion: choice.build().map_err(|error| error.to_string())?,
        })
    }
}

fn named<T>(key: &str, text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    parse(text).map_err(|reason| format!("{key}: {reason}"))
}

fn optional<T>(
    key: &str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    text.map(|text| named(key, text, parse)).transpose()
}

/// `ack`, `notification` or `window`.
fn reverse(text: &str) -> Result<Reverse, String> {
    match text {
        "ack" => Ok(Reverse::Ack),
        "notification" => Ok(Reverse::Notification),
        "window" => Ok(Reverse::Window),
        _ => Err(format!("`{text}` is none of ack, notification, window")),
    }
}

fn service(text: &str) -> Result<Service, String> {
    match text {
        "RC" => Ok(Service::Rc),
        "UC" => Ok(Service::Uc),
        "UD" => Ok(Service::Ud),
        "XRC" => Ok(Service::Xrc),
        _ => Err(format!("`{text}` is none of RC, UC, UD, XRC")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<CongestionRule, String> {
        toml::from_str::<RuleText>(text).map_err(|error| error.message().to_owned())?.build(None)
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = [
            rule(
                "peer = '10.1.0.0/16'\nservice_level = 3\ncc = 'hpcc'\nline_rate = '10G'\nbase_rtt = '20us'",
            ),
            rule(
                "peer = '10.1.0.0/16'\ncc = 'dctcp'\nline_rate = '10G'\nbase_rtt = '20us'\nmax_rtt = '10ms'",
            ),
            rule("qp = 'RC'\ncc = 'auto'\nline_rate = '10G'\nbase_rtt = '20us'"),
        ]
        .map(Result::unwrap);
        let chosen = |peer: &str, class| {
            let congestion = choose(&rules, Some(peer.parse().unwrap()), Service::Rc, class);
            (congestion.algorithm.name(), congestion.upgrade.map(|upgrade| upgrade.to.name()))
        };
        assert_eq!(chosen("10.1.2.3", 0x60), ("hpcc", None));
        assert_eq!(chosen("10.1.2.3", 0x40), ("fixed", Some("dctcp")));
        assert_eq!(chosen("10.2.0.1", 0x60), ("dcqcn", Some("hpcc")));
        assert_eq!(chosen("fd00::1", 0), ("dcqcn", Some("hpcc")));
        let unconnected = choose(&rules, "fd00::1".parse().ok(), Service::Uc, 0);
        assert_eq!(unconnected, DEFAULT_CONGESTION);
        assert_eq!(choose(&rules, None, Service::Ud, 0), DEFAULT_CONGESTION, "no peer is in no prefix");
        let paced = rule("qp = 'UD'\ncc = 'fixed'\nline_rate = '1G'").unwrap();
        assert_eq!(choose(&[rules[1], paced], None, Service::Ud, 0), paced.congestion);
    }

    #[test]
    fn paths_are_probed_once_a_round_trip() {
        let of = |text: &str| rule(text).unwrap().congestion.paths;
        let hpcc = "cc = 'hpcc'\nline_rate = '10G'\nbase_rtt = '20us'";
        let interval = std::time::Duration::from_micros(20);
        assert_eq!(of(&format!("{hpcc}\npaths = 4")), Some(roce::qp::PathChoice { count: 4, interval }));
        assert_eq!((of(&format!("{hpcc}\npaths = 1")), of(hpcc)), (None, None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_remedy() {
        for (text, parts) in [
            ("cc = 'hpc'", ["cc", "hpcc-rx"]),
            ("cc = 'fixed'\npaths = 2", ["paths", "probe_interval"]),
            ("cc = 'fixed'\npaths = 9\nprobe_interval = '1ms'", ["paths", "1 to 8"]),
            ("cc = 'hpcc-rx'\nline_rate = '1G'\nbase_rtt = '20us'\npaths = 2", ["paths", "hpcc-rx"]),
            ("cc = 'hpcc'\nbase_rtt = '20us'", ["line_rate", "1G"]),
            ("cc = 'hpcc'\nline_rate = 'fast'", ["line_rate", "2.5G"]),
            ("cc = 'fixed'\npeer = '10.0.0.0/33'", ["10.0.0.0/33", "10.0.0.0/8"]),
            ("cc = 'fixed'\nqp = 'XX'", ["qp", "RC"]),
            ("cc = 'fixed'\nservice_level = 8", ["service_level", "7"]),
            ("cc = 'fixed'\ncolour = 1", ["colour", "peer"]),
            ("peer = '10.0.0.1'", ["cc", "missing"]),
        ] {
            let error = rule(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }

    #[test]
    fn a_prefix_takes_its_own_family() {
        let prefix: Prefix = "fd00::/16".parse().unwrap();
        assert!(prefix.contains("fd00:1::1".parse().unwrap()));
        assert!(!prefix.contains("fe80::1".parse().unwrap()));
        assert!(!prefix.contains("10.0.0.1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Prefix>().unwrap().contains("1.2.3.4".parse().unwrap()));
    }
}
