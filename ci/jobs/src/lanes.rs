//! Runs jobs in two lanes. Used by `main`.
//!
//! Jobs that move packets run sequentially in the first lane. Jobs that only compute run in the second, at idle priority, and print their
//! output when they have ended. Jobs that measure run after all others.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::attempt::{self, Outcome, Output};
use crate::report::Report;
use crate::table::{Job, Load};

/// Runs each of `jobs` and adds the outcomes to `report`. Starts no further job once `interrupted`.
///
/// # Errors
///
/// Returns an error if a job cannot be started or its log cannot be written.
pub fn run(
    jobs: &[&'static Job],
    logs: &Path,
    report: &mut Report,
    interrupted: &AtomicBool,
) -> io::Result<()> {
    let of = |load| jobs.iter().copied().filter(|job| job.load == load).collect::<Vec<&'static Job>>();
    let [packets, computes, measures] = [Load::Packets, Load::Computes, Load::Measures].map(of);
    if packets.is_empty() || computes.is_empty() {
        in_front(&[packets, computes].concat(), logs, report, interrupted, None)?;
    } else {
        both(&packets, &computes, logs, report, interrupted)?;
    }
    in_front(&measures, logs, report, interrupted, None)
}

fn both(
    packets: &[&'static Job],
    computes: &[&'static Job],
    logs: &Path,
    report: &mut Report,
    interrupted: &AtomicBool,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| beside(computes, logs, sender, interrupted));
        in_front(packets, logs, report, interrupted, Some(&receiver))?;
        for outcome in receiver {
            report.ended_beside(outcome?);
        }
        Ok(())
    })
}

/// Runs jobs whose output is shown while they run. Also reports outcomes of the other lane.
fn in_front(
    jobs: &[&'static Job],
    logs: &Path,
    report: &mut Report,
    interrupted: &AtomicBool,
    beside: Option<&Receiver<io::Result<Outcome>>>,
) -> io::Result<()> {
    let output = if report.terminal() { Output::Terminal } else { Output::Followed };
    let mut jobs: VecDeque<&'static Job> = jobs.iter().copied().collect();
    while let Some(job) = jobs.pop_front() {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        report.begins(job);
        report.ended(attempt::run(job, logs, output, false)?);
        for outcome in beside.into_iter().flat_map(Receiver::try_iter) {
            report.ended_beside(outcome?);
        }
    }
    Ok(())
}

/// Runs jobs at idle priority. Returns early if the receiver was dropped, because the other lane has failed.
fn beside(jobs: &[&'static Job], logs: &Path, sender: Sender<io::Result<Outcome>>, interrupted: &AtomicBool) {
    for job in jobs {
        if interrupted.load(Ordering::Relaxed)
            || sender.send(attempt::run(job, logs, Output::Kept, true)).is_err()
        {
            return;
        }
    }
}
