//! What a change of a setup does to links, packets, queues and routes.

use super::change::LinkChange;
use super::event::Event;
use super::network::Network;
use super::packet_pool::LinkPacket;
use super::port::{Routes, Waiting, ends};
use crate::classes::Queued;

impl<P: LinkPacket> Network<'_, P> {
    /// Applies a change of the setup; returns the ports of the links that change.
    #[cold]
    pub(super) fn change(&mut self, number: u32) -> Vec<u32> {
        let change = &self.setup.changes[number as usize];
        let ports = ends(&self.ports, &change.links);
        if let LinkChange::Rate(rate) = change.what {
            ports.iter().for_each(|&port| self.ports[port as usize].change_rate(rate, self.setup));
            return ports;
        }
        let is_down = change.what == LinkChange::Down;
        ports.iter().for_each(|&port| self.ports[port as usize].is_down = is_down);
        if is_down {
            self.fail(&ports);
        }
        self.routes = Routes::new(&self.setup.topology, &self.ports);
        ports
    }

    /// Counts the packets on the links of these ports as lost, also those that a script holds, and drops the packets in their queues.
    fn fail(&mut self, ports: &[u32]) {
        let mut on_links = Vec::new();
        self.events.retain(|event| match event.unpack() {
            Event::Arrive { port, packet } if ports.contains(&port) => {
                on_links.push(packet);
                false
            }
            Event::Pause { port, .. } => !ports.contains(&port),
            _ => true,
        });
        for &port in ports {
            let script = self.ports[port as usize].script.as_mut();
            on_links.extend(script.and_then(|script| script.held.take()).map(|held| held.packet));
        }
        self.counts.lost += on_links.len() as u64;
        on_links.into_iter().for_each(|packet| self.lose(packet));
        for &port in ports {
            self.pause(port, false);
            if let Some(switch) = self.ports[port as usize].switch {
                let inside = port - self.first_ports[switch as usize];
                self.buffers[switch as usize].resume(inside as usize);
                self.flush(switch, port);
            }
        }
    }

    /// Drops the packets that wait at a switch's port.
    #[cold]
    fn flush(&mut self, switch: u32, port: u32) {
        let instant = self.instant();
        while let Some((_, Queued { buf: Waiting { packet, size }, .. })) =
            self.ports[port as usize].queue.take(instant)
        {
            let ingress = self.packets.ingress(packet);
            if self.leaves(switch, port, ingress, size) {
                self.send_pause(ingress, false);
            }
            self.drop_packet(packet);
        }
    }
}
