//! `ferroce doctor`: checks the machine and suggests remedies.

use crate::failure::Failure;
use crate::port::PortArgs;
use anstyle::{AnsiColor, Style};
use datapath::echo::echo;
use datapath::machine::{self, Check, Status};
use datapath::pci::Nic;
use datapath::port_spec::PortSpec;
use serde_json::{Value, json};
use std::io;
use std::net::IpAddr;
use std::process::ExitCode;
use verbs::{Capabilities, ConnectOptions, Device, DeviceInfo, Mtu, QpEndpoint, Qpn};

/// The command line of `ferroce doctor`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub port: PortArgs,
    /// Also check the path to this host
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Option<IpAddr>,
    /// Bind a NIC to vfio-pci, so that DPDK can use it; its interface must be down
    #[arg(long, value_name = "ADDRESS", value_parser = pci_address, conflicts_with_all = ["port", "json", "unbind"])]
    pub bind: Option<String>,
    /// Bind a NIC to its usual kernel driver again
    #[arg(long, value_name = "ADDRESS", value_parser = pci_address, conflicts_with_all = ["port", "json"])]
    pub unbind: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn pci_address(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("pci:").unwrap_or(text);
    match format!("pci:{address}").parse::<PortSpec>() {
        Ok(PortSpec::Pci(address)) => Ok(address),
        Ok(_) | Err(_) => Err(format!("`{address}` is not a PCI address; write it as 0000:01:00.0")),
    }
}

/// Binds a NIC to vfio-pci if `take`, and otherwise to its kernel driver. Prints the driver that it has afterwards.
fn hand_over(address: &str, take: bool) -> Result<ExitCode, Failure> {
    let nic = Nic::new(address);
    let done = if take { nic.bind() } else { nic.unbind() };
    done.map_err(|error| Failure::run(error.to_string()))?;
    let driver = nic.driver().unwrap_or_else(|| "no driver".into());
    outln!("PCI device {address}: {driver}")?;
    Ok(ExitCode::SUCCESS)
}

fn check(name: &str, status: Status, found: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name: name.into(), status, found: found.into(), remedy: remedy.map(Into::into) }
}

/// Checks the machine, the port and the path to a peer, or binds or unbinds a NIC. The exit code is 1 if a check failed.
///
/// # Errors
/// Returns a failure if the settings are wrong, the NIC cannot be bound or unbound, or standard output cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(address) = &args.bind {
        return hand_over(address, true);
    }
    if let Some(address) = &args.unbind {
        return hand_over(address, false);
    }
    let mut checks =
        if args.peer.is_some() || args.port.names_a_port()? { of_port(args)? } else { machine::checks(&[]) };
    if args.json {
        outln!("{:#}", as_json(&checks))?;
    } else {
        checks.iter().try_for_each(show)?;
    }
    checks.retain(|check| check.status == Status::Fail);
    Ok(ExitCode::from(u8::from(!checks.is_empty())))
}

fn of_port(args: &Args) -> Result<Vec<Check>, Failure> {
    let config = args.port.device_config()?;
    let spec = config.port().unwrap_or_default().parse::<PortSpec>();
    let spec = spec.map_err(|wrong| Failure::usage(wrong.to_string()))?;
    let mut checks = machine::checks(std::slice::from_ref(&spec));
    match Device::open(&config) {
        Err(error) => {
            let error = error.to_string();
            // A failed check of the machine may have reported the same reason.
            if !checks.iter().any(|check| check.status == Status::Fail && error.contains(&check.found)) {
                checks.push(split("device", &error));
            }
        }
        Ok(device) => port(&device, &spec, args.peer, &mut checks),
    }
    Ok(checks)
}

fn port(device: &Device, spec: &PortSpec, peer: Option<IpAddr>, checks: &mut Vec<Check>) {
    let info = match device.query() {
        Ok(info) => info,
        Err(error) => return checks.push(split("device", &error.to_string())),
    };
    let mtu = info.mtu.bytes();
    let opened = format!("{} by {}, {}, path MTU {mtu}", info.port, info.driver, info.mac);
    checks.push(check("device", Status::Ok, opened, None));
    let gids: Vec<_> = info.gids.addresses().map(|gid| gid.to_string()).collect();
    checks.push(match gids.is_empty() {
        true => check(
            "address",
            Status::Fail,
            "none",
            Some("give it one with --ip, or to its interface: ip addr add"),
        ),
        false => check("address", Status::Ok, gids.join(", "), None),
    });
    let Some(peer) = peer else { return };
    if info.gids.contains(peer) {
        let found = format!("{peer} is this port's own address");
        return checks.push(check("peer", Status::Fail, found, Some("give --peer the other host's address")));
    }
    match reach(device, info.gid_towards(peer), peer) {
        Ok(()) => match path(spec, &info, peer) {
            Some(path) => checks.extend(path),
            None => checks.push(check("peer", Status::Ok, format!("{peer} answers"), None)),
        },
        Err(error) => checks.push(split("peer", &error.to_string())),
    }
}

/// Returns the length in bytes of the longest RoCE packet at path MTU `mtu`, from the IP header on: 20 B IPv4 (or 40 B IPv6), 8 B UDP, 12 B
/// BTH, 16 B RETH, 4 B immediate data and 4 B ICRC.
fn packet_of(mtu: u32, peer: IpAddr) -> usize {
    mtu as usize + if peer.is_ipv4() { 64 } else { 84 }
}

/// Checks that the peer answers an ICMP echo with a packet of the path MTU. Returns `None` where the kernel cannot send one: on ports
/// without a Linux interface, and in a VLAN of the device.
fn path(spec: &PortSpec, info: &DeviceInfo, peer: IpAddr) -> Option<Vec<Check>> {
    let interface = spec.shared_interface()?;
    if info.vlan.is_some() {
        return None;
    }
    Some(path_by(info.mtu, peer, |bytes| echo(interface, peer, bytes)))
}

fn path_by(mtu: Mtu, peer: IpAddr, mut passes: impl FnMut(usize) -> io::Result<bool>) -> Vec<Check> {
    let full = packet_of(mtu.bytes(), peer);
    let answers = check("peer", Status::Ok, format!("{peer} answers"), None);
    match passes(full) {
        Ok(true) => {
            let arrive = check("path MTU", Status::Ok, format!("packets of {full} bytes arrive"), None);
            return vec![answers, arrive];
        }
        Ok(false) => {}
        Err(error) => {
            let remedy = format!("check with another tool that packets of {full} bytes arrive");
            let untried = check("path MTU", Status::Warn, format!("not tried: {error}"), Some(&remedy));
            return vec![answers, untried];
        }
    }
    let smaller = Mtu::ALL.into_iter().rev().filter(|smaller| *smaller < mtu);
    let found = smaller
        .map(|mtu| (mtu, packet_of(mtu.bytes(), peer)))
        .find(|(_, bytes)| matches!(passes(*bytes), Ok(true)));
    match found {
        Some((mtu, bytes)) => {
            let (found, mtu) = (
                format!("packets of {full} bytes to {peer} are lost, but {bytes} bytes arrive"),
                mtu.bytes(),
            );
            let remedy =
                format!("raise the MTU of every link on the way, or set mtu = {mtu} in ferroce.toml");
            vec![answers, check("path MTU", Status::Fail, found, Some(&remedy))]
        }
        // A gateway answers ARP for the hosts behind it, so a resolved Ethernet address does not prove that the peer is running.
        None => {
            let found = format!("{peer} answers no echo; its Ethernet address is known, or its gateway's");
            let remedy = format!(
                "check that the host runs; if a firewall drops ICMP, check with another tool that packets of {full} bytes arrive"
            );
            vec![check("peer", Status::Warn, found, Some(&remedy))]
        }
    }
}

/// Checks that the Ethernet address of the peer can be resolved, by connecting a queue pair. Sends nothing to the peer's queue pairs.
fn reach(device: &Device, gid: usize, peer: IpAddr) -> Result<(), verbs::Error> {
    let pd = device.allocate_pd()?;
    let (send, recv) = (device.create_cq(1)?, device.create_cq(1)?);
    let small = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
    let mut qp = pd.queue_pair(&send, &recv).capabilities(small).gid_index(gid).build()?;
    let there = QpEndpoint { ip: peer, qpn: Qpn::new(1), mtu: Mtu::M256, ..qp.endpoint() };
    qp.connect(&there, &ConnectOptions::default())
}

/// Creates a failed check from an error of the library, whose remedy follows its first semicolon.
fn split(name: &str, error: &str) -> Check {
    // Here semicolons separate lines of DPDK's log, which contain no remedy.
    if error.contains("does not open: ") || error.contains("DPDK does not start") {
        return check(name, Status::Fail, error, Some(machine::SEE_LOG));
    }
    match error.split_once("; ") {
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
    fn an_error_is_split_into_cause_and_remedy() {
        let check = split("peer", "no answer from 10.0.0.9 by ARP; check its address");
        assert_eq!(check.found, "no answer from 10.0.0.9 by ARP");
        assert_eq!(check.remedy.as_deref(), Some("check its address"));
        assert_eq!(split("device", "odd").remedy, None);
        let refused = split(
            "device",
            "port `eal:x`: port `eal:x` does not open: probe fails (EINVAL): EAL: one; EAL: two",
        );
        assert!(refused.found.ends_with("EAL: two") && !refused.remedy.unwrap().contains("EAL:"));
    }

    #[test]
    fn a_path_that_loses_large_packets_is_reported_with_its_limit() {
        let peer = "10.0.0.2".parse().unwrap();
        let way = |most: usize| path_by(Mtu::M4096, peer, move |bytes| Ok(bytes <= most));
        assert!(way(9000).iter().all(|check| check.status == Status::Ok));
        let lossy = way(1500);
        assert_eq!((lossy[0].status, lossy[1].status), (Status::Ok, Status::Fail));
        let lost = "4160 bytes to 10.0.0.2 are lost, but 1088 bytes arrive";
        assert!(lossy[1].found.contains(lost), "{lossy:?}");
        assert!(lossy[1].remedy.as_ref().unwrap().contains("mtu = 1024"));
        let closed = path_by(Mtu::M1024, peer, |_| Err(io::Error::other("no right")));
        assert!(closed[1].status == Status::Warn && closed[1].found.contains("no right"), "{closed:?}");
    }

    #[test]
    fn a_peer_that_answers_only_arp_is_a_warning() {
        let mute = path_by(Mtu::M4096, "10.0.0.2".parse().unwrap(), |_| Ok(false));
        assert!(mute.len() == 1 && mute[0].status == Status::Warn && mute[0].remedy.is_some(), "{mute:?}");
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
