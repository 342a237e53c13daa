//! `ferroce run`: unmodified RDMA programs on the drop-in libraries.

mod device_file;
pub mod environment;
mod hosts;
mod library;
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
  On this machine, without an RDMA device, a second interface or a second host:
    ferroce run --namespaces 2 -- ib_write_bw -F {peer}
    ferroce run --namespaces 2 -- ibv_rc_pingpong -g 0 {peer}
  Through a switch of 1 Gb/s whose ports stamp telemetry, paced by HPCC++:
    ferroce run --namespaces 2 --rate 1G --cc hpcc,line_rate=1G,base_rtt=1ms -- ib_write_bw -F {peer}

With --namespaces each rank has a host of its own. In PROGRAM and ARGS, {rank} is its number from 0, {ip} its own address, \
{peer} the address of rank 0; rank 0 itself, the server, runs without an argument that is {peer} alone.

Without root: a port on a Linux interface needs CAP_NET_RAW. A program that is given it by setcap ignores injected libraries, so give it \
to ferroce, which hands it on: setcap cap_net_raw,cap_ipc_lock+ep $(command -v ferroce). Everybody who may execute that file then has it.

The libraries come with the package ferroce-ibverbs, or from `scripts/dropin`. FERROCE_LOG=info logs to standard error what they do. \
`ferroce env` prepares a shell instead, so that programs in it need no wrapper.")]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    settings: Settings,
    /// Make so many connected hosts on this machine and run the command in each; as root
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    namespaces: Option<u8>,
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
/// Returns a failure if the libraries or the program are missing, or the hosts can't be made.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.namespaces.is_some() {
        args.settings.check_for_namespaces()?;
    }
    let settings = args.settings.variables()?;
    let libraries = library::folder()?;
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
