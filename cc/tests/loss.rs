//! Each algorithm's reaction to a loss, as the table of cc/README.md states it.

use core::num::NonZeroU32;
use core::time::Duration;
use ferroce_cc::{
    Ack, AlgorithmConfig, CongestionController, DcqcnConfig, DctcpConfig, HpccConfig, Instant, POWERTCP,
    Rate, SWIFT,
};

const LINE: Rate = Rate::from_gbps(100);
const T: Duration = Duration::from_micros(10);

fn algorithms() -> [(&'static str, AlgorithmConfig); 8] {
    let hpcc = HpccConfig::new(LINE, T, NonZeroU32::MIN);
    [
        ("Fixed", AlgorithmConfig::Fixed { window: 1 << 19, rate: Some(LINE) }),
        ("Hpcc", AlgorithmConfig::Hpcc(hpcc)),
        ("Hpcc::fair", AlgorithmConfig::HpccFair(hpcc)),
        ("HpccReceiver", AlgorithmConfig::HpccReceiver(hpcc)),
        ("POWERTCP", AlgorithmConfig::Registered(&POWERTCP, hpcc.into())),
        ("Dcqcn", AlgorithmConfig::Dcqcn(DcqcnConfig::new(LINE, Some(T)))),
        ("Dctcp", AlgorithmConfig::Dctcp(DctcpConfig::new(LINE, T))),
        ("SWIFT", AlgorithmConfig::Registered(&SWIFT, hpcc.into())),
    ]
}

/// Returns the rate in percent of the line rate after three losses: a first one, another in the same window of data, and one in the next
/// window.
fn after_losses(config: &AlgorithmConfig) -> [u64; 3] {
    let mut controller = config.build().unwrap();
    let now = |round: u64| Instant::from_nanos(round * T.as_nanos() as u64);
    let mut answered = |round: u64, losses: u32| {
        let (seq, next) = (100 * round, 100 * round + 100);
        let (acked_bytes, ce_bytes, rtt) = (1000, 0, Some(T));
        controller.on_send(now(round), next - 1, 1000);
        controller.on_ack(&Ack { now: now(round), seq, next, acked_bytes, ce_bytes, rtt });
        (0..losses).for_each(|_| controller.on_loss(now(round)));
        (controller.pacing_rate().unwrap().as_bps() + LINE.as_bps() / 200) * 100 / LINE.as_bps()
    };
    let first = answered(1, 1);
    let same = answered(1, 1);
    [first, same, answered(2, 1)]
}

#[test]
fn each_algorithm_answers_a_loss_as_documented() {
    let page = include_str!("../README.md");
    let (_, table) = page.split_once("\n## Loss\n").unwrap();
    for (name, config) in algorithms() {
        let named = format!("`{name}`");
        let row = table.lines().find(|line| line.starts_with('|') && line.contains(&named)).unwrap();
        let documented = if row.contains("nothing") { [100; 3] } else { [50, 50, 25] };
        assert_eq!(after_losses(&config), documented, "{name}: {row}");
    }
}
