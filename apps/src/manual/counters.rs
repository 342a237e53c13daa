//! `docs/reference/counters.md`: every counter, drop reason and waiting state, with the names in reports and metrics.

use verbs::observe::{Counters, Discard, Waiting, named_core_counters, named_counters};

const HEAD: &str = "\
# Counters

<!-- FERROCE_WRITE_REFERENCE=1 cargo test --workspace --test manual writes this page. -->

The tools print the counters that are not 0 when
they end, `ferroce info` those of an idle port, `ferroce why --json` and `ferroce metrics` those of running processes. The name of a
counter is its key in JSON, and the metric is `ferroce_NAME_total`. [Observing](../observing.md) explains the metrics.
";

/// Returns the page `docs/reference/counters.md`.
pub fn reference() -> Vec<u8> {
    let mut page = HEAD.to_owned();
    let counters = named_counters(&Counters::default()).map(|(name, words, _)| (name, words));
    table(&mut page, "Of a device", &counters);
    let counters = named_core_counters(&Default::default()).map(|(name, words, _)| (name, words));
    table(&mut page, "Of a core", &counters);
    page += "\n## Reasons for which packets are dropped\n\nThe metric is `ferroce_dropped_total`, with the label `reason`.\n\n";
    for reason in Discard::ALL {
        page += &format!("- {reason}\n");
    }
    page += "\n## Waiting states\n\nThe metric is `ferroce_waited_seconds_total`, with the label `state`. \
             [Waiting states](../observing.md#waiting-states) says what each\nmeans.\n\n";
    for state in Waiting::ALL {
        page += &format!("- `{}`\n", state.name());
    }
    page.into_bytes()
}

fn table(page: &mut String, title: &str, counters: &[(&str, &str)]) {
    *page += &format!("\n## {title}\n\n| name | counts |\n|---|---|\n");
    for (name, words) in counters {
        *page += &format!("| `{name}` | {words} |\n");
    }
}
