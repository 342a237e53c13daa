//! One execution of a job: its process, its output, and what it took. Used by `lanes`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wait4::Wait4;

use crate::table::Job;

/// How often the output of a running job is copied to ours.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Where the output of a job goes while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// To our terminal, with colours and progress; nothing is kept.
    Terminal,
    /// To its log, and to our standard output as it comes.
    Followed,
    /// To its log alone.
    Kept,
}

/// Returned by [`run`]: how a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// The job.
    pub job: &'static Job,
    /// Whether it exited with 0.
    pub passed: bool,
    /// Wall-clock time.
    pub took: Duration,
    /// Processor time of all its processes.
    pub processor: Duration,
    /// Its output, unless that went to a terminal.
    pub log: Option<PathBuf>,
}

/// Runs `job`, from the project's folder, with its log in `logs`; at idle priority if `idle`.
///
/// # Errors
///
/// Returns an error if its log cannot be written, or it cannot be started.
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

/// Copies what is written to `log` to our standard output, until it has `ended`.
fn follow(log: &std::path::Path, ended: &AtomicBool) {
    let Ok(mut log) = File::open(log) else { return };
    loop {
        // Read before the rest is copied: what was written before the end is then copied in any case.
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
