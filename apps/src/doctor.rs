//! `ferroce doctor`: says what this machine lacks, and the remedy.

use crate::failure::Failure;
use crate::port::PortArgs;
use anstyle::{AnsiColor, Style};
use datapath::machine::{self, Check, Status};
use datapath::port_spec::PortSpec;
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

/// What one look found. The remedy is left out where nothing is to be done.
fn check(name: &str, status: Status, found: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name: name.into(), status, found: found.into(), remedy: remedy.map(Into::into) }
}

/// Looks at the machine, the port and the way to a peer. Exit code 1 where something would keep a run from working.
///
/// # Errors
/// Where the command line names no legal port.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut checks = if args.port.names_a_port()? { of_port(args)? } else { machine::checks(&[]) };
    if args.json {
        outln!("{:#}", as_json(&checks))?;
    } else {
        checks.iter().try_for_each(show)?;
    }
    checks.retain(|check| check.status == Status::Fail);
    Ok(ExitCode::from(u8::from(!checks.is_empty())))
}

/// The machine, the port before and after it is opened, and the way to the peer.
fn of_port(args: &Args) -> Result<Vec<Check>, Failure> {
    let config = args.port.device_config()?;
    let spec = config.port().unwrap_or_default().parse::<PortSpec>();
    let spec = spec.map_err(|wrong| Failure::usage(wrong.to_string()))?;
    let mut checks = machine::checks(&[spec]);
    match Device::open(&config) {
        Err(error) => checks.push(split("device", &error.to_string())),
        Ok(device) => port(&device, args.peer, &mut checks),
    }
    Ok(checks)
}

fn port(device: &Device, peer: Option<IpAddr>, checks: &mut Vec<Check>) {
    let info = match device.query() {
        Ok(info) => info,
        Err(error) => return checks.push(split("device", &error.to_string())),
    };
    let mtu = info.mtu.bytes();
    let opened = format!("{} by {}, {}, path MTU {mtu}", info.port, info.driver, info.mac);
    checks.push(check("device", Status::Ok, opened, None));
    let gids: Vec<_> = info.gids.iter().map(ToString::to_string).collect();
    checks.push(match gids.is_empty() {
        true => check(
            "address",
            Status::Fail,
            "none",
            Some("give it one with --ip, or to its interface: ip addr add"),
        ),
        false => check("address", Status::Ok, gids.join(", "), None),
    });
    if let Some(peer) = peer {
        let gid = info.gid_towards(peer);
        checks.push(match reach(device, gid, peer) {
            Ok(()) => check("peer", Status::Ok, format!("{peer} answers"), None),
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

/// The library's errors say what, then the remedy after a semicolon, or after a colon where it is a check.
fn split(name: &str, error: &str) -> Check {
    match error
        .split_once("; ")
        .or_else(|| error.split_once(": check ").map(|(found, _)| (found, &error[found.len() + 2..])))
    {
        Some((found, remedy)) => check(name, Status::Fail, found, Some(remedy)),
        None => check(name, Status::Fail, error, None),
    }
}

fn show(check: &Check) -> Result<(), Failure> {
    let (mark, colour) = match check.status {
        Status::Ok => ("✓", AnsiColor::Green),
        Status::Warn => ("!", AnsiColor::Yellow),
        Status::Fail => ("✗", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    outln!("{style}{mark}{style:#} {:<16} {}", check.name, check.found)?;
    match &check.remedy {
        Some(remedy) => outln!("                   remedy: {remedy}"),
        None => Ok(()),
    }
}

fn as_json(checks: &[Check]) -> Value {
    json!({ "ok": checks.iter().all(|check| check.status != Status::Fail), "checks": checks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_falls_into_what_and_remedy() {
        let check = split("peer", "no answer from 10.0.0.9 by ARP; check its address");
        assert_eq!(check.found, "no answer from 10.0.0.9 by ARP");
        assert_eq!(check.remedy.as_deref(), Some("check its address"));
        assert_eq!(split("device", "odd").remedy, None);
    }

    #[test]
    fn json_is_ok_unless_something_fails() {
        let warning = check("port veth0", Status::Warn, "MTU 1400", Some("raise it"));
        assert_eq!(as_json(std::slice::from_ref(&warning))["ok"], true);
        let json = as_json(&[warning, split("device", "gone")]);
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][0]["status"], "warn");
    }
}
