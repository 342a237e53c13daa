//! An endpoint's counters as text and as JSON. What is zero is left out of the text.

use serde_json::{Map, Value};
use std::fmt;
use verbs::{Counters, Discard};

/// Shows [`Counters`].
pub struct Shown<'a>(pub &'a Counters);

/// Name in JSON, words, value.
fn named(counters: &Counters) -> [(&'static str, &'static str, u64); 19] {
    [
        ("rx_frames", "frames received", counters.rx_frames),
        ("tx_frames", "frames sent", counters.tx_frames),
        ("rx_payload_bytes", "payload bytes received", counters.rx_payload_bytes),
        ("tx_payload_bytes", "payload bytes sent", counters.tx_payload_bytes),
        ("retransmitted", "data packets retransmitted", counters.retransmitted),
        ("timeouts", "acknowledgement timeouts", counters.timeouts),
        ("naks_sent", "NAKs sent", counters.naks_sent),
        ("naks_received", "NAKs received", counters.naks_received),
        ("held_early", "early packets held", counters.held_early),
        ("rnr_naks_sent", "RNR NAKs sent", counters.rnr_naks_sent),
        ("rnr_naks_received", "RNR NAKs received", counters.rnr_naks_received),
        ("probes_sent", "probes sent", counters.probes_sent),
        ("probe_responses", "probe responses", counters.probe_responses),
        ("feedback_sent", "telemetry answers sent", counters.feedback_sent),
        ("feedback_received", "telemetry answers received", counters.feedback_received),
        ("path_moves", "moves to another path", counters.path_moves),
        ("rx_marked", "packets marked CE", counters.rx_marked),
        ("cnps_sent", "CNPs sent", counters.notifications_sent),
        ("cnps_received", "CNPs received", counters.notifications_received),
    ]
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, words, value) in named(self.0).into_iter().filter(|(_, _, value)| *value > 0) {
            writeln!(f, " {words:<27}: {value}")?;
        }
        for (reason, count) in discards(self.0) {
            writeln!(f, " {:<27}: {count}", format!("dropped, {reason}"))?;
        }
        Ok(())
    }
}

/// Reasons that were counted at all.
fn discards(counters: &Counters) -> impl Iterator<Item = (Discard, u64)> + '_ {
    Discard::ALL.iter().map(|&reason| (reason, counters.discarded(reason))).filter(|(_, count)| *count > 0)
}

/// All counters; the reasons of discards under `discards`, only those that occurred.
pub fn json(counters: &Counters) -> Value {
    let mut all: Map<String, Value> =
        named(counters).into_iter().map(|(name, _, value)| (name.into(), value.into())).collect();
    let reasons: Map<String, Value> =
        discards(counters).map(|(reason, count)| (reason.to_string(), count.into())).collect();
    all.insert("discards".into(), reasons.into());
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_is_shown() {
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
