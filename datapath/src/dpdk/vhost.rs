//! Chooses the role of a port on a vhost-user socket.

use super::prepare::PortError;
use crate::port_spec::{PortSpec, SocketRole};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;

/// Returns the driver's role and socket, or `None` if `spec` is another kind of port.
///
/// The server's driver does not replace the socket file of a process that has ended, and the client's driver does not wait for a server. So
/// this removes the file, and checks for the server.
pub(super) fn driver_side(spec: &PortSpec) -> Result<Option<(SocketRole, String)>, PortError> {
    let PortSpec::Virtio { socket, role } = spec else { return Ok(None) };
    let error = |why: String, remedy| PortError::Socket { socket: socket.clone(), why, remedy };
    let role = match (role, listens(socket)) {
        (SocketRole::Auto | SocketRole::Client, true) => SocketRole::Client,
        (SocketRole::Client, false) => {
            return Err(error("no server listens there".into(), "start the server first"));
        }
        (SocketRole::Server, true) => {
            let remedy = "be its client, or choose another path";
            return Err(error("another server listens there".into(), remedy));
        }
        (SocketRole::Auto | SocketRole::Server, false) => {
            remove_left_over(socket).map_err(|e| error(e.to_string(), "remove it"))?;
            SocketRole::Server
        }
    };
    Ok(Some((role, socket.clone())))
}

/// Returns true if a server listens on `socket`. A vhost-user server would accept a connection as its next client and drop the current one,
/// so this reads the kernel's list first. The list does not contain sockets of other network namespaces.
fn listens(socket: &str) -> bool {
    const ACCEPTS: &str = "00010000";
    let list = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_it = |line: &str| {
        let mut fields = line.split_whitespace();
        fields.nth(3) == Some(ACCEPTS) && fields.nth(3) == Some(socket)
    };
    list.lines().any(is_it) || UnixStream::connect(socket).is_ok()
}

fn remove_left_over(socket: &str) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
