//! `ferroce doctor`: says what this machine lacks, and the remedy.

use crate::failure::Failure;
use crate::port::PortArgs;
use anstyle::{AnsiColor, Style};
use datapath::linux;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::process::ExitCode;
use verbs::{Capabilities, ConnectOptions, Device, Mtu, QpEndpoint, Qpn};

/// The command line of `ferroce doctor`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub port: PortArgs,
    /// Also find the way to this host
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub peer: Option<IpAddr>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, but slower or with less than it could.
    Poor,
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    found: String,
    remedy: Option<String>,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, what, found: found.into(), remedy: None }
    }

    fn poor(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Poor, what, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn bad(what: &'static str, found: impl Into<String>, remedy: Option<String>) -> Self {
        Self { verdict: Verdict::Bad, what, found: found.into(), remedy }
    }
}

/// Looks at the machine, the port and the way to a peer. Exit code 1 where something would keep a run from working.
///
/// # Errors
/// Where the command line names no legal port.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut findings = machine();
    if args.port.names_a_port()? {
        let config = args.port.device_config()?;
        findings.extend(config.port().and_then(interface));
        match Device::open(&config) {
            Err(error) => findings.push(split("port", &error.to_string())),
            Ok(device) => port(&device, args.peer, &mut findings),
        }
    }
    if args.json {
        anstream::println!("{:#}", as_json(&findings));
    } else {
        findings.iter().for_each(show);
    }
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(ExitCode::from(u8::from(bad)))
}

fn machine() -> Vec<Finding> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = match cores {
        1 => Finding::poor("CPUs", "1", "two sides on one CPU take turns; give this machine another CPU"),
        many => Finding::good("CPUs", many.to_string()),
    };
    vec![cores, hugepages(datapath::machine::free_hugepage_bytes())]
}

fn hugepages(free: u64) -> Finding {
    match free >> 20 {
        0 => Finding::poor(
            "hugepages",
            "none free: buffers use normal pages, which costs speed",
            "echo 256 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        mib => Finding::good("hugepages", format!("{mib} MiB free")),
    }
}

/// The Linux interface behind a port of that form.
fn interface(port: &str) -> Option<Finding> {
    let name = match port.parse() {
        Ok(datapath::port_spec::PortSpec::Interface(name)) => name,
        _ => return None,
    };
    Some(match linux::interface(&name) {
        Err(error) => {
            let remedy = format!(
                "`ip link` lists them; a pair for a try: ip link add {name} type veth peer name veth1"
            );
            Finding::bad("interface", format!("{name}: {error}"), Some(remedy))
        }
        Ok(found) if !found.up => {
            Finding::bad("interface", format!("{name} is down"), Some(format!("ip link set {name} up")))
        }
        Ok(found) if !found.running => {
            Finding::poor("interface", format!("{name} has no link"), "plug it in, or set its peer up")
        }
        Ok(found) => Finding::good("interface", format!("{name}, MTU {}", found.mtu)),
    })
}

fn port(device: &Device, peer: Option<IpAddr>, findings: &mut Vec<Finding>) {
    let info = match device.query() {
        Ok(info) => info,
        Err(error) => return findings.push(split("port", &error.to_string())),
    };
    findings.push(Finding::good("port", format!("{} by {}, {}", info.port, info.driver, info.mac)));
    findings.push(match info.mtu {
        Mtu::M4096 => Finding::good("path MTU", "4096 B"),
        less => Finding::poor(
            "path MTU",
            format!("{} B", less.bytes()),
            "for 4096: an interface MTU of 4200 (ip link set NAME mtu 4200), at both ends and between",
        ),
    });
    findings.push(if info.gids.is_empty() {
        Finding::bad(
            "address",
            "none",
            Some("give it one: --ip 10.0.0.1/24, or ip addr add to the interface".into()),
        )
    } else {
        Finding::good("address", info.gids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    });
    if let Some(peer) = peer {
        let gid = info.gids.iter().position(|gid| gid.is_ipv4() == peer.is_ipv4()).unwrap_or(0);
        findings.push(match reach(device, gid, peer) {
            Ok(()) => Finding::good("peer", format!("{peer} answers")),
            Err(error) => split("peer", &error.to_string()),
        });
    }
}

/// Connecting finds the peer's Ethernet address; nothing is sent to its queue pair.
fn reach(device: &Device, gid: usize, peer: IpAddr) -> Result<(), verbs::Error> {
    let pd = device.allocate_pd()?;
    let (send, recv) = (device.create_cq(1)?, device.create_cq(1)?);
    let small = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
    let mut qp = pd.queue_pair(&send, &recv).capabilities(small).gid_index(gid).build()?;
    let there = QpEndpoint { ip: peer, qpn: Qpn::new(1), mtu: Mtu::M256, ..qp.endpoint() };
    qp.connect(&there, &ConnectOptions::default())
}

/// The library's errors say what, then the remedy after a semicolon.
fn split(what: &'static str, error: &str) -> Finding {
    match error.split_once("; ") {
        Some((found, remedy)) => Finding::bad(what, found, Some(remedy.to_owned())),
        None => Finding::bad(what, error, None),
    }
}

fn show(finding: &Finding) {
    let (mark, colour) = match finding.verdict {
        Verdict::Good => ("✓", AnsiColor::Green),
        Verdict::Poor => ("!", AnsiColor::Yellow),
        Verdict::Bad => ("✗", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    anstream::println!("{style}{mark}{style:#} {:<10} {}", finding.what, finding.found);
    if let Some(remedy) = &finding.remedy {
        anstream::println!("             remedy: {remedy}");
    }
}

fn as_json(findings: &[Finding]) -> Value {
    let rows = findings.iter().map(|finding| {
        let verdict = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Poor => "warning",
            Verdict::Bad => "error",
        };
        json!({ "check": finding.what, "verdict": verdict, "found": finding.found, "remedy": finding.remedy })
    });
    json!({
        "ok": findings.iter().all(|finding| finding.verdict != Verdict::Bad),
        "checks": rows.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_falls_into_what_and_remedy() {
        let finding = split("peer", "no answer from 10.0.0.9 by ARP; check its address");
        assert_eq!(finding.found, "no answer from 10.0.0.9 by ARP");
        assert_eq!(finding.remedy.as_deref(), Some("check its address"));
        assert_eq!(split("port", "odd").remedy, None);
    }

    #[test]
    fn without_hugepages_it_is_poor_not_bad() {
        assert_eq!(hugepages(0).verdict, Verdict::Poor);
        assert_eq!(hugepages(512 << 20), Finding::good("hugepages", "512 MiB free"));
    }

    #[test]
    fn json_is_ok_unless_something_is_bad() {
        let poor = hugepages(0);
        assert_eq!(as_json(std::slice::from_ref(&poor))["ok"], true);
        let json = as_json(&[poor, Finding::bad("port", "gone", None)]);
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][0]["verdict"], "warning");
    }

    #[test]
    fn an_interface_that_is_not_there_is_bad() {
        let finding = interface("nosuchif0").unwrap();
        assert_eq!(finding.verdict, Verdict::Bad);
        assert_eq!(interface("memif:/tmp/x.sock"), None);
        assert_eq!(interface("lo").unwrap().verdict, Verdict::Good);
    }
}
