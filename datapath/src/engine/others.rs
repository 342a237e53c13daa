//! Messages of a core to the other cores of its port: peers to resolve again, and new addresses of peers.

use super::control::{Command, Commands};
use super::team::Team;
use roce::Endpoint;
use roce::wire::Mac;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) struct Others {
    own: usize,
    commands: Vec<Commands>,
    team: Arc<Team>,
}

impl Others {
    pub(super) fn new(own: usize, commands: Vec<Commands>, team: Arc<Team>) -> Self {
        Self { own, commands, team }
    }

    /// Returns the core's index among those of the port.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    pub(super) fn is_lead(&self) -> bool {
        self.own == 0
    }

    #[cold]
    pub(super) fn doubt(&self, peer: IpAddr) {
        self.tell(
            0,
            Box::new(move |station, now| station.followed.doubt(now, peer, &mut station.neighbours)),
        );
    }

    /// Sends a peer's new Ethernet address to all other cores.
    #[cold]
    pub(super) fn redirect(&self, peer: IpAddr, mac: Mac) {
        for core in (0..self.commands.len()).filter(|&core| core != self.own) {
            self.tell(
                core,
                Box::new(
                    move |station, _| {
                        while station.endpoint.redirect(peer, mac) == Endpoint::REDIRECTS {}
                    },
                ),
            );
        }
    }

    fn tell(&self, core: usize, command: Command) {
        // Fails if the core has stopped, which needs no message.
        self.commands[core].send(command);
        self.team.wake(core);
    }
}
