//! Datagram probes and responses to them: correct, repeated, late, and unsolicited ones.

use super::table::Packet;
use crate::harness::script::Script;
use crate::harness::{Options, path};
use cc::Rate;
use core::time::Duration;
use roce::qp::{Congestion, Datagram, Modify, QpInit, SendRequest};
use roce::wire::telemetry::{HopRecord, Speed};
use roce::wire::{Bth, Feedback, Header, MAX_OVERHEAD, Mtu, Report, Service};
use roce::{Psn, Qpn};

const KEY: u32 = 0x1234;
/// The maximum number of destinations that a queue pair keeps.
const DESTINATIONS: u8 = 128;

/// Creates a datagram queue pair that has sent to `destinations` hosts, the hostile one last.
fn datagrams(script: &mut Script, options: &Options, destinations: u8) -> Qpn {
    let init = QpInit { service: Service::Ud, ..script.host.init(options) };
    let endpoint = &mut script.host.endpoint;
    let qpn = endpoint.create_qp(script.now, init).unwrap();
    let congestion = Congestion::new(options.congestion);
    for modify in [
        Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
        Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
        Modify::ReadyToSendDatagrams { send_psn: Psn::new(7), congestion },
    ] {
        endpoint.modify_qp(script.now, qpn, modify).unwrap();
    }
    let mut frame = vec![0; 1024 + MAX_OVERHEAD];
    for host in (1..=destinations).rev() {
        script.wait(Duration::from_micros(1));
        let way = path(2, if host == 1 { 1 } else { host + 1 });
        let address = script.host.endpoint.create_address(script.host.pd, &way).unwrap();
        let to = Datagram { address, qpn: Qpn::new(0x99), queue_key: KEY };
        let request = SendRequest::send_to(1, script.host.sge(0, 8), to).unsignalled();
        script.host.endpoint.post_send(script.now, qpn, request).unwrap();
        while script.host.endpoint.poll_transmit(script.now, &script.host.ram, &mut frame).is_some() {}
    }
    qpn
}

/// Returns the packets in an order in which each has the effect that its name states.
pub fn packets(script: &mut Script, options: &Options) -> Vec<(&'static str, Packet)> {
    let [asker, silent] = [DESTINATIONS, 0].map(|count| datagrams(script, options, count));
    let probe = |queue_key| {
        let bth = Bth { congestion: Bth::TELEMETRY, destination: asker, ..script.bth(0) };
        Header::DatagramTelemetryRequest { bth, queue_key, source: Qpn::new(0x99) }
    };
    let answer = |destination, psn| {
        let bth = Bth { destination, ..script.bth(psn) };
        let record = HopRecord::new(Speed::from_rate(Rate::from_gbps(100)).unwrap(), 1, 1, 50_000);
        let report = Report::Busiest { path_id: 1, hops: 1, busiest: Some((0, record)) };
        Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } }
    };
    let rows = [
        ("probe of datagrams", probe(KEY)),
        ("the same probe of datagrams", probe(KEY)),
        ("probe of datagrams with another key", probe(KEY + 1)),
        ("answer to a probe of datagrams", answer(asker, 0)),
        ("the same answer to a probe of datagrams", answer(asker, 0)),
        ("late answer to a probe of datagrams", answer(asker, 0xff_ffff)),
        ("answer to a probe of datagrams to come", answer(asker, 9)),
        ("answer about datagrams to who sent none", answer(silent, 0)),
    ];
    rows.into_iter().map(|(name, header)| (name, Packet::Foreign(header))).collect()
}
