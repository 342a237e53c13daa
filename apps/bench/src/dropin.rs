//! Runs Debian's `ib_write_bw` on the drop-in library, one process per side.

use crate::host::{Link, Side};
use crate::tool;
use std::path::Path;
use std::process::Command;

/// Returns the goodput of WRITEs of 64 KiB, Gb/s.
///
/// # Errors
/// Returns the output of a client that failed.
pub fn write_bandwidth(ferroce: &Path, link: &Link) -> Result<f64, String> {
    let [server, client] = [Side::Server, Side::Client].map(|which| side(ferroce, link, which));
    let said = tool::meet(link, server, client).map_err(|said| format!("ib_write_bw: {said}"))?;
    average(&said).ok_or_else(|| format!("ib_write_bw printed no row of 65536 bytes: {said}"))
}

fn side(ferroce: &Path, link: &Link, side: Side) -> Command {
    let mut command = link.command(side, ferroce, true);
    command.arg("run").args(link.port(side)).args(["--", "ib_write_bw", "-F", "-D", "2", "--report_gbits"]);
    command
}

/// Returns the average in perftest's row: bytes, iterations, peak, average, messages.
fn average(report: &str) -> Option<f64> {
    let rows = report.lines().map(str::split_whitespace);
    rows.filter_map(|mut words| (words.next()? == "65536").then(|| words.nth(2)?.parse().ok())?).next()
}

#[cfg(test)]
mod tests {
    use super::average;

    #[test]
    fn the_average_is_the_fourth_word_of_the_row() {
        let report = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                      65536      5000             0.00               101.50             0.193596\n";
        assert_eq!(average(report), Some(101.5));
        assert_eq!(average("Couldn't connect to 127.0.0.1:18515\n"), None);
    }
}
