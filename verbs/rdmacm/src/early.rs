//! Services that are not there yet.
//!
//! Programs tell each other by a socket that they connect now, and the server listens only after that (`perftest -R`). That goes well
//! where a client takes longer to begin than its server to listen. Here nothing takes a client long, and a server on Linux may be a
//! slow one. So who asks for a service that the peer doesn't know asks again for a moment before the program is told.

use crate::id::Connection;
use std::time::{Duration, Instant};

/// The first pause; each is twice the one before.
const FIRST: Duration = Duration::from_millis(10);
/// 1.3 s in all.
const TIMES: u32 = 7;

impl Connection {
    /// The peer has no such service: whether its answer is passed over, and the question comes again.
    pub(crate) fn asks_again(&mut self, now: Instant) -> bool {
        let Some(pending) = self.pending.as_mut().filter(|_| self.too_early < TIMES) else { return false };
        pending.next = now + FIRST * 2_u32.pow(self.too_early);
        self.too_early += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Pending;

    #[test]
    fn who_is_too_early_asks_again_for_a_moment() {
        let now = Instant::now();
        let mut connection = Connection::default();
        assert!(!connection.asks_again(now), "nothing was asked");
        connection.pending = Some(Pending::new([0; 256], now, FIRST, 1));
        let mut at = now;
        while connection.asks_again(at) {
            at = connection.pending.as_ref().unwrap().next;
        }
        assert_eq!(at - now, Duration::from_millis(1270));
    }
}
