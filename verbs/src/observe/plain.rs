//! What an observer takes over from a report. Another user's process may send anything: only printable characters may reach a terminal, and
//! only counters and states that Ferroce has become names of metrics.

use datapath::engine::CoreCounters;
use roce::qp::Waiting;
use roce::{Counters, Discard};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::names::{CORE_FRAMES, named_core_counters, named_counters};

/// The names of all that is counted.
static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let endpoint = named_counters(&Counters::default()).map(|(name, ..)| name);
    let core = named_core_counters(&CoreCounters::default()).map(|(name, ..)| name);
    let waiting = Waiting::ALL.iter().map(|state| state.name());
    let named = endpoint.into_iter().chain(core).chain(CORE_FRAMES).chain(waiting).map(String::from);
    named.chain(Discard::ALL.iter().map(ToString::to_string)).collect()
});

/// A part of a report that holds text.
pub(super) trait Untrusted {
    /// Removes what the observer does not take over.
    fn make_plain(&mut self);
}

impl Untrusted for String {
    fn make_plain(&mut self) {
        if self.contains(char::is_control) {
            *self = self.replace(char::is_control, " ");
        }
    }
}

impl<T: Untrusted> Untrusted for Option<T> {
    fn make_plain(&mut self) {
        self.iter_mut().for_each(T::make_plain);
    }
}

impl<T: Untrusted> Untrusted for Vec<T> {
    fn make_plain(&mut self) {
        self.iter_mut().for_each(T::make_plain);
    }
}

impl Untrusted for BTreeMap<String, u64> {
    fn make_plain(&mut self) {
        self.retain(|name, _| NAMES.contains(name));
    }
}

/// Deserializes a field that holds text, for serde's `deserialize_with`.
pub(super) fn plain<'de, D: Deserializer<'de>, T: Untrusted + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let mut value = T::deserialize(from)?;
    value.make_plain();
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::ProcessStatus;
    use serde_json::{Value, json};

    /// A report with every field of text.
    fn report() -> Value {
        let times = json!({"window": 5});
        let hop = json!({"index": 0, "queue": 0, "utilisation": null, "age": 1});
        let pair = json!({
            "qpn": 5, "core": 0, "service": "RC", "state": "ReadyToSend", "failure": "lost", "algorithm": "fixed",
            "peer": {"address": "10.0.0.2", "qpn": 6}, "window": 4096, "in_flight": 0, "rate_bps": null, "utilisation": null,
            "round_trip": 2000, "shortest_round_trip": 1000, "send_psn": 0, "acknowledged_psn": 0, "outstanding": 0,
            "receives": 0, "unpolled": 0, "waiting": "idle", "waited": times, "hops": [hop], "busiest": 0,
            "suspected": {"reason": "a firewall", "remedy": "open it", "is_path_mtu": false},
        });
        json!({
            "format": 4, "version": "0", "pid": 7, "command": "x",
            "devices": [{
                "port": "eth0", "driver": "d", "addresses": ["10.0.0.1"], "speed_mbps": null, "stopped": "no memory", "now": 9,
                "counters": {"timeouts": 3}, "discards": {"wrong ICRC": 2}, "core": {"pool_dry": 1}, "waited": times,
                "cores": [{"counters": {"rx_frames": 4}, "waited": times}], "queue_pairs": [pair],
            }],
        })
    }

    /// Puts an escape sequence into every text, and a name of the process's own into every table.
    fn make_hostile(value: &mut Value) {
        match value {
            Value::String(text) => text.push_str("\u{1b}[2J\n"),
            Value::Array(values) => values.iter_mut().for_each(make_hostile),
            Value::Object(fields) => {
                fields.values_mut().for_each(make_hostile);
                fields.insert("x 1\n# EOF\n\"}".into(), 7.into());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    #[test]
    fn neither_control_characters_nor_names_of_its_own_get_out_of_a_report() {
        let honest: ProcessStatus = serde_json::from_value(report()).unwrap();
        let mut hostile = report();
        make_hostile(&mut hostile);
        let read: ProcessStatus = serde_json::from_value(hostile).unwrap();
        let printed = format!("{read:?}");
        assert!(!printed.contains("\\u{1b}") && !printed.contains("\\n"), "{printed}");
        assert!(!printed.contains("EOF"), "{printed}");
        assert_eq!(printed.replace(" [2J ", ""), format!("{honest:?}"));
    }
}
