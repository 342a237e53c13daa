//! Runs one command in each host, and prints its output line by line after the rank.

use super::hosts::Hosts;
use super::stale;
use crate::failure::Failure;
use crate::input;
use crate::signals;
use datapath::linux::die_with_parent;
use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval between checks for ended processes.
const LOOK: Duration = Duration::from_millis(20);
/// The limit on the wait for a listening server, after which its peers start.
const HEAD_START: Duration = Duration::from_millis(1500);
/// The time for which the other ranks may continue after one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// The variables that the libraries read.
type Settings = [(&'static str, OsString)];

/// A rank's process, and the readers of its output.
struct Rank {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

impl Rank {
    /// Returns whether the output has ended: the process and all its descendants have closed it.
    fn is_silent(&self) -> bool {
        self.readers.iter().all(JoinHandle::is_finished)
    }
}

/// Runs `command` in each host until all ranks have ended, or one has failed. Returns the exit code of the first rank that failed.
///
/// # Errors
/// Returns a failure if the program cannot be started, or a signal arrived.
pub fn run(hosts: &Hosts, command: &[String], settings: &Settings) -> Result<ExitCode, Failure> {
    let mut ranks = Vec::new();
    let result = start_all(hosts, command, settings, &mut ranks)
        .and_then(|()| wait_all(&mut ranks, GRACE, |line| note!("{line}")));
    for (number, rank) in (0..).zip(&mut ranks) {
        if rank.ended.is_none() {
            // The process may have ended in the meantime.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
        if !rank.is_silent() {
            // A process that outlives its parent keeps the output open.
            stale::end_programs(&hosts.namespace(number));
        }
        rank.readers.drain(..).for_each(|reader| drop(reader.join()));
    }
    Ok(result?.map_or(ExitCode::SUCCESS, |status| ExitCode::from(code(status))))
}

/// Returns the exit code as a shell reports it: 128 plus the number of the signal that ended the program.
fn code(status: ExitStatus) -> u8 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8
}

fn start_all(
    hosts: &Hosts,
    command: &[String],
    settings: &Settings,
    ranks: &mut Vec<Rank>,
) -> Result<(), Failure> {
    for rank in 0..hosts.count() {
        if rank == 1 {
            wait_until_listening(&hosts.namespace(0))?;
        }
        ranks.push(start(hosts, command, settings, rank)?);
    }
    Ok(())
}

fn start(hosts: &Hosts, command: &[String], settings: &Settings, rank: u8) -> Result<Rank, Failure> {
    let failed = |error: io::Error| Failure::run(format!("rank {rank} does not start: {error}"));
    // `ferroce run` creates the device files in the sysfs of the host, which `ip netns exec` mounts.
    let ferroce = std::env::current_exe().map_err(failed)?;
    let mut child = die_with_parent(&mut Command::new("ip"))
        .args(["netns", "exec", &hosts.namespace(rank)])
        .arg(ferroce)
        .args(["run", "--"])
        .args(substitute(command, rank, Hosts::address(rank), Hosts::address(0)))
        .envs(settings.iter().cloned())
        .env_remove("FERROCE_IP")
        .env_remove("FERROCE_VLAN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let readers = [
        child.stdout.take().map(|pipe| copy(rank, pipe, std::io::stdout)),
        child.stderr.take().map(|pipe| copy(rank, pipe, std::io::stderr)),
    ];
    Ok(Rank { child, readers: readers.into_iter().flatten().collect(), ended: None })
}

/// Returns the command's words for this rank. The server has no peer: for rank 0, a word that consists of `{peer}` is omitted.
fn substitute(command: &[String], rank: u8, own: Ipv4Addr, server: Ipv4Addr) -> Vec<String> {
    let words = command.iter().filter(|word| rank > 0 || *word != "{peer}");
    let put = |word: &String| {
        let word = word.replace("{rank}", &rank.to_string());
        word.replace("{ip}", &own.to_string()).replace("{peer}", &server.to_string())
    };
    words.map(put).collect()
}

fn copy<W: Write>(
    rank: u8,
    from: impl Read + Send + 'static,
    to: impl Fn() -> W + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut from, mut line) = (BufReader::new(from), Vec::new());
        while input::line(&mut from, &mut line).unwrap_or(false) {
            let line = String::from_utf8_lossy(&line);
            // Without a reader of the output, its loss does not matter.
            let _ = writeln!(to(), "{rank}| {line}");
        }
    })
}

/// Waits until the server listens on TCP, as most programs do, for at most [`HEAD_START`].
fn wait_until_listening(namespace: &str) -> Result<(), Failure> {
    let until = Instant::now() + HEAD_START;
    while Instant::now() < until {
        signals::check()?;
        let cat = ["cat", "/proc/net/tcp", "/proc/net/tcp6"];
        let sockets = Command::new("ip").args(["netns", "exec", namespace]).args(cat).output();
        // In the fourth column, 0A is LISTEN.
        if sockets
            .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line.contains(" 0A ")))
        {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Waits until all ranks have ended and closed their output, or until `grace` has passed since one failed. Returns the status of the first
/// rank that failed. Passes a line to `say` for each rank that is then still running. Also passes one when only the server has been running
/// for `grace`, but ends no rank.
fn wait_all(
    ranks: &mut [Rank],
    grace: Duration,
    mut say: impl FnMut(String),
) -> Result<Option<ExitStatus>, Failure> {
    let (mut failed_at, mut alone_at, mut said) = (None, None, false);
    loop {
        signals::check()?;
        for rank in ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.ended = rank.child.try_wait().map_err(|error| Failure::run(error.to_string()))?;
        }
        let passed = |since: &mut Option<Instant>| since.get_or_insert_with(Instant::now).elapsed() >= grace;
        let open: Vec<_> = (0..).zip(ranks.iter()).filter(|(_, rank)| rank.ended.is_none()).collect();
        let mut ended = (0..).zip(ranks.iter()).filter_map(|(number, rank)| Some((number, rank.ended?)));
        let failed: Option<(usize, _)> = ended.find(|(_, status)| !status.success());
        let done = open.is_empty() && ranks.iter().all(Rank::is_silent);
        match failed {
            _ if done => return Ok(failed.map(|(_, status)| status)),
            Some((failed, status)) if passed(&mut failed_at) => {
                for (number, _) in open {
                    say(format!("rank {number}: killed, since rank {failed} failed ({status})"));
                }
                return Ok(Some(status));
            }
            None if matches!(open[..], [(0, _)]) && !said && passed(&mut alone_at) => {
                say("rank 0: still runs, and all others have ended; waiting for it (end it with Ctrl-C)"
                    .into());
                said = true;
            }
            _ => thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_is_only_the_peer_is_left_out_for_the_server() {
        let command = ["prog", "-r{rank}", "--bind={ip}", "{peer}"].map(str::to_owned);
        let (own, server) = (Hosts::address(1), Hosts::address(0));
        assert_eq!(substitute(&command, 0, server, server), ["prog", "-r0", "--bind=10.79.0.1"]);
        assert_eq!(substitute(&command, 1, own, server), ["prog", "-r1", "--bind=10.79.0.2", "10.79.0.1"]);
    }

    /// Starts ranks that end with the status in `at_once`, or with a status that they read from their input.
    fn started<const N: usize>(at_once: [Option<u8>; N]) -> [Rank; N] {
        at_once.map(|status| {
            let script = status.map_or("read status; exit $status".into(), |status| format!("exit {status}"));
            let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
            Rank { child, readers: Vec::new(), ended: None }
        })
    }

    #[test]
    fn a_server_that_outlives_its_clients_is_waited_for_and_its_status_counts() {
        let (mut ranks, mut said) = (started([None, Some(0)]), Vec::new());
        let mut input = ranks[0].child.stdin.take().unwrap();
        let status = wait_all(&mut ranks, Duration::ZERO, |line| {
            said.push(line);
            input.write_all(b"3\n").unwrap();
        });
        assert_eq!(status.unwrap().and_then(|status| status.code()), Some(3));
        assert!(said.len() == 1 && said[0].starts_with("rank 0: still runs"), "{said:?}");
    }

    #[test]
    fn a_rank_that_goes_on_after_another_failed_is_named() {
        let (mut ranks, mut said) = (started([None, Some(4), None]), Vec::new());
        let status = wait_all(&mut ranks, Duration::ZERO, |line| said.push(line)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(4));
        let line = |rank| format!("rank {rank}: killed, since rank 1 failed (exit status: 4)");
        assert_eq!(said, [line(0), line(2)]);
        for rank in &mut ranks {
            // `wait` closes the rank's input, so the rank ends.
            rank.child.wait().unwrap();
        }
    }
}
