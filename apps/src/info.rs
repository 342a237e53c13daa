//! `ferroce info`: prints the properties of a port, the interfaces that can be ports, the counters of running processes, or the verbs that
//! the drop-in libraries refuse.

mod missing;

use crate::failure::Failure;
use crate::port::PortArgs;
use crate::why;
use datapath::linux;
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use verbs::DeviceInfo;
use verbs::observe::{DeviceStatus, ProcessStatus};

/// The command line of `ferroce info`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub port: PortArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Counters of running processes, with drops by reason; with --port, of this port only
    #[arg(long)]
    pub counters: bool,
    /// Verbs and parts of verbs that the drop-in libraries refuse
    #[arg(long, conflicts_with = "counters")]
    pub verbs: bool,
}

/// Prints the properties of the port, or without a port the interfaces that can be ports.
///
/// # Errors
/// Returns a failure if the settings are wrong, the port cannot be opened, no process can be observed for `--counters`, or standard output
/// cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.verbs {
        return missing::show(args.json).map(|()| ExitCode::SUCCESS);
    }
    if args.counters {
        return show_counters(args).map(|()| ExitCode::SUCCESS);
    }
    if !args.port.names_a_port()? {
        return show_interfaces(args.json).map(|()| ExitCode::SUCCESS);
    }
    let device = args.port.open()?;
    let failed = |error: verbs::Error| Failure::run(error.to_string());
    let info = device.query().map_err(failed)?;
    if args.json {
        outln!("{:#}", as_json(&info))?;
    } else {
        out!("{}", as_text(&info))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_text(info: &DeviceInfo) -> String {
    let mut text = String::new();
    let limits = &info.limits;
    let speed = info.speed_mbps.map_or("unknown".into(), |mbps| format!("{mbps} Mb/s"));
    let rows = [
        ("port", info.port.clone()),
        ("driver", info.driver.clone()),
        ("address", info.mac.to_string()),
        ("VLAN", info.vlan.map_or("none".into(), |vlan| vlan.id().to_string())),
        ("path MTU", format!("{} B", info.mtu.bytes())),
        ("speed", speed),
        ("NUMA node", info.numa_node.map_or("unknown".into(), |node| node.to_string())),
        ("cores", info.cores.to_string()),
        ("receive queues", info.queues.to_string()),
        ("queue pairs", limits.max_qps.to_string()),
        ("completion queues", limits.max_cqs.to_string()),
        ("memory regions", limits.max_regions.to_string()),
        ("CQ depth", limits.max_cq_depth.to_string()),
        ("queue depth", limits.max_requests.to_string()),
        ("buffers a request", limits.max_sge.to_string()),
        ("inline", format!("{} B", limits.max_inline)),
        ("READs and atomics", format!("{} outstanding", limits.max_rd_atomic)),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<18} {value}");
    }
    let _ = writeln!(text, "\nGID  address                                  type");
    for (index, gid) in info.gids.entries() {
        let _ = writeln!(text, "{index:>3}  {:<40} {}", gid.to_string(), gid_type(gid));
    }
    text
}

fn gid_type(gid: IpAddr) -> &'static str {
    match gid {
        IpAddr::V4(_) => "RoCE v2, IPv4",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "RoCE v2, IPv6 link-local",
        IpAddr::V6(_) => "RoCE v2, IPv6",
    }
}

fn as_json(info: &DeviceInfo) -> Value {
    let limits = &info.limits;
    json!({
        "port": info.port,
        "driver": info.driver,
        "mac": info.mac.to_string(),
        "vlan": info.vlan.map(verbs::port::Vlan::id),
        "gids": info.gids.addresses().map(|gid| gid.to_string()).collect::<Vec<_>>(),
        "mtu": info.mtu.bytes(),
        "speed_mbps": info.speed_mbps,
        "numa_node": info.numa_node,
        "cores": info.cores,
        "queues": info.queues,
        "limits": {
            "max_qps": limits.max_qps,
            "max_cqs": limits.max_cqs,
            "max_regions": limits.max_regions,
            "max_cq_depth": limits.max_cq_depth,
            "max_requests": limits.max_requests,
            "max_sge": limits.max_sge,
            "max_inline": limits.max_inline,
            "max_rd_atomic": limits.max_rd_atomic,
        },
    })
}

/// Prints the counters of the devices that processes have open, on the named port or on all ports.
fn show_counters(args: &Args) -> Result<(), Failure> {
    let port = args.port.checked()?.port().map(str::to_owned);
    let (processes, silent) = why::processes(None)?;
    silent.iter().for_each(|error| note!("{error}"));
    let is_named = |device: &DeviceStatus| port.as_ref().is_none_or(|port| *port == device.port);
    let devices: Vec<(&ProcessStatus, &DeviceStatus)> = processes
        .iter()
        .flat_map(|process| process.devices.iter().map(move |device| (process, device)))
        .filter(|(_, device)| is_named(device))
        .collect();
    if let (true, Some(port)) = (devices.is_empty(), &port) {
        return Err(Failure::run(format!(
            "port {port}: no running process has it open; start one, or leave --port out"
        )));
    }
    if args.json {
        let counters = devices.iter().map(|(process, device)| {
            json!({
                "process": process.pid, "command": process.command, "port": device.port, "counters": device.counters,
                "discards": device.discards, "core": device.core,
            })
        });
        return outln!("{:#}", json!({ "devices": counters.collect::<Vec<_>>() }));
    }
    devices.iter().try_for_each(|(process, device)| {
        out!("process {} ({}), port {}\n{}", process.pid, process.command, device.port, counted(device))
    })
}

fn counted(device: &DeviceStatus) -> String {
    let named =
        device.counters.iter().chain(&device.core).map(|(name, value)| (name.replace('_', " "), *value));
    let dropped = device.discards.iter().map(|(reason, value)| (format!("dropped, {reason}"), *value));
    let counted = named.chain(dropped).filter(|(_, value)| *value > 0);
    counted.map(|(name, value)| format!(" {name:<27}: {value}\n")).collect()
}

fn show_interfaces(json: bool) -> Result<(), Failure> {
    let names = linux::interface_names();
    let found: Vec<_> = names.iter().filter_map(|name| linux::interface(name).ok()).collect();
    // Interfaces without an Ethernet address (lo, tun) can only be ports on UDP sockets.
    let port = |each: &linux::Interface| match each.mac.0 {
        [0, 0, 0, 0, 0, 0] => format!("udp:{}", each.name),
        _ => each.name.clone(),
    };
    if json {
        let ports = found.iter().map(|each| {
            json!({
                "port": port(each), "mac": each.mac.to_string(), "interface_mtu": each.mtu, "up": each.up,
                "carrier": each.running, "speed_mbps": each.speed_mbps,
            })
        });
        return outln!("{:#}", json!({ "ports": ports.collect::<Vec<_>>() }));
    }
    outln!("port             interface MTU  state     address")?;
    for each in &found {
        let state = if each.running { "up" } else { "no link" };
        outln!("{:<16} {:>13}  {state:<8}  {}", port(each), each.mtu, each.mac)?;
    }
    outln!(
        "\nThese Linux interfaces can be ports while they are up; name one: ferroce info --port NAME. All forms:"
    )?;
    outln!("{}", datapath::port_spec::FORMS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Mtu;
    use verbs::port::{DeviceLimits, GidTable, Mac, Vlan};

    fn info() -> DeviceInfo {
        DeviceInfo {
            port: "veth0".into(),
            driver: "net_af_packet".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan: Some(Vlan(5)),
            gids: GidTable::new(Mac([2, 0, 0, 0, 0, 1]), ["10.0.0.1".parse().unwrap()]),
            mtu: Mtu::M1024,
            longest_frame: Some(1518),
            interface: None,
            speed_mbps: None,
            numa_node: Some(1),
            cores: 2,
            queues: 2,
            limits: DeviceLimits {
                max_qps: 1024,
                max_cqs: 64,
                max_regions: 256,
                max_cq_depth: 65536,
                max_requests: 16384,
                max_sge: 4,
                max_inline: 236,
                max_rd_atomic: 16,
            },
        }
    }

    #[test]
    fn every_gid_has_its_index_and_type() {
        let text = as_text(&info());
        assert!(text.contains("VLAN               5\npath MTU           1024 B\n"), "{text}");
        assert!(text.contains("\n  1  10.0.0.1                                 RoCE v2, IPv4\n"), "{text}");
        assert!(
            text.contains("\n  0  fe80::ff:fe00:1                          RoCE v2, IPv6 link-local\n"),
            "{text}"
        );
    }

    #[test]
    fn json_has_the_same_values() {
        let json = as_json(&info());
        assert_eq!((&json["queues"], &json["numa_node"]), (&json!(2), &json!(1)));
        assert_eq!(json["gids"], json!(["fe80::ff:fe00:1", "10.0.0.1"]));
        assert_eq!(json["limits"]["max_qps"], 1024);
    }
}
