//! Executes a run, from its first request to the checks at its end.

use super::Captured;
use super::connection::{Connection, Host};
use super::core_group::{BURST, LONGEST};
use super::memory::Buffer;
use super::network::{Event, Network, mac};
use super::plan::{Fate, Plan};
use super::reached::Reached;
use super::requests::rule;
use super::verdict::{self, Losses};
use crate::random::Random;
use cc::Instant;
use datapath::io::PacketBuf;
use roce::Qpn;
use roce::qp::{Modify, State};
use roce::wire::Header;

/// Limit on the transmission time of the frames queued at the NIC, ns.
const CARD: u64 = 5_000;
/// Longest time from the addition of a frame to a ring between cores to the receiving core's turn, ns.
const HAND_OVER: u64 = 300;
/// Virtual time within which a run must finish after its faults have stopped, ns.
const LIMIT: u64 = 5_000_000_000;
/// Limit on the events of a run.
const EVENTS: u64 = 4_000_000;

pub(super) fn run(plan: &Plan, capture: Option<&mut Vec<Captured>>) -> Result<Reached, String> {
    let mut world = World::new(plan, capture)?;
    let heal = 300_000 + world.random.below(1_500_000);
    world.begin();
    world.until(heal)?;
    world.heal(heal)?;
    world.until_silence(heal + LIMIT)?;
    world.last_words()?;
    world.until_silence(heal + 2 * LIMIT)?;
    world.end()
}

struct World<'p, 'c> {
    plan: &'p Plan,
    hosts: Vec<Host>,
    connections: Vec<Connection>,
    network: Network<'c>,
    random: Random,
    reached: Reached,
    now: u64,
    events: u64,
    healed: bool,
    /// Frames that full rings dropped.
    overrun: u64,
    /// Frames that switches dropped before the last messages.
    dropped_before: u64,
}

impl<'p, 'c> World<'p, 'c> {
    fn new(plan: &'p Plan, capture: Option<&'c mut Vec<Captured>>) -> Result<Self, String> {
        let mut random = Random::new(plan.seed ^ 1);
        let network = Network::new(plan, capture)?;
        let host = |number| Host::new(number, plan, &mut random, &network.alive);
        let mut hosts: Vec<Host> = (0..plan.cores.len()).map(host).collect();
        let mut used = vec![0; hosts.len()];
        let mut connections = Vec::new();
        for (index, talk) in plan.talks.iter().enumerate() {
            let made = Connection::new(talk, plan, &mut hosts, &mut used);
            connections.push(made.map_err(|error| format!("connection {index}: {error}"))?);
            for side in 0..2 {
                hosts[talk.hosts[side]].sides.push((index, side));
            }
        }
        for host in &mut hosts {
            host.before.clone_from(&host.ram.0);
        }
        let (reached, healed) = (Reached::default(), false);
        Ok(Self {
            plan,
            hosts,
            connections,
            network,
            random,
            reached,
            now: 0,
            events: 0,
            healed,
            overrun: 0,
            dropped_before: 0,
        })
    }

    fn begin(&mut self) {
        for (index, talk) in self.plan.talks.iter().enumerate() {
            for side in 0..2 {
                let at = self.random.below(2_000);
                self.network.push(at, Event::Look(index, side));
            }
            if let Some((_, at, _)) = talk.fate {
                self.network.push(at, Event::Fate(index));
            }
        }
    }

    fn until(&mut self, end: u64) -> Result<(), String> {
        while let Some((at, event)) = self.network.pop() {
            if at >= end {
                self.network.push(at, event);
                break;
            }
            self.handle(at, event)?;
        }
        self.now = end;
        Ok(())
    }

    fn until_silence(&mut self, limit: u64) -> Result<(), String> {
        while let Some((at, event)) = self.network.pop() {
            let late = at > limit || self.events > EVENTS;
            rule(!late, || {
                format!("no end after {} ms, {} events: {}", at / 1_000_000, self.events, self.states())
            })?;
            self.handle(at, event)?;
        }
        Ok(())
    }

    fn states(&self) -> String {
        let sides = self.connections.iter().flat_map(|at| at.sides.iter());
        sides.map(|side| format!("{:?}; ", self.hosts[side.host].report(side))).collect()
    }

    fn handle(&mut self, at: u64, event: Event) -> Result<(), String> {
        self.now = self.now.max(at);
        self.events += 1;
        match event {
            Event::AtHost(host, frame) => self.at_host(host, frame),
            Event::AtSwitch(switch, port, frame) => self.network.at_switch(self.now, switch, port, frame),
            Event::Leave(switch) => self.network.leave(self.now, switch),
            Event::Turn(host, core) => return self.turn(host, core),
            Event::Look(index, side) => return self.look(index, side),
            Event::Fate(index) => return self.fate(index),
        }
        Ok(())
    }

    fn at_host(&mut self, index: usize, frame: Buffer) {
        let host = &mut self.hosts[index];
        // A NIC accepts only frames with its own address.
        if host.is_dead || frame[..6] != mac(index).0 {
            return;
        }
        // After the faults, rings have no limit.
        let most = if self.healed { usize::MAX } else { self.plan.cores[index].ring };
        if let Some(core) = host.cores.arrives(frame, most) {
            if core > 0 {
                self.reached.once("host: a core's own queue");
            }
            self.wake_core(index, core, self.now);
        } else {
            self.overrun += 1;
            self.reached.once("host: ring full");
        }
    }

    fn wake(&mut self, index: usize, at: u64) {
        (0..self.hosts[index].cores.all.len()).for_each(|core| self.wake_core(index, core, at));
    }

    fn wake_core(&mut self, index: usize, core: usize, at: u64) {
        let host = &mut self.hosts[index];
        if host.is_dead {
            return;
        }
        let sleeper = &mut host.cores.all[core];
        let at = at.max(sleeper.paused_until);
        if sleeper.wake.is_none_or(|wake| at < wake) {
            sleeper.wake = Some(at);
            self.network.push(at, Event::Turn(index, core));
        }
    }

    /// Wakes the cores to which core 0 forwarded frames, or core 0 if another core did.
    fn wake_others(&mut self, index: usize, core: usize) {
        let others = if core == 0 { 1..self.hosts[index].cores.all.len() } else { 0..1 };
        for other in others {
            let at = self.now + 1 + self.random.below(HAND_OVER);
            self.wake_core(index, other, at);
        }
    }

    fn turn(&mut self, index: usize, core: usize) -> Result<(), String> {
        let (ails, host) = (self.plan.cores[index], &mut self.hosts[index]);
        let at = &mut host.cores.all[core];
        if at.wake != Some(self.now) || host.is_dead {
            return Ok(());
        }
        at.wake = None;
        if !self.healed && self.random.below(1000) < ails.pauses {
            self.reached.once("host: core paused");
            at.paused_until = self.now + 1 + self.random.below(ails.pause);
            self.wake_core(index, core, self.now);
            return Ok(());
        }
        let (any, distributed) = host.cores.take_in(core, &mut host.ram, Instant::from_nanos(self.now));
        if distributed {
            if core > 0 {
                self.reached.once("host: a stray in a core's own queue");
            }
            self.wake_others(index, core);
        }
        if !self.healed && self.random.below(1000) < ails.dry {
            self.reached.once("host: pool dry");
            self.wake_core(index, core, self.now + 2_000);
            return Ok(());
        }
        self.transmit(index, core)?;
        if self.healed {
            self.poll(index)?;
        }
        let host = &self.hosts[index];
        let at = &host.cores.all[core];
        if host.cores.has_received(core) || at.waits() || (any && core > 0) {
            let again = (self.now + 100).max(host.free_at.saturating_sub(CARD));
            self.wake_core(index, core, again);
        } else if let Some(due) = at.endpoint.poll_timeout() {
            self.wake_core(index, core, due.as_nanos().max(self.now + 1));
        }
        Ok(())
    }

    fn transmit(&mut self, index: usize, core: usize) -> Result<(), String> {
        let mut frame = [0; LONGEST];
        // Frames of other cores have precedence, so that no core starves.
        for _ in 0..BURST / 2 {
            if !self.is_taken(index, core) || !self.hosts[index].cores.all[core].forward() {
                break;
            }
            self.leave(index);
        }
        for _ in 0..BURST {
            let Some(mut buffer) = self.alloc(index, core) else { break };
            let before = self.in_flight(index);
            let host = &mut self.hosts[index];
            let (instant, at) = (Instant::from_nanos(self.now), &mut host.cores.all[core]);
            let Some(length) = at.endpoint.poll_transmit(instant, &host.ram, &mut frame) else { break };
            buffer.set_len(length);
            buffer.copy_from_slice(&frame[..length]);
            at.transmit(buffer);
            self.check_windows(index, &before)?;
            self.leave(index);
            if core > 0 {
                self.wake_others(index, core);
            }
        }
        self.hosts[index].cores.all[core].port.select_next();
        Ok(())
    }

    /// Returns whether the NIC accepts another frame of core 0. Other cores send through core 0.
    fn is_taken(&self, index: usize, core: usize) -> bool {
        core > 0 || self.hosts[index].free_at <= self.now + CARD
    }

    fn alloc(&mut self, index: usize, core: usize) -> Option<Buffer> {
        if !self.is_taken(index, core) {
            return None;
        }
        let buffer = self.hosts[index].cores.all[core].alloc();
        if buffer.is_none() {
            self.reached.once("host: core waits for core 0");
            self.wake_others(index, core);
        }
        buffer
    }

    fn leave(&mut self, index: usize) {
        while let Some(frame) = self.hosts[index].cores.leaves() {
            let leaves = self.now.max(self.hosts[index].free_at);
            self.hosts[index].free_at = leaves + self.network.serialisation(frame.len());
            self.carry(leaves, index, &frame);
        }
    }

    fn in_flight(&self, index: usize) -> Vec<(u64, u64)> {
        let host = &self.hosts[index];
        let report = |&(connection, side): &(usize, usize)| {
            let side = &self.connections[connection].sides[side];
            host.report(side).map_or((0, 0), |report| (report.in_flight, report.window))
        };
        host.sides.iter().map(report).collect()
    }

    /// Checks that data was sent only while the bytes in flight were below the window.
    fn check_windows(&self, index: usize, before: &[(u64, u64)]) -> Result<(), String> {
        let after = self.in_flight(index);
        for ((&(had, window), &(has, _)), at) in before.iter().zip(&after).zip(&self.hosts[index].sides) {
            let reliable = self.connections[at.0].talk.is_reliable();
            rule(!reliable || has <= had || had < window, || {
                format!(
                    "connection {}, side {}: sent with {had} bytes in flight, window {window}",
                    at.0, at.1
                )
            })?;
        }
        Ok(())
    }

    fn carry(&mut self, leaves: u64, index: usize, frame: &[u8]) {
        let header = roce::wire::parse(frame).ok().map(|frame| frame.header);
        let whose = header.as_ref().and_then(|header| self.whose(index, header.bth().destination));
        let cut = whose.is_some_and(|(connection, _)| self.connections[connection].is_cut);
        let harm = self.network.send(leaves, index, frame, cut, &mut self.reached);
        let (Some(header), Some((connection, side))) = (header, whose) else { return };
        let connection = &mut self.connections[connection];
        // A duplicate causes no retry.
        connection.harmed_frames += u32::from(!matches!(harm, "" | "twice"));
        if let Header::SelectiveOffer { accepts: true, .. } = header {
            self.reached.once("offer: accepted");
        }
        if connection.talk.is_selective()
            && let Some(report) = self.hosts[index].report(&connection.sides[side])
        {
            let again = connection.sides[1 - side].repeats.count;
            let is_lost = matches!(harm, "lost" | "dark" | "flipped");
            let repeats = &mut connection.sides[side].repeats;
            repeats.on_frame(&header, &report, again, is_lost, &mut self.reached);
        }
    }

    /// Returns the connection of `host` whose other end is `to`, and the side that is on `host`.
    fn whose(&self, host: usize, to: Qpn) -> Option<(usize, usize)> {
        let far =
            |&&(connection, side): &&(usize, usize)| self.connections[connection].sides[1 - side].qpn == to;
        self.hosts[host].sides.iter().find(far).copied()
    }

    fn look(&mut self, index: usize, side: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        if connection.is_gone(side) || self.hosts[connection.sides[side].host].is_dead {
            return Ok(());
        }
        connection.poll(side, &mut self.hosts, &mut self.reached)?;
        let wanted = connection.talk.requests[side];
        if connection.talk.takes(side) && (self.now >= connection.talk.receives_late || self.healed) {
            let ahead = connection.sides[side].requests.received + 6;
            while connection.sides[side].requests.receives < ahead.min(connection.places - 4) {
                connection.receive(side, &mut self.hosts)?;
            }
        }
        for _ in 0..self.random.below(4) {
            if connection.sides[side].requests.posted.len() < wanted {
                connection.post_next_request(self.now, side, &mut self.hosts)?;
            }
        }
        let host = connection.sides[side].host;
        let more = connection.sides[side].requests.posted.len() < wanted || !self.healed;
        self.wake(host, self.now);
        if more {
            let at = self.now + 500 + self.random.below(20_000);
            self.network.push(at, Event::Look(index, side));
        }
        Ok(())
    }

    fn poll(&mut self, host: usize) -> Result<(), String> {
        for (index, side) in self.hosts[host].sides.clone() {
            let connection = &mut self.connections[index];
            connection.poll(side, &mut self.hosts, &mut self.reached)?;
            let (requests, peer) = (&connection.sides[side].requests, &connection.sides[1 - side].requests);
            let short = requests.receives < (requests.received + 6).min(connection.places - 4);
            if short && requests.received < peer.posted.len() {
                connection.receive(side, &mut self.hosts)?;
            }
        }
        Ok(())
    }

    fn fate(&mut self, index: usize) -> Result<(), String> {
        let Some((side, _, fate)) = self.connections[index].talk.fate else { return Ok(()) };
        if self.connections[index].is_gone(side) {
            return Ok(());
        }
        self.connections[index].poll(side, &mut self.hosts, &mut self.reached)?;
        self.reached.once(&format!("fate: {fate:?}"));
        let host = self.connections[index].sides[side].host;
        let (qpn, lkey) =
            (self.connections[index].sides[side].qpn, self.connections[index].sides[side].region.lkey);
        let instant = Instant::from_nanos(self.now);
        let cores = &mut self.hosts[host].cores;
        let endpoint = &mut cores.all[self.connections[index].sides[side].core].endpoint;
        let done = match fate {
            Fate::Destroyed => endpoint.destroy_qp(instant, qpn),
            Fate::Failed => endpoint.modify_qp(instant, qpn, Modify::Error),
            Fate::Reset => endpoint.modify_qp(instant, qpn, Modify::Reset),
            Fate::Deregistered => cores.on_all(|endpoint| endpoint.deregister_with_windows(lkey)),
            Fate::Drained
                if endpoint.report(qpn).is_some_and(|report| report.state == State::ReadyToSend) =>
            {
                endpoint.modify_qp(instant, qpn, Modify::Drain { notify: false })
            }
            Fate::Drained | Fate::HostDies | Fate::Cut => Ok(()),
        };
        done.map_err(|error| format!("{fate:?}: {error}"))?;
        self.connections[index].is_cut |= fate == Fate::Cut;
        let all = self.hosts[host].sides.clone();
        if fate == Fate::HostDies {
            self.hosts[host].is_dead = true;
            self.hosts[host].cores.clear();
            for (connection, side) in all {
                self.connections[connection].sides[side].fate = Some(fate);
            }
        } else {
            let frozen = self.connections[index].memory(side, &self.hosts).to_vec();
            let at = &mut self.connections[index].sides[side];
            at.fate = Some(fate);
            if fate == Fate::Deregistered {
                (at.is_deregistered, at.frozen) = (true, frozen);
            }
        }
        self.wake(host, self.now);
        Ok(())
    }

    /// Ends the faults, and resumes drained queue pairs.
    fn heal(&mut self, now: u64) -> Result<(), String> {
        (self.now, self.healed) = (now, true);
        self.network.heal();
        for connection in &self.connections {
            for side in &connection.sides {
                let host = &mut self.hosts[side.host];
                if host.state(side) == Some(State::SendQueueDrained) && !host.is_dead {
                    let endpoint = host.endpoint_mut(side);
                    let resumed = endpoint.modify_qp(Instant::from_nanos(now), side.qpn, Modify::Resume);
                    resumed.map_err(|error| format!("resume: {error}"))?;
                }
            }
        }
        for index in 0..self.hosts.len() {
            self.hosts[index].cores.all.iter_mut().for_each(|core| core.paused_until = 0);
            self.wake(index, now);
        }
        Ok(())
    }

    fn last_words(&mut self) -> Result<(), String> {
        self.dropped_before = self.network.dropped_and_marked(self.now).0;
        for index in 0..self.connections.len() {
            for side in 0..2 {
                self.connections[index].receive(side, &mut self.hosts)?;
                self.connections[index].receive(side, &mut self.hosts)?;
                self.wake(self.connections[index].sides[side].host, self.now);
            }
            for side in 0..2 {
                let at = &self.connections[index].sides[side];
                if self.hosts[at.host].state(at) == Some(State::ReadyToSend) && !self.hosts[at.host].is_dead {
                    self.connections[index].post_last_request(self.now, side, &mut self.hosts)?;
                }
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<Reached, String> {
        for index in 0..self.connections.len() {
            if self.connections[index].talk.sprays() {
                self.reached.once("sprayed");
            }
            for side in 0..2 {
                self.connections[index].poll(side, &mut self.hosts, &mut self.reached)?;
                let at = &self.connections[index].sides[side];
                if self.hosts[at.host].overflowed(at) {
                    self.reached.once("CQ overflowed");
                }
                if at.srq.is_some() && at.requests.received > 0 {
                    let kind = if at.number.is_some() { "XRC receives" } else { "shared receives" };
                    self.reached.once(kind);
                }
            }
        }
        for host in &mut self.hosts {
            for core in &host.cores.all {
                self.reached.counters(core.endpoint.counters());
            }
            let forwarded = host.cores.close(host.is_dead)?;
            self.reached.count("host: handed over", forwarded.frames);
            self.overrun += forwarded.dropped;
        }
        let (dropped, marked) = self.network.dropped_and_marked(self.now);
        self.reached.count("switch: dropped", dropped);
        self.reached.count("switch: marked", marked);
        let inside = self.network.inside();
        rule(inside == 0, || format!("{inside} frames are still inside a switch"))?;
        let buffers = self.network.buffers_alive();
        rule(buffers == 0, || format!("{buffers} buffers were not given back"))?;
        let losses = Losses { all: dropped + self.overrun, last: dropped - self.dropped_before };
        for (index, connection) in self.connections.iter().enumerate() {
            verdict::end(connection, &self.hosts, losses)
                .map_err(|why| format!("connection {index}: {why}"))?;
        }
        Ok(self.reached)
    }
}
