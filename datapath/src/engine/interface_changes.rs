//! Follows changes of an open port's Linux interface: as with Linux's `rxe`, the GID table and the port's state follow the interface.

use super::attributes::Attributes;
use super::config::CoreConfig;
use super::control::{Command, Commands};
use super::ending::end_core;
use super::events::{AsyncEvent, Subscribers};
use crate::event_fd::EventFd;
use crate::linux;
use crate::neighbour::{Address, Change, Kernel, addresses_of};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// The last known state of an interface, and the subscribers to its changes.
pub(super) struct InterfaceChanges {
    /// The port's name.
    name: String,
    index: u32,
    is_running: bool,
    is_gone: bool,
    /// The interface's addresses; `None` if the port has others, on a VLAN.
    addresses: Option<Vec<Address>>,
    /// The addresses that the user chose among those of the interface. The port uses no others.
    chosen: Option<Vec<IpAddr>>,
    attributes: Arc<Attributes>,
    subscribers: Arc<Subscribers>,
    kernel: Option<Arc<Kernel>>,
    /// Core 0, whose neighbour table has the addresses.
    main: Commands,
    /// Wakes core 0.
    event_fd: EventFd,
}

impl InterfaceChanges {
    /// `kernel` resolves the port's neighbours, unless it is on a VLAN.
    pub(super) fn new(
        index: u32,
        config: &CoreConfig,
        attributes: Arc<Attributes>,
        subscribers: Arc<Subscribers>,
        kernel: Option<Arc<Kernel>>,
        (main, event_fd): (Commands, EventFd),
    ) -> Self {
        let chosen = config.addresses_chosen.then(|| config.addresses.iter().map(|it| it.ip).collect());
        Self {
            name: config.name.clone(),
            index,
            is_running: linux::interface_at(index).is_ok_and(|it| it.running),
            is_gone: false,
            addresses: config.vlan.is_none().then(|| config.addresses.clone()),
            chosen,
            attributes,
            subscribers,
            kernel,
            main,
            event_fd,
        }
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn apply(&mut self, change: Change) {
        match change {
            _ if self.is_gone => {}
            Change::Added(address) => self.add(address),
            Change::Removed(address) => self.remove(&address),
            Change::Link { is_running, mtu } => {
                if let Some(mtu) = mtu {
                    self.set_mtu(mtu);
                }
                self.set_running(is_running);
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

    /// Ends the cores, because the interface can no longer send or receive.
    fn end(&mut self) {
        self.is_gone = true;
        self.set_running(false);
        let name = self.name.rsplit(':').next().unwrap_or(&self.name);
        let reason = format!(
            "interface {name} is gone, deleted or moved to another namespace; restore it, then open the device again"
        );
        self.send_to_main(Box::new(move |_, _| end_core(reason)));
    }

    fn read(&mut self) -> io::Result<()> {
        if let Some(before) = self.addresses.clone() {
            let present = addresses_of(self.index)?;
            present.iter().for_each(|address| self.add(*address));
            let is_chosen = self.chosen.is_some();
            let is_gone = |old: &&Address| !present.iter().any(same_as(old, is_chosen));
            before.iter().filter(is_gone).for_each(|old| self.remove(old));
        }
        let present = linux::interface_at(self.index)?;
        self.set_mtu(present.mtu);
        self.set_running(present.running);
        Ok(())
    }

    fn add(&mut self, address: Address) {
        let is_refused = self.chosen.as_ref().is_some_and(|chosen| !chosen.contains(&address.ip));
        let Some(addresses) = self.addresses.as_mut().filter(|_| !is_refused) else { return };
        // The kernel may report an address repeatedly.
        if addresses.iter().any(same_as(&address, self.chosen.is_some())) {
            return;
        }
        addresses.push(address);
        self.use_addresses();
        let added = self.attributes.gids().add(address.ip);
        self.report_gid_change(added, || format!("has the address {address}"));
    }

    /// Removes one of the prefixes of an address. The address is removed with its last prefix.
    fn remove(&mut self, address: &Address) {
        let Some(addresses) = &mut self.addresses else { return };
        let Some(place) = addresses.iter().position(same_as(address, self.chosen.is_some())) else { return };
        addresses.remove(place);
        let ip = address.ip;
        let is_left = addresses.iter().any(|known| known.ip == ip);
        self.use_addresses();
        let removed = !is_left && self.attributes.gids().remove(ip);
        self.report_gid_change(removed, || format!("lost the address {ip}"));
    }

    fn use_addresses(&self) {
        let addresses = self.addresses.clone().unwrap_or_default();
        self.send_to_main(Box::new(move |state, _| state.neighbours.set_addresses(addresses)));
        if let Some(kernel) = &self.kernel {
            kernel.drop_ours();
        }
    }

    fn send_to_main(&self, command: Command) {
        // Fails if the core has stopped. It then needs no command.
        self.main.send(command);
        self.event_fd.signal();
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

    fn set_running(&mut self, is_running: bool) {
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
            let mut config = tests::config(Progress::Inline);
            settle(&mut config);
            let gids = GidTable::new(config.mac, config.addresses.iter().map(|address| address.ip));
            let attributes = Arc::new(Attributes::new(gids));
            let (subscribers, events) = (Arc::default(), Arc::new(EventQueue::new(|_| true).unwrap()));
            Subscribers::add(&subscribers, events.clone());
            let (main, inbox) = control::channel();
            let core = (main, EventFd::new(libc::EFD_NONBLOCK).unwrap());
            let interface = 0x7fff_fff0;
            let mut changes =
                InterfaceChanges::new(interface, &config, attributes.clone(), subscribers, None, core);
            changes.is_running = true;
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
