//! `ferroce replay` on excerpts of the golden traces, and on files that are not traces.
#![forbid(unsafe_code)]

use assert_cmd::Command;
use flate2::read::GzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Output;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cc/tests/golden")
}

fn replay(file: &Path, flags: &[&str]) -> Output {
    Command::cargo_bin("ferroce").unwrap().arg("replay").arg(file).args(flags).output().unwrap()
}

fn text(name: &str) -> String {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(golden().join(name)).unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// Writes `content` to a file with the name of a golden trace and replays it. Returns exit code and output.
fn replay_text(content: &[u8]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t__hpcc_ms5.csv");
    fs::write(&file, content).unwrap();
    let output = replay(&file, &[]);
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn every_state_equals_that_of_the_authors_simulator() {
    for (scenario, rows, flows) in
        [("a_single", 400, 1), ("b_2to1", 440, 2), ("c_16to1", 640, 4), ("p_parkinglot", 1000, 3)]
    {
        for stage in ["ms0", "ms5"] {
            let name = format!("{scenario}__hpcc_{stage}.csv.gz");
            let output = replay(&golden().join(&name), &["--json"]);
            assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stdout));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["rows"], rows, "{name}");
            assert_eq!(report["flows"], flows, "{name}");
            assert_eq!(report["mismatches"], 0, "{name}");
            assert!(report["largest_error"]["u_relative"].as_f64().unwrap() < 1e-12, "{name}");
        }
    }
}

#[test]
fn several_files_are_replayed_one_after_the_other() {
    let files =
        ["a_single__hpcc_ms0.csv.gz", "p_parkinglot__hpcc_ms5.csv.gz"].map(|name| golden().join(name));
    let run = |flags: &[&str]| {
        let output =
            Command::cargo_bin("ferroce").unwrap().arg("replay").args(&files).args(flags).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let rows =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["rows"].as_u64().unwrap();
        (output.status.code(), said.lines().map(rows).collect::<Vec<_>>())
    };
    assert_eq!(run(&["--json"]), (Some(0), vec![400, 1000]), "each file has the stage of its own name");
    assert_eq!(run(&["--json", "--max-stage", "5"]), (Some(1), vec![400, 1000]), "the first differs");
}

#[test]
fn a_wrong_parameter_is_a_mismatch() {
    let file = golden().join("p_parkinglot__hpcc_ms0.csv.gz");
    for scenario in ["a_single", "b_2to1", "c_16to1", "p_parkinglot"] {
        let file = golden().join(format!("{scenario}__hpcc_ms0.csv.gz"));
        assert_eq!(replay(&file, &["--max-stage", "5"]).status.code(), Some(1), "{scenario}");
    }
    for flags in [
        ["--base-rtt", "4160ns"],
        ["--ai", "51M"],
        ["--line-rate", "101G"],
        ["--eta", "0.951"],
        ["--unit", "4"],
    ] {
        assert_eq!(replay(&file, &flags).status.code(), Some(1), "{flags:?}");
    }
    let same = ["--max-stage", "0", "--base-rtt", "8320ns", "--ai", "50M", "--line-rate", "100G"];
    assert_eq!(replay(&file, &same).status.code(), Some(0));
    let lowest = replay(&golden().join("c_16to1__hpcc_ms5.csv.gz"), &["--min-rate", "20G"]);
    assert_eq!(lowest.status.code(), Some(1));
}

/// With links of four times the rate and counters of four times the unit, `u` is the same. The authors' states are therefore valid for the
/// changed trace.
#[test]
fn counters_in_another_unit_are_replayed() {
    let original = text("p_parkinglot__hpcc_ms0.csv.gz");
    let columns: Vec<&str> = original.lines().next().unwrap().split(',').collect();
    let faster = |line: &str| {
        let value = |(column, value): (&&str, &str)| match (column.ends_with("_rate_enum"), value) {
            (true, "2") => "4".to_owned(),
            (_, value) => value.to_owned(),
        };
        columns.iter().zip(line.split(',')).map(value).collect::<Vec<_>>().join(",")
    };
    let rewritten: Vec<String> = original.lines().map(faster).collect();
    assert_ne!(original.lines().nth(1), Some(rewritten[1].as_str()), "the links' rates are others");
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| {
        let file = folder.path().join(name);
        fs::write(&file, rewritten.join("\n") + "\n").unwrap();
        file
    };
    let plain = named("p_parkinglot__hpcc_ms0.csv");
    assert_eq!(replay(&plain, &["--unit", "4"]).status.code(), Some(0));
    assert_eq!(replay(&plain, &[]).status.code(), Some(1), "in the ordinary unit it is another trace");
    // The authors' own script uses this unit. The names of its traces select the unit and other parameters.
    let script = named("p_parkinglot__hpcc_runpy.csv");
    assert_eq!(replay(&script, &["--ai", "50M", "--min-rate", "100M"]).status.code(), Some(0));
    assert_eq!(replay(&script, &["--ai", "50M", "--min-rate", "100M", "--unit", "1"]).status.code(), Some(1));
    assert_eq!(replay(&plain, &["--unit", "0"]).status.code(), Some(2));
}

#[test]
fn a_wrong_value_is_reported_with_its_line_and_column() {
    let good = text("a_single__hpcc_ms5.csv.gz");
    let (code, said) = replay_text(good.as_bytes());
    assert_eq!(code, 0, "{said}");
    let (code, said) = replay_text(good.replace(",95045747104,", ",95045747106,").as_bytes());
    assert_eq!(code, 1);
    assert!(
        said.contains("line 4: flow 1 to 2 port 10000: rate_bps: expected 95045747106, got 95045747104"),
        "{said}"
    );
    assert!(said.contains("rows 400, flows 1, mismatches 1\n"), "{said}");
    let (code, said) = replay_text(good.replace(",1.0000447693232248,", ",nan,").as_bytes());
    assert_eq!((code, said.contains("u_ewma: expected NaN")), (1, true), "{said}");
}

#[test]
fn input_that_is_no_trace_is_one_line() {
    let good = text("a_single__hpcc_ms5.csv.gz");
    let two = good.lines().take(2).collect::<Vec<_>>().join("\n");
    let cases: [(Vec<u8>, &str); 8] = [
        (Vec::new(), "line 1: no column"),
        (b"a,b\n1,2\n".to_vec(), "line 1: no column"),
        (good.lines().next().unwrap().into(), "no rows"),
        (two.replace("4188,", "then,").into(), "line 2: column t_ns"),
        (two.replace(",3512383,", ",16777216,").into(), "line 2: column h0_time: 16777216 is above"),
        (two.replace(",1,2,3512383", ",1,7,3512383").into(), "line 2: column h0_rate_enum"),
        (format!("{two}\n1,2,3\n").into(), "line 3: 3 columns"),
        (b"\x1f\x8b\x08nonsense".to_vec(), "can't be read"),
    ];
    for (content, problem) in cases {
        let (code, said) = replay_text(&content);
        assert_eq!(code, 2, "{problem}: {said}");
        assert!(said.contains(problem), "{problem}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(replay(Path::new("/nowhere.csv"), &[]).status.code(), Some(2));
    let eta = replay(&golden().join("a_single__hpcc_ms5.csv.gz"), &["--eta", "2"]);
    assert_eq!(eta.status.code(), Some(2));
}
