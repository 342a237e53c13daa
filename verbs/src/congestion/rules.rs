//! Rules that choose the congestion control of queue pairs: the `[[congestion]]` tables of `ferroce.toml`.

use super::choice::CongestionChoice;
use super::default::DEFAULT_CONGESTION;
use super::setting::ChoiceError;
use super::text::{each_once, split_congestion};
use roce::qp::Congestion;
use roce::wire::Service;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A rule that chooses the congestion control of queue pairs whose program chooses none. Rules are tried in the order of the file, and the
/// first that matches applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionRule {
    /// Matches peers in this prefix; `None` matches all.
    pub peer: Option<Prefix>,
    /// Matches queue pairs of this service; `None` matches all.
    pub service: Option<Service>,
    /// Matches queue pairs of this service level, 0 to 7: the top three bits of the traffic class. `None` matches all.
    pub service_level: Option<u8>,
    /// The congestion control of these queue pairs.
    pub congestion: Congestion,
}

/// An address prefix, such as `10.0.0.0/8` or `fd00::/16`; a bare address is one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Prefix {
    /// Returns whether an address begins with this prefix.
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
        let wrong = || format!("`{text}`: not an address prefix; write 10.0.0.0/8 or fd00::/16");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, bits)| (a, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
        if bits <= most { Ok(Self { address, bits }) } else { Err(wrong()) }
    }
}

/// Returns the congestion control of the first rule that matches, or the default. Without a peer, a rule with a `peer` does not match. For
/// datagrams, a rule whose algorithm cannot pace them does not match.
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
    let can = |rule: &&CongestionRule| service != Service::Ud || rule.congestion.check_datagrams().is_ok();
    rules.iter().filter(can).find(fits).map_or(DEFAULT_CONGESTION, |rule| rule.congestion)
}

/// A rule as written in the file: its values, and its keys with their positions.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct RuleText(BTreeMap<toml::Spanned<String>, toml::Value>);

#[derive(Debug, PartialEq)]
pub(crate) struct RuleError {
    /// Position of the wrong key in the file, bytes. If a key is missing, position of the rule's first key.
    pub(crate) offset: usize,
    pub(crate) reason: String,
}

impl RuleText {
    /// Creates the rule.
    ///
    /// # Errors
    /// Returns [`RuleError`] for the first wrong key.
    pub(crate) fn build(&self) -> Result<CongestionRule, RuleError> {
        let place = |name: &str| self.0.keys().find(|key| key.get_ref() == name).map(|key| key.span().start);
        // A missing key, and one in the line of `cc`, have no position, so their errors have that of the rule's first key.
        let first = self.0.keys().map(|key| key.span().start).min().unwrap_or(0);
        let wrong = |name: &str, reason: String| RuleError { offset: place(name).unwrap_or(first), reason };
        let mut pairs = Vec::new();
        for (key, value) in &self.0 {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match key.get_ref().as_str() {
                "cc" => pairs.extend(split_congestion(&text).map_err(|reason| wrong("cc", reason))?),
                key => pairs.push((key.to_owned(), text)),
            }
        }
        each_once(&pairs).map_err(|reason| wrong("cc", reason))?;
        rule_of(&pairs).map_err(|error| wrong(error.key(), error.to_string()))
    }
}

/// Keys that select the queue pairs of a rule.
pub(super) const FOR_WHOM: [&str; 3] = ["peer", "qp", "service_level"];

pub(super) fn rule_of(pairs: &[(String, String)]) -> Result<CongestionRule, ChoiceError> {
    let (mut peer, mut service, mut service_level) = (None, None, None);
    let mut choice = CongestionChoice::default();
    for (name, text) in pairs {
        match name.as_str() {
            "peer" => peer = Some(read(name, text, "an address prefix", "10.0.0.0/8", |it| it.parse().ok())?),
            "qp" => service = Some(read(name, text, "one of RC, UC, UD, XRC", "RC", service_of)?),
            "service_level" => {
                let level = |it: &str| it.parse().ok().filter(|&level: &u8| level <= 7);
                service_level = Some(read(name, text, "a number from 0 to 7", "3", level)?);
            }
            name => choice.set_beside(&FOR_WHOM, name, text)?,
        }
    }
    if choice.cc.is_none() {
        return Err(ChoiceError::new("cc", "missing; add {cc=hpcc}"));
    }
    let congestion =
        if service == Some(Service::Ud) { choice.build_for_datagrams()? } else { choice.build()? };
    Ok(CongestionRule { peer, service, service_level, congestion })
}

fn read<T>(
    key: &str,
    text: &str,
    accepts: &str,
    example: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, ChoiceError> {
    read(text).ok_or_else(|| ChoiceError::of(key, text, format!("not {accepts}; write {{{key}={example}}}")))
}

fn service_of(text: &str) -> Option<Service> {
    match text {
        "RC" => Some(Service::Rc),
        "UC" => Some(Service::Uc),
        "UD" => Some(Service::Ud),
        "XRC" => Some(Service::Xrc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<CongestionRule, String> {
        let rule = toml::from_str::<RuleText>(text).map_err(|error| error.message().to_owned())?;
        rule.build().map_err(|error| error.reason)
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
        assert_eq!(chosen("10.2.0.1", 0x60), ("fixed", Some("hpcc-fair")));
        assert_eq!(chosen("fd00::1", 0), ("fixed", Some("hpcc-fair")));
        let unconnected = choose(&rules, "fd00::1".parse().ok(), Service::Uc, 0);
        assert_eq!(unconnected, DEFAULT_CONGESTION);
        assert_eq!(choose(&rules, None, Service::Ud, 0), DEFAULT_CONGESTION, "a prefix needs a peer");
        let paced = rule("qp = 'UD'\ncc = 'fixed'\nline_rate = '1G'").unwrap();
        assert_eq!(choose(&[rules[1], paced], None, Service::Ud, 0), paced.congestion);
        let for_all = rule("cc = 'dcqcn'\nline_rate = '1G'").unwrap();
        assert_eq!(
            choose(&[for_all, paced], None, Service::Ud, 0),
            paced.congestion,
            "it cannot pace datagrams"
        );
        assert_eq!(choose(&[for_all, paced], None, Service::Uc, 0), for_all.congestion);
    }

    #[test]
    fn paths_are_probed_once_a_round_trip() {
        let of = |text: &str| rule(text).unwrap().congestion.paths;
        let hpcc = "cc = 'hpcc'\nline_rate = '10G'\nbase_rtt = '20us'";
        let interval = std::time::Duration::from_micros(20);
        assert_eq!(
            of(&format!("{hpcc}\npaths = 4")),
            Some(roce::qp::PathChoice { count: 4, interval, spray: false })
        );
        assert_eq!((of(&format!("{hpcc}\npaths = 1")), of(hpcc)), (None, None));
    }

    #[test]
    fn an_invalid_rule_is_named_with_a_remedy() {
        for (text, parts) in [
            ("cc = 'hpc'", ["cc", "hpcc-rx"]),
            ("cc = 'fixed'\npaths = 2", ["paths", "probe_interval"]),
            ("cc = 'fixed'\npaths = 9\nprobe_interval = '1ms'", ["paths", "1 to 8"]),
            ("cc = 'hpcc-rx'\nline_rate = '1G'\nbase_rtt = '20us'\npaths = 2", ["paths", "hpcc-rx"]),
            ("cc = 'hpcc-rx'", ["base_rtt", "100us"]),
            ("cc = 'hpcc'\nline_rate = 'fast'", ["line_rate", "2.5G"]),
            ("cc = 'fixed'\npeer = '10.0.0.0/33'", ["10.0.0.0/33", "10.0.0.0/8"]),
            ("cc = 'fixed'\nqp = 'XX'", ["qp", "RC"]),
            ("cc = 'fixed'\nservice_level = 8", ["service_level", "7"]),
            ("qp = 'UD'\ncc = 'dctcp'\nline_rate = '1G'", ["dctcp", "choose auto"]),
            ("qp = 'UD'\ncc = 'hpcc'\nformat = 'csig'", ["csig", "int-md"]),
            ("cc = 'fixed'\ncolour = 1", ["colour", "peer"]),
            ("peer = '10.0.0.1'", ["cc", "missing"]),
        ] {
            let error = rule(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }

    #[test]
    fn a_prefix_matches_its_own_family() {
        let prefix: Prefix = "fd00::/16".parse().unwrap();
        assert!(prefix.contains("fd00:1::1".parse().unwrap()));
        assert!(!prefix.contains("fe80::1".parse().unwrap()));
        assert!(!prefix.contains("10.0.0.1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Prefix>().unwrap().contains("1.2.3.4".parse().unwrap()));
    }
}
