//! `ferroce run`: unmodified RDMA programs on the drop-in libraries.

mod device_file;
mod hosts;
mod library;
mod ranks;
mod stale;

use crate::failure::Failure;
use crate::{signals, units};
use cc::Rate;
use datapath::capabilities;
use datapath::port_spec::PortSpec;
use hosts::{Hosts, Link};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use verbs::{Address, ConfigError, CongestionRule, DeviceConfig, port_list};

/// The command line of `ferroce run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  On two hosts, each on its own interface:
    ferroce run --port eth0 -- ib_write_bw -F
    ferroce run --port eth0 -- ib_write_bw -F 10.0.0.1
  On this machine, without an RDMA device, a second interface or a second host:
    ferroce run --namespaces 2 -- ib_write_bw -F {peer}
    ferroce run --namespaces 2 -- ibv_rc_pingpong -g 0 {peer}
  Through a switch of 1 Gb/s whose ports stamp telemetry, paced by HPCC++:
    ferroce run --namespaces 2 --rate 1G --cc hpcc,line_rate=1G,base_rtt=1ms -- ib_write_bw -F {peer}

With --namespaces each rank has a host of its own. In PROGRAM and ARGS, {rank} is its number from 0, {ip} its own address, \
{peer} the address of rank 0; rank 0 itself, the server, runs without an argument that is {peer} alone.

Without root: a port on a Linux interface needs CAP_NET_RAW. A program that is given it by setcap ignores injected libraries, so give it \
to ferroce, which hands it on: setcap cap_net_raw,cap_ipc_lock+ep $(command -v ferroce). Everybody who may execute that file then has it.

The libraries are built by `scripts/dropin`. FERROCE_LOG=info logs to standard error what they do.")]
pub struct Args {
    /// Port: veth0, tap:rdma0, memif:/run/x.sock, pci:0000:01:00.0; several are several devices: eth0,eth1 [default: as ferroce.toml says]
    #[arg(short = 'd', long, value_name = "PORT", env = "FERROCE_PORT", conflicts_with = "namespaces")]
    port: Option<String>,
    /// Our address, where the kernel gives the port none: 10.0.0.1/24,fd00::1/64
    #[arg(long, value_name = "ADDRESS", env = "FERROCE_IP", conflicts_with = "namespaces")]
    ip: Option<String>,
    /// The VLAN whose frames the port sends and takes, 1 to 4094; its addresses are those of --ip
    #[arg(long, value_name = "ID", env = "FERROCE_VLAN", conflicts_with = "namespaces", value_parser = clap::value_parser!(u16).range(1..=4094))]
    vlan: Option<u16>,
    /// Congestion control of queue pairs: fixed, hpcc, hpcc-fair, hpcc-rx, powertcp, dctcp, dcqcn, swift or auto, then keys of a rule in ferroce.toml,
    /// as in hpcc,line_rate=1G,base_rtt=2ms
    #[arg(long, value_name = "NAME[,KEY=VALUE...]", env = "FERROCE_CC")]
    cc: Option<String>,
    /// Settings from this file [default: ferroce.toml in this folder, if there is one]
    #[arg(long, value_name = "FILE", env = "FERROCE_CONFIG")]
    config: Option<PathBuf>,
    /// Make so many connected hosts on this machine and run the command in each; as root
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    namespaces: Option<u8>,
    /// Queue pairs that the device may have, and as many completion queues [default: 1024]
    #[arg(long, value_name = "N", env = "FERROCE_QUEUE_PAIRS")]
    queue_pairs: Option<u32>,
    /// With --namespaces: the links' MTU
    #[arg(long, value_name = "BYTES", default_value_t = 4200, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// With --namespaces: through `ferroce switch`, also where two hosts need none
    #[arg(long, requires = "namespaces")]
    switch: bool,
    /// With --namespaces: through `ferroce switch` whose ports send so much at most, as in 1G. Only ports with a rate stamp
    /// telemetry
    #[arg(long, value_name = "RATE", requires = "namespaces", value_parser = units::rate)]
    rate: Option<Rate>,
    /// What to run.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Runs the program in this process's place, or in each of the hosts.
///
/// # Errors
/// Where the libraries or the program are missing, or the hosts can't be made.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    check(args)?;
    let libraries = library::folder()?;
    let settings = settings(args)?;
    if let Some(count) = args.namespaces {
        signals::listen()?;
        let link = match args.rate {
            Some(rate) => Link::Shaped(rate),
            None if args.switch || count > 2 => Link::Switch,
            None => Link::Cable,
        };
        let hosts = Hosts::make(count, args.mtu, link)?;
        return ranks::run(&hosts, &libraries, &args.command, &settings);
    }
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::usage("no program is named"))?;
    let apart = device_file::apart(program, rest);
    let (first, others) = apart.as_deref().and_then(<[_]>::split_first).unwrap_or((program, rest));
    let mut command = Command::new(first);
    // A kernel without ambient capabilities gives the program what it gave before.
    if let Err(error) = capabilities::hand_on() {
        tracing::debug!("capabilities are not handed on: {error}");
    }
    command.args(others).env("LD_LIBRARY_PATH", library::search_path(&libraries)).envs(settings);
    // Returns only where it failed.
    let error = command.exec();
    Err(Failure::program(program, &error))
}

/// What the program would only find out when it opens its device.
fn check(args: &Args) -> Result<(), Failure> {
    let wrong = |wrong: &dyn std::fmt::Display| Failure::usage(wrong.to_string());
    let configs = match &args.config {
        Some(file) => DeviceConfig::all_from_file(file).map_err(|error| wrong(&error))?,
        None => vec![DeviceConfig::new()],
    };
    if let Some(text) = &args.cc {
        text.parse::<CongestionRule>().map_err(|why| wrong(&format!("--cc {text}: {why}")))?;
    }
    let ports = match &args.port {
        Some(ports) => port_list(ports),
        None => configs.iter().filter_map(DeviceConfig::port).collect(),
    };
    if let Some(addresses) = &args.ip {
        if ports.len() > 1 {
            return Err(wrong(&ConfigError::AddressesOfSeveral { devices: ports.len() }));
        }
        for address in addresses.split(',') {
            let _: Address = address.trim().parse().map_err(|error: ConfigError| wrong(&error))?;
        }
    }
    if let Some(most) = args.queue_pairs {
        DeviceConfig::new().queue_pairs(most).map_err(|error| wrong(&error))?;
    }
    for port in ports {
        port.parse::<PortSpec>().map_err(|error| wrong(&error))?;
    }
    Ok(())
}

/// What the libraries read from the program's environment.
fn settings(args: &Args) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut settings: Vec<(_, OsString)> = Vec::new();
    for (name, value) in [("FERROCE_PORT", &args.port), ("FERROCE_IP", &args.ip), ("FERROCE_CC", &args.cc)] {
        settings.extend(value.as_ref().map(|value| (name, value.into())));
    }
    settings.extend(args.queue_pairs.map(|most| ("FERROCE_QUEUE_PAIRS", most.to_string().into())));
    settings.extend(args.vlan.map(|vlan| ("FERROCE_VLAN", vlan.to_string().into())));
    if let Some(file) = &args.config {
        let file =
            file.canonicalize().map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        settings.push(("FERROCE_CONFIG", file.into()));
    }
    settings.extend(device_file::setting());
    Ok(settings)
}
