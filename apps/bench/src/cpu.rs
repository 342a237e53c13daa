//! Pins threads to CPUs and measures their CPU time, which other load on the machine does not increase.

use std::time::Duration;

/// Returns the CPU time of the calling thread so far. Its resolution is a few ms.
///
/// # Panics
/// Panics if the kernel does not report it.
pub fn time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.expect("/proc/thread-self/schedstat has the time that a thread ran"))
}

/// Pins the calling thread to one CPU, if the machine has it and the process may use it.
pub fn pin(cpu: usize) {
    let all = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(id) = all.into_iter().find(|id| id.id == cpu) {
        core_affinity::set_for_current(id);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cpu_time_excludes_sleep() {
        let start = super::time();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let slept = super::time() - start;
        let mut sum = 0_u64;
        while super::time() - start - slept < std::time::Duration::from_millis(20) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(slept.as_millis() < 200, "{slept:?}");
    }
}
