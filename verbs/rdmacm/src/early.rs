//! Services that are not there yet: a request for one is repeated for a moment before the failure is reported to the program.

use crate::id::Connection;
use crate::message::early_pause;
use std::time::Instant;

impl Connection {
    /// The peer has no such service: whether its answer is passed over, and the question comes again.
    pub(crate) fn asks_again(&mut self, now: Instant) -> bool {
        let (Some(pending), Some(pause)) = (&mut self.pending, early_pause(self.too_early)) else {
            return false;
        };
        pending.next = now + pause;
        self.too_early += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::PATIENCE;
    use crate::message::Pending;
    use std::time::Duration;

    #[test]
    fn who_is_too_early_asks_again_for_a_moment() {
        let now = Instant::now();
        let mut connection = Connection::default();
        assert!(!connection.asks_again(now), "nothing was asked");
        connection.pending = Some(Pending::new([0; 256], 1, now, PATIENCE));
        let mut at = now;
        while connection.asks_again(at) {
            at = connection.pending.as_ref().unwrap().next;
        }
        assert_eq!(at - now, Duration::from_millis(1270));
    }
}
