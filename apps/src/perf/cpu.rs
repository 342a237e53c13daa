//! The use of the machine's CPUs during a run: perftest's `--cpu_util`.

use std::fs;

/// The time that all CPUs of the machine have spent since it started, in ticks of the kernel (10 ms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    all: u64,
}

impl CpuTime {
    /// Reads `/proc/stat`; `None` if it cannot be read.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)). Idle and iowait are not busy.
    fn parse(stat: &str) -> Option<Self> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let times = numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let all = times.iter().sum();
        let idle: u64 = times.get(3..5)?.iter().sum();
        Some(Self { busy: all - idle, all })
    }

    /// Returns the share of the time from `self` to `end` in which CPUs were busy, %; 0 if no tick passed.
    pub fn used_until(self, end: Self) -> f64 {
        let (busy, all) = (end.busy.saturating_sub(self.busy), end.all.saturating_sub(self.all));
        if all == 0 { 0.0 } else { busy as f64 * 100.0 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_time_are_not_busy() {
        let before = CpuTime::parse("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        let after = CpuTime::parse("cpu  20 5 20 150 20 0 5 0 9 9\n").unwrap();
        assert_eq!(before.used_until(after), 30.0);
        assert_eq!(before.used_until(before), 0.0);
        assert_eq!(CpuTime::parse("intr 5\n"), None);
    }
}
