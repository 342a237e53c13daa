//! One command in each host, its output line by line with the rank before it.

use super::hosts::{Hosts, INTERFACE};
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

/// The time between two checks for ended processes.
const LOOK: Duration = Duration::from_millis(20);
/// The time that the server has to listen before its peers start.
const HEAD_START: Duration = Duration::from_millis(1500);
/// The time for which the others may go on once one has failed, or the server once all its peers are done.
const GRACE: Duration = Duration::from_secs(5);

/// The variables that the libraries read.
type Settings = [(&'static str, OsString)];

/// A rank's process, and the reader of its output.
struct Rank {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

impl Rank {
    /// Returns whether its output has ended: its process, and all that this one started, have closed it.
    fn is_silent(&self) -> bool {
        self.readers.iter().all(JoinHandle::is_finished)
    }
}

/// Runs `command` in each host until all have ended; returns the first failing rank's exit code.
///
/// # Errors
/// Returns a failure if the program can't be started, or a signal came.
pub fn run(hosts: &Hosts, command: &[String], settings: &Settings) -> Result<ExitCode, Failure> {
    let mut ranks = Vec::new();
    let result = start_all(hosts, command, settings, &mut ranks).and_then(|()| wait_all(&mut ranks));
    for (number, rank) in (0..).zip(&mut ranks) {
        if rank.ended.is_none() {
            // It may have ended since.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
        if !rank.is_silent() {
            // A process that outlives the one that started it keeps the output open.
            stale::end_programs(&hosts.namespace(number));
        }
        rank.readers.drain(..).for_each(|reader| drop(reader.join()));
    }
    result?;
    let failed = ranks.iter().filter_map(|rank| rank.ended).find(|status| !status.success());
    Ok(failed.map_or(ExitCode::SUCCESS, |status| ExitCode::from(code(status))))
}

/// As a shell has it: 128 and the number of the signal that ended the program.
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
    // In the sysfs of its host, which `ip netns exec` mounts, it puts the device files in place.
    let ferroce = std::env::current_exe().map_err(failed)?;
    let mut child = die_with_parent(&mut Command::new("ip"))
        .args(["netns", "exec", &hosts.namespace(rank)])
        .arg(ferroce)
        .args(["run", "--"])
        .args(substitute(command, rank, Hosts::address(rank), Hosts::address(0)))
        .envs(settings.iter().cloned())
        .env("FERROCE_PORT", INTERFACE)
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

/// Each word for this rank. The server has no peer: a word that is `{peer}` alone is left out for rank 0.
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
            // Without a reader, the loss does not matter.
            let _ = writeln!(to(), "{rank}| {line}");
        }
    })
}

/// Programs meet by TCP: the server listens once it is ready. One that does so by other means has its head start.
fn wait_until_listening(namespace: &str) -> Result<(), Failure> {
    let until = Instant::now() + HEAD_START;
    while Instant::now() < until {
        signals::check()?;
        let sockets = Command::new("ip").args(["netns", "exec", namespace, "cat", "/proc/net/tcp"]).output();
        // The fourth column: 0A is LISTEN.
        if sockets
            .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line.contains(" 0A ")))
        {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn wait_all(ranks: &mut [Rank]) -> Result<(), Failure> {
    let mut until = None;
    loop {
        signals::check()?;
        for rank in ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            rank.ended = rank.child.try_wait().map_err(|error| Failure::run(error.to_string()))?;
        }
        let open = ranks.iter().filter(|rank| rank.ended.is_none()).count();
        if open == 0 && ranks.iter().all(Rank::is_silent) {
            return Ok(());
        }
        let failed = ranks.iter().filter_map(|rank| rank.ended).any(|status| !status.success());
        let only_server = open == 1 && ranks[0].ended.is_none();
        if (failed || only_server) && *until.get_or_insert_with(|| Instant::now() + GRACE) < Instant::now() {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_the_peer_alone_is_for_clients() {
        let command = ["prog", "-r{rank}", "--bind={ip}", "{peer}"].map(str::to_owned);
        let (own, server) = (Hosts::address(1), Hosts::address(0));
        assert_eq!(substitute(&command, 0, server, server), ["prog", "-r0", "--bind=10.79.0.1"]);
        assert_eq!(substitute(&command, 1, own, server), ["prog", "-r1", "--bind=10.79.0.2", "10.79.0.1"]);
    }
}
