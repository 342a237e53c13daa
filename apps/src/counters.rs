//! The counters of an endpoint as text, which omits zeros, and as JSON.

use serde_json::{Map, Value};
use std::fmt;
use verbs::observe::named_counters;
use verbs::observe::{Counters, Discard};

/// A wrapper that displays [`Counters`], with one line per counter above zero.
pub struct Shown<'a>(pub &'a Counters);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, words, value) in named_counters(self.0).into_iter().filter(|(_, _, value)| *value > 0) {
            writeln!(f, " {words:<27}: {value}")?;
        }
        for (reason, count) in discards(self.0) {
            writeln!(f, " {:<27}: {count}", format!("dropped, {reason}"))?;
        }
        Ok(())
    }
}

fn discards(counters: &Counters) -> impl Iterator<Item = (Discard, u64)> + '_ {
    Discard::ALL.iter().map(|&reason| (reason, counters.discarded(reason))).filter(|(_, count)| *count > 0)
}

/// Returns all counters as a JSON object. Its `discards` contains only the reasons with a count above zero.
pub fn json(counters: &Counters) -> Value {
    let mut all: Map<String, Value> =
        named_counters(counters).into_iter().map(|(name, _, value)| (name.into(), value.into())).collect();
    let reasons: Map<String, Value> =
        discards(counters).map(|(reason, count)| (reason.to_string(), count.into())).collect();
    all.insert("discards".into(), reasons.into());
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_zero_are_not_shown() {
        let mut counters = Counters::default();
        counters.rx_frames = 7;
        counters.timeouts = 2;
        counters.feedback_received = 3;
        counters.discard(Discard::Icrc);
        let expected = " frames received            : 7\n acknowledgement timeouts   : 2\n telemetry answers received : 3\n dropped, wrong ICRC        : 1\n";
        assert_eq!(Shown(&counters).to_string(), expected);
        let json = json(&counters);
        assert_eq!(json["timeouts"], 2);
        assert_eq!(json["tx_frames"], 0);
        assert_eq!(json["discards"], serde_json::json!({"wrong ICRC": 1}));
    }
}
