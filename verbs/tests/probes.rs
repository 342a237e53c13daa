//! A binary that posts and polls contains the trace points of docs/reference/probes.md, with the documented arguments.

use crate::common::*;
use ferroce_verbs::*;
use std::collections::BTreeMap;
use std::process::Command;

const PAGE: &str = include_str!("../../docs/reference/probes.md");

/// Returns the probes of this binary with the number of their arguments. Each must have a semaphore.
fn notes() -> BTreeMap<String, usize> {
    let binary = std::env::current_exe().unwrap();
    let printed = Command::new("readelf").args(["--notes", "--wide"]).arg(binary).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let probes = printed.split("Provider: ferroce").skip(1).map(|note| {
        let after = |label: &str| note.split_once(label).unwrap().1.lines().next().unwrap().trim();
        assert!(!after("Semaphore: ").trim_start_matches(['0', 'x']).is_empty(), "{note}");
        (after("Name: ").to_owned(), after("Arguments: ").split_whitespace().count())
    });
    probes.collect()
}

#[test]
fn the_binary_has_exactly_the_probes_of_the_page() {
    let (mut a, b) = connected(Progress::Inline, 64);
    let request = SendRequest::write(1, a.region.sge(0, 64).unwrap(), b.region.remote().at(0));
    a.qp.post_send(request).unwrap();
    assert_eq!(success(&mut a.send_cq, &b.device).id, 1);
    let rows = PAGE.lines().filter_map(|line| {
        let (name, row) = line.strip_prefix("| `")?.split_once("` |")?;
        Some((name.to_owned(), row.matches("(arg").count()))
    });
    assert_eq!(notes(), rows.collect());
}
