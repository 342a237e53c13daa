//! Measuring tools in the manner of perftest: a server without an address, a client with one.

mod args;
mod bandwidth;
mod handshake;
mod latency;
mod link;
mod meet;
mod pattern;
mod plan;
mod record;
mod report;
mod session;
mod stats;

pub use args::PerfArgs;
pub use plan::{Kind, Tool, Verb};

use crate::failure::Failure;
use handshake::Handshake;
use plan::Plan;
use session::Session;
use std::process::ExitCode;

/// Runs one side of `tool`.
///
/// # Errors
/// Why the test could not be run to its end.
pub fn run(tool: Tool, args: &PerfArgs) -> Result<ExitCode, Failure> {
    args.congestion.congestion()?;
    let plan = Plan::new(tool, args)?;
    // A server listens once its port is open. The client's port comes second: memif's client needs the server's.
    let (device, plan, mut handshake) = match &args.host {
        Some(host) => {
            args.port.device_config()?;
            let mut handshake = meet::connect(host, args.tcp_port, tool)?;
            let device = args.port.open().inspect_err(|why| handshake.give_up(why))?;
            handshake.propose(&plan, &mut || Ok(device.progress()))?;
            (device, plan, handshake)
        }
        None => {
            let device = args.port.open()?;
            let (plan, handshake) = meet::accept(args, tool, &mut || Ok(device.progress()))?;
            (device, plan, handshake)
        }
    };
    let result = Session::new(device, args, plan).and_then(|session| session.run(&mut handshake));
    if let Err(why) = &result {
        handshake.give_up(why);
    }
    result.map(|()| ExitCode::SUCCESS)
}
