//! Runs jobs of `ci/`, each a script: the quick ones, all, or those in the arguments. `scripts/test` starts this program in the root of the
//! repository, after it has checked that a build is possible.

mod attempt;
mod lanes;
mod report;
mod table;
mod times;

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use report::Report;
use table::{JOBS, Job, Tier};
use times::Times;

const USAGE: &str = "\
Usage: scripts/test            the quick tier: at most 5 minutes on a warm build, no guests
       scripts/test --all      every job but those of --release; installs what they need first
       scripts/test --release  the jobs of packages and arm64, which fetch a Debian or an old Rust from a mirror, and every
                               row of ci/programs; installs what they need first
       scripts/test JOB...     these jobs
       scripts/test --repeat N JOB...
                               these jobs, N times each, and how often each failed
       scripts/test --list     the jobs, their tier and what they took, in s
       scripts/test --help     this text

Jobs that move packets run one after the other. Those that only compute run beside them, at idle priority. Those that measure
run at the end. No job that fails runs again. Some jobs make network namespaces and need root. A job by hand: ci/JOB. What
building needs is installed by scripts/setup.
";

const MOST_REPETITIONS: usize = 9999;

#[derive(Debug, PartialEq)]
enum Request {
    Help,
    List,
    Run { jobs: Vec<&'static Job>, repeat: usize },
}

fn main() -> ExitCode {
    let request = match parse(env::args().skip(1)) {
        Ok(request) => request,
        Err(message) => {
            eprintln!("scripts/test: {message}");
            return ExitCode::from(2);
        }
    };
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let done = match request {
        Request::Help => {
            say(USAGE);
            Ok(true)
        }
        Request::List => {
            say(&list(&Times::read(&target)));
            Ok(true)
        }
        Request::Run { jobs, repeat } => run(&jobs, repeat, &target),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("scripts/test: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut arguments = arguments.peekable();
    let (mut jobs, mut repeat) = (Vec::new(), 1);
    let tier = |tier: Tier| JOBS.iter().filter(move |job| tier.includes(job.tier));
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Request::Help),
            "--list" => return Ok(Request::List),
            "--quick" => jobs = tier(Tier::Quick).collect(),
            "--all" => jobs = tier(Tier::All).collect(),
            "--release" => jobs = tier(Tier::Release).collect(),
            "--repeat" => {
                let number = arguments.next().unwrap_or_default();
                repeat = number.parse().ok().filter(|n| (1..=MOST_REPETITIONS).contains(n)).ok_or_else(|| {
                    format!("--repeat {number}: not a number from 1 to {MOST_REPETITIONS}; write --repeat 20 JOB")
                })?;
                if arguments.peek().is_none() {
                    return Err(format!("--repeat {number}: names no job; write --repeat {number} JOB"));
                }
            }
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}; scripts/test --help lists them"));
            }
            name => jobs.push(table::find(name)?),
        }
    }
    if jobs.is_empty() {
        jobs = tier(Tier::Quick).collect();
    }
    Ok(Request::Run { jobs, repeat })
}

/// Prints `text`, and ignores a closed standard output.
fn say(text: &str) {
    _ = io::stdout().write_all(text.as_bytes());
}

fn list(times: &Times) -> String {
    JOBS.iter()
        .map(|job| format!("{:<20} {:<7} {:4} s  {}\n", job.name, job.tier.name(), times.of(job), job.holds))
        .collect()
}

/// Runs the jobs. Returns true if all passed.
fn run(jobs: &[&'static Job], repeat: usize, target: &Path) -> Result<bool, String> {
    let strange = table::without_a_row(Path::new("ci")).map_err(|e| format!("ci: {e}"))?;
    if !strange.is_empty() {
        return Err(format!(
            "ci/{}: no job of the table; add it to ci/jobs/src/table.rs",
            strange.join(", ci/")
        ));
    }
    fs::create_dir_all(target).map_err(|e| format!("{}: {e}", target.display()))?;
    let logs = Logs::create()?;
    // A second signal ends the process at once.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .map_err(|e| format!("signal {signal}: {e}"))?;
    }
    let passed = if repeat == 1 {
        let mut report = Report::new(jobs, Times::read(target));
        lanes::run(jobs, &logs.0, &mut report, &interrupted).map_err(|e| e.to_string())?;
        report.finish()
    } else {
        repetitions(jobs, repeat, target, &logs.0, &interrupted)?
    };
    Ok(passed && !interrupted.load(Ordering::Relaxed))
}

fn repetitions(
    jobs: &[&'static Job],
    repeat: usize,
    target: &Path,
    logs: &Path,
    interrupted: &AtomicBool,
) -> Result<bool, String> {
    let mut rates = String::from("\n");
    let mut passed = true;
    for &job in jobs {
        let times = vec![job; repeat];
        let mut report = Report::new(&times, Times::read(target));
        lanes::run(&times, logs, &mut report, interrupted).map_err(|e| e.to_string())?;
        passed &= report.failures() == 0;
        rates += &format!("{:<20} {} of {repeat} failed\n", job.name, report.failures());
    }
    say(&rates);
    Ok(passed)
}

/// The folder for the logs of this run, removed on drop.
struct Logs(PathBuf);

impl Logs {
    fn create() -> Result<Logs, String> {
        let path = env::temp_dir().join(format!("ferroce-test.{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Logs(path))
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Request, String> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_arguments_the_quick_jobs_run() {
        let Ok(Request::Run { jobs, repeat: 1 }) = read("") else { panic!("no run") };
        let runs = |name| jobs.iter().any(|job| job.name == name);
        assert!(runs("lint") && runs("unit") && !runs("rxe"));
    }

    #[test]
    fn named_jobs_run_in_their_order_as_often_as_asked_for() {
        let jobs = ["rxe", "lint"].map(|name| table::find(name).expect("a job of the table")).to_vec();
        assert_eq!(read("--repeat 20 rxe lint"), Ok(Request::Run { jobs, repeat: 20 }));
    }

    #[test]
    fn an_invalid_command_line_is_refused_with_the_remedy() {
        for (words, message) in [
            ("--repeat", "--repeat : not a number from 1 to 9999; write --repeat 20 JOB"),
            ("--repeat 0 rxe", "--repeat 0: not a number from 1 to 9999; write --repeat 20 JOB"),
            ("--repeat 10000 rxe", "--repeat 10000: not a number from 1 to 9999; write --repeat 20 JOB"),
            ("--repeat 20", "--repeat 20: names no job; write --repeat 20 JOB"),
            ("--every", "unknown option --every; scripts/test --help lists them"),
            ("rxf", "there is no job rxf; scripts/test --list names them"),
        ] {
            assert_eq!(read(words), Err(message.to_owned()), "{words}");
        }
    }
}
