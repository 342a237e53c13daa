//! Figures of a Linux interface, compared with what the kernel's TCP reaches on the same veth pair.

use crate::figure::{Figure, Goal, Run};
use crate::host::{Link, Side, Veth};
use crate::tool;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A veth pair whose MTU is 1500, with its server's address. Its devices keep all offloads.
const MTU_1500: (&str, &str) = ("eth1", "10.78.0.1");
/// The same with an MTU of 4500.
const MTU_4500: (&str, &str) = ("eth2", "10.79.0.1");
const BYTES: &str = "65536";
const TCP: &str = "one TCP flow of iperf3";

/// Returns the figures of the veth pairs `eth1` and `eth2` between the namespaces of `veth`.
pub fn figures(ferroce: &Path, veth: &Veth) -> Vec<Figure> {
    let on = |(port, address)| Ends { ferroce: ferroce.into(), link: Link::Veth(veth.with(port, address)) };
    let (small, large) = (on(MTU_1500), on(MTU_4500));
    let udp = on(("udp:eth1", MTU_1500.1));
    vec![
        small.verb("eth0-write-64k", "WRITE", "write-bw", "1024", 1.0),
        small.verb("eth0-read-64k", "READ", "read-bw", "1024", 1.0),
        small.verb("eth0-send-64k", "SEND", "send-bw", "1024", 1.0),
        large.verb("eth0-write-64k-4k", "WRITE", "write-bw", "4096", 1.2),
        udp.verb("udp-write-64k", "WRITE over UDP sockets", "write-bw", "1024", 0.8),
        small.latency("eth0-send-64"),
        small.ucx_bandwidth("eth0-ucx-64k", "MTU 1500", 1.0),
        large.ucx_bandwidth("eth0-ucx-64k-4k", "MTU 4500", 1.2),
        small.ucx_latency("eth0-ucx-8"),
    ]
}

#[derive(Clone)]
struct Ends {
    ferroce: PathBuf,
    link: Link,
}

impl Ends {
    fn verb(&self, name: &str, verb: &str, command: &'static str, mtu: &'static str, least: f64) -> Figure {
        let (ours, theirs) = (self.clone(), self.link.clone());
        let args = [command, "-s", BYTES, "-m", mtu, "-D", "2", "--report_gbits"];
        Figure {
            name: name.into(),
            what: format!("{verb} of 64 KiB through a veth, path MTU {mtu}"),
            unit: "Gb/s",
            yardstick: TCP,
            goal: Goal::Least(least),
            ours: Box::new(move || tool::run(&ours.ferroce, &ours.link, &args, "BW_average")),
            theirs: Box::new(move || tcp(&theirs)),
        }
    }

    fn latency(&self, name: &str) -> Figure {
        let ours = self.clone();
        let args = ["send-lat", "-s", "64", "-n", "20000"];
        Figure {
            name: name.into(),
            what: "SEND of 64 B through a veth, half a round trip".into(),
            unit: "µs",
            yardstick: "UCX's tag_lat of 8 B over TCP",
            goal: Goal::Most(0.7),
            ours: Box::new(move || tool::run(&ours.ferroce, &ours.link, &args, "t_typical")),
            theirs: self.ucx(Transport::Tcp, "tag_lat"),
        }
    }

    fn ucx_bandwidth(&self, name: &str, mtu: &str, least: f64) -> Figure {
        Figure {
            name: name.into(),
            what: format!("UCX's tag_bw of 64 KiB through a veth, {mtu}"),
            unit: "Gb/s",
            yardstick: "the same over UCX's TCP",
            goal: Goal::Least(least),
            ours: self.ucx(Transport::Ferroce, "tag_bw"),
            theirs: self.ucx(Transport::Tcp, "tag_bw"),
        }
    }

    fn ucx_latency(&self, name: &str) -> Figure {
        Figure {
            name: name.into(),
            what: "UCX's tag_lat of 8 B through a veth, half a round trip".into(),
            unit: "µs",
            yardstick: "the same over UCX's TCP",
            goal: Goal::Most(0.8),
            ours: self.ucx(Transport::Ferroce, "tag_lat"),
            theirs: self.ucx(Transport::Tcp, "tag_lat"),
        }
    }

    fn ucx(&self, transport: Transport, test: &'static str) -> Run {
        let ends = self.clone();
        Box::new(move || {
            let sides = [Side::Server, Side::Client].map(|side| ends.ucx_perftest(transport, test, side));
            let [server, client] = sides;
            let said =
                tool::meet(&ends.link, server, client).map_err(|said| format!("ucx_perftest: {said}"))?;
            result(&said, test).ok_or_else(|| format!("ucx_perftest printed no result: {said}"))
        })
    }

    fn ucx_perftest(&self, transport: Transport, test: &str, side: Side) -> Command {
        let size = if test == "tag_bw" { BYTES } else { "8" };
        let perftest = ["ucx_perftest", "-t", test, "-s", size, "-n", "50000"];
        let Link::Veth(veth) = &self.link else { unreachable!("these figures use veth pairs alone") };
        match transport {
            Transport::Tcp => {
                let mut command = self.link.command(side, Path::new("env"), true);
                command.arg("UCX_TLS=tcp").arg(format!("UCX_NET_DEVICES={}", veth.port)).args(perftest);
                command
            }
            Transport::Ferroce => {
                let mut command = self.link.command(side, &self.ferroce, true);
                command.arg("run").args(self.link.port(side)).args(["--", "env", "UCX_TLS=rc_verbs"]);
                command.arg("UCX_NET_DEVICES=ferroce0:1").args(perftest);
                command
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Transport {
    Tcp,
    Ferroce,
}

/// Returns the bandwidth of one TCP flow, Gb/s.
fn tcp(link: &Link) -> Result<f64, String> {
    let iperf3 = |side| link.command(side, Path::new("iperf3"), true);
    let (mut server, mut client) = (iperf3(Side::Server), iperf3(Side::Client));
    server.args(["-s", "-1"]);
    client.args(["-t", "2", "-J", "-c"]);
    let said = tool::meet(link, server, client).map_err(|said| format!("iperf3: {said}"))?;
    let report: serde_json::Value =
        serde_json::from_str(&said).map_err(|error| format!("iperf3: {error}"))?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 1e9).ok_or_else(|| format!("iperf3 printed no result: {said}"))
}

/// Returns the result of `ucx_perftest`: Gb/s of a bandwidth test, the median of half a round trip in microseconds of a latency test. Its
/// last line has the count, the latency's median, mean and overall mean, then the mean and the overall bandwidth in MB/s.
fn result(said: &str, test: &str) -> Option<f64> {
    let line = said.lines().rfind(|line| line.starts_with("Final:"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let column = if test == "tag_bw" { 6 } else { 2 };
    let value: f64 = words.get(column)?.parse().ok()?;
    // UCX's MB is 2^20 bytes.
    Some(if test == "tag_bw" { value * 8.0 * f64::from(1 << 20) / 1e9 } else { value })
}

#[cfg(test)]
mod tests {
    use super::result;

    #[test]
    fn the_result_of_ucx_perftest_is_read_from_its_last_line() {
        let said = "Final:                 50000      7.416    94.040    81.453      664.61     767.31       10634       12277\n";
        assert_eq!(result(said, "tag_lat"), Some(7.416));
        assert_eq!(result(said, "tag_bw").map(|gigabits| (gigabits * 100.0).round()), Some(644.0));
        assert_eq!(result("connection refused\n", "tag_bw"), None);
    }
}
