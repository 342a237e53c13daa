//! Control paths emit `tracing` events: devices, addresses, connections.

mod common;

use common::*;
use ferroce_verbs::Progress;

#[test]
fn devices_addresses_and_connections_are_logged() {
    let log = Log::start(tracing::Level::DEBUG);
    let (a, b) = connected(Progress::Inline, 64);
    let qpn = a.qp.qpn();
    drop((a, b));
    let logged = log.text();
    let mut lines = logged.lines();
    for (level, event) in [
        ("INFO", "pair0: opened by in process: 02:00:00:00:00:01, ".to_owned()),
        ("DEBUG", "10.0.0.2 is at 02:00:00:00:00:02".to_owned()),
        ("DEBUG", format!("pair0: QP {qpn} is in state ReadyToReceive")),
        ("INFO", format!("pair0: QP {qpn} is connected to 10.0.0.2")),
        ("INFO", format!("pair0: QP {qpn} is destroyed")),
        ("INFO", "pair0: closed".to_owned()),
    ] {
        assert!(lines.any(|line| line.contains(level) && line.contains(&event)), "{event}: {logged}");
    }
}
