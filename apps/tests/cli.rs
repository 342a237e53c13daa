//! Wrong command lines get one line that names the remedy, and exit code 2; wrong surroundings exit code 1.

use assert_cmd::Command;

fn ferroce(line: &str) -> Command {
    let mut command = Command::cargo_bin("ferroce").unwrap();
    command.args(line.split_whitespace());
    command.env_remove("FERROCE_PORT").env_remove("FERROCE_IP").env_remove("FERROCE_LOG");
    command.current_dir(std::env::temp_dir());
    command
}

/// Runs `line`, expects `code` and one line of error, and gives it.
fn refused(line: &str, code: i32) -> String {
    let output = ferroce(line).assert().code(code).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: "), "{line}: {error}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    error
}

#[test]
fn wrong_flags_name_the_remedy() {
    for (line, parts) in [
        ("write-bw --frob", &["--frob", "--help"][..]),
        ("write-bm", &["write-bm", "write-bw"]),
        ("write-bw -s big --port lo", &["big", "4K"]),
        ("write-bw -m 1500 --port lo", &["1500", "256, 512, 1024, 2048, 4096"]),
        ("write-bw -n 0 --port lo", &["0", "1.."]),
        ("write-bw -n 5 -D 2 --port lo", &["--iters", "--duration"]),
        ("write-bw -D 0 --port lo", &["seconds"]),
        ("write-bw -D 1e19 -f 1e19 --port lo", &["at most 1000000000s"]),
        ("write-bw --active 1x1e19s,1x1e19s --port lo localhost", &["1x2s"]),
        ("write-bw -c UD --port lo", &["UD has SEND only", "RC"]),
        ("write-bw -R --port lo", &["-R", "not supported yet"]),
        ("write-bw --ip 10.0.0.300 --port lo", &["10.0.0.300", "10.0.0.1/24"]),
        ("write-bw --progress magic --port lo", &["inline", "dedicated"]),
        ("write-bw --cc hpcc --port lo", &["--cc-line-rate 1G"]),
        ("write-bw --cc hpcc --cc-eta 2 --port lo", &["at most 1"]),
        ("write-bw --cc-flows 2 --port lo", &["--cc hpcc"]),
        ("read-lat -q 2 --port lo", &["one queue pair"]),
        ("atomic-bw -s 16 --port lo", &["always 8 bytes"]),
        ("write-bw", &["no port", "--port veth0", "FERROCE_PORT"]),
        ("doctor --peer 10.0.0.1", &["--port"]),
        ("completions basic", &["bash", "zsh", "fish"]),
        ("info --config /nonexistent.toml", &["/nonexistent.toml"]),
    ] {
        let error = refused(line, 2);
        for part in parts {
            assert!(error.contains(part), "{line}: no {part:?} in {error}");
        }
    }
}

#[test]
fn a_port_that_is_not_there_is_named() {
    let error = refused("info --port nosuchif0", 1);
    assert!(error.contains("nosuchif0"), "{error}");
    let error = refused("write-bw --port memif:", 1);
    assert!(error.contains("memif"), "{error}");
}

#[test]
fn help_teaches_by_example() {
    let output = ferroce("write-bw --help").assert().success().get_output().clone();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in
        ["ferroce write-bw --port eth0", "memif:/tmp/x.sock,server", "--report_gbits", "--cc-base-rtt"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
    ferroce("--version").assert().success();
    ferroce("").assert().code(2);
}

#[test]
fn completions_know_the_tools() {
    for shell in ["bash", "zsh", "fish"] {
        let output = ferroce(&format!("completions {shell}")).assert().success().get_output().clone();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("write-bw") && script.contains("doctor"), "{shell}");
    }
}

#[test]
fn info_without_a_port_lists_interfaces_that_can_be_one() {
    let output = ferroce("info").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("port ") && text.contains("memif:") && !text.contains("\nlo "), "{text}");
    let output = ferroce("info --json").assert().success().get_output().clone();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ports = json["ports"].as_array().unwrap();
    assert!(ports.iter().all(|port| port["port"] != "lo" && port["mac"].is_string()), "{json}");
}

#[test]
fn doctor_fails_on_a_port_that_is_not_there() {
    let output = ferroce("doctor --port nosuchif0 --json").assert().code(1).get_output().clone();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], false);
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["status"] == "fail" && check["remedy"].is_string()), "{json}");
}

#[test]
fn a_file_of_settings_names_what_is_wrong_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ferroce.toml");
    std::fs::write(&file, "port = \"lo\"\ncolour = \"red\"\n").unwrap();
    let error = refused(&format!("info --config {}", file.display()), 2);
    assert!(error.contains("colour"), "{error}");
}

#[test]
fn settings_that_a_stranger_could_have_written_are_ignored() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ferroce.toml");
    let target = folder.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    std::fs::write(&file, format!("port = 'pcap:,{}'", target.display())).unwrap();
    let run = || {
        let output = ferroce("info").current_dir(folder.path()).assert().success().get_output().clone();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        let warning = String::from_utf8(output.stderr).unwrap();
        assert_eq!(warning.lines().count(), 1, "{warning}");
        warning
    };
    let warning = run();
    assert!(warning.contains("can't choose a pcap: port") && warning.contains("FERROCE_CONFIG"), "{warning}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let warning = run();
    assert!(warning.contains("ferroce.toml is ignored") && warning.contains("mode 666"), "{warning}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    if chown(&file, Some(65534), None).is_ok() {
        let warning = run();
        assert!(warning.contains("belongs to user 65534"), "{warning}");
    }
}
