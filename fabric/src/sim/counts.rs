//! The counts of a run.

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) packets: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
    pub(super) direct_responses: u64,
    pub(super) forged: u64,
    pub(super) vendor_opcodes: u64,
    pub(super) pauses: u64,
    pub(super) paused: u64,
    pub(super) queue_max: u64,
}

impl Counts {
    /// Adds the counts of another thread.
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.packets += other.packets;
        self.dropped += other.dropped;
        self.lost += other.lost;
        self.marked += other.marked;
        self.direct_responses += other.direct_responses;
        self.forged += other.forged;
        self.vendor_opcodes += other.vendor_opcodes;
        self.pauses += other.pauses;
        self.paused += other.paused;
        self.queue_max = self.queue_max.max(other.queue_max);
    }
}
