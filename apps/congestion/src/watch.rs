//! Watches whether the machine let processes run: how long their threads waited for a processor, and how late timers are on each.
//! Congestion control cannot be judged by a moment in which its processes were stopped.

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

/// Between two lines. Linux reports a wait once it is over, and several as their sum. Looked at rarely, little could be learned of the
/// longest.
const EVERY: Duration = Duration::from_millis(2);
/// Between two looks for threads that are new.
const LIST: u32 = 25;
/// Between two looks at the clock of each processor.
const TICK: Duration = Duration::from_millis(1);

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// When the interval ended, since 1970.
    pub seconds: f64,
    /// The lateness of the latest timer of any processor.
    pub late_ns: u64,
    /// The longest time at a stretch, in this interval, for which a thread was ready to run and did not.
    pub waited_ns: u64,
    /// Which one.
    pub thread: String,
}

/// A thread that is watched.
struct Thread {
    name: String,
    /// Its `schedstat`, open: a look is one read.
    file: File,
    /// Its waits for a processor so far.
    waits: Waits,
}

/// Linux's count of a thread's waits for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Waits {
    /// The length of all waits together, in ns.
    time: u64,
    /// The number of waits.
    count: u64,
}

/// Writes a line every 2 ms for as long as the first process lives.
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

/// Adds those of our threads in these processes that are not watched yet.
fn find(processes: &[u32], threads: &mut BTreeMap<PathBuf, Thread>) {
    for process in processes {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in
            tasks.map(|task| task.path()).filter(|task| !threads.contains_key(task)).collect::<Vec<_>>()
        {
            // A library's own threads have nothing to do with packets.
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
    /// Returns how long it waited at a stretch since the last call, in ns. A thread that has ended waits no more.
    fn newly_waited(&mut self) -> u64 {
        let mut text = [0; 80];
        let length = self.file.read_at(&mut text, 0).unwrap_or(0);
        let now = str::from_utf8(&text[..length]).ok().and_then(waits).unwrap_or(self.waits);
        now.longest_since(mem::replace(&mut self.waits, now))
    }
}

impl Waits {
    /// Returns the length of the longest wait since `before`, in ns, if all others were as long as this thread's average. If a wake-up
    /// takes 20 µs, forty of them in 2 ms are no stop.
    fn longest_since(self, before: Self) -> u64 {
        let average = self.time / self.count.max(1);
        let others = (self.count - before.count).saturating_sub(1);
        (self.time - before.time).saturating_sub(others * average)
    }
}

/// `run wait slices`, the first two in ns.
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
    fn many_short_waits_are_no_stop() {
        let before = Waits { time: 20_000_000, count: 1000 };
        let as_ever = Waits { time: 20_800_000, count: 1040 };
        assert_eq!(as_ever.longest_since(before), 20_000);
        let one_long = Waits { time: 21_800_000, count: 1040 };
        assert!((950_000..1_020_000).contains(&one_long.longest_since(before)), "{one_long:?}");
        assert_eq!(before.longest_since(before), 0);
    }
}
