//! Wrong command lines and files, with the exact answers. `wrong_input.txt` contains each command after a `$`, then the exit code and the
//! text.
//!
//! `FERROCE_WRITE_REFERENCE=1 cargo test -p ferroce --test wrong_input` rewrites the answers; read each before you commit it.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Returns a scenario of three hosts with one flow, followed by more text.
macro_rules! scenario {
    ($more:literal) => {
        concat!(
            "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\n",
            "congestion = \"hpcc,line_rate=100G,base_rtt=5us\"\n",
            "[[flow]]\nsource = 1\ndestination = 3\nbytes = 1000\n",
            $more
        )
    };
}

/// The files to which the rows refer.
const FILES: [(&str, &str); 52] = [
    ("scenario.toml", SCENARIO),
    ("number.toml", "topology = \"star\"\nhosts = 3\nrate = 100\n"),
    ("misspelt.toml", "topology = \"star\"\nconjestion = \"auto\"\n"),
    (
        "same-host.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[[flow]]\nsource = 1\ndestination = 1\nbytes = 1\n",
    ),
    (
        "no-host.toml",
        "topology = \"star\"\nhosts = 0\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n",
    ),
    (
        "load.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[traffic]\nsizes = \"web-search\"\nload = 2\ntime = \"1ms\"\n",
    ),
    (
        "sizes.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[traffic]\nsizes = \"google\"\nload = 0.5\ntime = \"1ms\"\n",
    ),
    (
        "graph.toml",
        "topology = \"graph\"\nhosts = 2\nswitches = 1\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nlink = [{ ends = [\"h1\", \"h2\"] }]\n",
    ),
    ("change-link.toml", scenario!("[[change]]\ntime = \"1ms\"\nlink = [\"h1\", \"h2\"]\ndown = true\n")),
    ("change-node.toml", scenario!("[[change]]\ntime = \"1ms\"\nnode = \"s2\"\ndown = true\n")),
    (
        "change-both.toml",
        scenario!("[[change]]\ntime = \"1ms\"\nnode = \"s1\"\ndown = true\nrate = \"10G\"\n"),
    ),
    ("change-none.toml", scenario!("[[change]]\ntime = \"1ms\"\ndown = true\n")),
    ("change-rate.toml", scenario!("[[change]]\ntime = \"1ms\"\nnode = \"s1\"\nrate = \"0G\"\n")),
    ("change-time.toml", scenario!("[[change]]\ntime = \"soon\"\nnode = \"s1\"\nup = true\n")),
    ("after-itself.toml", scenario!("after = 1\n")),
    ("application.toml", scenario!("[[application]]\nhost = 3\nrate = \"1G\"\n")),
    (
        "application-host.toml",
        scenario!("[[application]]\nhost = 4\nrate = \"1G\"\n[requests]\nverb = \"send\"\n"),
    ),
    ("collective.toml", scenario!("[[collective]]\nkind = \"ring\"\nhosts = 4\nbytes = 1000\n")),
    ("collective-kind.toml", scenario!("[[collective]]\nkind = \"tree\"\nbytes = 1000\n")),
    ("collective-bytes.toml", scenario!("[[collective]]\nkind = \"ring\"\nbytes = 0\n")),
    (
        "burst.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[traffic]\nsizes = \"web-search\"\nload = 0.9\ntime = \"1ms\"\nburst = 0\n",
    ),
    (
        "load-link.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[traffic]\nsizes = \"web-search\"\nload = 0.9\ntime = \"1ms\"\nload_link = [\"h1\", \"h3\"]\n",
    ),
    (
        "load-most.toml",
        "topology = \"dumbbell\"\nhosts = 1\nfabric_rate = \"400G\"\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\n[traffic]\nsizes = \"web-search\"\nload = 0.9\ntime = \"1ms\"\nload_link = [\"s1\", \"s2\"]\n",
    ),
    (
        "sample-none.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nsample_ports = [[\"s1\", \"h1\"]]\n",
    ),
    (
        "sample-port.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nsample = \"1us\"\nsample_ports = [[\"h1\", \"h2\"]]\n",
    ),
    (
        "link-loss.toml",
        "topology = \"graph\"\nhosts = 2\nswitches = 1\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nlink = [{ ends = [\"h1\", \"s1\"], loss = 2 }]\n",
    ),
    ("no-topology.toml", "hosts = 3\n"),
    ("kind.toml", "topology = \"ring\"\n"),
    ("unused.toml", "topology = \"star\"\nspines = 2\ncongestion = \"auto\"\n"),
    (
        "two-sources.toml",
        "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nflow = [{ source = 1, destination = 2, bytes = 1 }]\n[traffic]\nsizes = \"web-search\"\nload = 0.5\ntime = \"1ms\"\n",
    ),
    ("port.toml", "port = 5\n"),
    ("prot.toml", "prot = \"eth0\"\n"),
    ("cores.toml", "port = \"eth0\"\ncores = 99\n"),
    ("rule.toml", "port = \"eth0\"\n[[congestion]]\ncc = \"reno\"\n"),
    ("empty-value.toml", "port = \n"),
    ("quotes.toml", "port = eth0\n"),
    ("list.toml", "port = \"eth0\"\nip = \"10.0.0.1\"\n"),
    ("vlan.toml", "port = \"eth0\"\nvlan = 9999\n"),
    ("mtu.toml", "port = \"eth0\"\nmtu = 1500\n"),
    ("progress.toml", "port = \"eth0\"\nprogress = \"fast\"\n"),
    ("ip.toml", "port = \"eth0\"\nip = [\"10.0.0\"]\n"),
    ("two-ports.toml", "port = [\"eth0\", \"eth1\"]\nip = [\"10.0.0.1\"]\n"),
    ("devices.toml", "port = \"eth0\"\n[[device]]\nport = \"eth1\"\n"),
    ("twice.toml", "port = [\"eth0\", \"eth0\"]\n"),
    ("eta.toml", "port = \"eth0\"\n[[congestion]]\ncc = \"hpcc\"\neta = 2\n"),
    ("link-rate.toml", "port = \"eth0\"\nlink_rate = \"10\"\n"),
    ("early.toml", "port = \"eth0\"\nearly_memory = \"much\"\n"),
    ("key.toml", "port = \"eth0\"\nfeedback_key_file = \"/no-file\"\n"),
    ("drop.faults", "[[fault]]\nport = \"veth0\"\ndrop = 2\n"),
    ("prot.faults", "[[fault]]\nprot = \"veth0\"\n"),
    ("number.faults", "fault = 1\n"),
    ("text", "neither a capture nor a table\n"),
];

const SCENARIO: &str = scenario!("");

/// Returns the words of a row. Quoted words are one word.
fn words(row: &str) -> Vec<&str> {
    row.split('"')
        .enumerate()
        .flat_map(|(place, part)| match place % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        })
        .collect()
}

fn answer(folder: &Path, row: &str) -> String {
    let mut ferroce = assert_cmd::Command::cargo_bin("ferroce").unwrap();
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FERROCE_")) {
        ferroce.env_remove(name);
    }
    let done =
        ferroce.args(words(row)).current_dir(folder).timeout(Duration::from_secs(20)).output().unwrap();
    let code = done.status.code().unwrap_or_else(|| panic!("{row}: ended by a signal"));
    format!("{code} {}", String::from_utf8(done.stderr).unwrap().trim_end())
}

#[test]
fn wrong_input_gets_the_answer_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong_input.txt");
    let table = fs::read_to_string(&file).unwrap();
    let rows: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(rows.len() >= 238, "{} rows", rows.len());
    let now: String = rows.iter().map(|row| format!("$ {row}\n{}\n", answer(folder.path(), row))).collect();
    if std::env::var_os("FERROCE_WRITE_REFERENCE").is_some() {
        fs::write(&file, &now).unwrap();
        return;
    }
    for (before, now) in table.split("$ ").zip(now.split("$ ")) {
        assert_eq!(now, before);
    }
}

/// An answer is one line with a remedy: after a semicolon, or as a list of the possible values.
#[test]
fn every_answer_is_a_line_with_a_remedy() {
    let table = include_str!("wrong_input.txt");
    for (row, answer) in table.split("$ ").skip(1).map(|row| row.split_once('\n').unwrap()) {
        assert_eq!(answer.lines().count(), 1, "{row}: {answer}");
        assert!(answer.starts_with("1 error: ") || answer.starts_with("2 error: "), "{row}: {answer}");
        let answer = answer.trim_end().trim_end_matches("; For more information, try '--help'");
        // These messages name the argument to omit or to add.
        let is_clear = [
            "required arguments",
            "unexpected argument",
            "unrecognized subcommand",
            "a value is required",
            "cannot be used",
        ];
        let has_remedy = answer.contains("; ") || is_clear.iter().any(|words| answer.contains(words));
        assert!(has_remedy && !answer.contains("invalid digit"), "{row}: {answer}");
    }
}
