//! Sanitizes a report that an observer reads, because another user's process may send arbitrary data. Only printable characters are shown
//! on a terminal, and only the names of Ferroce's counters and states become names of metrics.

use datapath::engine::CoreCounters;
use roce::qp::Waiting;
use roce::{Counters, Discard};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::names::{CORE_FRAMES, named_core_counters, named_counters};

/// The names of all counters, discard reasons and waiting states.
static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let endpoint = named_counters(&Counters::default()).map(|(name, ..)| name);
    let core = named_core_counters(&CoreCounters::default()).map(|(name, ..)| name);
    let waiting = Waiting::ALL.iter().map(|state| state.name());
    let named = endpoint.into_iter().chain(core).chain(CORE_FRAMES).chain(waiting).map(String::from);
    named.chain(Discard::ALL.iter().map(ToString::to_string)).collect()
});

/// A part of a report that contains text.
pub(super) trait Sanitize {
    /// Removes control characters and unknown names.
    fn sanitize(&mut self);
}

impl Sanitize for String {
    fn sanitize(&mut self) {
        if self.contains(char::is_control) {
            *self = self.replace(char::is_control, " ");
        }
    }
}

impl<T: Sanitize> Sanitize for Option<T> {
    fn sanitize(&mut self) {
        self.iter_mut().for_each(T::sanitize);
    }
}

impl<T: Sanitize> Sanitize for Vec<T> {
    fn sanitize(&mut self) {
        self.iter_mut().for_each(T::sanitize);
    }
}

impl Sanitize for BTreeMap<String, u64> {
    fn sanitize(&mut self) {
        self.retain(|name, _| NAMES.contains(name));
    }
}

/// Deserializes and sanitizes a field that contains text, for serde's `deserialize_with`.
pub(super) fn sanitized<'de, D: Deserializer<'de>, T: Sanitize + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let mut value = T::deserialize(from)?;
    value.sanitize();
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::ProcessStatus;
    use serde_json::Value;

    fn report() -> Value {
        serde_json::from_str(include_str!("report.json")).unwrap()
    }

    /// Appends an escape sequence to each text, and adds an unknown name to each table.
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
    fn control_characters_and_unknown_names_are_removed_from_a_report() {
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
