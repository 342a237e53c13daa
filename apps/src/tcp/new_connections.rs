//! Sets the default congestion control of new connections in this network namespace.

use crate::failure::Failure;

const FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The prefix of the names of Ferroce's own congestion controls. If `ferroce tcp` is killed, its name remains in [`FILE`], and the previous
/// name is lost.
const LEFT: &str = "hpcc_";
/// The congestion controls that unprivileged programs may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// A default congestion control that is restored on drop.
#[derive(Debug)]
pub struct NewConnections {
    ours: String,
    before: String,
}

impl NewConnections {
    /// Makes `name` the default.
    ///
    /// # Errors
    /// Returns a failure if the default cannot be read or written.
    pub fn set(name: &str) -> Result<Self, Failure> {
        let failed = |error| {
            Failure::run(format!("{FILE}: {error}; {}", datapath::capabilities::remedy_for_root_file()))
        };
        let before = std::fs::read_to_string(FILE).map_err(failed)?.trim().to_owned();
        let before = if before.starts_with(LEFT) { usual().map_err(failed)? } else { before };
        std::fs::write(FILE, name).map_err(failed)?;
        Ok(Self { ours: name.to_owned(), before })
    }
}

/// Returns an allowed congestion control other than Ferroce's: the last one that is not reno, or else reno.
fn usual() -> std::io::Result<String> {
    let allowed = std::fs::read_to_string(ALLOWED)?;
    let usual =
        allowed.split_whitespace().filter(|name| !name.starts_with(LEFT)).max_by_key(|name| *name != "reno");
    Ok(usual.unwrap_or("reno").to_owned())
}

impl Drop for NewConnections {
    /// Restores the previous congestion control, unless the default was changed in the meantime.
    fn drop(&mut self) {
        if std::fs::read_to_string(FILE).is_ok_and(|now| now.trim() == self.ours)
            && let Err(error) = std::fs::write(FILE, &self.before)
        {
            tracing::warn!(
                "{FILE}: {error}; new connections still have {}: write {}",
                self.ours,
                self.before
            );
        }
    }
}
