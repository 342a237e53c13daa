//! `ferroce sim` as a process.

use assert_cmd::Command;
use std::fs;
use std::path::{Path, PathBuf};

fn ferroce() -> Command {
    Command::cargo_bin("ferroce").unwrap()
}

fn fabric(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric").join(path)
}

#[test]
fn a_run_leaves_tables_and_a_page_that_needs_nothing_else() {
    let out = tempfile::tempdir().unwrap();
    let mut run = ferroce();
    run.arg("sim").arg(fabric("scenarios/reference/long-short.toml")).arg("--out").arg(out.path());
    let said = run.arg("--compare").arg(fabric("tests/data")).assert().success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    assert!(said.contains("3 hosts (model), 1 switches, 2 of 2 flows ended, hpcc"), "{said}");
    assert!(said.contains("11 of 11 in their bands"), "{said}");
    let file = |name: &str| fs::read_to_string(out.path().join(name)).unwrap();
    let fct = file("fct.csv");
    // The results of the authors' simulator, equal to the ns.
    for row in ["1,3,30000000,0,2865825,2519360", "2,3,1000000,300000,189060,88000"] {
        assert!(fct.contains(row), "{fct}");
    }
    assert!(file("series.csv").lines().count() > 2000);
    let page = file("report.html");
    assert!(page.matches("<svg").count() == 4 && page.contains("11 of 11"), "plots and the comparison");
    assert!(!page.contains("src=") && !page.contains("href="), "nothing from elsewhere");
}

/// `ci/sim` checks the same traces in the release build.
#[test]
fn traces_are_what_they_were() {
    let traces = fs::read_to_string(fabric("scenarios/traces.txt")).unwrap();
    let rows: Vec<_> =
        traces.lines().filter_map(|line| line.split_once(' ')).filter(|row| row.0 != "#").collect();
    assert!(rows.len() >= 4, "{traces}");
    for (scenario, trace) in rows {
        let said = ferroce().arg("sim").arg(fabric("scenarios").join(scenario)).assert().success();
        let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
        assert!(said.contains(&format!("trace {trace}")), "{scenario}: {said}");
    }
}

#[test]
fn merged_shards_are_the_unsplit_sweep_to_the_byte() {
    let out = tempfile::tempdir().unwrap();
    let sweep = |more: &[&str], folder: &str| {
        let mut run = ferroce();
        run.arg("sim").arg(fabric("scenarios/reference/long-short.toml"));
        run.args(["--sweep", "1..5", "--vary", "max_stage=5,0"])
            .args(more)
            .arg("--out")
            .arg(out.path().join(folder));
        run.assert()
    };
    sweep(&[], "whole").success();
    for shard in ["1/3", "2/3", "3/3"] {
        sweep(&["--shard", shard], "parts").success();
    }
    let part = |index: usize| out.path().join(format!("parts/sweep.{index}-of-3.json"));
    let merge = |parts: &[usize]| {
        let mut run = ferroce();
        run.args(["sim", "--merge"]).args(parts.iter().map(|&index| part(index)));
        run.arg("--out").arg(out.path().join("merged")).assert()
    };
    let lacking = merge(&[1, 3]).failure();
    let said = String::from_utf8(lacking.get_output().stderr.clone()).unwrap();
    assert!(said.contains("only 5 of 8 jobs are present, job 1 is missing"), "{said}");
    merge(&[3, 1, 2]).success();
    let read = |folder: &str| fs::read_to_string(out.path().join(folder).join("sweep.csv")).unwrap();
    assert_eq!(read("whole"), read("merged"));
    assert_eq!(read("whole").lines().count(), 9);
}

#[test]
fn a_sweep_runs_every_seed_with_every_value() {
    let mut run = ferroce();
    run.arg("sim").arg(fabric("scenarios/reference/incast-16.toml")).args([
        "--sweep",
        "1..4",
        "--vary",
        "max_stage=0,5",
    ]);
    let said = run.assert().success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    assert_eq!(said.lines().count(), 7, "{said}");
    assert_eq!(said.matches("\"max_stage=5\"").count(), 3, "{said}");
}

#[test]
fn what_can_not_be_is_said_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let text = "topology = 'parking-lot'\nhosts = 2\nrate = '100G'\ndelay = '1us'\ncongestion = 'fixed,window=9000'\n";
    fs::write(&file, text).unwrap();
    let refused = ferroce().arg("sim").arg(&file).assert().failure();
    let why = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(why.contains("the topology needs switches; add switches = 8"), "{why}");
}
