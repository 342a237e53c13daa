//! Messages of a core to the other cores of its port: peers to resolve again, and new addresses of peers.

use super::control::{Command, Commands};
use super::core_group::CoreGroup;
use super::core_state::CoreState;
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

    /// Makes core 0 resolve a peer of this worker core. If `was_sent_by_main`, its port sent the packets that may be lost.
    #[cold]
    pub(super) fn report_suspected(&self, peer: IpAddr, was_sent_by_main: bool) {
        let report = move |state: &mut CoreState, now| {
            if was_sent_by_main {
                state.peer_moves.record(peer);
            }
            state.peer_moves.suspect(now, peer, &mut state.neighbours);
        };
        self.send(0, Box::new(report));
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
