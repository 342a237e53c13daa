//! Connects a core to the other processes on its interface.

use super::config::{CoreConfig, StartError};
use super::control::Commands;
use super::core_state::CoreState;
use super::management::MAD_UDP_SOURCE;
use crate::event_fd::EventFd;
use crate::neighbour::{Kernel, Resolution};
use crate::siblings::{Delivery, DisconnectNotice, Events, Member, MemberFlows, Siblings};
use roce::wire::{Mac, Path, Vlan};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Number of attempts to resolve a peer of a process that has ended, and the time between them.
const TRIES: u32 = 3;
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

pub(super) fn join(config: &CoreConfig) -> Result<Option<Siblings>, StartError> {
    let delivery = if config.peer_mac.is_some() { Delivery::ToOne } else { Delivery::ToAll };
    let join = |interface| Siblings::join(interface, delivery);
    let mut siblings = config.interface.map(join).transpose()?;
    // A guard looks up Ethernet addresses in the kernel's table, which has no entries for this device's VLAN.
    if let (Some(siblings), Some(interface), None) = (&mut siblings, config.interface, config.vlan) {
        siblings.prepare_guard(interface);
    }
    Ok(siblings)
}

/// Starts informing the core of processes that join, leave and end.
pub(super) fn watch(
    siblings: &mut Siblings,
    config: &CoreConfig,
    commands: &Commands,
    (kernel, flows): (Option<Arc<Kernel>>, Option<Arc<MemberFlows>>),
) -> io::Result<()> {
    let event_fd = siblings.event_fd()?;
    let (commands, mac, vlan) = (commands.clone(), config.mac, config.vlan);
    siblings.watch(Box::new(CoreNotifier { commands, event_fd, kernel, flows, mac, vlan }))
}

struct CoreNotifier {
    commands: Commands,
    /// Wakes the core.
    event_fd: EventFd,
    kernel: Option<Arc<Kernel>>,
    flows: Option<Arc<MemberFlows>>,
    mac: Mac,
    vlan: Option<Vlan>,
}

impl CoreNotifier {
    fn send(&self, command: impl FnOnce(&mut CoreState) + Send + 'static) {
        // Fails if the core has stopped. It then needs no command.
        self.commands.send(Box::new(move |state, _| command(state)));
        self.event_fd.signal();
    }
}

/// Returns the Ethernet address of a peer from the kernel's table; `own` is the interface's. The peer has sent frames, so the table
/// probably has an entry for it.
pub(super) fn find(kernel: &Kernel, peer: IpAddr, own: Mac) -> Option<Mac> {
    for _ in 0..TRIES {
        match kernel.resolve(peer, own) {
            Ok(Resolution::Resolved(mac)) => return Some(mac),
            Ok(Resolution::Pending) => std::thread::sleep(RETRY_INTERVAL),
            Err(_) => return None,
        }
    }
    None
}

impl Events for CoreNotifier {
    fn joined(&self, slot: u8, member: Arc<Member>) {
        if let Some(flows) = &self.flows {
            member.join_flows(slot, flows);
        }
        self.send(move |state| {
            if let Some(member_rings) = &mut state.member_rings {
                member_rings.add(slot, member);
            }
        });
    }

    fn left(&self, slot: u8) {
        if let Some(flows) = &self.flows {
            flows.remove(slot);
        }
        self.send(move |state| {
            if let Some(member_rings) = &mut state.member_rings {
                member_rings.remove(slot);
            }
        });
    }

    fn died(&self, notice: DisconnectNotice) {
        let found = self.kernel.as_ref().and_then(|kernel| find(kernel, notice.destination, self.mac));
        let (vlan, mac) = (self.vlan, self.mac);
        self.send(move |state| {
            let DisconnectNotice { source, destination, mad, .. } = notice;
            let Some(to) = found.or_else(|| state.neighbours.last_known(destination)) else { return };
            let path = Path::new((mac, source), (to, destination));
            state.send_disconnect(Path { vlan, udp_source: MAD_UDP_SOURCE, ..path }, mad);
        });
    }
}
