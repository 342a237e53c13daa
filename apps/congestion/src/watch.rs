//! Watches whether the machine let processes run: how long their threads waited for a processor, and how late timers are on
//! each. Congestion control can't be judged by a moment in which those who run it were stopped.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two lines.
const EVERY: Duration = Duration::from_millis(10);
/// Between two looks at the clock of each processor.
const TICK: Duration = Duration::from_millis(1);

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// When the interval ended, since 1970.
    pub seconds: f64,
    /// How late the latest timer of any processor was.
    pub late_ns: u64,
    /// How long the thread that waited longest was ready to run and did not, in this interval.
    pub waited_ns: u64,
    /// Which one.
    pub thread: String,
}

/// How long a thread has waited for a processor so far, by process and thread.
type Waits = HashMap<PathBuf, u64>;

/// Writes a line every 10 ms for as long as the first process lives.
///
/// # Errors
/// The file can't be written, or no thread can be watched.
pub fn watch(file: &Path, processes: &[u32]) -> Result<(), Box<dyn Error>> {
    let first = *processes.first().ok_or("watch: no process")?;
    let mut to = csv::Writer::from_path(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let late = Arc::new(AtomicU64::new(0));
    for cpu in core_affinity::get_core_ids().unwrap_or_default() {
        let late = Arc::clone(&late);
        thread::spawn(move || tick(cpu, &late));
    }
    let mut before = waits(processes);
    if before.is_empty() {
        return Err(format!("watch: process {first} has no threads whose waits are told").into());
    }
    while Path::new(&format!("/proc/{first}/task")).exists() {
        thread::sleep(EVERY);
        let now = waits(processes);
        let waited = |(thread, total): (&PathBuf, &u64)| {
            (total.saturating_sub(*before.get(thread).unwrap_or(total)), thread.clone())
        };
        let (waited_ns, path) = now.iter().map(waited).max().unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let late_ns = late.swap(0, Ordering::Relaxed);
        let thread = fs::read_to_string(path.with_file_name("comm")).unwrap_or_default();
        to.serialize(Row { seconds, late_ns, waited_ns, thread: thread.trim().to_owned() })?;
        before = now;
    }
    to.flush()?;
    Ok(())
}

/// Sleeps on one processor, and notes how much longer than asked.
fn tick(cpu: core_affinity::CoreId, late: &AtomicU64) {
    core_affinity::set_for_current(cpu);
    loop {
        let begin = Instant::now();
        thread::sleep(TICK);
        let over = begin.elapsed().saturating_sub(TICK);
        late.fetch_max(u64::try_from(over.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Of all our threads in these processes.
fn waits(processes: &[u32]) -> Waits {
    let mut waits = Waits::new();
    for process in processes {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks.map(|task| task.path()) {
            // A library's own threads have nothing to do with packets.
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            let path = task.join("schedstat");
            if name.starts_with("ferroce")
                && let Some(waited) = fs::read_to_string(&path).ok().and_then(|text| waited(&text))
            {
                waits.insert(path, waited);
            }
        }
    }
    waits
}

/// `run wait slices`, the first two in ns.
fn waited(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_threads_are_watched() {
        let waits = waits(&[std::process::id()]);
        assert!(waits.keys().any(|path| path.ends_with("schedstat")), "{waits:?}");
        assert_eq!(waited("12 345 6\n"), Some(345));
        assert_eq!(waited(""), None);
    }
}
