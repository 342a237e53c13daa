//! Generates `docs/reference/congestion.md` from the settings, and checks that the file is current.

use super::choice::CongestionChoice;

const TEXT: &str = "\
# Settings of congestion control

Each setting is a key of a `[[congestion]]` table in `ferroce.toml`, a word of `FERROCE_CC` and of `--cc`
(`hpcc,line_rate=25G,base_rtt=20us`), a flag of the measuring tools, and a field of `CongestionChoice` in Rust.
`cc/README.md` in the repository describes the algorithms.

<!-- FERROCE_WRITE_REFERENCE=1 cargo test -p ferroce-verbs reference writes this page. -->

A rate is in bit/s with K, M, G or T for powers of 1000; without one, the number is at least 1000000. A time has a unit: ns, us, ms or s. Bytes may have K, M or G for
powers of 1024.

## For which queue pairs

Rules are tried in the order of the file, and the first that fits decides. These keys are not flags; a key that is left out
fits every queue pair.

| key | accepts | fits |
|---|---|---|
| `peer` | an address prefix, such as `10.0.0.0/8` or `fd00::/16` | peers in this prefix |
| `qp` | RC, UC, UD or XRC | queue pairs of this service |
| `service_level` | 0 to 7 | queue pairs whose traffic class begins with these three bits |

";

fn page() -> String {
    let mut page = TEXT.to_owned();
    page += "## Settings\n\n| key | flag | accepts | used by | default |\n|---|---|---|---|---|\n";
    for setting in CongestionChoice::SETTINGS {
        let used = setting.users().unwrap_or_else(|| "all".to_owned());
        let (key, flag, accepts, default) = (setting.key, setting.flag, setting.accepts(), setting.default());
        page += &format!("| `{key}` | `--{flag}` | {accepts} | {used} | {default} |\n");
    }
    page += "\n## What they do\n\n";
    for setting in CongestionChoice::SETTINGS {
        page += &format!("- `{}` ({}): {}\n", setting.key, setting.example, setting.help);
    }
    page
}

#[test]
fn the_reference_lists_the_settings() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/congestion.md");
    if datapath::environment::variable("FERROCE_WRITE_REFERENCE").is_some() {
        std::fs::write(file, page()).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        written == page(),
        "{file} is out of date: run FERROCE_WRITE_REFERENCE=1 cargo test -p ferroce-verbs reference"
    );
}

#[test]
fn a_cell_of_the_reference_has_at_most_100_characters() {
    for line in page().lines().filter(|line| line.starts_with('|')) {
        assert!(line.split('|').all(|cell| cell.trim().chars().count() <= 100), "{line}");
    }
}
