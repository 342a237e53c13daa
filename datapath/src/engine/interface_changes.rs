//! Applies changes to an open port: those of its Linux interface, and [faults](super::fault) that an observer injects. As with Linux's
//! `rxe`, the GID table and the port's state follow the interface.

use super::attributes::Attributes;
use super::config::CoreConfig;
use super::control::{Command, Commands};
use super::ending::end_core;
use super::events::{AsyncEvent, Subscribers};
use super::fault::PortFaultError;
use crate::event_fd::EventFd;
use crate::linux;
use crate::neighbour::{Address, Change, Kernel, addresses_of};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// The last known state of a port and its interface, and the subscribers to its changes.
pub(super) struct InterfaceChanges {
    /// The port's name.
    name: String,
    /// The port's Linux interface, if it has one.
    index: Option<u32>,
    /// Whether the interface has a carrier; true for a port without an interface.
    has_carrier: bool,
    /// The state of the port that was reported last.
    is_running: bool,
    is_gone: bool,
    addresses: Vec<Address>,
    /// Whether the port has the interface's addresses. It has others on a VLAN.
    follows_addresses: bool,
    /// Addresses that a fault removed. The kernel may report them again.
    removed_by_fault: Vec<IpAddr>,
    /// The addresses that the user chose among those of the interface. The port uses no others.
    chosen: Option<Vec<IpAddr>>,
    attributes: Arc<Attributes>,
    subscribers: Arc<Subscribers>,
    kernel: Option<Arc<Kernel>>,
    /// Core 0, whose neighbour table has the addresses.
    main: Commands,
    /// Wakes core 0, if the port is on an interface.
    event_fd: Option<EventFd>,
}

impl InterfaceChanges {
    /// `kernel` resolves the port's neighbours, unless it is on a VLAN or has no interface.
    pub(super) fn new(
        config: &CoreConfig,
        attributes: Arc<Attributes>,
        subscribers: Arc<Subscribers>,
        kernel: Option<Arc<Kernel>>,
        (main, event_fd): (Commands, Option<EventFd>),
    ) -> Self {
        let chosen = config.addresses_chosen.then(|| config.addresses.iter().map(|it| it.ip).collect());
        let index = config.interface;
        let has_carrier = index.is_none_or(|index| linux::interface_at(index).is_ok_and(|it| it.running));
        Self {
            name: config.name.clone(),
            index,
            has_carrier,
            is_running: has_carrier,
            is_gone: false,
            addresses: config.addresses.clone(),
            follows_addresses: index.is_some() && config.vlan.is_none(),
            removed_by_fault: Vec::new(),
            chosen,
            attributes,
            subscribers,
            kernel,
            main,
            event_fd,
        }
    }

    pub(super) fn apply(&mut self, change: Change) {
        match change {
            _ if self.is_gone => {}
            Change::Added(address) if self.follows_addresses => self.add(address),
            Change::Removed(address) if self.follows_addresses => self.remove(&address),
            Change::Added(_) | Change::Removed(_) => {}
            Change::Link { is_running, mtu } => {
                if let Some(mtu) = mtu {
                    self.set_mtu(mtu);
                }
                self.set_carrier(is_running);
            }
            Change::Gone => self.end(),
            Change::Lost => match self.read() {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => self.end(),
                // The last known state remains.
                Err(error) => tracing::warn!("{}: cannot read its interface's state: {error}", self.name),
                Ok(()) => {}
            },
        }
    }

    /// Holds the port down, whatever the state of its interface, or releases it.
    pub(super) fn hold_down(&mut self, is_held: bool) {
        self.attributes.hold_down(is_held);
        self.report_state();
    }

    /// Removes the address at `index` of the GID table.
    ///
    /// # Errors
    /// Returns an error if the index has no address, or the default GID, which belongs to the Ethernet address.
    pub(super) fn remove_gid(&mut self, index: usize) -> Result<(), PortFaultError> {
        let gids = self.attributes.gids().clone();
        let present = || gids.entries().map(|(index, _)| index).filter(|index| *index > 0).collect();
        let address = gids.get(index).filter(|_| index > 0);
        let address = address.ok_or_else(|| PortFaultError::Gid {
            port: self.name.clone(),
            index,
            present: present(),
        })?;
        self.removed_by_fault.push(address);
        let prefixes: Vec<_> = self.addresses.iter().filter(|known| known.ip == address).copied().collect();
        prefixes.iter().for_each(|prefix| self.remove(prefix));
        Ok(())
    }

    /// Ends the cores, because the interface can no longer send or receive.
    fn end(&mut self) {
        self.is_gone = true;
        self.set_carrier(false);
        let name = self.name.rsplit(':').next().unwrap_or(&self.name);
        let reason = format!(
            "interface {name} is gone, deleted or moved to another namespace; restore it, then open the device again"
        );
        self.send_to_main(Box::new(move |_, _| end_core(reason)));
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(index) = self.index else { return Ok(()) };
        if self.follows_addresses {
            let before = self.addresses.clone();
            let present = addresses_of(index)?;
            present.iter().for_each(|address| self.add(*address));
            let is_chosen = self.chosen.is_some();
            let is_gone = |old: &&Address| !present.iter().any(same_as(old, is_chosen));
            before.iter().filter(is_gone).for_each(|old| self.remove(old));
        }
        let present = linux::interface_at(index)?;
        self.set_mtu(present.mtu);
        self.set_carrier(present.running);
        Ok(())
    }

    fn add(&mut self, address: Address) {
        let is_refused = self.chosen.as_ref().is_some_and(|chosen| !chosen.contains(&address.ip))
            || self.removed_by_fault.contains(&address.ip);
        // The kernel may report an address repeatedly.
        if is_refused || self.addresses.iter().any(same_as(&address, self.chosen.is_some())) {
            return;
        }
        self.addresses.push(address);
        self.use_addresses();
        let added = self.attributes.gids().add(address.ip);
        self.report_gid_change(added, || format!("has the address {address}"));
    }

    /// Removes one of the prefixes of an address. The address is removed with its last prefix.
    fn remove(&mut self, address: &Address) {
        let is_chosen = self.chosen.is_some();
        let Some(place) = self.addresses.iter().position(same_as(address, is_chosen)) else { return };
        self.addresses.remove(place);
        let ip = address.ip;
        let is_left = self.addresses.iter().any(|known| known.ip == ip);
        self.use_addresses();
        let removed = !is_left && self.attributes.gids().remove(ip);
        self.report_gid_change(removed, || format!("lost the address {ip}"));
    }

    fn use_addresses(&self) {
        let addresses = self.addresses.clone();
        self.send_to_main(Box::new(move |state, _| state.neighbours.set_addresses(addresses)));
        if let Some(kernel) = &self.kernel {
            kernel.drop_ours();
        }
    }

    fn send_to_main(&self, command: Command) {
        // Fails if the core has stopped. It then needs no command.
        self.main.send(command);
        self.event_fd.iter().for_each(EventFd::signal);
    }

    fn report_gid_change(&self, has_changed: bool, how: impl FnOnce() -> String) {
        if has_changed {
            tracing::info!("{}: {}", self.name, how());
            self.subscribers.publish(&self.name, AsyncEvent::GidChange);
        }
    }

    /// Limits new connections to the path MTU that the interface carries now. As with `rxe`, there is no event.
    fn set_mtu(&mut self, mtu: u32) {
        let before = self.attributes.set_ip_mtu(mtu);
        if before.is_some_and(|before| before != mtu) {
            tracing::info!("{}: its interface has an MTU of {mtu}", self.name);
        }
    }

    fn set_carrier(&mut self, has_carrier: bool) {
        self.has_carrier = has_carrier;
        self.report_state();
    }

    fn report_state(&mut self) {
        let is_running = self.has_carrier && !self.attributes.is_held_down();
        if self.is_running != is_running {
            self.is_running = is_running;
            let event = if is_running { AsyncEvent::PortUp } else { AsyncEvent::PortDown };
            self.subscribers.publish(&self.name, event);
        }
    }
}

/// Returns a test for the entry of an address of the interface. An address that the user chose keeps the user's prefix.
fn same_as(address: &Address, is_chosen: bool) -> impl Fn(&Address) -> bool {
    let address = *address;
    move |known| *known == address || is_chosen && known.ip == address.ip
}

#[cfg(test)]
mod tests {
    use super::super::control::{self, Inbox};
    use super::super::events::EventQueue;
    use super::super::{Progress, tests};
    use super::*;
    use crate::neighbour::GidTable;
    use AsyncEvent::{GidChange, PortDown, PortUp};

    struct Scene {
        changes: InterfaceChanges,
        attributes: Arc<Attributes>,
        events: Arc<EventQueue>,
        inbox: Inbox,
    }

    impl Scene {
        /// A port with the address 10.0.0.1 on an interface that is up.
        fn new(settle: impl FnOnce(&mut CoreConfig)) -> Self {
            let mut config = CoreConfig { interface: Some(0x7fff_fff0), ..tests::config(Progress::Inline) };
            settle(&mut config);
            let gids = GidTable::new(config.mac, config.addresses.iter().map(|address| address.ip));
            let attributes = Arc::new(Attributes::new(gids));
            let (subscribers, events) = (Arc::default(), Arc::new(EventQueue::new(|_| true).unwrap()));
            Subscribers::add(&subscribers, events.clone());
            let (main, inbox) = control::channel();
            let core = (main, Some(EventFd::new(libc::EFD_NONBLOCK).unwrap()));
            let mut changes = InterfaceChanges::new(&config, attributes.clone(), subscribers, None, core);
            (changes.has_carrier, changes.is_running) = (true, true);
            Self { changes, attributes, events, inbox }
        }

        fn apply(&mut self, change: Change) -> Vec<AsyncEvent> {
            self.changes.apply(change);
            std::iter::from_fn(|| self.events.take()).collect()
        }

        fn commands(&mut self) -> usize {
            std::iter::from_fn(|| self.inbox.take()).count()
        }

        fn gids(&self) -> Vec<(usize, String)> {
            self.attributes.gids().entries().skip(1).map(|(index, gid)| (index, gid.to_string())).collect()
        }
    }

    fn added(address: &str) -> Change {
        Change::Added(address.parse().unwrap())
    }

    fn removed(address: &str) -> Change {
        Change::Removed(address.parse().unwrap())
    }

    #[test]
    fn the_gid_table_follows_the_addresses_and_each_change_is_reported_once() {
        let mut scene = Scene::new(|_| {});
        assert_eq!(scene.apply(added("10.0.0.1/24")), [], "the port has it already");
        assert_eq!(scene.apply(added("fd00::1/64")), [GidChange]);
        assert_eq!(scene.apply(added("fd00::1/64")), [], "duplicate address detection has ended");
        assert_eq!(scene.apply(removed("10.0.0.1/24")), [GidChange]);
        assert_eq!(scene.apply(removed("10.0.0.1/24")), []);
        assert_eq!(scene.gids(), [(2, "fd00::1".to_owned())]);
        assert_eq!(scene.apply(added("10.0.0.9/24")), [GidChange]);
        assert_eq!(scene.gids(), [(1, "10.0.0.9".to_owned()), (2, "fd00::1".to_owned())]);
    }

    #[test]
    fn core_0_has_the_addresses_before_the_event_is_reported() {
        let mut scene = Scene::new(|_| {});
        assert!(!scene.inbox.is_filled());
        scene.apply(added("fd00::1/64"));
        assert!(scene.inbox.take().is_some() && scene.inbox.take().is_none());
        scene.apply(removed("fd00::1/64"));
        assert!(scene.inbox.take().is_some());
    }

    #[test]
    fn another_prefix_of_an_address_is_no_gid_change() {
        let mut scene = Scene::new(|_| {});
        assert_eq!(scene.apply(added("10.0.0.1/16")), []);
        assert!(scene.inbox.take().is_some(), "but the core's neighbours change");
        assert_eq!(scene.apply(removed("10.0.0.1/24")), [], "the address has the other prefix");
        assert_eq!(scene.gids(), [(1, "10.0.0.1".to_owned())]);
        assert_eq!(scene.apply(removed("10.0.0.1/16")), [GidChange]);
        assert_eq!(scene.gids(), []);
    }

    #[test]
    fn a_port_with_configured_addresses_ignores_changes_of_others() {
        let mut scene = Scene::new(|config| config.addresses_chosen = true);
        assert_eq!(scene.apply(added("10.0.0.2/24")), []);
        assert_eq!(scene.apply(removed("10.0.0.1/24")), [GidChange]);
        assert_eq!(scene.apply(added("10.0.0.1/24")), [GidChange]);
        assert_eq!(scene.gids(), [(1, "10.0.0.1".to_owned())]);
    }

    #[test]
    fn a_port_on_a_vlan_has_its_own_addresses() {
        let mut scene = Scene::new(|config| config.vlan = Some(roce::wire::Vlan(5)));
        assert_eq!(scene.apply(added("10.0.0.2/24")), []);
        assert_eq!(scene.apply(removed("10.0.0.1/24")), []);
        assert_eq!(scene.gids(), [(1, "10.0.0.1".to_owned())]);
    }

    #[test]
    fn a_change_of_the_carrier_is_reported() {
        let mut scene = Scene::new(|_| {});
        let link = |is_running| Change::Link { is_running, mtu: Some(1500) };
        assert_eq!(scene.apply(link(true)), []);
        assert_eq!(scene.apply(link(false)), [PortDown]);
        assert_eq!(scene.apply(link(false)), []);
        assert_eq!(scene.apply(link(true)), [PortUp]);
    }

    #[test]
    fn the_path_mtu_follows_the_interface_without_an_event() {
        let mut scene = Scene::new(|_| {});
        for mtu in [1500, 4300] {
            assert_eq!(scene.apply(Change::Link { is_running: true, mtu: Some(mtu) }), []);
            assert_eq!(scene.attributes.ip_mtu(), Some(mtu));
        }
        scene.apply(Change::Link { is_running: true, mtu: None });
        assert_eq!(scene.attributes.ip_mtu(), Some(4300));
    }

    #[test]
    fn a_port_that_a_fault_holds_down_ignores_its_carrier_until_it_is_released() {
        let mut scene = Scene::new(|_| {});
        let link = |is_running| Change::Link { is_running, mtu: None };
        scene.changes.hold_down(true);
        assert_eq!([scene.events.take(), scene.events.take()], [Some(PortDown), None]);
        assert_eq!(
            [scene.apply(link(true)), scene.apply(link(false)), scene.apply(link(true))],
            [[], [], []]
        );
        assert!(scene.attributes.is_held_down());
        scene.changes.hold_down(false);
        assert_eq!([scene.events.take(), scene.events.take()], [Some(PortUp), None]);
        scene.changes.hold_down(true);
        scene.apply(link(false));
        scene.changes.hold_down(false);
        assert_eq!(scene.events.take(), None, "the carrier is missing");
        assert_eq!(scene.apply(link(true)), [PortUp]);
    }

    #[test]
    fn a_gid_that_a_fault_removed_stays_removed() {
        let mut scene = Scene::new(|_| {});
        scene.apply(added("10.0.0.1/16"));
        while scene.inbox.take().is_some() {}
        assert_eq!(scene.changes.remove_gid(1), Ok(()));
        assert_eq!([scene.events.take(), scene.events.take()], [Some(GidChange), None]);
        assert_eq!((scene.gids(), scene.commands()), (Vec::new(), 2), "a command for each prefix");
        assert_eq!(scene.apply(added("10.0.0.1/24")), []);
        assert_eq!(scene.gids(), []);
    }

    #[test]
    fn a_fault_removes_a_gid_of_a_port_on_a_vlan_or_without_an_interface() {
        let on_vlan: fn(&mut CoreConfig) = |config| config.vlan = Some(roce::wire::Vlan(5));
        let without: fn(&mut CoreConfig) = |config| config.interface = None;
        for settle in [on_vlan, without] {
            let mut scene = Scene::new(settle);
            assert_eq!(scene.changes.remove_gid(1), Ok(()));
            assert_eq!((scene.events.take(), scene.gids()), (Some(GidChange), Vec::new()));
            assert!(scene.changes.addresses.is_empty());
        }
    }

    #[test]
    fn a_gid_that_cannot_be_removed_is_refused_with_those_that_can() {
        let mut scene = Scene::new(|_| {});
        for index in [0, 2, usize::MAX] {
            let refused = scene.changes.remove_gid(index).unwrap_err().to_string();
            assert!(
                refused.contains(&index.to_string()) && refused.ends_with("choose one of 1"),
                "{refused}"
            );
        }
        assert_eq!((scene.events.take(), scene.commands()), (None, 0));
    }

    /// The interface of the scene does not exist, which is found when its state is read after a lost notification.
    #[test]
    fn an_interface_that_is_gone_ends_the_core_once() {
        for change in [Change::Gone, Change::Lost] {
            let mut scene = Scene::new(|config| config.addresses_chosen = true);
            let before = scene.apply(change);
            assert_eq!(before.last(), Some(&PortDown), "{before:?}");
            assert!(scene.commands() > 0);
            assert_eq!(scene.apply(Change::Gone), []);
            assert_eq!(scene.apply(added("10.0.0.1/24")), []);
            assert_eq!(scene.apply(Change::Link { is_running: true, mtu: None }), []);
            assert_eq!(scene.commands(), 0);
        }
    }
}
