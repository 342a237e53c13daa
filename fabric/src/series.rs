//! A port over time, interval by interval, for plots.

use crate::switch::{PortId, Switch};
use cc::Instant;
use datapath::io::PacketBuf;

/// One port in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The port.
    pub port: PortId,
    /// Bytes that came in.
    pub rx_bytes: u64,
    /// Bytes that left.
    pub tx_bytes: u64,
    /// Nanoseconds in which the link was busy. A frame that has started counts completely.
    pub busy: u64,
    /// Frames marked Congestion Experienced.
    pub ce_marked: u64,
    /// Frames that found no room.
    pub dropped: u64,
    /// For how long the queue had which length: bytes, and nanoseconds. Intervals can be put together without loss.
    pub queue: Vec<(u64, u64)>,
}

/// Takes what happened since it was asked last.
#[derive(Clone, Debug, Default)]
pub struct Series {
    before: Vec<Totals>,
}

/// Of a port, since its statistics began.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    rx_bytes: u64,
    tx_bytes: u64,
    busy: u64,
    ce_marked: u64,
    dropped: u64,
}

impl Series {
    /// Begins at `now`; from here on the switch keeps each interval's queue too.
    pub fn start<B: PacketBuf>(switch: &mut Switch<B>, now: Instant) -> Self {
        for port in switch.ports() {
            switch.queue_times(now, port);
        }
        let before = switch.ports().map(|port| Totals::of(switch, port)).collect();
        Self { before }
    }

    /// The interval that ends at `now`, of each port. The switch's statistics may have begun anew within it; what was
    /// counted before that is not in it then.
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
