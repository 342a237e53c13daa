//! Records whether the machine let processes run: how long their threads waited for a CPU, and how late timers were on each CPU. Congestion
//! control cannot be judged at times when its processes were stopped.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval between rows. Linux reports a wait when it has ended, and several waits as their sum, from which the longest cannot be
/// derived after a long interval.
const EVERY: Duration = Duration::from_millis(2);
/// Rows between two searches for new threads.
const LIST: u32 = 25;
/// The interval of the timer on each CPU.
const TICK: Duration = Duration::from_millis(1);

/// A row of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The end of the interval, s since 1970.
    pub seconds: f64,
    /// The delay of the latest timer of any CPU, ns.
    pub late_ns: u64,
    /// The longest time in this interval for which a thread was ready and did not run, ns.
    pub waited_ns: u64,
    /// The name of that thread.
    pub thread: String,
}

struct Thread {
    name: String,
    /// Its `schedstat`, which stays open, so that an update is one read.
    file: File,
    waits: Waits,
}

/// Linux's counters of a thread's waits for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Waits {
    /// The total time, ns.
    time: u64,
    count: u64,
}

/// Writes a row every 2 ms until the first process ends.
///
/// # Errors
/// Returns an error if the file cannot be written, or no thread can be watched.
pub fn watch(file: &Path, processes: &[u32]) -> Result<(), Box<dyn Error>> {
    let first = *processes.first().ok_or("watch: no process")?;
    let mut to = csv::Writer::from_path(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let late = Arc::new(AtomicU64::new(0));
    for cpu in core_affinity::get_core_ids().unwrap_or_default() {
        let late = Arc::clone(&late);
        thread::spawn(move || tick(cpu, &late));
    }
    let mut threads = BTreeMap::new();
    find(processes, &mut threads);
    if threads.is_empty() {
        return Err(format!("watch: process {first} has no thread for which the kernel reports waits").into());
    }
    for look in 0_u32.. {
        thread::sleep(EVERY);
        if look % LIST == 0 {
            if !Path::new(&format!("/proc/{first}/task")).exists() {
                break;
            }
            find(processes, &mut threads);
        }
        let waits = threads.values_mut().map(|thread| (thread.newly_waited(), &thread.name));
        let (waited_ns, thread) = waits.max().ok_or("watch: no thread")?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let late_ns = late.swap(0, Ordering::Relaxed);
        to.serialize(Row { seconds, late_ns, waited_ns, thread: thread.clone() })?;
    }
    to.flush()?;
    Ok(())
}

/// Sleeps repeatedly on one CPU, and records the longest delay.
fn tick(cpu: core_affinity::CoreId, late: &AtomicU64) {
    core_affinity::set_for_current(cpu);
    loop {
        let begin = Instant::now();
        thread::sleep(TICK);
        let over = begin.elapsed().saturating_sub(TICK);
        late.fetch_max(u64::try_from(over.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Adds Ferroce's threads in these processes that are not watched yet.
fn find(processes: &[u32], threads: &mut BTreeMap<PathBuf, Thread>) {
    for process in processes {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in
            tasks.map(|task| task.path()).filter(|task| !threads.contains_key(task)).collect::<Vec<_>>()
        {
            // Other libraries' threads do not handle packets.
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default().trim().to_owned();
            if name.starts_with("ferroce")
                && let Ok(file) = File::open(task.join("schedstat"))
            {
                let mut thread = Thread { name, file, waits: Waits::default() };
                thread.newly_waited();
                threads.insert(task, thread);
            }
        }
    }
}

impl Thread {
    /// Returns the longest wait since the last call, ns; 0 for a thread that has ended.
    fn newly_waited(&mut self) -> u64 {
        let mut text = [0; 80];
        let length = self.file.read_at(&mut text, 0).unwrap_or(0);
        let now = str::from_utf8(&text[..length]).ok().and_then(waits).unwrap_or(self.waits);
        now.longest_since(mem::replace(&mut self.waits, now))
    }
}

impl Waits {
    /// Returns the longest wait since `before`, ns, assuming that all others lasted this thread's average. Many wake-ups of 20 µs each in
    /// an interval are not a pause.
    fn longest_since(self, before: Self) -> u64 {
        let average = self.time / self.count.max(1);
        let others = (self.count - before.count).saturating_sub(1);
        (self.time - before.time).saturating_sub(others * average)
    }
}

/// Parses `run wait slices`, of which the first two are in ns.
fn waits(text: &str) -> Option<Waits> {
    let mut numbers = text.split_whitespace().skip(1).map(|number| number.parse().ok());
    Some(Waits { time: numbers.next()??, count: numbers.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_threads_are_watched() {
        let mut threads = BTreeMap::new();
        find(&[std::process::id()], &mut threads);
        let thread = threads.values_mut().next().expect("this test's");
        let before = thread.waits;
        let waited_since = thread.newly_waited();
        assert!(thread.waits.time >= before.time && thread.waits.count >= before.count);
        assert_eq!(waited_since, thread.waits.longest_since(before));
        assert_eq!(waits("12 345 6\n"), Some(Waits { time: 345, count: 6 }));
        assert_eq!(waits(""), None);
    }

    #[test]
    fn many_short_waits_are_not_counted_as_one_long_wait() {
        let before = Waits { time: 20_000_000, count: 1000 };
        let as_ever = Waits { time: 20_800_000, count: 1040 };
        assert_eq!(as_ever.longest_since(before), 20_000);
        let one_long = Waits { time: 21_800_000, count: 1040 };
        assert!((950_000..1_020_000).contains(&one_long.longest_since(before)), "{one_long:?}");
        assert_eq!(before.longest_since(before), 0);
    }
}
