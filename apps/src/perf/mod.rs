//! The measuring tools in the style of perftest: a server, which has no address argument, and a client.

mod args;
mod bandwidth;
mod congestion;
mod cpu;
mod handshake;
mod latency;
mod link;
mod linked;
mod meet;
mod memory;
mod pattern;
mod perftest_flags;
mod phases;
mod plan;
mod rate_limit;
mod record;
mod report;
mod series;
mod session;
mod stats;
mod verify;

pub use args::PerfArgs;
pub use congestion::describe as describe_congestion;
pub use plan::{Kind, Tool, Verb};

use crate::failure::Failure;
use crate::output::OutFile;
use args::Language;
use handshake::perftest::Perftest;
use handshake::pingpong::Pingpong;
use handshake::{Handshake, JsonLines};
use meet::Reception;
use plan::Plan;
use session::Session;
use std::process::ExitCode;
use verbs::{Device, DeviceConfig};

/// Runs one side of `tool`.
///
/// # Errors
/// Returns a failure if the flags are wrong, or the test cannot be completed.
pub fn run(tool: Tool, args: &PerfArgs) -> Result<ExitCode, Failure> {
    let args = &args.with_perftests_port();
    if let Some(without_effect) = args.perftest.check(tool)? {
        note!("{without_effect}");
    }
    args.congestion.congestion(args.load.connection.unwrap_or_default())?;
    args.congestion.with_key(DeviceConfig::new())?;
    // A file that cannot be written is reported before the test.
    args.output.json_path().as_deref().map(OutFile::open).transpose()?;
    handshake::Pause::sleep_at_once(args.queue.events);
    crate::signals::listen()?;
    match &args.host {
        Some(host) => visit(host, tool, args),
        None => serve(tool, args),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Runs the client. Its port opens after the server's, because a memif client needs the server's socket.
fn visit(host: &str, tool: Tool, args: &PerfArgs) -> Result<(), Failure> {
    let mut plan = Plan::new(tool, args)?;
    args.port.device_config()?;
    let control = meet::connect(host, args.tcp_port, tool)?;
    let mut handshake: Box<dyn Handshake + Send> = match args.handshake {
        Language::Ferroce => Box::new(JsonLines::new(control)),
        Language::Perftest => Box::new(Perftest::new(control, plan.clone(), true)?),
        Language::Pingpong => Box::new(Pingpong::new(control, plan.clone(), true)?),
    };
    let device = open(args).inspect_err(|why| handshake.give_up(why))?;
    if args.handshake == Language::Perftest {
        plan.mtu = Some(own_mtu(&plan, &device)?);
    }
    let plan = handshake.propose(plan, &mut || Ok(device.progress()))?;
    measure(device, args, plan, handshake)
}

/// Runs the tests of all clients on one port. They begin after the last client has connected.
fn serve(tool: Tool, args: &PerfArgs) -> Result<(), Failure> {
    let mut own = Plan::new(tool, args)?;
    let device = open(args)?;
    own.mtu = Some(own_mtu(&own, &device)?);
    let mut reception = Reception::open(args.tcp_port)?;
    let clients = (0..args.clients)
        .map(|_| reception.accept(args, &own, &mut || Ok(device.progress())))
        .collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        let tests: Vec<_> = clients
            .into_iter()
            .map(|(plan, handshake)| scope.spawn(|| measure(device.clone(), args, plan, handshake)))
            .collect();
        tests.into_iter().try_for_each(|test| test.join().expect("a test does not panic"))
    })
}

fn open(args: &PerfArgs) -> Result<Device, Failure> {
    args.port.open_with(|config| args.congestion.with_key(config))
}

/// Returns the path MTU, bytes, that this side sends to the peer. Both use the smaller of their values.
fn own_mtu(plan: &Plan, device: &Device) -> Result<u32, Failure> {
    let carried = device.query().map_err(|error| Failure::run(error.to_string()))?.mtu.bytes();
    Ok(plan.mtu.unwrap_or(carried))
}

fn measure(
    device: Device,
    args: &PerfArgs,
    plan: Plan,
    mut handshake: Box<dyn Handshake + Send>,
) -> Result<(), Failure> {
    Session::new(device, args, plan)
        .and_then(|session| session.run(&mut *handshake))
        .inspect_err(|why| handshake.give_up(why))
}
