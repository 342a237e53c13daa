//! A tool ends with one line if its output cannot be written, and silently if its reader has exited.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn ferroce(line: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("ferroce"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.env_remove("FERROCE_PORT").env_remove("FERROCE_LOG").current_dir(std::env::temp_dir());
    command
}

fn capture() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roce/tests/captures");
    folder.join("rc_send_1k.pcap")
}

fn lines() -> Vec<String> {
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric");
    let scenario = fabric.join("scenarios/reference/two-to-one.toml").display().to_string();
    vec![
        "--help".into(),
        "--version".into(),
        "completions bash".into(),
        "info".into(),
        "doctor".into(),
        format!("pcap {}", capture().display()),
        format!("pcap --summary {}", capture().display()),
        format!("sim {scenario} --json"),
        "soak --seeds 0..1".into(),
    ]
}

fn run(line: &str, out: impl Into<Stdio>) -> Output {
    ferroce(line).stdout(out).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_full_disk_is_an_error() {
    for line in lines() {
        let output = run(&line, File::options().write(true).open("/dev/full").unwrap());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains("standard output") && error.contains("No space left"), "{line}: {error}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
    }
}

#[test]
fn a_closed_pipe_ends_a_tool_without_an_error_message() {
    for line in lines() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(&line, writer);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*error), (Some(141), ""), "{line}");
    }
}

#[test]
fn the_exit_code_is_correct_when_standard_error_is_full() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = ferroce("write-bw --frob").stdout(Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn nothing_is_coloured_in_a_file_or_pipe() {
    for line in lines().iter().map(String::as_str).chain(["", "write-bw --frob"]) {
        let output = run(line, Stdio::piped());
        for text in [output.stdout, output.stderr] {
            assert!(!text.contains(&0x1b), "{line}: {}", String::from_utf8_lossy(&text));
        }
    }
}

#[test]
fn input_that_exceeds_a_limit_is_refused_in_one_line() {
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric");
    let scenario = fabric.join("scenarios/reference/two-to-one.toml").display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let flows = folder.path().join("flows.csv");
    std::fs::write(&flows, "src,dst,bytes,start_ns\n1,3,1000,18446744073709551615\n").unwrap();
    for (line, part) in [
        (format!("sim {scenario} --sweep 0..99999999999"), "at most 100000"),
        (format!("sim {scenario} --sweep 0..18446744073709551615 --vary max_stage=0,5"), "at most 100000"),
        (format!("sim {scenario} --flows {}", flows.display()), "line 2: start_ns 18446744073709551615"),
        (format!("sim {scenario} --flows /dev/zero"), "65536"),
        ("sim /dev/zero".into(), "longer than"),
        ("replay /dev/zero".into(), "65536"),
        ("info --config /dev/zero".into(), "longer than"),
        ("soak --threads 99999".into(), "use 1 to 1024"),
    ] {
        let output = run(&line, Stdio::piped());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(part) && error.lines().count() == 1, "{line}: {error}");
    }
}

#[test]
fn an_output_file_that_cannot_be_created_is_named_before_the_run() {
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric");
    let scenario = fabric.join("scenarios/reference/two-to-one.toml").display().to_string();
    for line in [
        format!("sim {scenario} --out /proc/nowhere"),
        format!("sim {scenario} --sweep 0..2 --out /proc/nowhere"),
        "write-bw --port null --out_json_file=/proc/nowhere/out".into(),
    ] {
        let output = run(&line, Stdio::piped());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains("/proc/nowhere") && output.stdout.is_empty(), "{line}: {error}");
    }
}

#[test]
fn a_signal_is_the_regular_end_of_a_server_of_metrics() {
    let mut server =
        ferroce("metrics --listen 127.0.0.1:0").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("serving http://127.0.0.1:"), "{first}");
    let kill = Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
