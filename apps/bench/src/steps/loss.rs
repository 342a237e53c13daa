//! The retransmission of a lost packet, among hundreds and thousands of missing packets. With selective repeat the cost is the same. A
//! selective acknowledgement covers 128 packets, and the requester checks each of them.

use super::{Meter, Step};
use crate::scale::Host;
use cc::Instant;
use roce::qp::LossRecovery;
use roce::wire::{MAX_OVERHEAD, Mtu};
use std::time::Duration;

pub const STEPS: &[Step] = &[
    Step {
        name: "lost-256",
        what: "a 64 B WRITE sent again, its ACK, 256 missing",
        budget: 13_000,
        run: |meter| run(meter, 256),
    },
    Step {
        name: "lost-3k",
        what: "a 64 B WRITE sent again, its ACK, 3,000 missing",
        budget: 13_000,
        run: |meter| run(meter, 3000),
    },
];

const SIZE: u32 = 64;
/// Longer than the pacing delay of any packet.
const TICK: Duration = Duration::from_micros(1);
/// Longer than an acknowledgement timeout.
const SILENCE: Duration = Duration::from_secs(3);

/// Loses all packets, and retransmits them later. The first packet is lost again, so that each later one arrives out of order.
fn run(meter: &mut Meter, missing: u32) {
    let end = |core| Host::new(core, 1, SIZE, missing).expect("defaults are in their limits");
    let [mut a, mut b] = [0, 1].map(end);
    let qps = [a.qps[0], b.qps[0]];
    for (host, peer, from, to) in [(&mut a, qps[1], 1, 2), (&mut b, qps[0], 2, 1)] {
        host.connect(from, to, &[peer], Mtu::M1024, LossRecovery::SelectiveRepeat).expect("a fresh pair");
    }
    let mut now = Instant::ZERO;
    let request = a.write_to(&b, SIZE);
    for _ in 0..missing {
        a.endpoint.post_send(now, a.qps[0], request.clone()).expect("room for all");
    }
    let mut frame = [0; SIZE as usize + MAX_OVERHEAD];
    for _ in 0..missing {
        now = now + TICK;
        assert!(a.endpoint.poll_transmit(now, &a.ram, &mut frame).is_some(), "all leave, and none arrives");
    }
    // The retransmission timer starts when no packet is left to send.
    assert!(a.endpoint.poll_transmit(now, &a.ram, &mut frame).is_none());
    now = now + SILENCE;
    a.endpoint.on_timeout(now);
    for number in 0..missing {
        now = now + TICK;
        let mut length = None;
        meter.part(1, &mut || length = a.endpoint.poll_transmit(now, &a.ram, &mut frame));
        let sent = length.expect("each is sent again");
        if number == 0 {
            continue;
        }
        b.endpoint.on_frame(now, &mut b.ram, &frame[..sent]).expect("a good frame");
        let said = b.endpoint.poll_transmit(now, &b.ram, &mut frame).expect("it is early, and told of");
        meter.part(0, &mut || {
            a.endpoint.on_frame(now, &mut a.ram, &frame[..said]).expect("a good frame");
        });
    }
    assert_eq!(a.endpoint.counters().retransmitted, u64::from(missing));
}
