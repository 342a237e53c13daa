//! Selects the captured frames to write: the frames of a queue pair or of a peer, or all frames.

use roce::wire::{self, Header};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use verbs::observe::{self, Direction, ProcessStatus, Record};

/// The interval between reads of the process's queue pairs if a packet is from an unknown sender.
const LOOK: Duration = Duration::from_millis(100);

/// The interval between reads if a packet is from a known sender, because the peer's queue pair number may have been reused.
const FRESH: Duration = Duration::from_secs(1);

/// Queue pairs by their port, their peer's address and their peer's queue pair number.
type Senders = HashMap<(String, IpAddr, u32), u32>;

#[derive(Debug)]
pub struct Filter {
    qp: Option<u32>,
    peer: Option<IpAddr>,
    pid: u32,
    /// The queue pairs at the last two reads. Packets of the earlier read may still be in the rings. A packet contains only the receiver's
    /// number, so this table identifies the sender.
    senders: [Senders; 2],
    looked: Option<Instant>,
}

impl Filter {
    pub fn new(pid: u32, qp: Option<u32>, peer: Option<IpAddr>) -> Self {
        Self { qp, peer, pid, senders: Default::default(), looked: None }
    }

    /// Replaces the queue pairs by those in `status`, and keeps the previous ones until the next call.
    pub fn learn(&mut self, status: &ProcessStatus) {
        let [now, before] = &mut self.senders;
        *before = std::mem::take(now);
        for device in &status.devices {
            for pair in &device.queue_pairs {
                if let Some(peer) = &pair.peer
                    && let Ok(address) = peer.address.parse()
                {
                    now.insert((device.port.clone(), address, peer.qpn), pair.qpn);
                }
            }
        }
    }

    /// Returns true if a frame of `port` must be written. `frame` may be truncated, but not in its headers.
    pub fn takes(&mut self, port: &str, record: &Record, frame: &[u8]) -> bool {
        if self.qp.is_none() && self.peer.is_none() {
            return true;
        }
        // The truncated part is payload, of which only the length is used.
        let mut whole = frame.to_vec();
        whole.resize(record.length as usize, 0);
        let Ok(frame) = wire::parse_unverified(&whole) else { return false };
        let destination = frame.header.bth().destination.get();
        let (peer, is_ours) = match record.direction {
            Direction::In => (frame.network.source(), self.qp.is_none_or(|qp| qp == destination)),
            Direction::Out => {
                let peer = frame.network.destination();
                (peer, self.qp.is_none_or(|qp| self.sender(port, peer, &frame.header) == Some(qp)))
            }
        };
        is_ours && self.peer.is_none_or(|wanted| wanted == peer)
    }

    fn sender(&mut self, port: &str, peer: IpAddr, header: &Header) -> Option<u32> {
        if let Header::Datagram { source, .. } = header {
            return Some(source.get());
        }
        let key = (port.to_owned(), peer, header.bth().destination.get());
        let pause = if self.senders.iter().any(|senders| senders.contains_key(&key)) { FRESH } else { LOOK };
        if self.looked.is_none_or(|at| at.elapsed() > pause) {
            self.looked = Some(Instant::now());
            if let Ok(status) = observe::read(self.pid) {
                self.learn(&status);
            }
        }
        self.senders.iter().find_map(|senders| senders.get(&key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::wire::{Bth, Mac, Operation, Path, Service};
    use roce::{Psn, Qpn};

    const PORT: &str = "here";

    fn status() -> ProcessStatus {
        let pair = serde_json::json!({
            "qpn": 5, "core": 0, "service": "RC", "state": "ReadyToSend", "peer": { "address": "10.0.0.2", "qpn": 9 }, "algorithm": "",
            "window": 0, "in_flight": 0, "send_psn": 0, "acknowledged_psn": 0, "outstanding": 0, "receives": 0, "unpolled": 0,
            "waiting": "idle", "waited": {}, "hops": [], "busiest": null, "suspected": null,
        });
        let device = serde_json::json!({
            "port": PORT, "driver": "", "addresses": [], "now": 0, "counters": {}, "discards": {}, "core": {}, "waited": {}, "cores": [],
            "queue_pairs": [pair],
        });
        let process =
            serde_json::json!({ "format": 4, "version": "", "pid": 1, "command": "", "devices": [device] });
        serde_json::from_value(process).unwrap()
    }

    /// Returns a frame between 10.0.0.1 and 10.0.0.`peer` to queue pair `to`, truncated to 64 bytes.
    fn frame(direction: Direction, peer: u8, to: u32) -> (Record, Vec<u8>) {
        let ends = [1, peer].map(|last| (Mac([2, 0, 0, 0, 0, last]), IpAddr::from([10, 0, 0, last])));
        let path = if direction == Direction::Out {
            Path::new(ends[0], ends[1])
        } else {
            Path::new(ends[1], ends[0])
        };
        let header = Header::Connected {
            bth: Bth::new(Qpn::new(to), Psn::new(1)),
            service: Service::Rc,
            operation: Operation::SendMiddle,
        };
        let mut bytes = vec![0; 2048];
        let length = wire::emit(&path, 0, &header, 1024, &mut bytes).unwrap().seal() as u32;
        bytes.truncate(64);
        (Record { time: 0, direction, length, captured: 64, dropped: 0 }, bytes)
    }

    #[test]
    fn frames_match_a_queue_pair_by_its_own_or_its_peers_number() {
        let mut filter = Filter::new(0, Some(5), None);
        filter.learn(&status());
        let mut takes = |direction, peer, to| {
            let (record, bytes) = frame(direction, peer, to);
            filter.takes(PORT, &record, &bytes)
        };
        assert!(takes(Direction::In, 2, 5) && takes(Direction::Out, 2, 9));
        assert!(!takes(Direction::In, 2, 9) && !takes(Direction::Out, 2, 5));
        assert!(!takes(Direction::Out, 3, 9), "another peer's queue pair of this number");
    }

    #[test]
    fn a_destroyed_queue_pair_matches_until_the_second_refresh() {
        let mut filter = Filter::new(0, Some(5), None);
        let mut without = status();
        without.devices[0].queue_pairs.clear();
        filter.learn(&status());
        let (record, bytes) = frame(Direction::Out, 2, 9);
        for takes in [true, true, false] {
            // Prevents a read of the queue pairs of process 0.
            filter.looked = Some(Instant::now());
            assert_eq!(filter.takes(PORT, &record, &bytes), takes);
            filter.learn(&without);
        }
    }

    #[test]
    fn a_peer_filter_matches_frames_in_both_directions() {
        let mut filter = Filter::new(0, None, Some([10, 0, 0, 2].into()));
        for direction in [Direction::In, Direction::Out] {
            for (peer, taken) in [(2, true), (3, false)] {
                let (record, bytes) = frame(direction, peer, 7);
                assert_eq!(filter.takes(PORT, &record, &bytes), taken);
            }
        }
        let (record, bytes) = frame(Direction::In, 2, 7);
        assert!(!filter.takes(PORT, &record, &bytes[..10]), "no RoCEv2 frame");
        assert!(Filter::new(0, None, None).takes(PORT, &record, &bytes[..10]));
    }
}
