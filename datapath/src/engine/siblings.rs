//! Connects a core to the other processes on its interface.

use super::config::{CoreConfig, StartError};
use super::control::Commands;
use super::management::MAD_UDP_SOURCE;
use super::station::Station;
use crate::event_fd::EventFd;
use crate::neighbour::{Asked, Kernel};
use crate::siblings::{Delivery, Events, Farewell, Member, Siblings};
use roce::wire::{Mac, Path, Vlan};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Number of attempts to resolve a peer of a process that died, and the time between them.
const LOOKS: u32 = 3;
const LOOK: Duration = Duration::from_millis(5);

pub(super) fn join(config: &CoreConfig) -> Result<Option<Siblings>, StartError> {
    let delivery = if config.peers.is_some() { Delivery::ToOne } else { Delivery::ToAll };
    let join = |interface| Siblings::join(interface, delivery);
    let mut siblings = config.interface.map(join).transpose()?;
    // A guard finds a peer's Ethernet address in the kernel's table, which has none of this device's VLAN.
    if let (Some(siblings), Some(interface), None) = (&mut siblings, config.interface, config.vlan) {
        siblings.prepare_guard(interface);
    }
    Ok(siblings)
}

/// Makes the core learn of processes that join, leave and die.
pub(super) fn watch(
    siblings: &mut Siblings,
    config: &CoreConfig,
    commands: &Commands,
    kernel: Option<Arc<Kernel>>,
) -> io::Result<()> {
    let bell = siblings.bell()?;
    let commands = commands.clone();
    siblings.watch(Box::new(Tells { commands, bell, kernel, mac: config.mac, vlan: config.vlan }))
}

struct Tells {
    commands: Commands,
    /// Ends a sleep of the core.
    bell: EventFd,
    kernel: Option<Arc<Kernel>>,
    mac: Mac,
    vlan: Option<Vlan>,
}

impl Tells {
    fn send(&self, command: impl FnOnce(&mut Station) + Send + 'static) {
        // Fails if the core has stopped, which needs no message.
        self.commands.send(Box::new(move |station, _| command(station)));
        self.bell.signal();
    }
}

/// Returns the Ethernet address of a peer from the kernel's table; `own` is the interface's. The peer has sent frames, so it is probably there.
pub(super) fn find(kernel: &Kernel, peer: IpAddr, own: Mac) -> Option<Mac> {
    for _ in 0..LOOKS {
        match kernel.resolve(peer, own) {
            Ok(Asked::Known(mac)) => return Some(mac),
            Ok(Asked::Asking) => std::thread::sleep(LOOK),
            Err(_) => return None,
        }
    }
    None
}

impl Events for Tells {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        self.send(move |station| {
            if let Some(lanes) = &mut station.lanes {
                lanes.add(slot, member);
            }
        });
    }

    fn left(&self, slot: u8) {
        self.send(move |station| {
            if let Some(lanes) = &mut station.lanes {
                lanes.remove(slot);
            }
        });
    }

    fn died(&self, farewell: Farewell) {
        let found = self.kernel.as_ref().and_then(|kernel| find(kernel, farewell.destination, self.mac));
        let (vlan, mac) = (self.vlan, self.mac);
        self.send(move |station| {
            let Farewell { source, destination, mad, .. } = farewell;
            let Some(to) = found.or_else(|| station.neighbours.last_known(destination)) else { return };
            let path = Path::new((mac, source), (to, destination));
            station.part(Path { vlan, udp_source: MAD_UDP_SOURCE, ..path }, mad);
        });
    }
}
