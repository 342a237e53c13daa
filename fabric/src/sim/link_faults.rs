//! What scripts of faults make of the packets on links.

use super::event::Event;
use super::faults::{Departure, HOLD, HeldPacket};
use super::network::Network;
use super::packet_pool::LinkPacket;
use cc::Instant;

impl<P: LinkPacket> Network<'_, P> {
    /// Schedules the arrival of a packet at `at`, or what the script of the port makes of it.
    #[cold]
    pub(super) fn transmit_by_script(&mut self, port: u32, packet: u32, at: u64) {
        let (now, due) = (self.instant(), Instant::from_nanos(at / 1000));
        let place = &mut self.ports[port as usize];
        let peer = place.peer;
        let content = self.packets.get_mut(packet);
        match place.script.as_mut().map_or(Departure::Usual, |script| script.judge(now, due, content)) {
            Departure::Usual => {}
            Departure::Lost => {
                self.counts.lost += 1;
                return self.lose(packet);
            }
            Departure::Twice => {
                let copy = self.packets.take();
                *self.packets.get_mut(copy) = self.packets.get(packet).clone();
                self.push(at + 1, Event::Arrive { port: peer, packet: copy });
            }
            Departure::NotBefore(time) => {
                return self.push(at.max(time), Event::Arrive { port: peer, packet });
            }
            Departure::Held(left) => {
                let until = self.now + HOLD;
                if let Some(script) = &mut self.ports[port as usize].script {
                    script.held = Some(HeldPacket { packet, left, until, arrival: at + HOLD });
                }
                return self.push(until, Event::Release(port));
            }
        }
        self.push(at, Event::Arrive { port: peer, packet });
        let held = self.ports[port as usize].script.as_mut().map(|script| &mut script.held);
        if let Some(Some(HeldPacket { packet, left, .. })) = held {
            *left -= 1;
            if *left == 0 {
                let packet = *packet;
                held.map(Option::take);
                self.push(at + 1, Event::Arrive { port: peer, packet });
            }
        }
    }

    /// Ends the hold of a frame that too few frames have overtaken.
    #[cold]
    pub(super) fn release(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let peer = place.peer;
        let held =
            place.script.as_mut().and_then(|script| script.held.take_if(|held| held.until == self.now));
        if let Some(HeldPacket { packet, arrival, .. }) = held {
            self.push(arrival, Event::Arrive { port: peer, packet });
        }
    }
}
