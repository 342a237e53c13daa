//! Detects that an interface of the switch's ports was deleted, which frames do not show.

use crate::failure::Failure;
use crate::signals::Interface;
use cc::Instant;
use datapath::port_spec::PortSpec;
use std::time::Duration;

/// The interval between checks.
const LOOK: Duration = Duration::from_millis(250);

/// The interfaces of the ports.
pub struct Links {
    interfaces: Vec<Interface>,
    left: usize,
    next: Instant,
}

impl Links {
    /// Finds the interfaces of `ports`. A port without a Linux interface always counts as present.
    pub fn of(ports: &[PortSpec]) -> Self {
        let interfaces = ports.iter().filter_map(Interface::of).collect();
        Self { interfaces, left: ports.len(), next: Instant::ZERO }
    }

    /// Checks the interfaces at most every 250 ms. Prints the loss of each once.
    ///
    /// # Errors
    /// Returns a failure when fewer than two ports remain, between which no frame can be forwarded.
    pub fn check(&mut self, now: Instant) -> Result<(), Failure> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + LOOK;
        self.check_by(Interface::loss)
    }

    fn check_by(&mut self, loss: impl Fn(&Interface) -> Option<String>) -> Result<(), Failure> {
        let (before, mut last) = (self.left, String::new());
        self.interfaces.retain(|interface| match loss(interface) {
            None => true,
            Some(loss) => {
                self.left -= 1;
                if self.left >= 2 {
                    note!("{loss}; the other ports go on");
                }
                last = loss;
                false
            }
        });
        if self.left < before && self.left < 2 {
            return Err(Failure::run(format!(
                "{last}; the switch ends, since fewer than two ports are left"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_goes_on_while_two_ports_are_left() {
        let lo = || PortSpec::Interface("lo".into());
        let gone = |_: &Interface| Some("interface lo is gone".to_owned());
        let mut links = Links::of(&[lo(), PortSpec::Null, PortSpec::Null]);
        assert!(links.check(Instant::ZERO).is_ok());
        assert!(links.check_by(gone).is_ok() && links.check_by(gone).is_ok());
        let mut links = Links::of(&[lo(), PortSpec::Null]);
        let ended = links.check_by(gone).unwrap_err().to_string();
        assert!(ended.contains("lo is gone") && ended.contains("fewer than two"), "{ended}");
    }
}
