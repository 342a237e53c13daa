//! Both ends of a flow of the model.

use super::port::cut;
use super::setup::Setup;
use cc::{Algorithm, CongestionController, Rate};

/// The sending end of a running flow. Times are ps.
pub(super) struct Sender {
    pub(super) algorithm: Algorithm,
    /// Next byte to send, and oldest unacknowledged byte.
    pub(super) next: u64,
    pub(super) una: u64,
    /// Earliest time of the next packet, by pacing.
    pub(super) paced_until: u64,
    pub(super) last_size: u32,
    pub(super) window: u64,
    pub(super) rate: Rate,
    /// Scheduled timeout of the algorithm.
    pub(super) timer: Option<u64>,
    /// Time of the next [`Event::Expire`](super::event::Event::Expire) that is due to missing progress.
    pub(super) expires: u64,
    /// The next packet is the first after an unanswered loss.
    pub(super) restarts: bool,
    /// Time of the start, the last acknowledgement of new bytes, or the last return to `una` after a drop.
    pub(super) progress: u64,
}

#[derive(Default)]
pub(super) struct FlowState {
    pub(super) sender: Option<Box<Sender>>,
    /// The sender has received the last acknowledgement.
    pub(super) is_ended: bool,
    /// The receiver's next expected byte.
    pub(super) expected: u64,
    /// The receiver has sent a NAK for the gap at `expected`.
    pub(super) has_sent_nak: bool,
}

impl Sender {
    pub(super) fn new(algorithm: Algorithm, line: Rate, now: u64) -> Self {
        let mut sender = Self {
            algorithm,
            next: 0,
            una: 0,
            paced_until: 0,
            last_size: 0,
            window: 0,
            rate: line,
            timer: None,
            expires: 0,
            restarts: false,
            progress: now,
        };
        sender.listen(line);
        sender
    }

    /// Copies window and rate from the algorithm; returns the previous rate.
    pub(super) fn listen(&mut self, line: Rate) -> Rate {
        self.window = self.algorithm.window();
        std::mem::replace(&mut self.rate, self.algorithm.pacing_rate().unwrap_or(line))
    }

    /// Returns the pacing interval of `size` bytes, in ps.
    pub(super) fn gap(size: u32, rate: Rate, setup: &Setup) -> u64 {
        cut((f64::from(size) * 8e12 / rate.as_bps() as f64) as u64, setup.conventions.whole_nanos)
    }

    pub(super) fn may_send(&self, bytes: u64, payload: u32) -> Option<u32> {
        let open = self.next < bytes && self.next - self.una < self.window;
        open.then(|| (bytes - self.next).min(u64::from(payload)) as u32)
    }

    pub(super) fn sent(&mut self, now: u64, payload: u32, size: u32, setup: &Setup) {
        self.next += u64::from(payload);
        let instant = cc::Instant::from_nanos(now / 1000);
        self.algorithm.on_send(instant, self.next - 1, payload);
        self.last_size = size;
        self.paced_until = now + Self::gap(size, self.rate, setup);
    }

    /// Goes back to the oldest unacknowledged byte. Returns the number of packets of `payload` bytes to send again.
    pub(super) fn go_back(&mut self, payload: u32) -> u64 {
        let again = (self.next - self.una).div_ceil(u64::from(payload));
        self.next = self.una;
        again
    }

    /// Adjusts the current pacing interval to a changed rate, only with telemetry. Without it, a cut applies from the next packet on, as in
    /// the authors' simulator.
    pub(super) fn repace(&mut self, before: Rate, setup: &Setup) {
        if setup.stamps() && before != self.rate && self.last_size > 0 {
            let (old, new) =
                (Self::gap(self.last_size, before, setup), Self::gap(self.last_size, self.rate, setup));
            self.paced_until = (self.paced_until + new).saturating_sub(old);
        }
    }
}
