//! `ferroce fault`: injects a fault into a running process.

use crate::failure::Failure;
use std::process::ExitCode;
use verbs::fault::Fault;
use verbs::observe;

/// The faults and examples in the help.
pub const HELP: &str = "\
Faults:
  port-down       the port is down, and no frame leaves or arrives, until port-up: IBV_EVENT_PORT_ERR
  port-up         the port is up, if its interface is: IBV_EVENT_PORT_ACTIVE
  gid-remove N    the GID at index N is removed until the device is opened again: IBV_EVENT_GID_CHANGE
  device-fatal    the device ends, and its queue pairs complete in error: IBV_EVENT_DEVICE_FATAL
  fail VERB ERRNO [after N]
                  a call of the verb fails without any effect: the next one, or the one after N calls

Faults of a port apply to every device that the process has open.
VERB is open_device, query_device, query_port, query_gid, alloc_pd, reg_mr, create_comp_channel, create_cq, create_srq, create_qp, \
modify_qp, create_ah, post_send, post_recv, post_srq_recv, poll_cq, req_notify_cq, get_cq_event, rdma_create_event_channel, \
rdma_create_id, rdma_bind_addr, rdma_listen, rdma_resolve_addr, rdma_resolve_route, rdma_create_qp, rdma_connect or rdma_accept.
ERRNO is a name such as ENOMEM, or a number. At most 64 calls that fail are armed at a time.

Examples:
  ferroce fault 1234 port-down
  ferroce fault 1234 gid-remove 1
  ferroce fault 1234 fail reg_mr ENOMEM after 3
  FERROCE_FAULTS='fail create_qp ENOMEM; port-down' ferroce run -- ib_write_bw     from the start, for CI

Only the process's user and root can inject faults.";

/// The command line of `ferroce fault`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Process that the fault is injected into
    pub pid: u32,
    /// The fault
    #[arg(required = true, value_name = "FAULT")]
    pub words: Vec<String>,
}

/// Injects the fault, and prints it when it has taken effect.
///
/// # Errors
/// Returns a failure if the words are not a fault, or the process cannot be observed or refuses the fault.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let fault: Fault = args.words.join(" ").parse().map_err(|error| Failure::usage(format!("{error}")))?;
    let devices = observe::inject(args.pid, &fault).map_err(|error| Failure::run(error.to_string()))?;
    let pid = args.pid;
    match fault {
        Fault::Fail(_) => outln!("process {pid}: {fault}: armed")?,
        Fault::Port(_) => match devices {
            0 => outln!("process {pid}: {fault}: it has ended")?,
            1 => outln!("process {pid}: {fault}: 1 device")?,
            devices => outln!("process {pid}: {fault}: {devices} devices")?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::fault::{MAX_FAILING, Verb};

    #[test]
    fn the_help_names_every_verb_and_the_limit() {
        for verb in Verb::ALL {
            assert!(HELP.contains(verb.name()), "{verb}");
        }
        assert!(HELP.contains(&format!("At most {MAX_FAILING} ")));
    }
}
