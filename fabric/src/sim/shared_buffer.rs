//! A switch's buffer: its ports share it, with a threshold that falls as the buffer fills, and PFC.

use super::port::Port;
use super::setup::{Pfc, Setup};
use cc::Rate;

/// Bytes reserved for each port.
const RESERVE: u64 = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    bytes: u64,
    headroom_used: u64,
    headroom: u64,
    /// Share of the free buffer that the port may use.
    share: f64,
    is_pausing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// Accepted; the switch must pause the sender.
    Pause,
    No,
}

pub(super) struct SharedBuffer {
    size: u64,
    used: u64,
    /// Bytes used in excess of the ports' reserves.
    shared: u64,
    pfc: Option<Pfc>,
    ports: Vec<Ingress>,
    headroom: u64,
}

impl SharedBuffer {
    /// Creates a buffer. `ports` yields each port's headroom in bytes and its share of the free buffer.
    pub(super) fn new(size: u64, pfc: Option<Pfc>, ports: impl Iterator<Item = (u64, f64)>) -> Self {
        let port = |(headroom, share)| {
            let headroom = if pfc.is_some() { headroom } else { 0 };
            Ingress { headroom, share, ..Ingress::default() }
        };
        let ports: Vec<_> = ports.map(port).collect();
        let headroom = ports.iter().map(|port| port.headroom).sum();
        Self { size, used: 0, shared: 0, pfc, ports, headroom }
    }

    fn threshold(&self, port: usize) -> u64 {
        let own = self.headroom + RESERVE * self.ports.len() as u64;
        let free = self.size.saturating_sub(own).saturating_sub(self.shared);
        (free as f64 * self.ports[port].share) as u64
    }

    const fn shared_of(bytes: u64) -> u64 {
        bytes.saturating_sub(RESERVE)
    }

    pub(super) fn take(&mut self, port: usize, size: u64) -> Taken {
        let threshold = self.threshold(port);
        let at = &mut self.ports[port];
        let fits = Self::shared_of(at.bytes + size) <= threshold && self.used + size <= self.size;
        if !fits && at.headroom_used + size > at.headroom {
            return Taken::No;
        }
        self.used += size;
        if !fits {
            at.headroom_used += size;
        } else {
            let before = Self::shared_of(at.bytes);
            at.bytes += size;
            self.shared += Self::shared_of(at.bytes) - before;
        }
        if self.pfc.is_some() && !at.is_pausing && (!fits || Self::shared_of(at.bytes) > threshold) {
            at.is_pausing = true;
            return Taken::Pause;
        }
        Taken::Yes
    }

    /// Ends the pause of the sender at `port`, because its link failed.
    pub(super) fn resume(&mut self, port: usize) {
        self.ports[port].is_pausing = false;
    }

    /// Frees the bytes of a packet that arrived at `port`; returns whether its sender may resume.
    pub(super) fn give_back(&mut self, port: usize, size: u64) -> bool {
        self.used -= size;
        let at = &mut self.ports[port];
        let from_headroom = at.headroom_used.min(size);
        at.headroom_used -= from_headroom;
        let before = Self::shared_of(at.bytes);
        at.bytes -= size - from_headroom;
        self.shared -= before - Self::shared_of(at.bytes);
        if !self.ports[port].is_pausing {
            return false;
        }
        let (threshold, resume) = (self.threshold(port), self.pfc.map_or(0, |pfc| pfc.resume));
        let at = &mut self.ports[port];
        let shared = Self::shared_of(at.bytes);
        let goes_on = at.headroom_used == 0 && (shared == 0 || shared + resume <= threshold);
        at.is_pausing = !goes_on;
        goes_on
    }
}

/// Returns the first port and the buffer of each switch.
pub(super) fn buffers(setup: &Setup, ports: &[Port]) -> (Vec<u32>, Vec<SharedBuffer>) {
    let host = ports.first().map_or(Rate::default(), |port| port.rate);
    let mut first_ports = vec![u32::MAX; setup.topology.switches()];
    let mut headrooms = vec![Vec::new(); setup.topology.switches()];
    for (id, port) in ports.iter().enumerate() {
        let Some(switch) = port.switch else { continue };
        let first = &mut first_ports[switch as usize];
        *first = (*first).min(id as u32);
        let round = 2.0 * port.delay as f64 * port.rate.as_bps() as f64 / 8e12;
        let rounds = setup.pfc.map_or(0.0, |pfc| pfc.headroom);
        let share = setup.pfc.map_or(1.0, |pfc| pfc.share_of(port.rate, host));
        headrooms[switch as usize].push(((round * rounds) as u64, share));
    }
    let buffer = |rooms: Vec<(u64, f64)>| SharedBuffer::new(setup.buffer, setup.pfc, rooms.into_iter());
    (first_ports, headrooms.into_iter().map(buffer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_pfc_packets_beyond_the_threshold_are_dropped() {
        let mut buffer = SharedBuffer::new(20_000, None, [(0, 1.0); 2].into_iter());
        let taken = (0..30).filter(|_| buffer.take(0, 1000) == Taken::Yes).count();
        assert!((10..=20).contains(&taken), "{taken}: half of what is free, and its own");
        assert_eq!(buffer.take(1, 1000), Taken::Yes, "the other port has its own");
        (0..taken).for_each(|_| assert!(!buffer.give_back(0, 1000)));
        buffer.give_back(1, 1000);
        assert_eq!((buffer.used, buffer.shared), (0, 0));
    }

    /// The authors' shares: 1/8 for ports of the hosts' rate, 1/2 for four times that rate, at most 1.
    #[test]
    fn a_faster_port_may_hold_more() {
        let host = cc::Rate::from_gbps(100);
        let share = |gbps| Pfc::default().share_of(cc::Rate::from_gbps(gbps), host);
        assert_eq!(
            [25, 100, 199, 200, 400, 800, 3200].map(share),
            [0.125, 0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
        );
        let ports = [100, 400].map(|gbps| (0, share(gbps)));
        let held = |port| {
            let mut buffer = SharedBuffer::new(1_000_000, Some(Pfc::default()), ports.into_iter());
            (0..1000).filter(|_| buffer.take(port, 1000) != Taken::No).count()
        };
        // A port with the share `s` of the free buffer holds at most `s / (1 + s)` of the whole.
        assert_eq!([0, 1].map(held), [114, 335]);
    }

    #[test]
    fn with_pfc_nothing_is_lost_within_the_headroom() {
        let mut buffer = SharedBuffer::new(100_000, Some(Pfc::default()), [(10_000, 0.125); 2].into_iter());
        let mut taken = 0;
        while buffer.take(0, 1000) == Taken::Yes {
            taken += 1;
        }
        // The last packet caused the pause; ten more fit into the headroom.
        let more = (0..20).filter(|_| buffer.take(0, 1000) != Taken::No).count();
        assert!((9..=10).contains(&more), "{more}");
        let mut resumed = 0;
        (0..=taken + more).for_each(|_| resumed += usize::from(buffer.give_back(0, 1000)));
        assert_eq!((resumed, buffer.used, buffer.shared), (1, 0, 0));
    }
}
