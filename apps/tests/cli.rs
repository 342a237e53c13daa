//! A wrong command line causes one line with the remedy and exit code 2; a problem of the machine causes exit code 1.

use assert_cmd::Command;

fn ferroce(line: &str) -> Command {
    let mut command = Command::cargo_bin("ferroce").unwrap();
    command.args(line.split_whitespace());
    command.env_remove("FERROCE_PORT").env_remove("FERROCE_IP").env_remove("FERROCE_LOG");
    command.current_dir(std::env::temp_dir());
    command
}

/// Runs `line`, checks that it exits with `code` and one line of error, and returns the line.
fn refused(line: &str, code: i32) -> String {
    let output = ferroce(line).assert().code(code).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: "), "{line}: {error}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    error
}

#[test]
fn a_cpu_that_this_process_may_not_use_is_named_with_one_that_it_may() {
    let error = refused("config --progress dedicated:9999", 2);
    assert!(error.contains("dedicated:9999: this process may not use"), "{error}");
    assert!(error.contains("write dedicated:"), "{error}");
}

#[test]
fn what_is_not_there_is_named() {
    let error = refused("info --port nosuchif0", 1);
    assert!(error.contains("no interface `nosuchif0`"), "{error}");
    let error = refused("run --namespaces 2 --port lo -- true", 2);
    assert!(error.contains("--port lo") && error.contains("leave out --port"), "{error}");
}

#[test]
fn help_has_examples() {
    let output = ferroce("write-bw --help").assert().success().get_output().clone();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in
        ["ferroce write-bw --port eth0", "memif:/tmp/x.sock,server", "--report_gbits", "--cc-base-rtt"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
    let version = ferroce("--version").assert().success().get_output().clone();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.contains(concat!(env!("CARGO_PKG_VERSION"), " (")), "the commit is in {version}");
    ferroce("").assert().code(2);
}

/// Returns what a shell gets when it asks to complete the last word of `line`.
fn completions(line: &str) -> Vec<String> {
    let mut command = ferroce("--");
    command.arg("ferroce").args(line.split(' ')).env("FERROCE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", line.split(' ').count().to_string());
    let output = command.assert().success().get_output().clone();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_script_of_a_shell_asks_ferroce() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = ferroce(&format!("completions {shell}")).assert().success().get_output().clone();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("FERROCE_COMPLETE") && script.contains("ferroce"), "{shell}: {script}");
    }
}

#[test]
fn tools_algorithms_keys_and_ports_are_completed() {
    assert_eq!(completions("write-"), ["write-bw", "write-lat"]);
    for tool in ["write-bw", "run", "env"] {
        assert_eq!(completions(&format!("{tool} --cc hpcc-")), ["hpcc-fair", "hpcc-rx"], "{tool}");
        assert_eq!(completions(&format!("{tool} --cc hpcc,line")), ["hpcc,line_rate="], "{tool}");
    }
    for tool in ["write-bw", "run", "info", "switch"] {
        assert_eq!(completions(&format!("{tool} --port mem")), ["memif:"], "{tool}");
        assert_eq!(completions(&format!("{tool} --port lo")), ["lo"], "{tool}");
    }
}

#[test]
fn only_run_and_env_complete_lists_of_ports() {
    for tool in ["run", "env"] {
        assert_eq!(completions(&format!("{tool} --port null,lo")), ["null,lo"], "{tool}");
        for port in ["lo,lo", "null,mem", "memif:/run/x,lo"] {
            assert!(completions(&format!("{tool} --port {port}")).is_empty(), "{tool} {port}");
        }
    }
    assert!(completions("write-bw --port null,lo").is_empty());
}

#[test]
fn tcp_completes_interfaces_and_the_keys_that_it_accepts() {
    assert_eq!(completions("tcp --port lo"), ["lo"]);
    assert!(completions("tcp --port mem").is_empty());
    assert_eq!(completions("tcp --cc h"), ["hpcc"]);
    assert_eq!(completions("tcp --cc hpcc,line"), ["hpcc,line_rate="]);
    assert!(completions("tcp --cc hpcc,eta").is_empty());
}

#[test]
fn info_without_a_port_lists_interfaces_that_can_be_one() {
    let output = ferroce("info").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("port ") && text.contains("memif:") && text.contains("\nudp:lo "), "{text}");
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
    let failed: Vec<_> = checks.iter().filter(|check| check["status"] == "fail").collect();
    assert!(failed.len() == 1 && failed[0]["remedy"].is_string(), "{json}");
}

#[test]
fn a_guard_that_no_program_has_started_names_the_remedy() {
    let error = refused("guard", 1);
    assert!(error.contains("use `ferroce run`"), "{error}");
}

#[test]
fn settings_that_another_user_could_have_written_are_ignored() {
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
        assert_eq!((warning.lines().count(), warning.contains('\x1b')), (1, false), "{warning}");
        warning
    };
    let warning = run();
    assert!(warning.contains("may choose a pcap: port") && warning.contains("FERROCE_CONFIG"), "{warning}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let warning = run();
    assert!(warning.contains("ferroce.toml is ignored") && warning.contains("mode 666"), "{warning}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    if chown(&file, Some(65534), None).is_ok() {
        let warning = run();
        assert!(warning.contains("belongs to user 65534"), "{warning}");
    }
}

/// Returns `ferroce run` with a folder that contains a file of the library's name.
fn run_with(library: &std::path::Path, line: &str) -> Command {
    std::fs::write(library.join("libibverbs.so.1"), "").unwrap();
    let mut command = ferroce(line);
    command.env("FERROCE_LIB", library).env_remove("FERROCE_CC").env_remove("FERROCE_CONFIG");
    command
}

#[test]
fn run_has_the_exit_codes_of_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    for (line, code) in
        [("run -- true", 0), ("run -- false", 1), ("run -- /nowhere/program", 127), ("run -- /etc", 126)]
    {
        run_with(folder.path(), line).assert().code(code);
    }
    let said = run_with(folder.path(), "run -- /nowhere/program").output().unwrap().stderr;
    assert!(
        String::from_utf8_lossy(&said).contains("error: /nowhere/program: No such file"),
        "the reason is said once"
    );
}

#[test]
fn run_checks_settings_before_it_starts_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    std::fs::write(&file, "mtu = 1500").unwrap();
    for (flags, part) in [
        ("--cc bogus".to_owned(), "bogus"),
        ("--cc hpcc,line_rate=fast".into(), "line_rate"),
        ("--ip 10.0.0.300".into(), "10.0.0.300"),
        ("--port memif:".into(), "memif"),
        (format!("--config {}", file.display()), "1500"),
    ] {
        let output =
            run_with(folder.path(), &format!("run {flags} -- true")).assert().code(2).get_output().clone();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(part) && error.lines().count() == 1, "{flags}: {error}");
    }
}

#[test]
fn config_shows_each_setting_and_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ferroce.toml");
    std::fs::write(
        &file,
        "mtu = 1024\nport = 'veth7'\n[[congestion]]\npeer = '10.0.0.0/8'\ncc = 'fixed'\nwindow = 9000\n",
    )
    .unwrap();
    let mut command = ferroce("config --json --link-rate 1G");
    command.current_dir(folder.path()).env("FERROCE_PORT", "veth9").env("FERROCE_QUEUE_PAIRS", "77");
    command.env("FERROCE_SELECTIVE_REPEAT", "false");
    let output = command.assert().success().get_output().clone();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["file"], "ferroce.toml");
    let find = |key: &str| {
        let rows = json["settings"].as_array().unwrap();
        let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {json}"));
        (row["value"].as_str().unwrap_or("-").to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(find("port"), pair("veth9", "FERROCE_PORT"));
    assert_eq!(find("mtu"), pair("1024", "ferroce.toml"));
    assert_eq!(find("queue_pairs"), pair("77", "FERROCE_QUEUE_PAIRS"));
    assert_eq!(find("selective_repeat"), pair("false", "FERROCE_SELECTIVE_REPEAT"));
    assert_eq!(find("buffers"), pair("8192", "default"));
    assert_eq!(find("progress"), pair("adaptive", "default"), "as programs have it");
    assert_eq!(find("link_rate").1, "--link-rate");
    assert_eq!(find("congestion"), pair("peer 10.0.0.0/8: fixed window 9000 B", "ferroce.toml"));
    let others = json["settings"].as_array().unwrap().last().unwrap();
    assert_eq!((&others["value"], &others["source"]), (&"others: auto".into(), &"default".into()));
    let mut flagged = ferroce("config --port veth8 --cores 2");
    let flagged = flagged.env("FERROCE_PORT", "veth9").assert().success().get_output().clone();
    let text = String::from_utf8(flagged.stdout).unwrap();
    let port = text.lines().find(|line| line.starts_with("port")).unwrap();
    assert!(port.contains("veth8") && port.ends_with("--port"), "{text}");
    let cores = text.lines().find(|line| line.starts_with("cores")).unwrap();
    assert!(cores.contains(" 2 ") && cores.ends_with("--cores"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains("all: auto") && last.ends_with("default"), "{text}");
    let mut neither = ferroce("config");
    let neither = neither.env("FERROCE_SELECTIVE_REPEAT", "never").assert().code(2).get_output().clone();
    let text = String::from_utf8(neither.stderr).unwrap();
    assert!(
        text.contains("FERROCE_SELECTIVE_REPEAT \"never\": neither true nor false; write false"),
        "{text}"
    );
}

/// Returns the value and the source that `ferroce config` prints for a setting.
fn shown(command: &mut Command, key: &str) -> (String, String) {
    let output = command.assert().success().get_output().clone();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = json["settings"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
    (row["value"].as_str().unwrap_or("-").to_owned(), row["source"].as_str().unwrap().to_owned())
}

#[test]
fn config_shows_the_true_source_of_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let tables = "[[device]]\nport = 'veth0'\nmtu = 1024\n[[device]]\nport = 'veth1'\nip = ['10.0.0.2/24']\n";
    std::fs::write(folder.path().join("ferroce.toml"), tables).unwrap();
    let command = |line: &str| {
        let mut command = ferroce(&format!("config --json {line}"));
        command.current_dir(folder.path());
        command
    };
    let pair = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(shown(&mut command(""), "mtu"), pair("1024", "ferroce.toml"));
    assert_eq!(shown(&mut command(""), "ip"), pair("-", "default"));
    assert_eq!(shown(&mut command("--port veth1"), "ip"), pair("10.0.0.2/24", "ferroce.toml"));
    assert_eq!(shown(&mut command("--port veth1"), "mtu"), pair("-", "default"));
    let set = |line: &str| {
        let mut command = command(line);
        command.env("FERROCE_IP", "10.0.0.1").env("FERROCE_PORT", "veth1").env("FERROCE_VLAN", "7");
        command
    };
    assert_eq!(shown(&mut set(""), "ip"), pair("10.0.0.1", "FERROCE_IP"));
    assert_eq!(shown(&mut set(""), "vlan"), pair("7", "FERROCE_VLAN"));
    assert_eq!(shown(&mut set("--ip 10.0.0.1"), "ip"), pair("10.0.0.1", "--ip"));
    assert_eq!(shown(&mut set("--port veth1"), "port"), pair("veth1", "--port"));
    let wrong = set("").env("FERROCE_IP", "10.0.0.300").assert().code(2).get_output().clone();
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("10.0.0.300"));
}

#[test]
fn a_queue_pair_is_chosen_in_either_base() {
    for number in ["18", "0x000012"] {
        let output = ferroce(&format!("why 4194305 --qp {number}")).assert().code(1).get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("process 4194305"), "{number}: {said}");
    }
}

#[test]
fn a_log_that_selects_nothing_is_warned_of() {
    for (value, lines) in [("loud", 1), ("ferroce=loud", 1), ("info", 0), ("", 0)] {
        let output = ferroce("config").env("FERROCE_LOG", value).assert().success().get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("write FERROCE_LOG=info").count(), lines, "{value}: {said}");
    }
}

#[test]
fn config_shows_whether_answers_are_sealed_and_by_which_key() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = (folder.path().join("x.toml"), folder.path().join("key"));
    std::fs::write(&key, "11".repeat(16)).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let of_file = format!("feedback_key_file = '{}'\n", key.display());
    let of_device = format!("[[device]]\nport = 'null'\n{of_file}");
    let variable = "22".repeat(16);
    for (text, variable, value, source) in [
        ("", None, "answers are not sealed", "default"),
        ("", Some(&variable), "answers are sealed", "FERROCE_FEEDBACK_KEY"),
        (&of_file[..], None, "answers are sealed", key.to_str().unwrap()),
        (&of_file, Some(&variable), "answers are sealed", key.to_str().unwrap()),
        (&of_device, Some(&variable), "answers are sealed", key.to_str().unwrap()),
    ] {
        for cc in [None, Some("dcqcn")] {
            std::fs::write(&file, text).unwrap();
            let mut command = ferroce(&format!("config --config {}", file.display()));
            command.env_remove("FERROCE_FEEDBACK_KEY").env_remove("FERROCE_CC");
            command
                .envs(variable.map(|key| ("FERROCE_FEEDBACK_KEY", key)))
                .envs(cc.map(|cc| ("FERROCE_CC", cc)));
            let output = command.assert().success().get_output().clone();
            let shown = String::from_utf8(output.stdout).unwrap();
            let line = shown.lines().find(|line| line.starts_with("feedback_key ")).unwrap();
            assert!(line.contains(value) && line.ends_with(source), "{text:?}, {variable:?}: {shown}");
            assert!(!shown.contains("1111") && !shown.contains("2222"), "the key is secret: {shown}");
        }
    }
}

#[test]
fn config_accepts_a_file_that_names_no_port() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    std::fs::write(&file, "mtu = 1024").unwrap();
    ferroce(&format!("config --config {}", file.display())).assert().success();
}

#[test]
fn congestion_control_has_one_syntax_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let [scenario, file] = ["scenario.toml", "ferroce.toml"].map(|name| folder.path().join(name));
    std::fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    for (text, error) in [
        ("hpcc,line-rate=1G,base_rtt=2ms", None),
        ("hpcc,line_rate=1G,colour=red", Some("colour: no such key")),
        ("hpcc,line_rate=1G,line-rate=2G", Some("line_rate: given twice")),
        ("hpcc,line_rate", Some("write KEY=VALUE, as in base_rtt=2ms")),
    ] {
        let star = "topology = 'star'\nhosts = 2\nrate = '1G'\ndelay = '1us'\n[[flow]]\nsource = 1\ndestination = 2\nbytes = 9";
        std::fs::write(&scenario, format!("congestion = '{text}'\n{star}\n")).unwrap();
        std::fs::write(&file, format!("[[congestion]]\ncc = '{text}'\n")).unwrap();
        for (line, variable, code) in [
            (format!("env --cc {text}"), "", 0),
            ("config".to_owned(), text, 0),
            (format!("config --config {}", file.display()), "", 0),
            (format!("sim --check {}", scenario.display()), "", 0),
            // These get as far as the port, which they lack.
            (format!("write-bw --cc {text}"), "", 2),
            (format!("tcp --port nosuchif0 --cc {text}"), "", 1),
        ] {
            let mut command = ferroce(&line);
            command.env_remove("FERROCE_CC").env("FERROCE_LIB", folder.path());
            command.envs((!variable.is_empty()).then_some(("FERROCE_CC", variable)));
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            let expected = error.map_or(code, |_| 2);
            assert_eq!(output.status.code(), Some(expected), "{line}: {said}");
            assert_eq!(error.is_some(), said.contains(error.unwrap_or("--cc")), "{line}: {said}");
        }
    }
}
