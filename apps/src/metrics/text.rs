//! The OpenMetrics text: counters with node_exporter's names of Linux `hw_counters`, and all counters with Ferroce's own names.

use std::fmt::Write;
use verbs::Qpn;
use verbs::observe::{
    CoreCounters, CoreStatus, Counters, DeviceStatus, ProcessStatus, QueuePairStatus, named_core_counters,
    named_counters,
};

/// Counters with node_exporter's names: `node_infiniband_` NAME, help text, and the Ferroce counter. The byte counters contain payload
/// only, because headers are not counted.
const INFINIBAND: [(&str, &str, &str); 11] = [
    ("port_data_received_bytes", "Counts payload bytes received", "rx_payload_bytes"),
    ("port_data_transmitted_bytes", "Counts payload bytes sent", "tx_payload_bytes"),
    ("port_packets_received", "Counts frames received", "rx_frames"),
    ("port_packets_transmitted", "Counts frames sent", "tx_frames"),
    ("out_of_sequence", "Counts NAKs sent for a sequence gap", "naks_sent"),
    ("packet_seq_err", "Counts NAKs received for a sequence gap", "naks_received"),
    ("local_ack_timeout_err", "Counts acknowledgement timeouts", "timeouts"),
    ("rnr_nak_retry_err", "Counts RNR NAKs received", "rnr_naks_received"),
    ("np_cnp_sent", "Counts congestion notification packets sent", "cnps_sent"),
    ("rp_cnp_handled", "Counts congestion notification packets received", "cnps_received"),
    ("np_ecn_marked_roce_packets", "Counts packets received with the mark CE", "rx_marked"),
];

type Gauge = (&'static str, &'static str, fn(&QueuePairStatus) -> Option<f64>);

/// The gauges of a queue pair's congestion control: `ferroce_queue_pair_` NAME, help text and value.
const GAUGES: [Gauge; 6] = [
    ("window_bytes", "Congestion control allows this many bytes in flight", |pair| Some(pair.window as f64)),
    ("in_flight_bytes", "This many payload bytes were sent and are not acknowledged", |pair| {
        Some(pair.in_flight as f64)
    }),
    ("pacing_rate_bits_per_second", "Congestion control paces the queue pair at this rate", |pair| {
        pair.rate_bps.map(|bps| bps as f64)
    }),
    ("round_trip_seconds", "The last measured round trip took this long", |pair| {
        pair.round_trip.map(seconds)
    }),
    (
        "path_utilisation_ratio",
        "Utilisation of the path's busiest link; 1 is a full link without a queue",
        |pair| pair.utilisation,
    ),
    ("unpolled_completions", "Send completions that the program has not polled", |pair| {
        Some(pair.unpolled.into())
    }),
];

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Returns the metrics of `processes` in the text format of OpenMetrics.
pub fn exposition(processes: &[ProcessStatus]) -> String {
    let mut text = String::new();
    let devices: Vec<(String, &DeviceStatus)> = processes
        .iter()
        .flat_map(|process| process.devices.iter().map(move |device| (process.pid, device)))
        .map(|(pid, device)| {
            (format!("device=\"{}\",port=\"1\",pid=\"{pid}\"", escape(&device.port)), device)
        })
        .collect();
    for (name, help, counter) in INFINIBAND {
        let values = devices.iter().map(|(labels, device)| (labels.clone(), count(device, counter)));
        family(&mut text, &format!("node_infiniband_{name}"), help, "counter", values);
    }
    let endpoint = named_counters(&Counters::default()).into_iter();
    for (name, help, _) in endpoint.chain(named_core_counters(&CoreCounters::default())) {
        let values = devices.iter().map(|(labels, device)| (labels.clone(), count(device, name)));
        family(&mut text, &format!("ferroce_{name}"), &format!("Counts {help}"), "counter", values);
    }
    let dropped = devices.iter().flat_map(|(labels, device)| {
        device
            .discards
            .iter()
            .map(move |(why, count)| (format!("{labels},reason=\"{}\"", escape(why)), *count as f64))
    });
    family(&mut text, "ferroce_dropped", "Counts packets dropped, by reason", "counter", dropped);
    let waited = devices.iter().flat_map(|(labels, device)| {
        device
            .waited
            .iter()
            .map(move |(state, nanos)| (format!("{labels},state=\"{}\"", escape(state)), seconds(*nanos)))
    });
    family(
        &mut text,
        "ferroce_waited_seconds",
        "Counts the time that queue pairs spent in each waiting state",
        "counter",
        waited,
    );
    cores(&mut text, &devices);
    for (name, help, value) in GAUGES {
        let values = devices.iter().flat_map(|(labels, device)| {
            device.queue_pairs.iter().filter_map(move |pair| {
                Some((
                    format!(
                        "{labels},qpn=\"{}\",algorithm=\"{}\"",
                        Qpn::new(pair.qpn),
                        escape(&pair.algorithm)
                    ),
                    value(pair)?,
                ))
            })
        });
        family(&mut text, &format!("ferroce_queue_pair_{name}"), help, "gauge", values);
    }
    text.push_str("# EOF\n");
    text
}

fn cores(text: &mut String, devices: &[(String, &DeviceStatus)]) {
    let cores: Vec<(String, &CoreStatus)> = devices
        .iter()
        .flat_map(|(labels, device)| {
            device
                .cores
                .iter()
                .enumerate()
                .map(move |(place, core)| (format!("{labels},core=\"{place}\""), core))
        })
        .collect();
    // The counters of a core, and the frames of its queue pairs.
    let endpoint = named_counters(&Counters::default()).into_iter();
    for (name, help, _) in endpoint.chain(named_core_counters(&CoreCounters::default())) {
        let values = cores
            .iter()
            .filter_map(|(labels, core)| Some((labels.clone(), core.counters.get(name).copied()? as f64)));
        let help = format!("Counts {help}, by core");
        family(text, &format!("ferroce_core_{name}"), &help, "counter", values);
    }
    let waited = cores.iter().flat_map(|(labels, core)| {
        core.waited
            .iter()
            .map(move |(state, nanos)| (format!("{labels},state=\"{}\"", escape(state)), seconds(*nanos)))
    });
    let help = "Counts the time that each core's queue pairs spent in each waiting state";
    family(text, "ferroce_core_waited_seconds", help, "counter", waited);
}

fn count(device: &DeviceStatus, name: &str) -> f64 {
    device.counters.get(name).or_else(|| device.core.get(name)).copied().unwrap_or(0) as f64
}

/// Writes a metric family, unless it has no values.
fn family(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    values: impl Iterator<Item = (String, f64)>,
) {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return;
    }
    let suffix = if kind == "counter" { "_total" } else { "" };
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{suffix}{{{labels}}} {value}");
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> ProcessStatus {
        let core = |turns: u64, nanos: u64| serde_json::json!({"counters": {"busy_turns": turns}, "waited": {"window": nanos}});
        let pair = serde_json::json!({
            "qpn": 5, "core": 0, "service": "RC", "state": "ReadyToSend", "peer": null, "algorithm": "fixed", "window": 4096,
            "in_flight": 0, "rate_bps": null, "utilisation": null, "round_trip": 2000, "shortest_round_trip": 1000,
            "send_psn": 0, "acknowledged_psn": 0, "outstanding": 0, "receives": 0, "unpolled": 0,
            "waiting": "idle", "waited": {}, "hops": [], "busiest": null, "suspected": null,
        });
        let cores = [core(4, 1_000_000_000), core(5, 500_000_000)];
        serde_json::from_value(serde_json::json!({
            "format": 4, "version": "0", "pid": 7, "command": "x",
            "devices": [{
                "port": "ve\"th", "driver": "d", "addresses": [], "speed_mbps": null, "stopped": null, "now": 9,
                "counters": {"timeouts": 3}, "discards": {"wrong ICRC": 2}, "core": {"pool_dry": 1},
                "waited": {"window": 1_500_000_000_u64},
                "cores": cores,
                "queue_pairs": [pair],
            }],
        }))
        .unwrap()
    }

    #[test]
    fn each_name_has_its_value_and_labels_are_escaped() {
        let text = exposition(&[process()]);
        let device = "device=\"ve\\\"th\",port=\"1\",pid=\"7\"";
        for line in [
            format!("node_infiniband_local_ack_timeout_err_total{{{device}}} 3\n"),
            format!("ferroce_pool_dry_total{{{device}}} 1\n"),
            format!("ferroce_core_busy_turns_total{{{device},core=\"1\"}} 5\n"),
            format!("ferroce_core_waited_seconds_total{{{device},core=\"0\",state=\"window\"}} 1\n"),
            format!("ferroce_dropped_total{{{device},reason=\"wrong ICRC\"}} 2\n"),
            format!("ferroce_waited_seconds_total{{{device},state=\"window\"}} 1.5\n"),
            format!(
                "ferroce_queue_pair_round_trip_seconds{{{device},qpn=\"0x000005\",algorithm=\"fixed\"}} 0.000002\n"
            ),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("pacing_rate"), "a family without values is left out");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn every_help_text_has_a_capital_letter_and_a_full_stop() {
        let text = exposition(&[process()]);
        let helps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        assert!(helps.len() > 40, "{text}");
        for line in helps {
            let (_, help) = line.split_once(' ').unwrap();
            let words = help.strip_suffix('.').unwrap_or_default();
            assert!(words.starts_with(char::is_uppercase) && !words.ends_with(['.', ' ']), "{line}");
        }
        assert!(
            text.contains("# HELP ferroce_core_busy_turns Counts turns that found work, by core.\n"),
            "{text}"
        );
    }

    #[test]
    fn values_reported_by_a_process_cannot_add_a_metric() {
        let mut report = serde_json::to_value(process()).unwrap();
        let hostile = serde_json::json!({"x 1\n# EOF": 7, "x": 7});
        let device = &mut report["devices"][0];
        for table in ["counters", "core", "discards", "waited"] {
            device[table] = hostile.clone();
        }
        device["cores"][0] = serde_json::json!({"counters": hostile, "waited": hostile});
        device["port"] = "x\n# EOF\n".into();
        let text = exposition(&[serde_json::from_value(report).unwrap()]);
        assert!(!text.contains(" 7\n"), "{text}");
        assert_eq!(text.matches("# EOF\n").count(), 1, "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = (line.split('{').next().unwrap(), line.rsplit(' ').next().unwrap());
            assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn without_processes_the_exposition_is_empty() {
        assert_eq!(exposition(&[]), "# EOF\n");
    }
}
