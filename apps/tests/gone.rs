//! A tool ends with a message and without leftovers when its interface or its parent disappears. The network namespaces need root.

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

fn ferroce(before: &[&str], line: &str) -> Command {
    let program = assert_cmd::cargo::cargo_bin("ferroce").display().to_string();
    let words: Vec<&str> = before.iter().copied().chain([program.as_str()]).chain(line.split(' ')).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(std::env::temp_dir());
    command.env_remove("FERROCE_PORT").env_remove("FERROCE_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ip(line: &str) -> bool {
    let output = Command::new("ip").args(line.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// A namespace with interfaces `near0`, `near1`... whose peers are `far0`, `far1`... Removed on drop.
struct Place(String);

impl Place {
    fn make(name: &str, links: usize) -> Self {
        let name = format!("fa{}-{name}", std::process::id());
        assert!(ip(&format!("netns add {name}")), "network namespaces need root");
        let place = Self(name);
        for link in 0..links {
            place.ip(&format!("link add near{link} type veth peer name far{link}"));
            place.ip(&format!("link set near{link} up"));
            place.ip(&format!("link set far{link} up"));
        }
        place
    }

    fn ip(&self, line: &str) {
        assert!(ip(&format!("-n {} {line}", self.0)), "ip {line}");
    }

    fn start(&self, line: &str) -> Child {
        ferroce(&["ip", "netns", "exec", &self.0], line).spawn().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

fn error_of(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_server_whose_interface_is_deleted_ends_and_names_it() {
    let place = Place::make("server", 1);
    place.ip("address add 10.9.9.1/24 dev near0");
    let mut server = place.start("write-bw --port near0");
    let mut said = lines(&mut server);
    assert!(said.any(|line| line.unwrap().contains("Waiting for client")));
    place.ip("link del near0");
    let (code, error) = error_of(server);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("interface near0 is gone"), "{error}");
}

#[test]
fn a_switch_goes_on_without_a_port_and_ends_without_two() {
    let place = Place::make("switch", 3);
    let mut switch = place.start("switch --port near0 --port near1 --port near2");
    let mut said = lines(&mut switch);
    assert!(said.any(|line| line.unwrap().contains("switching between")));
    let mut warned = BufReader::new(switch.stderr.take().unwrap()).lines().map(Result::unwrap);
    place.ip("link del near0");
    assert!(warned.any(|line| line.contains("near0 is gone") && line.contains("go on")));
    place.ip("link del near1");
    assert!(warned.any(|line| line.contains("near1 is gone") && line.contains("fewer than two")));
    assert_eq!(switch.wait().unwrap().code(), Some(1));
}

#[test]
fn a_signal_ends_a_tool_with_the_exit_code_that_a_shell_reports() {
    for (signal, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = ferroce(&["env"], &format!("write-bw --port null -p {port}")).spawn().unwrap();
        let mut said = lines(&mut server);
        assert!(said.any(|line| line.unwrap().contains("Waiting for client")));
        let sent = Command::new("kill").args([signal, &server.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let (code, error) = error_of(server);
        assert_eq!((code, error.lines().count() <= 1), (Some(expected), true), "{signal}: {error}");
    }
}

#[test]
fn a_signal_is_the_regular_end_of_a_switch() {
    let mut switch = ferroce(&["env"], "switch --port ring:one --port ring:two").spawn().unwrap();
    assert!(lines(&mut switch).any(|line| line.unwrap().contains("switching between")));
    assert!(Command::new("kill").args(["-TERM", &switch.id().to_string()]).status().unwrap().success());
    assert_eq!(error_of(switch).0, Some(0));
}

/// Returns a folder that `ferroce run` accepts as the folder of the drop-in libraries.
fn library() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    folder
}

/// Starts `ferroce run`. `env` executes ferroce in its own process, so the process id is ferroce's.
fn run(library: &TempDir, line: &str) -> Child {
    ferroce(&["env"], line).env("FERROCE_LIB", library.path()).spawn().unwrap()
}

fn inside(namespace: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_run_that_is_killed_leaves_no_program_and_the_next_removes_its_hosts() {
    let library = library();
    let run = |line: &str| run(&library, line);
    let mut killed = run("run --switch --namespaces 2 -- tail -n 1 -f /proc/self/comm");
    let hosts = ["0", "1", "switch"].map(|place| format!("ferroce-{}-{place}", killed.id()));
    let mut said = lines(&mut killed);
    assert!(
        said.any(|line| line.unwrap().starts_with("0|")) && said.any(|line| line.unwrap().starts_with("1|"))
    );
    let programs: Vec<_> = hosts.iter().flat_map(|host| inside(host)).collect();
    assert_eq!(programs.len(), 3, "{programs:?}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    // The kernel has sent SIGKILL to them before `wait` returns, but they may end a moment later.
    let lives = |program: &String| {
        let state = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|state| !state.is_empty() && !state.starts_with(" Z"))
    };
    let mut looks = 0;
    while programs.iter().any(lives) {
        looks += 1;
        assert!(looks < 1000, "programs still run: {programs:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(hosts.iter().all(|host| Path::new("/run/netns").join(host).exists()));
    let (code, said) = error_of(run("run --namespaces 2 -- true"));
    assert_eq!(code, Some(0), "{said}");
    assert!(hosts.iter().all(|host| !Path::new("/run/netns").join(host).exists()), "{said}");
}

#[test]
fn a_run_that_is_ended_ends_programs_that_outlive_their_parents() {
    let library = library();
    // The program forks, as fio's jobs do, and exits. Its child has its own session and inherits the output.
    let mut run = run(&library, "run --namespaces 2 -- setsid --fork tail -n 1 -f /proc/self/comm");
    let hosts = ["0", "1"].map(|place| format!("ferroce-{}-{place}", run.id()));
    let mut said = lines(&mut run);
    assert!(["0|", "1|"].iter().all(|rank| said.any(|line| line.unwrap().starts_with(rank))));
    assert!(hosts.iter().all(|host| inside(host).len() == 1));
    let ended = Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap();
    assert!(ended.success());
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert!(hosts.iter().all(|host| !Path::new("/run/netns").join(host).exists()));
}
