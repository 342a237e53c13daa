//! Statistics of ports per interval, for plots.

use crate::switch::{PortId, Switch};
use cc::Instant;
use datapath::io::PacketBuf;

/// The statistics of one port in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Port.
    pub port: PortId,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
    /// Nanoseconds in which the link was busy. The whole time of a frame counts when it starts to leave.
    pub busy: u64,
    /// Frames marked Congestion Experienced.
    pub ce_marked: u64,
    /// Dropped frames.
    pub dropped: u64,
    /// Time at each queue length: pairs of bytes and nanoseconds. Merging intervals loses no information.
    pub queue: Vec<(u64, u64)>,
}

/// A series of intervals. Each call of [`take`](Self::take) ends one.
#[derive(Clone, Debug, Default)]
pub struct Series {
    before: Vec<Totals>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    rx_bytes: u64,
    tx_bytes: u64,
    busy: u64,
    ce_marked: u64,
    dropped: u64,
}

impl Series {
    /// Starts a series at `now`. From then on the switch records the queue lengths of each interval.
    pub fn start<B: PacketBuf>(switch: &mut Switch<B>, now: Instant) -> Self {
        for port in switch.ports() {
            switch.queue_times(now, port);
        }
        let before = switch.ports().map(|port| Totals::of(switch, port)).collect();
        Self { before }
    }

    /// Returns each port's interval that ends at `now`. If the switch's statistics were reset in the interval, it starts at the reset.
    pub fn take<B: PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) -> Vec<Interval> {
        let ports: Vec<_> = switch.ports().collect();
        let intervals = ports.into_iter().zip(&mut self.before).map(|(port, before)| {
            let queue = switch.queue_times(now, port);
            let totals = Totals::of(switch, port);
            let then = std::mem::replace(before, totals);
            let since = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
            Interval {
                port,
                rx_bytes: since(totals.rx_bytes, then.rx_bytes),
                tx_bytes: since(totals.tx_bytes, then.tx_bytes),
                busy: since(totals.busy, then.busy),
                ce_marked: since(totals.ce_marked, then.ce_marked),
                dropped: since(totals.dropped, then.dropped),
                queue,
            }
        });
        intervals.collect()
    }
}

impl Totals {
    fn of<B: PacketBuf>(switch: &Switch<B>, port: PortId) -> Self {
        let (counters, busy) = switch.totals(port);
        Self {
            rx_bytes: counters.rx_bytes,
            tx_bytes: counters.tx_bytes,
            busy: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
            ce_marked: counters.ce_marked,
            dropped: counters.drops.total(),
        }
    }
}
