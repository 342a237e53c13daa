//! The baseline of packet rates: DPDK's testpmd with one forwarding core per side.

use crate::host::{Link, Running, Side};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The number of reports, one per second, that are used, and the time limit for them.
const REPORTS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the rate at which `dpdk-testpmd` sends frames of `length` bytes without FCS from `txonly` to `rxonly`, frames per second.
///
/// # Errors
/// Returns an error if it is not installed or no frame arrives.
pub fn frames_per_second(link: &Link, length: usize) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let receiver = start(link, Side::Server, "rxonly", length, folder.path())?;
    link.wait_for_server(&Link::testpmd_socket(folder.path()));
    let sender = start(link, Side::Client, "txonly", length, folder.path())?;
    // testpmd reports once per second. The first nonzero report is not used, because it may include frames that were queued.
    let log = folder.path().join("server.log");
    let begin = Instant::now();
    let mut steady = Vec::new();
    while steady.len() < REPORTS && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(200));
        let text = fs::read_to_string(&log).map_err(|error| error.to_string())?;
        steady = rates(&text).skip_while(|&rate| rate == 0.0).skip(1).collect();
    }
    drop((sender, receiver));
    middle(steady).ok_or_else(|| {
        let said = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).rev().take(3).collect();
        format!("dpdk-testpmd carried nothing over {link:?} within {PATIENCE:?}: {}", last.join(" / "))
    })
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|&value| value > 0.0)
}

fn start(link: &Link, side: Side, mode: &str, length: usize, folder: &Path) -> Result<Running, String> {
    let log =
        fs::File::create(folder.join(format!("{}.log", side.name()))).map_err(|error| error.to_string())?;
    let mut command = link.command(side, Path::new("dpdk-testpmd"), false);
    command
        .args([
            "--no-huge",
            "-m",
            "512",
            "--single-file-segments",
            "--no-telemetry",
            "--no-pci",
            "--file-prefix",
        ])
        .arg(format!("bench-{}-{}", std::process::id(), side.name()))
        // The core that only prints may use both CPUs. The forwarding core has the CPU of its side.
        .args(["--lcores", &format!("0@(0-1),1@{}", side.cpu()), "--vdev", &link.vdev(side, folder), "--"])
        .args([
            "--mbuf-size=9216",
            "--total-num-mbufs=16384",
            "--nb-cores=1",
            "--stats-period=1",
            "--auto-start",
        ])
        .args([format!("--forward-mode={mode}"), format!("--txpkts={length}")])
        .stdout(log)
        .stderr(Stdio::null());
    Running::start(command)
}

fn rates(log: &str) -> impl Iterator<Item = f64> {
    log.split("Rx-pps:").skip(1).filter_map(|rest| rest.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::rates;

    #[test]
    fn rates_are_read_from_the_output_of_testpmd() {
        let log = "  Throughput (since last show)\n  Rx-pps:     14837742          Rx-bps:  16380866904\n  Rx-pps: 0 Rx-bps: 0";
        assert_eq!(rates(log).collect::<Vec<_>>(), [14_837_742.0, 0.0]);
    }
}
