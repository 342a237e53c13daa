//! `ferroce run`: unmodified RDMA programs on the drop-in libraries.

pub mod device_file;
pub mod environment;
pub mod guard;
mod hosts;
pub mod library;
mod ranks;
mod settings;
mod stale;

use crate::failure::Failure;
use crate::{signals, units};
use cc::Rate;
use datapath::capabilities;
use hosts::{Hosts, Link};
use settings::Settings;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The command line of `ferroce run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  On two hosts, each on its own interface:
    ferroce run --port eth0 -- ib_write_bw -F
    ferroce run --port eth0 -- ib_write_bw -F 10.0.0.1
  On this machine alone, without an RDMA device or a second interface:
    ferroce run --namespaces 2 -- ib_write_bw -F {peer}
    ferroce run --namespaces 2 -- ibv_rc_pingpong -g 0 {peer}
  Through a switch of 1 Gb/s whose ports write telemetry, paced by HPCC++:
    ferroce run --namespaces 2 --rate 1G --cc hpcc,line_rate=1G,base_rtt=1ms -- ib_write_bw -F {peer}

With --namespaces, each rank runs on its own virtual host. In PROGRAM and its arguments, {rank} stands for the rank's number from 0, {ip} \
for its address and {peer} for the address of rank 0. Rank 0 is the server: an argument that is only {peer} is left out there.

Without root: a port on a Linux interface is faster with CAP_NET_RAW. A program with file capabilities ignores injected libraries. Give them to \
ferroce instead, which passes them on: setcap cap_net_raw,cap_ipc_lock+ep $(command -v ferroce). Every user who may execute that file then has them.

The package ferroce-ibverbs contains the libraries; `scripts/build` builds them. FERROCE_LOG=info makes them log to standard error. \
`ferroce env` prepares a shell in which programs need no wrapper.")]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    settings: Settings,
    /// Create N connected virtual hosts on this machine and run the command in each; needs root
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    namespaces: Option<u8>,
    /// With --namespaces: MTU of the links
    #[arg(long, value_name = "BYTES", default_value_t = 4200, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// With --namespaces: connect two hosts by `ferroce switch`, too; three or more always use it
    #[arg(long, requires = "namespaces")]
    switch: bool,
    /// With --namespaces: connect the hosts by `ferroce switch` and limit its ports to this rate, such as 1G. Only ports with a rate
    /// write telemetry
    #[arg(long, value_name = "RATE", requires = "namespaces", value_parser = units::rate)]
    rate: Option<Rate>,
    /// Program to run, with its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Executes the program in this process, or runs it in each of the hosts.
///
/// # Errors
/// Returns a failure if the libraries or the program are missing, or the hosts cannot be created.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let folder = library::folder()?;
    if let Some(count) = args.namespaces {
        let settings = args.settings.for_namespaces()?.variables(&folder)?;
        signals::listen()?;
        let link = match args.rate {
            Some(rate) => Link::Shaped(rate),
            None if args.switch || count > 2 => Link::Switch,
            None => Link::Cable,
        };
        let hosts = Hosts::make(count, args.mtu, link)?;
        return ranks::run(&hosts, &args.command, &settings);
    }
    let settings = args.settings.variables(&folder)?;
    args.settings.warn_without_port();
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("no program is named; give it after `--`"))?;
    let devices = args.settings.devices();
    device_file::place(&args.command, &devices);
    device_file::describe_devices(&devices);
    let mut command = Command::new(program);
    // On a kernel without ambient capabilities, the program runs without them.
    if let Err(error) = capabilities::hand_on() {
        tracing::debug!("capabilities are not handed on: {error}");
    }
    command.args(rest).envs(settings).envs(guard::setting());
    // Returns only if it failed.
    let error = command.exec();
    Err(Failure::program(program, &error))
}
