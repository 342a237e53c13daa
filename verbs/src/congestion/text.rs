//! A rule in one line, for the environment and for flags.

use super::rules::{CongestionRule, RuleText};
use roce::qp::{Congestion, FeedbackKey};

use std::str::FromStr;

/// Keys whose values are numbers or truth values; all others are text.
const PLAIN: [&str; 9] =
    ["window", "eta", "max_stage", "flows", "service_level", "paths", "ratio_only", "subscribe", "all_hops"];

/// `hpcc,line_rate=1G,base_rtt=2ms`: a name, then keys of a rule in `ferroce.toml`. Telemetry's answers are not sealed.
impl FromStr for CongestionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        rule_from_text(text, None)
    }
}

/// Reads `hpcc,line_rate=1G,base_rtt=2ms`: a name, then keys of a rule in `ferroce.toml`.
pub(crate) fn rule_from_text(text: &str, key: Option<FeedbackKey>) -> Result<CongestionRule, String> {
    let mut words = text.split(',').map(str::trim);
    let mut file = format!("cc = {}\n", quoted(words.next().unwrap_or_default()));
    for word in words {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("`{word}` has no `=`; write KEY=VALUE, as in base_rtt=2ms"))?;
        let name = name.trim().replace('-', "_");
        let plain = PLAIN.contains(&name.as_str());
        let value = if plain { value.trim().to_owned() } else { quoted(value.trim()) };
        file.push_str(&format!("{name} = {value}\n"));
    }
    let rule: RuleText = toml::from_str(&file).map_err(|error| error.message().replace('\n', "; "))?;
    rule.build(key)
}

/// Reads `hpcc,line_rate=1G,base_rtt=2ms`: a name, then keys as in a rule of `ferroce.toml`.
///
/// # Errors
/// What is wrong, by key, in one line.
pub fn parse_congestion(text: &str) -> Result<Congestion, String> {
    rule_from_text(text, None).map(|rule| rule.congestion)
}

/// As TOML has it, whatever is in it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DEFAULT_CONGESTION;

    #[test]
    fn a_line_says_what_a_rule_of_the_file_says() {
        let line =
            rule_from_text("hpcc, line-rate=1G, base_rtt=2ms, max_stage=0, peer=10.0.0.0/8", None).unwrap();
        let file = "cc = 'hpcc'\nline_rate = '1G'\nbase_rtt = '2ms'\nmax_stage = 0\npeer = '10.0.0.0/8'";
        let rule: RuleText = toml::from_str(file).unwrap();
        assert_eq!(line, rule.build(None).unwrap());
        let line =
            rule_from_text("hpcc,line_rate=1G,base_rtt=2ms,paths=4,all_hops=true,subscribe=true", None);
        let congestion = line.unwrap().congestion;
        assert!(congestion.paths.is_some_and(|paths| paths.count == 4));
        assert!(congestion.all_hops && congestion.subscribe);
        assert_eq!(rule_from_text("fixed,window=524288", None).unwrap().congestion, DEFAULT_CONGESTION);
    }

    #[test]
    fn every_key_can_be_said_in_a_line() {
        for line in [
            "hpcc,peer=10.0.0.1,qp=RC,service_level=3,line_rate=1G,base_rtt=2ms,min_rate=2M,eta=0.9,max_stage=0,flows=4,\
             telemetry=inband:2,format=int-md,feedback=notification,subscribe=true,paths=4,ratio_only=true,all_hops=true",
            "auto,line_rate=1G,base_rtt=2ms,probe_interval=1ms",
            "dctcp,line_rate=1G,base_rtt=2ms,max_rtt=10ms",
            "fixed,window=4096,line_rate=1G",
        ] {
            assert!(rule_from_text(line, None).is_ok(), "{line}: {:?}", rule_from_text(line, None));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "none of fixed"),
            ("reno", "`reno`"),
            ("hpcc,line_rate", "no `=`"),
            ("hpcc,colour=red", "colour"),
            ("hpcc,base_rtt=\"x", "base_rtt"),
            ("fixed,window=a\nb", "expected"),
        ] {
            let error = rule_from_text(text, None).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
