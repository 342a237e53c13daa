//! `ferroce switch ctl`: shows and changes the faults of a running switch.

use super::control::{Answer, LONGEST, Line, Request};
use super::rules::Script;
use crate::failure::Failure;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The time limit for the answer. The switch answers between two turns.
const PATIENCE: Duration = Duration::from_secs(10);

/// The command line of `ferroce switch ctl`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A change is checked as a whole, and takes effect between two frames. One that is refused leaves the running faults as they were. The \
times of faults that are added count from then on. What runs after the change is printed.

Examples:
  ferroce switch --port s0 --port s1 --control /run/box.sock
  ferroce switch ctl /run/box.sock add black-hole.toml
  ferroce switch ctl /run/box.sock list --json
  ferroce switch ctl /run/box.sock remove black-hole")]
pub struct Args {
    /// The socket of the switch: its --control
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    #[command(subcommand)]
    change: Change,
    /// Print the faults as JSON
    #[arg(long, id = "as-json", global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Show the faults that run, and how many frames each fitted and hurt
    List,
    /// Add the faults of a script
    Add {
        /// The script (docs/reference/faults.md)
        #[arg(value_name = "FILE")]
        script: PathBuf,
    },
    /// Put the faults of a script in the place of all that run
    Replace {
        /// The script; an empty one ends all faults
        #[arg(value_name = "FILE")]
        script: PathBuf,
    },
    /// Remove a fault
    Remove {
        /// Its name; `list` shows it
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Sends the request to the switch, and prints the faults that run afterwards.
///
/// # Errors
/// Returns a failure if no switch listens at the socket, or the switch refuses the change.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let request = match &args.change {
        Change::List => Request::List,
        Change::Add { script } => Request::Add(Script::open(script)?),
        Change::Replace { script } => Request::Replace(Script::open(script)?),
        Change::Remove { name } => Request::Remove(name.clone()),
    };
    let lines = ask(args, &request)?.map_err(Failure::usage)?;
    if args.json {
        let text = serde_json::to_string_pretty(&lines)
            .map_err(|error| Failure::run(format!("the faults have no JSON form: {error}")))?;
        outln!("{text}")?;
    } else {
        print(&lines)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(args: &Args, request: &Request) -> Result<Answer, Failure> {
    let socket = args.socket.display();
    let stream = UnixStream::connect(&args.socket).map_err(|error| {
        Failure::run(format!("{socket}: {error}; start a switch with --control {socket}, or name its socket"))
    })?;
    let silent = |error: &dyn std::fmt::Display| {
        Failure::run(format!(
            "{socket}: no answer: {error}; if the switch is stopped, continue it, otherwise restart it"
        ))
    };
    let mut text = serde_json::to_vec(request).map_err(|error| silent(&error))?;
    text.push(b'\n');
    let sent = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| (&stream).write_all(&text));
    let mut line = String::new();
    let heard = BufReader::new(&stream).take(LONGEST).read_line(&mut line);
    // The switch answers a request that is too long before it has read all of it.
    let answer = serde_json::from_str(&line);
    match (sent, heard) {
        (_, Ok(_)) if answer.is_ok() => {}
        (Err(error), _) | (_, Err(error)) => return Err(silent(&error)),
        _ => {}
    }
    answer.map_err(|error| silent(&error))
}

fn print(lines: &[Line]) -> Result<(), Failure> {
    if lines.is_empty() {
        return outln!("no faults");
    }
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or_default().max(5);
    outln!("{:<width$} {:<8} {:>10} {:>10}  what", "fault", "state", "fitted", "hurt")?;
    for Line { name, keys, state, fitted, happened, .. } in lines {
        let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        outln!("{name:<width$} {state:<8} {fitted:>10} {happened:>10}  {}", keys.join(" "))?;
    }
    Ok(())
}
