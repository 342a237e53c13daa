//! Messages of a core to the other cores of its port: peers to resolve again, and new addresses of peers.

use super::control::{Command, Commands};
use super::core_group::CoreGroup;
use roce::Endpoint;
use roce::wire::Mac;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) struct OtherCores {
    own: usize,
    commands: Vec<Commands>,
    group: Arc<CoreGroup>,
}

impl OtherCores {
    pub(super) fn new(own: usize, commands: Vec<Commands>, group: Arc<CoreGroup>) -> Self {
        Self { own, commands, group }
    }

    /// Returns the core's index among those of the port.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    pub(super) fn is_main(&self) -> bool {
        self.own == 0
    }

    #[cold]
    pub(super) fn report_suspected(&self, peer: IpAddr) {
        self.send(
            0,
            Box::new(move |state, now| state.peer_moves.suspect_for(now, peer, &mut state.neighbours)),
        );
    }

    #[cold]
    pub(super) fn redirect(&self, peer: IpAddr, mac: Mac) {
        for core in (0..self.commands.len()).filter(|&core| core != self.own) {
            self.send(
                core,
                Box::new(move |state, _| while state.endpoint.redirect(peer, mac) == Endpoint::REDIRECTS {}),
            );
        }
    }

    fn send(&self, core: usize, command: Command) {
        // Fails if the core has stopped. It then needs no command.
        self.commands[core].send(command);
        self.group.wake(core);
    }
}
