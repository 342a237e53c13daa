//! Limits the memory that a server allocates for a client.
//!
//! The client chooses sizes and queue pairs, and any host that reaches the port can be a client.

use super::args::PerfArgs;
use super::plan::Plan;
use crate::failure::Failure;

/// The limit if the system does not report the available memory: 1 GiB.
const UNKNOWN: u64 = 1 << 30;

/// Returns the limit for one client, bytes: `--max-memory`, or else half of the available memory, divided by the number of clients.
pub fn limit(args: &PerfArgs) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let all = args.max_memory.unwrap_or_else(|| available(&meminfo).map_or(UNKNOWN, |bytes| bytes / 2));
    all / u64::from(args.clients.max(1))
}

/// Returns the memory that is available without swapping, bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Checks that a client's plan needs at most `limit` bytes.
///
/// # Errors
/// Returns a failure if it needs more.
pub fn check(plan: &Plan, limit: u64) -> Result<(), Failure> {
    let asked = plan.memory().map_or(u64::MAX, |bytes| bytes as u64);
    if asked <= limit {
        return Ok(());
    }
    Err(Failure::run(format!(
        "the client requests buffers of {} MiB, but this server allows {} MiB per client; lower -s or -q at the client, or \
         raise the server's --max-memory",
        asked.div_ceil(1 << 20),
        limit >> 20
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read_from_meminfo() {
        let meminfo =
            "MemTotal:       16300000 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\nBuffers: 7 kB\n";
        assert_eq!(available(meminfo), Some(2 << 20));
        for wrong in ["", "MemTotal: 5 kB\n", "MemAvailable: x kB\n", "MemAvailable: 99999999999999999 kB\n"]
        {
            assert_eq!(available(wrong), None, "{wrong}");
        }
    }
}
