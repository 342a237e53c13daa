//! Sixteen hosts send to one at 100 Gb/s in virtual time, with a fixed window and with HPCC++. The hosts are `roce` endpoints.
//!
//! ```sh
//! cargo run --release -p ferroce-fabric --example incast
//! ```

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Setup, SetupError, Topology, run};
use roce::qp::{Congestion, CongestionAlgorithm};
use std::num::NonZeroU32;
use std::time::Duration;

const SENDERS: u32 = 16;
const LINE: Rate = Rate::from_gbps(100);
const CABLE: Duration = Duration::from_micros(1);
/// Round trip of the idle path: four cables, and the serialisation of packets.
const BASE_RTT: Duration = Duration::from_nanos(4_400);

fn main() -> Result<(), SetupError> {
    // The expected number of flows on a link determines how fast their rates grow.
    let hpcc = HpccConfig::new(LINE, BASE_RTT, NonZeroU32::MIN.saturating_add(SENDERS - 1));
    let mut longest = Vec::new();
    for (name, algorithm) in [
        ("fixed window", CongestionAlgorithm::Fixed { window: 512 << 10, rate: None }),
        ("HPCC++", CongestionAlgorithm::Hpcc(hpcc)),
    ] {
        let flows = (0..SENDERS).map(|source| Flow {
            source,
            destination: SENDERS,
            bytes: 2_000_000,
            start: Duration::ZERO,
            is_incast: true,
            dscp: 0,
        });
        let network = Topology::star(SENDERS as usize + 1, LINE, CABLE);
        let outcome = run(&Setup::new(network, flows.collect(), Congestion::new(algorithm)), &mut ())?;
        let queue = outcome.queue_quantile(0.99);
        println!(
            "{name:<12} ends after {:?}; 99 % of the time at most {queue} KB wait in a switch",
            outcome.time
        );
        longest.push(queue);
    }
    assert!(longest[1] < longest[0], "HPCC++ keeps queues shorter");
    Ok(())
}
