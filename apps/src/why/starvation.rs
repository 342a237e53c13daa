//! Measures for how long the threads of a process were ready to run without a CPU, with the kernel's counters.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// The time that each thread of a process has waited for a CPU, ns.
pub struct Starvation {
    pid: u32,
    waited: BTreeMap<u32, u64>,
}

impl Starvation {
    /// Reads `/proc/PID/task/*/schedstat`. Omits threads that cannot be read.
    pub fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let waited = tasks.filter_map(|task| {
            let thread = task.file_name().to_str()?.parse().ok()?;
            Some((thread, waited(&fs::read_to_string(task.path().join("schedstat")).ok()?)?))
        });
        Self { pid, waited: waited.collect() }
    }

    /// Returns the longest wait of any thread since `self` was read. Threads that started afterwards count as 0.
    pub fn since(&self) -> Duration {
        let now = Self::of(self.pid);
        let each = now.waited.iter().map(|(thread, waited)| {
            waited.saturating_sub(self.waited.get(thread).copied().unwrap_or(*waited))
        });
        Duration::from_nanos(each.max().unwrap_or(0))
    }
}

/// Returns the second number: time on a run queue, ns (Documentation/scheduler/sched-stats.rst).
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_second_number_of_schedstat() {
        assert_eq!(waited("120 340 7\n"), Some(340));
        assert_eq!(waited("120"), None);
        assert!(Starvation::of(0).since().is_zero());
    }
}
