//! The tables of a report with perftest's columns and words, for users, and for scripts that parse perftest's output.

use super::args::{AtomicType, Figure, OutputArgs};
use super::plan::{Amount, Kind, Plan, Tool, Verb};
use super::record::Row;
use super::stats::{Bandwidth, Latency};
use std::fmt::Write;
use std::net::IpAddr;
use verbs::{QpEndpoint, RemoteBuffer};

/// The separator between the parts of a report.
pub const LINE: &str =
    "---------------------------------------------------------------------------------------";

/// The text that a server prints while it waits for a client.
pub const WAITING: &str = "\n************************************\n\
                           * Waiting for client to connect... *\n\
                           ************************************";

/// The values of a report's head.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Head<'a> {
    pub plan: &'a Plan,
    pub device: &'a str,
    pub sends: bool,
    pub tx_depth: u32,
    pub rx_depth: u32,
    pub post_list: u32,
    pub cq_mod: u32,
    pub inline_size: u32,
    pub outs: u8,
    pub mtu: u32,
    pub gid_index: usize,
    pub shares_receives: bool,
    pub congestion: &'a str,
    pub progress: &'a str,
}

fn operation(plan: &Plan) -> String {
    match (plan.tool.verb, plan.atomic) {
        (Verb::Send, _) => "Send".into(),
        (Verb::Write, _) => "RDMA_Write".into(),
        (Verb::Read, _) => "RDMA_Read".into(),
        (Verb::Atomic, AtomicType::FetchAndAdd) => "Atomic FETCH_AND_ADD".into(),
        (Verb::Atomic, AtomicType::CmpAndSwap) => "Atomic CMP_AND_SWAP".into(),
    }
}

/// Returns `ON` or `OFF`, as in perftest's report.
pub const fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "ON" } else { "OFF" }
}

/// Returns the title of the test: `RDMA_Write Bidirectional BW Test`.
pub fn title(plan: &Plan, post_list: u32) -> String {
    let both = if plan.bidirectional { " Bidirectional" } else { "" };
    let list = if post_list > 1 && plan.tool.kind == Kind::Bandwidth { " Post List" } else { "" };
    let kind = match plan.tool.kind {
        Kind::Bandwidth => "BW",
        Kind::Latency => "Latency",
    };
    format!("{}{both}{list} {kind} Test", operation(plan))
}

/// Returns the block of parameters between two separators.
pub fn head(head: &Head) -> String {
    let plan = head.plan;
    let mut rows = vec![
        format!("                    {}", title(plan, head.post_list)),
        format!(" Dual-port       : OFF\t\tDevice         : {}", head.device),
        format!(" Number of qps   : {}\t\tTransport type : IB", plan.qps),
        format!(
            " Connection type : {}\t\tUsing SRQ      : {}",
            plan.connection.name(),
            on_or_off(head.shares_receives)
        ),
    ];
    if head.sends {
        rows.push(format!(" TX depth        : {}", head.tx_depth));
    }
    if head.post_list > 1 {
        rows.push(format!(" Post List       : {}", head.post_list));
    }
    if plan.tool.verb == Verb::Send && (!head.sends || plan.both_ways()) {
        rows.push(format!(" RX depth        : {}", head.rx_depth));
    }
    if plan.tool.kind == Kind::Bandwidth {
        rows.push(format!(" CQ Moderation   : {}", head.cq_mod));
    }
    rows.push(format!(" Mtu             : {}[B]", head.mtu));
    rows.push(" Link type       : Ethernet".to_owned());
    rows.push(format!(" GID index       : {}", head.gid_index));
    rows.push(match plan.tool.verb {
        Verb::Write | Verb::Send => format!(" Max inline data : {}[B]", head.inline_size),
        Verb::Read | Verb::Atomic => format!(" Outstand reads  : {}", head.outs),
    });
    rows.push(format!(" rdma_cm QPs     : {}", on_or_off(plan.rdma_cm)));
    rows.push(" Data ex. method : Ethernet".to_owned());
    rows.push(format!(" Congestion      : {}", head.congestion));
    rows.push(format!(" Progress        : {}", head.progress));
    format!("{LINE}\n{}\n{LINE}", rows.join("\n"))
}

/// Returns the addresses of a side's queue pairs, two lines each.
pub fn addresses(side: &str, tool: Tool, outs: u8, qps: &[QpEndpoint], buffer: &RemoteBuffer) -> String {
    let mut text = String::new();
    for qp in qps {
        // perftest prints LID 0 for Ethernet, which has no LIDs.
        let _ = write!(text, " {side} address: LID 0000 QPN {:#06x} PSN {:#06x}", qp.qpn.get(), qp.psn.get());
        if tool.verb == Verb::Read {
            let _ = write!(text, " OUT {outs:#04x}");
        }
        if matches!(tool.verb, Verb::Read | Verb::Write) {
            let _ = write!(text, " RKey {:#08x} VAddr {:#016x}", buffer.rkey, buffer.address);
        }
        let _ = write!(text, "\n GID: {}\n", gid(qp.ip));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns the GID as perftest prints it: 16 bytes in decimal, with IPv4 as a mapped address.
fn gid(ip: IpAddr) -> String {
    let bytes = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    bytes.map(|byte| format!("{byte:02}")).join(":")
}

/// Returns the headings of the columns.
pub fn columns(plan: &Plan, gbits: bool) -> &'static str {
    match (plan.tool.kind, plan.amount) {
        (Kind::Bandwidth, _) if gbits => {
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
        }
        (Kind::Bandwidth, _) => {
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
        }
        (Kind::Latency, Amount::Messages(_) | Amount::Endless { .. }) => {
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec] "
        }
        (Kind::Latency, Amount::Time { .. }) => " #bytes        #iterations       t_avg[usec]    tps average",
    }
}

/// Converts bytes per second to the unit of the columns: MB/s (2^20 bytes) or Gb/s (10^9 bits).
pub fn scaled(bytes_per_second: f64, gbits: bool) -> f64 {
    bytes_per_second / if gbits { 125e6 } else { 1_048_576.0 }
}

/// Returns one line of a bandwidth table.
pub fn bandwidth_row(run: &Bandwidth, gbits: bool) -> String {
    let (peak, average) = (scaled(run.peak, gbits), scaled(run.average, gbits));
    let (size, messages, rate) = (run.size, run.messages, run.rate / 1e6);
    if gbits && average < 0.1 {
        return format!(
            " {size:<7}    {messages}           {peak:<7.6}            {average:<7.6}            {rate:<7.6}"
        );
    }
    format!(" {size:<7}    {messages:<10}       {peak:<7.2}            {average:<7.2}\t\t     {rate:<7.6}")
}

/// Returns one line of a latency table, and one line of percentiles.
pub fn latency_row(run: &Latency, amount: Amount) -> String {
    let Latency { size, exchanges, min, max, average, deviation, p50, p90, p99, p999, p9999, rate } = *run;
    let row = match amount {
        Amount::Messages(_) | Amount::Endless { .. } => format!(
            " {size:<7} {exchanges}          {min:<7.2}        {max:<7.2}      {p50:<7.2}  \t       {average:<7.2}     \
             \t{deviation:<7.2}\t\t{p99:<7.2} \t\t{p999:<7.2}"
        ),
        Amount::Time { .. } => {
            format!(" {size:<7}       {exchanges}            {average:<7.2}        {rate:<7.2}")
        }
    };
    format!(
        "{row}\n percentiles[usec]: 50% {p50:.2}  90% {p90:.2}  99% {p99:.2}  99.9% {p999:.2}  99.99% {p9999:.2}  \
         max {max:.2}"
    )
}

/// Appends the use of the CPUs, %, to the first line of a row: perftest's `--cpu_util`.
pub fn with_cpu(row: &str, percent: Option<f64>) -> String {
    let Some(percent) = percent else { return row.to_owned() };
    match row.split_once('\n') {
        None => format!("{row}\t    {percent:<3.2}"),
        Some((first, rest)) => format!("{first}\t    {percent:<3.2}\n{rest}"),
    }
}

/// Returns the heading of the column of [`with_cpu`], if there is one.
pub const fn cpu_column(is_shown: bool) -> &'static str {
    if is_shown { "    CPU_Util[%]" } else { "" }
}

/// Returns the rows of both directions below their names: perftest's `--report-both`.
pub fn directions(own: &Bandwidth, peer: &Bandwidth, gbits: bool) -> String {
    let [own, peer] = [own, peer].map(|run| bandwidth_row(run, gbits));
    format!(" Local results:\n{own}\n Remote results:\n{peer}")
}

/// Returns a line for each latency, µs, with its number: perftest's `-H` and `-U`.
pub fn samples(latencies: &[f64]) -> String {
    let mut text = "#, usec".to_owned();
    for (place, latency) in latencies.iter().enumerate() {
        let _ = write!(text, "\n{}, {latency}", place + 1);
    }
    text
}

/// Returns one figure of a row: perftest's `--output`.
pub fn figure(row: &Row, figure: Figure, gbits: bool) -> String {
    match (row, figure) {
        (Row::Bandwidth(run), Figure::MessageRate) => format!("{:.6}", run.rate / 1e6),
        (Row::Bandwidth(run), Figure::Bandwidth | Figure::Latency) => {
            format!("{:.2}", scaled(run.average, gbits))
        }
        (Row::Latency(run), _) => format!("{:.2}", run.average),
    }
}

/// Returns a description of the value that is below its limit; `None` if there is none.
pub fn too_slow(row: &Row, output: &OutputArgs) -> Option<String> {
    let Row::Bandwidth(run) = row else { return None };
    let (average, unit) = (scaled(run.average, output.gbits), if output.gbits { "Gb/s" } else { "MB/s" });
    if let Some(limit) = output.limit_bw.filter(|limit| average < *limit) {
        return Some(format!(
            "{} B: the average of {average:.2} {unit} is below the limit of {limit} (-w)",
            run.size
        ));
    }
    let rate = run.rate / 1e6;
    let limit = output.limit_message_rate.filter(|limit| rate < *limit)?;
    Some(format!("{} B: {rate:.6} million messages per second are below the limit of {limit} (-y)", run.size))
}

#[cfg(test)]
mod tests;
