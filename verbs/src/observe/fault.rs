//! The observer's side of faults on demand: requests one of a running process.

use super::client::{self, AttachError};
use super::fault_server::{self, FaultReply};
use crate::fault::{Fault, PortFault};
use std::io::{ErrorKind, Write};
use std::net::Shutdown;

/// Limit of an answer, bytes. It is a line with one error.
const MAX_ANSWER: usize = 4096;

/// Injects a fault into process `pid`: into every device that it has open, or into the calls of the whole process. When this function
/// returns, the fault has taken effect. Returns the number of devices. It is 0 for a call that fails, and if the process has ended because
/// its device did.
///
/// # Errors
/// Returns an [`AttachError`] if this user cannot observe the process, or the process refuses the fault.
pub fn inject(pid: u32, fault: &Fault) -> Result<usize, AttachError> {
    let system = |error| AttachError::System { pid, error };
    let (mut connection, _) = client::attach(pid, &client::socket(pid)?)?;
    match connection.write_all(fault_server::request(fault).as_bytes()) {
        // A process with a format before 2 answers and closes the connection without reading the request.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.map_err(system)?,
    }
    connection.shutdown(Shutdown::Write).map_err(system)?;
    let mut left = MAX_ANSWER;
    let answer = client::receive(pid, connection, |bytes| {
        let is_granted = bytes <= left;
        left = left.saturating_sub(bytes);
        is_granted
    });
    let is_fatal = *fault == Fault::Port(PortFault::DeviceFatal);
    let reply: FaultReply = match answer {
        // The report of a process without faults is longer.
        Err(AttachError::TooLong(_)) => FaultReply::default(),
        // Many programs end when their device does, some before the answer.
        Err(AttachError::Ended(_)) if is_fatal => return Ok(0),
        Ok(answer) if is_fatal && answer.is_empty() => return Ok(0),
        answer => client::checked(pid, &answer?)?,
    };
    let refused = |reason| AttachError::Refused { pid, reason };
    match (reply.refused, reply.accepted) {
        (Some(reason), _) => Err(refused(reason)),
        (None, Some(accepted)) => Ok(accepted),
        (None, None) => {
            Err(refused("it has a version of Ferroce without faults; start it with this version".into()))
        }
    }
}
