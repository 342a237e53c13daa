//! `docs/reference/scenarios.md`: every key of a scenario of `ferroce sim`.

use crate::sim::{ScenarioKey, TABLES};
use fabric::sim::GRAPH;

const HEAD: &str = "\
# Scenarios

<!-- FERROCE_WRITE_REFERENCE=1 cargo test --workspace --test manual writes this page. -->

A scenario is a TOML file
that describes hosts, links and flows for `ferroce sim`. Its [settings of congestion control](congestion.md) are those of `ferroce.toml`.
`ferroce sim --check FILE` reads a scenario and prints what would run. Times and rates have a unit: `20us`, `1.5ms`, `100G`.

Four hosts at two switches, whose link is the bottleneck:

```toml
";

/// Returns the page `docs/reference/scenarios.md`.
pub fn reference() -> Vec<u8> {
    let mut page = format!("{HEAD}{GRAPH}```\n");
    for (title, _, keys) in TABLES {
        page += &format!(
            "\n## {}{}\n\n| key | default | sets |\n|---|---|---|\n",
            title[..1].to_uppercase(),
            &title[1..]
        );
        for ScenarioKey { name, default, help } in *keys {
            page += &format!("| `{name}` | {default} | {help} |\n");
        }
    }
    page.into_bytes()
}
