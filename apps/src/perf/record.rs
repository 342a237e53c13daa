//! The report as JSON: perftest's keys, and under `ferroce` the values that perftest's report lacks.

use super::plan::Verb;
use super::report::{self, Head};
use super::stats::{Bandwidth, Latency};
use crate::counters;
use serde_json::{Value, json};
use verbs::observe::{Counters, QpReport};

/// The result for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Row {
    Bandwidth(Bandwidth),
    Latency(Latency),
}

fn rounded(value: f64, decimals: i32) -> f64 {
    let factor = 10_f64.powi(decimals);
    (value * factor).round() / factor
}

fn row(row: &Row, gbits: bool) -> Value {
    match row {
        Row::Bandwidth(run) => json!({
            "MsgSize": run.size,
            "n_iterations": run.messages,
            "BW_peak": rounded(report::scaled(run.peak, gbits), 6),
            "BW_average": rounded(report::scaled(run.average, gbits), 6),
            "MsgRate": rounded(run.rate / 1e6, 6),
        }),
        Row::Latency(run) => json!({
            "MsgSize": run.size,
            "n_iterations": run.exchanges,
            "t_min": rounded(run.min, 3),
            "t_max": rounded(run.max, 3),
            "t_typical": rounded(run.p50, 3),
            "t_avg": rounded(run.average, 3),
            "t_stdev": rounded(run.deviation, 3),
            "percentile_99": rounded(run.p99, 3),
            "percentile_99.9": rounded(run.p999, 3),
            "tps_average": rounded(run.rate, 2),
            "p50": rounded(run.p50, 3),
            "p90": rounded(run.p90, 3),
            "p99": rounded(run.p99, 3),
            "p99.9": rounded(run.p999, 3),
            "p99.99": rounded(run.p9999, 3),
            "max": rounded(run.max, 3),
        }),
    }
}

fn test_info(head: &Head) -> Value {
    let plan = head.plan;
    let (limit, value) = match plan.tool.verb {
        Verb::Write | Verb::Send => ("Max_inline_data", head.inline_size),
        Verb::Read | Verb::Atomic => ("Outstand_reads", u32::from(head.outs)),
    };
    json!({
        "test": report::title(plan, head.post_list).replace(' ', "_"),
        "Dual_port": "OFF",
        "Device": head.device,
        "Number_of_qps": plan.qps,
        "Transport_type": "IB",
        "Connection_type": plan.connection.name(),
        "Using_SRQ": report::on_or_off(head.shares_receives),
        "TX_depth": head.tx_depth,
        "Post_List": head.post_list,
        "RX_depth": head.rx_depth,
        "CQ_Moderation": head.cq_mod,
        "Mtu": head.mtu,
        "Link_type": "Ethernet",
        "GID_index": head.gid_index,
        limit: value,
        "rdma_cm_QPs": report::on_or_off(plan.rdma_cm),
        "Data_ex_method": "Ethernet",
    })
}

/// The contents of the report.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Record<'a> {
    pub head: Head<'a>,
    pub role: &'static str,
    pub gbits: bool,
    pub rows: &'a [Row],
    pub counters: &'a Counters,
    /// The use of the CPUs in the last run, %, if it is reported.
    pub cpu: Option<f64>,
    /// State of queue pair 0 at the end of the last run.
    pub qp: Option<QpReport>,
}

impl Record<'_> {
    /// Returns the report. `results` is the row of the last size, as in perftest; `all_results` has the rows of all sizes.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|each| row(each, self.gbits)).collect();
        let mut last = rows.last().cloned().unwrap_or_default();
        if let Some(percent) = self.cpu {
            last["CPU_util"] = rounded(percent, 2).into();
        }
        json!({
            "test_info": test_info(&self.head),
            "results": last,
            "all_results": rows,
            "ferroce": {
                "version": env!("CARGO_PKG_VERSION"),
                "role": self.role,
                "tool": self.head.plan.tool.to_string(),
                "bandwidth_unit": if self.gbits { "Gb/sec" } else { "MB/sec" },
                "verified": self.head.plan.verify,
                "progress": self.head.progress,
                "congestion": {
                    "settings": self.head.congestion,
                    "algorithm": self.qp.map(|qp| qp.algorithm),
                    "window_bytes": self.qp.map(|qp| qp.window),
                    "rate_bps": self.qp.and_then(|qp| qp.rate).map(cc::Rate::as_bps),
                    "in_flight_bytes": self.qp.map(|qp| qp.in_flight),
                },
                "counters": counters::json(self.counters),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::args::{AtomicType, Connection};
    use crate::perf::plan::{Amount, Kind, Plan, Tool};

    #[test]
    fn a_record_has_the_keys_of_perftest_and_of_ferroce() {
        let plan = Plan {
            tool: Tool { verb: Verb::Write, kind: Kind::Bandwidth },
            sizes: vec![2, 4],
            amount: Amount::Messages(10),
            qps: 1,
            bidirectional: false,
            reversed: false,
            rdma_cm: false,
            atomic: AtomicType::FetchAndAdd,
            connection: Connection::Rc,
            mtu: None,
            verify: false,
            seed: 0,
        };
        let head = Head {
            plan: &plan,
            device: "veth0",
            sends: true,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 1,
            cq_mod: 100,
            inline_size: 0,
            outs: 16,
            mtu: 1024,
            gid_index: 0,
            shares_receives: false,
            congestion: "fixed",
            progress: "inline",
        };
        let rows = [2, 4].map(|size| Row::Bandwidth(Bandwidth::over(size, 10, 1000)));
        let counters = Counters::default();
        let record = Record {
            head,
            role: "client",
            gbits: true,
            rows: &rows,
            counters: &counters,
            cpu: Some(12.345),
            qp: None,
        };
        let json = record.json();
        assert_eq!(json["results"]["CPU_util"], 12.35);
        assert_eq!(json["test_info"]["Using_SRQ"], "OFF");
        assert_eq!(json["test_info"]["test"], "RDMA_Write_BW_Test");
        assert_eq!(json["test_info"]["Mtu"], 1024);
        assert_eq!(json["results"]["MsgSize"], 4);
        assert_eq!(json["results"]["BW_average"], 0.32);
        assert_eq!(json["all_results"][0]["n_iterations"], 10);
        assert_eq!(json["ferroce"]["bandwidth_unit"], "Gb/sec");
        assert!(json["ferroce"]["congestion"]["window_bytes"].is_null());
    }

    #[test]
    fn latency_has_every_percentile() {
        let mut latencies = crate::perf::stats::Latencies::new(1);
        latencies.record(1000);
        let json = row(&Row::Latency(latencies.figures(8, 1000)), false);
        for key in ["t_typical", "percentile_99.9", "p50", "p90", "p99", "p99.9", "max"] {
            assert!((json[key].as_f64().unwrap() - 1.0).abs() < 0.01, "{key}: {json}");
        }
    }
}
