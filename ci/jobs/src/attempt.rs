//! Runs a job once: starts its process, stores its output, and measures its time. Used by `lanes`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wait4::Wait4;

use crate::table::Job;

/// The interval at which the output of a running job is copied to standard output.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// The destination of a job's output while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// The terminal, with colours and progress. There is no log.
    Terminal,
    /// The log, and standard output while the job runs.
    Followed,
    /// Only the log.
    Kept,
}

/// The result of [`run`].
#[derive(Debug)]
pub struct Outcome {
    pub job: &'static Job,
    /// True if the job exited with 0.
    pub passed: bool,
    /// The elapsed time.
    pub took: Duration,
    /// The CPU time of all processes of the job.
    pub processor: Duration,
    /// The log, unless the output went to a terminal.
    pub log: Option<PathBuf>,
}

/// Runs `job` in the current directory, the root of the repository, with its log in `logs`; at idle priority if `idle`.
///
/// # Errors
///
/// Returns an error if the log cannot be written or the job cannot be started.
pub fn run(job: &'static Job, logs: &std::path::Path, output: Output, idle: bool) -> io::Result<Outcome> {
    let file = format!("ci/{}", job.name);
    let mut command = if idle {
        let mut chrt = Command::new("chrt");
        chrt.args(["--idle", "0", &file]);
        chrt
    } else {
        Command::new(&file)
    };
    let log = (output != Output::Terminal).then(|| logs.join(job.name));
    if let Some(log) = &log {
        let out = File::create(log)?;
        command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
    }
    let began = Instant::now();
    let mut child = command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{file}: {e}")))?;
    let ended = AtomicBool::new(false);
    let usage = thread::scope(|scope| {
        if let (Output::Followed, Some(log)) = (output, &log) {
            scope.spawn(|| follow(log, &ended));
        }
        let usage = child.wait4();
        ended.store(true, Ordering::Release);
        usage
    })?;
    let processor = usage.rusage.utime + usage.rusage.stime;
    Ok(Outcome { job, passed: usage.status.success(), took: began.elapsed(), processor, log })
}

/// Copies `log` to standard output while it grows, until the job has `ended`.
fn follow(log: &std::path::Path, ended: &AtomicBool) {
    let Ok(mut log) = File::open(log) else { return };
    loop {
        // Read before the copy, so that the copy includes everything that was written before the end.
        let last = ended.load(Ordering::Acquire);
        if copy_rest(&mut log).is_err() || last {
            return;
        }
        thread::park_timeout(FOLLOW_INTERVAL);
    }
}

fn copy_rest(from: &mut impl Read) -> io::Result<()> {
    let mut out = io::stdout().lock();
    io::copy(from, &mut out)?;
    out.flush()
}
