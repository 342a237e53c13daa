//! The conditions on memory at all times, and on all state at the end.

use super::*;

impl Simulation {
    fn check_arrived(&self, host: usize, index: usize) {
        let posted = self.logs[host].posted[index];
        let (ours, theirs) = (&self.pair.hosts[host], &self.pair.hosts[1 - host]);
        // Deregistration frees the region's window, which then cannot be invalidated. The peer alone fails, after its acknowledgement.
        if posted.returns.is_some() && self.deregistered[1 - host] {
            return;
        }
        let length = posted.length as usize;
        let at = |area, index| offset(area, index) as usize;
        match posted.kind {
            CompletionOpcode::Read => {
                let brought = ours.bytes(at(Area::Fetched, index), length);
                assert!(brought == theirs.bytes(at(Area::Offered, index), length), "READ {index}");
            }
            CompletionOpcode::FetchAdd => {
                let found = ours.bytes(at(Area::Fetched, index), 8);
                assert_eq!(u64::from_ne_bytes(found.try_into().unwrap()), posted.finds, "FETCH_ADD {index}");
            }
            CompletionOpcode::Flush | CompletionOpcode::Bind | CompletionOpcode::LocalInvalidate => {}
            CompletionOpcode::Write | CompletionOpcode::AtomicWrite => {
                let sent = ours.bytes(at(Area::Outgoing, index), length);
                assert!(sent == theirs.bytes(at(Area::Written, index), length), "WRITE {index}");
            }
            _ => {
                let receive = posted.receive.expect("a SEND takes a receive");
                let sent = ours.bytes(at(Area::Outgoing, index), length);
                assert!(sent == theirs.bytes(at(Area::Received, receive), length), "SEND {index}");
            }
        }
    }

    /// Checks the bytes of every request that succeeded for the sender or for the receiver.
    pub(super) fn check_memory(&self, host: usize) {
        for index in 0..self.logs[host].done {
            self.check_arrived(host, index);
        }
        let delivered = self.logs[host].delivered;
        for (index, posted) in self.logs[1 - host].posted.iter().enumerate() {
            if posted.receive.is_some_and(|receive| receive < delivered) {
                self.check_arrived(1 - host, index);
            }
        }
    }

    pub(super) fn check_end(&mut self) {
        for host in [0, 1] {
            self.check_untouched(host);
            if self.overflowed(host) {
                // Completions are lost; only the state of the queue pair can be checked.
                assert!(self.destroyed[host] || self.state(host) == Some(State::Error), "host {host}");
                continue;
            }
            match self.state(host) {
                Some(State::ReadyToSend) => self.check_alive(host),
                Some(State::Error) => self.check_dead(host),
                None => assert!(self.destroyed[host]),
                Some(state) => panic!("host {host} is in {state:?}"),
            }
        }
    }

    /// Checks that all requests succeeded. The room in the send queue shows that a request without a completion has succeeded.
    fn check_alive(&self, host: usize) {
        let (request_log, end) = (&self.logs[host], &self.pair.hosts[host].endpoint);
        let qpn = self.pair.hosts[host].qpn;
        assert_eq!(request_log.failed, None, "host {host}");
        assert_eq!(
            end.send_room(qpn),
            self.sends[host],
            "host {host}: a request has not ended: {:?}",
            self.pair.reports()
        );
        assert!(
            request_log.posted[request_log.ended..].iter().all(|posted| !posted.signalled),
            "host {host}: no completion"
        );
        assert_eq!(self.pair.reports()[host].unwrap().in_flight, 0);
        for index in 0..request_log.posted.len() {
            self.check_arrived(host, index);
        }
        // The peer has the same record of what it received, unless its own queue pair failed.
        let peer = 1 - host;
        if self.state(peer) == Some(State::ReadyToSend) {
            assert_eq!(self.logs[peer].delivered, request_log.consuming, "host {peer}: messages");
            let sum = self.pair.hosts[peer].bytes(0, 8);
            assert_eq!(u64::from_ne_bytes(sum.try_into().unwrap()), request_log.added, "host {peer}: sum");
        }
        assert_eq!(request_log.receive_failed, None, "host {host}");
    }

    /// Checks that the failure had a reason, and that everything was flushed.
    fn check_dead(&self, host: usize) {
        let (request_log, qpn) = (&self.logs[host], self.pair.hosts[host].qpn);
        let room =
            (self.pair.hosts[host].endpoint.send_room(qpn), self.pair.hosts[host].endpoint.recv_room(qpn));
        let waiting = self.inbox.filter(|_| host == 1).map(|inbox| {
            self.pair.hosts[1].endpoint.srq_report(inbox.srq).expect("it stays").waiting as usize
        });
        let depth = if waiting.is_some() { 0 } else { 64 };
        assert_eq!(room, (self.sends[host], depth), "host {host}: not flushed");
        // Requests that remain in a shared receive queue are available to other targets.
        let ended = request_log.received + waiting.unwrap_or(0);
        assert_eq!(ended, request_log.receives, "host {host}: receives without completion");
        if request_log.failed.is_some() {
            assert_eq!(
                request_log.ended,
                request_log.posted.len(),
                "host {host}: requests without completion"
            );
        }
        let peer = 1 - host;
        let (own, tired) = (self.ended_itself(host), self.may_tire(host));
        let reasons = [host, peer].map(|host| self.ended_itself(host) || self.may_tire(host));
        assert!(reasons.contains(&true), "host {host} failed without a reason: {:?}", request_log.failed);
        let peer_failed = self.state(peer) != Some(State::ReadyToSend);
        let possible = match request_log.failed {
            None => true,
            // Its own queue pair failed first, or its responder did.
            Some(CompletionStatus::Flushed) => own,
            Some(CompletionStatus::RetryExceeded) => tired || peer_failed,
            Some(CompletionStatus::RemoteAccess | CompletionStatus::RemoteOperation) => {
                self.deregistered[peer]
            }
            Some(
                CompletionStatus::LocalProtection
                | CompletionStatus::Bind
                | CompletionStatus::LocalQpOperation,
            ) => self.deregistered[host],
            Some(_) => false,
        };
        assert!(possible, "host {host} ended as {:?} without a reason", request_log.failed);
    }

    /// Returns whether an event on its own side ended the queue pair, or may have.
    fn ended_itself(&self, host: usize) -> bool {
        self.killed[host] || self.overflowed(host) || self.deregistered[host]
    }

    /// Returns whether faults may have used up its retries.
    fn may_tire(&self, host: usize) -> bool {
        // While a receiver is not ready, a timeout before each RNR NAK uses a retry.
        let waited = self.pair.options.ack_timeout == HASTY && self.logs[host].consuming > 0;
        self.excuses >= ROUNDS || waited
    }

    /// Checks that every byte is unchanged, or was placed by a request of the peer or by the host's own READ.
    fn check_untouched(&self, host: usize) {
        let (now, before) = (&self.pair.hosts[host].ram.0, &self.before[host]);
        let peer = 1 - host;
        let same = |area, from: usize, to: usize| {
            let (from, to) = (offset(area, from) as usize, offset(area, to) as usize);
            assert!(now[from..to] == before[from..to], "host {host}: memory outside of all requests changed");
        };
        same(Area::Outgoing, 0, REQUESTS);
        same(Area::Offered, 0, REQUESTS);
        same(Area::Received, self.logs[host].receives, REQUESTS);
        for (index, posted) in self.logs[peer].posted.iter().enumerate() {
            let theirs = &self.pair.hosts[peer].ram.0;
            let brought = |area, place: usize| {
                let (to, from) = (offset(area, place) as usize, offset(Area::Outgoing, index) as usize);
                let length = posted.length as usize;
                let bytes = now[to..to + length].iter().zip(&before[to..]).zip(&theirs[from..]);
                let legal = bytes.into_iter().all(|((now, before), sent)| now == before || now == sent);
                assert!(legal, "host {host}: message {index} brought other bytes");
                let end = to + PLACE as usize;
                assert!(
                    now[to + length..end] == before[to + length..end],
                    "host {host}: beyond message {index}"
                );
            };
            match (posted.kind, posted.receive) {
                (CompletionOpcode::Write | CompletionOpcode::AtomicWrite, _) => brought(Area::Written, index),
                (CompletionOpcode::Send, Some(place)) if place < REQUESTS => brought(Area::Received, place),
                _ => same(Area::Written, index, index + 1),
            }
        }
    }
}
