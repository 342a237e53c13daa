//! The one-line syntax of a rule, or of a choice for one queue pair: `FERROCE_CC` and `--cc`.

use super::choice::CongestionChoice;
use super::names::CcName;
use super::rules::{CongestionRule, FOR_WHOM, rule_of};
use super::setting::ChoiceError;
use cc::Registration;
use roce::qp::Congestion;
use std::collections::BTreeSet;
use std::str::FromStr;

/// Splits a line such as `hpcc,line_rate=1G,base_rtt=2ms` into keys and values. Its first word is the value of `cc`. In keys, `-` is `_`.
///
/// # Errors
/// Returns one line with the wrong word, the reason and the remedy.
pub fn split_congestion(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = text.split(',').map(str::trim);
    let mut pairs = vec![("cc".to_owned(), words.next().unwrap_or_default().to_owned())];
    for word in words {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?}: no `=`; write KEY=VALUE, as in base_rtt=2ms"))?;
        pairs.push((name.trim().replace('-', "_"), value.trim().to_owned()));
    }
    each_once(&pairs)?;
    Ok(pairs)
}

/// Checks that no key is given twice.
pub(super) fn each_once(pairs: &[(String, String)]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match pairs.iter().find(|(name, _)| !seen.insert(name)) {
        Some((twice, _)) => Err(format!("{twice}: given twice; leave one of them out")),
        None => Ok(()),
    }
}

/// `hpcc,line_rate=1G,base_rtt=2ms`: an algorithm, then keys of a rule in `ferroce.toml`.
impl FromStr for CongestionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        rule_of(&split_congestion(text)?).map_err(|error| error.as_words())
    }
}

/// The syntax of a [`CongestionRule`] without the keys that select queue pairs.
impl FromStr for CongestionChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_pairs(split_congestion(text)?, &[])
    }
}

impl CongestionChoice {
    /// Creates a choice from the keys and values of a [line](split_congestion). Its algorithm may also be one of these.
    ///
    /// # Errors
    /// Returns one line with the wrong key, the reason and the remedy.
    pub fn from_pairs(
        pairs: Vec<(String, String)>,
        registered: &[&'static Registration],
    ) -> Result<Self, String> {
        let mut choice = Self::default();
        for (key, value) in pairs {
            let algorithm = registered.iter().find(|algorithm| key == "cc" && algorithm.name == value);
            if let Some(algorithm) = algorithm {
                choice.cc = Some(CcName::Registered(algorithm));
                continue;
            }
            let set = if FOR_WHOM.contains(&key.as_str()) {
                let reason =
                    "selects the queue pairs of a rule, but every queue pair has this setting; leave it out";
                Err(ChoiceError::of(&key, value, reason))
            } else {
                choice.set(&key, &value)
            };
            set.map_err(|error| error.as_words())?;
        }
        Ok(choice)
    }
}

/// Reads `hpcc,line_rate=1G,base_rtt=2ms`: an algorithm, then keys as in a rule of `ferroce.toml`.
///
/// # Errors
/// Returns one line with the wrong key, the reason and the remedy.
pub fn parse_congestion(text: &str) -> Result<Congestion, String> {
    text.parse().map(|rule: CongestionRule| rule.congestion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::DEFAULT_CONGESTION;
    use crate::congestion::default::UNPACED;

    fn rule(text: &str) -> Result<CongestionRule, String> {
        text.parse()
    }

    #[test]
    fn a_line_equals_a_rule_of_the_file() {
        let line = rule("hpcc, line-rate=1G, base_rtt=2ms, max_stage=0, peer=10.0.0.0/8").unwrap();
        let file = "cc = 'hpcc'\nline_rate = '1G'\nbase_rtt = '2ms'\nmax_stage = 0\npeer = '10.0.0.0/8'";
        let table: super::super::RuleText = toml::from_str(file).unwrap();
        assert_eq!(line, table.build().unwrap());
        let file = "cc = 'hpcc, line-rate=1G, base_rtt=2ms'\nmax_stage = 0\npeer = '10.0.0.0/8'";
        let table: super::super::RuleText = toml::from_str(file).unwrap();
        assert_eq!(line, table.build().unwrap());
        let line = rule("hpcc,line_rate=1G,base_rtt=2ms,paths=4,all_hops=true,subscribe=true");
        let congestion = line.unwrap().congestion;
        assert!(congestion.paths.is_some_and(|paths| paths.count == 4));
        assert!(congestion.all_hops && congestion.subscribe);
        assert_eq!(rule("auto").unwrap().congestion, DEFAULT_CONGESTION);
        let fixed = rule("fixed,window=524288").unwrap();
        assert_eq!(fixed.congestion, Congestion::new(UNPACED));
    }

    #[test]
    fn a_line_can_contain_every_key() {
        for line in [
            "hpcc,peer=10.0.0.1,qp=RC,service_level=3,line_rate=1G,base_rtt=2ms,min_rate=2M,eta=0.9,max_stage=0,flows=4,\
             telemetry=inband:2,format=int-md,feedback=notification,subscribe=true,paths=4,spray=true,ratio_only=true,all_hops=true",
            "auto,line_rate=1G,base_rtt=2ms,probe_interval=1ms",
            "dctcp,line_rate=1G,base_rtt=2ms,max_rtt=10ms,gain=0.1,additive_increase=5M",
            "dcqcn,hyper_increase=50M,alpha_interval=60us,decrease_interval=60us,increase_interval=60us,byte_counter=1M,fast_recovery=3",
            "swift,hop_delay=0,flow_delay=1ms",
            "fixed,window=4096,line_rate=1G",
        ] {
            assert!(rule(line).is_ok(), "{line}: {:?}", rule(line));
        }
    }

    #[test]
    fn an_invalid_key_is_named() {
        for (text, part) in [
            ("", "not one of fixed"),
            ("reno", "reno: not one of fixed"),
            ("hpcc,base_rtt=2", "base_rtt=2: not a time from 1ns to 1s; write base_rtt=20us"),
            ("fixed,spray=true", "add paths=4"),
            ("hpcc,line_rate", "no `=`"),
            ("hpcc,colour=red", "colour: no such key; use one of peer, qp"),
            ("hpcc,base_rtt=\"x", "base_rtt"),
            ("fixed,window=a\nb", "window"),
            ("hpcc,cc=dctcp", "given twice"),
            ("hpcc,eta=0.9,eta=0.8", "given twice"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn the_line_of_one_queue_pair_has_all_keys_but_those_that_select() {
        let choice = |text: &str| text.parse::<CongestionChoice>();
        let line = "hpcc,line-rate=1G, base_rtt=2ms,spray=true,paths=4";
        assert_eq!(choice(line).unwrap().build().unwrap(), parse_congestion(line).unwrap());
        let error = choice("hpcc,colour=red").unwrap_err();
        assert!(error.contains("use one of cc, window, line_rate"), "{error}");
        let error = choice("hpcc,peer=10.0.0.0/8").unwrap_err();
        assert!(error.starts_with("peer=10.0.0.0/8: ") && error.ends_with("leave it out"), "{error}");
    }
}
