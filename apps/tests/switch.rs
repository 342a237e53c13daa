//! `ferroce switch` as a process, on capture files, without privileges or a network.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + length].to_vec());
        rest = &rest[16 + length..];
    }
    frames
}

fn frame(to: u8, from: u8, tag: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5, tag];
    frame.resize(100, tag);
    frame
}

#[test]
fn frames_from_a_capture_are_flooded_then_switched_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let sent: Vec<_> = (0..20).map(|tag| frame(9, 1, tag)).collect();
    fs::write(path("in.pcap"), capture(&sent)).unwrap();
    let port = |rx: &str, tx: &str| {
        let rx = if rx.is_empty() { String::new() } else { path(rx).display().to_string() };
        format!("pcap:{rx},{}", path(tx).display())
    };
    Command::cargo_bin("ferroce")
        .unwrap()
        .arg("switch")
        .args(["--port", &port("in.pcap", "a.pcap")])
        .args(["--port", &port("", "b.pcap")])
        .args(["--port", &port("", "c.pcap")])
        .args(["--rate", "1G", "--duration", "300ms", "--json"])
        .arg(path("report.json"))
        .arg("--series")
        .arg(path("series.csv"))
        .assert()
        .success();
    assert_eq!(frames(&path("a.pcap")), Vec::<Vec<u8>>::new(), "nothing goes back");
    assert_eq!(frames(&path("b.pcap")), sent);
    assert_eq!(frames(&path("c.pcap")), sent);

    let report: Value = serde_json::from_slice(&fs::read(path("report.json")).unwrap()).unwrap();
    assert_eq!((&report["final"], &report["phase"]), (&Value::Bool(true), &Value::from(0)));
    assert_eq!(report["stations"], 1);
    assert_eq!(report["ports"][0]["rx_frames"], 20);
    assert_eq!(report["ports"][0]["flooded"], 20);
    for port in 1..3 {
        assert_eq!(report["ports"][port]["tx_bytes"], 2000);
        assert_eq!(report["ports"][port]["drops"]["queue_full"], 0);
    }

    let mut series = csv::Reader::from_path(path("series.csv")).unwrap();
    let columns =
        ["seconds", "port", "rx_bytes", "tx_bytes", "busy_ns", "ce_marked", "dropped", "queue", "pause_ns"];
    assert_eq!(series.headers().unwrap(), columns.as_slice());
    let rows: Vec<_> = series.records().map(Result::unwrap).collect();
    assert_eq!(rows.len() % 3, 0, "a line for each port");
    let of = |name: &str, column: usize| -> u64 {
        rows.iter().filter(|row| row[1].contains(name)).map(|row| row[column].parse::<u64>().unwrap()).sum()
    };
    // 100 bytes take 800 ns at 1 Gb/s.
    assert_eq!((of("b.pcap", 3), of("b.pcap", 4), of("a.pcap", 3)), (2000, 16_000, 0));
}

#[test]
fn a_wrong_flag_is_one_line_with_the_remedy() {
    let refused = Command::cargo_bin("ferroce").unwrap().args(["switch", "--port", "veth0"]).assert().code(2);
    let error = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains("two ports"), "{error}");
}

#[test]
fn a_wrong_script_of_faults_is_one_line_and_no_frame_passes() {
    let folder = tempfile::tempdir().unwrap();
    let (script, frames, out) =
        (folder.path().join("f.toml"), folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    fs::write(&frames, capture(&[frame(1, 2, 3)])).unwrap();
    for (text, says) in [
        ("[[fault]]\ncolour = 1\naction = 'drop'", "line 2: colour: no such key; a fault has name"),
        ("[[fault]]\naction = 'drop'\npsn = '9..3'", "line 3: psn = \"9..3\": not a PSN or a range of PSNs"),
        ("[[fault]]\naction = 'drop'\nport = 'c'", "line 3: port = \"c\": not a port of this switch"),
        (
            "[[fault]]\naction = 'drop'\n[[fault]]\naction = 'drop'",
            "line 4: this fault and the one at line 2",
        ),
    ] {
        fs::write(&script, text).unwrap();
        let port = format!("pcap:{},{}", frames.display(), out.display());
        let mut command = Command::cargo_bin("ferroce").unwrap();
        command.args(["switch", "--port", &port, "--port", "null", "--faults"]).arg(&script);
        let output = command.assert().code(2).get_output().clone();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("f.toml, ") && error.contains(says), "{error}");
        assert_eq!((error.trim_end().lines().count(), output.stdout.len()), (1, 0), "{error}");
        assert!(!out.exists(), "the ports were opened");
    }
}

#[test]
fn an_unwritable_report_is_an_error_before_the_switch_starts() {
    let refused = Command::cargo_bin("ferroce")
        .unwrap()
        .args(["switch", "--port", "null", "--port", "ring:x", "--json", "/nonexistent/report.json"])
        .assert()
        .code(1);
    let error = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(error.contains("/nonexistent/report.json"), "{error}");
}

fn ctl(socket: &Path, words: &[&str]) -> Result<Value, String> {
    let mut command = Command::cargo_bin("ferroce").unwrap();
    let output = command.args(["switch", "ctl"]).arg(socket).args(words).arg("--json").output().unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn faults_change_at_run_time_and_a_refused_change_has_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let start = write("start.toml", "[[fault]]\nname = 'first'\nqp = 7\naction = 'drop'\n");
    let more = write("more.toml", "[[fault]]\nqp = 8\nuntil = '300s'\naction = 'black-hole'\n");
    let wrong =
        write("wrong.toml", "[[fault]]\nqp = 9\naction = 'drop'\n\n[[fault]]\nqp = 10\naction = 'burn'\n");
    let empty = write("empty.toml", "");
    let socket = folder.path().join("control");
    let mut switch = std::process::Command::new(assert_cmd::cargo::cargo_bin("ferroce"))
        .args(["switch", "--port", "null", "--port", "ring:ctl", "--duration", "60s", "--faults", &start])
        .arg("--control")
        .arg(&socket)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(switch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("switching between"), "{line}");

    let names = |faults: &Value| -> Vec<String> {
        faults.as_array().unwrap().iter().map(|fault| fault["name"].as_str().unwrap().to_owned()).collect()
    };
    // Clients that send nothing, or one byte, do not delay other clients.
    let idle: Vec<_> = (0..200).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    (&idle[0]).write_all(b"{").unwrap();
    let listed = ctl(&socket, &["list"]).unwrap();
    assert_eq!(names(&listed), ["first"]);
    assert_eq!((&listed[0]["keys"]["qp"], &listed[0]["fitted"]), (&Value::from("7"), &Value::from(0)));
    let added = ctl(&socket, &["add", &more]).unwrap();
    assert_eq!(names(&added), ["first", "fault-1"]);
    assert_eq!(added[1]["state"], "active");
    for (words, says) in [
        (["add", wrong.as_str()], "wrong.toml, line 7: action = \"burn\": not one of drop"),
        (["replace", &wrong], "wrong.toml, line 7: action"),
        (
            ["add", &more],
            "more.toml, line 2: this fault and the running fault fault-1 match the same packets",
        ),
        (["remove", "second"], "second: no running fault has this name; name one of first, fault-1"),
    ] {
        let refused = ctl(&socket, &words).unwrap_err();
        assert!(refused.contains(says) && refused.lines().count() == 1, "{words:?}: {refused}");
        assert_eq!(ctl(&socket, &["list"]).unwrap(), added, "{words:?}");
    }
    assert_eq!(names(&ctl(&socket, &["remove", "first"]).unwrap()), ["fault-1"]);
    assert_eq!(names(&ctl(&socket, &["replace", &empty]).unwrap()), [""; 0]);
    switch.kill().unwrap();
    switch.wait().unwrap();
    let refused = ctl(&socket, &["list"]).unwrap_err();
    assert!(refused.contains("start a switch with --control"), "{refused}");
}

/// `timeout` and a closing terminal send their signal twice.
#[test]
fn a_switch_that_is_ended_by_two_signals_at_once_writes_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut switch = std::process::Command::new(assert_cmd::cargo::cargo_bin("ferroce"))
        .args(["switch", "--port", "null", "--port", "ring:ended", "--duration", "60s", "--json"])
        .arg(&report)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(switch.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("switching between"), "{line}");
    let script = format!("kill -STOP {0} && kill -TERM {0} && kill -HUP {0} && kill -CONT {0}", switch.id());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut rest).unwrap();
    let status = switch.wait().unwrap();
    assert!(status.success(), "{status}: {rest}");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert!(report["ports"].is_array(), "{report}");
}
