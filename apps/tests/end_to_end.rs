//! Complete tests between two processes over shared memory, without privileges or a kernel interface.

use assert_cmd::Command;
use serde_json::Value;
use std::io::BufRead;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_tcp_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Starts a server. `line` contains its tool and flags.
fn serve(folder: &Path, tcp_port: &str, line: &str) -> Server {
    let socket = folder.join("x.sock");
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("ferroce"))
        .args(line.split_whitespace())
        .args(["-p", tcp_port, "--ip", "10.7.0.1/24,fd00:7::1/64", "--port"])
        .arg(format!("memif:{},server", socket.display()))
        .stdout(Stdio::null())
        .current_dir(folder)
        .spawn();
    Server(child.unwrap())
}

/// Reasons of discards after a pause of the machine: retransmissions, and the responses to them.
const REPEATED: [&str; 2] = ["duplicate PSN", "acknowledgement outside what is in flight"];

/// Returns true if packets were discarded only for these reasons.
fn discards_nothing(json: &serde_json::Value) -> bool {
    json["ferroce"]["counters"]["discards"]
        .as_object()
        .is_some_and(|discards| discards.keys().all(|why| REPEATED.contains(&why.as_str())))
}

/// Runs `tool` with the client's `flags`. Returns the client's output and its JSON.
fn run(tool: &str, flags: &str) -> (String, Value) {
    run_with("", tool, flags)
}

/// Runs `tool` like [`run`], with flags of the server.
fn run_with(of_server: &str, tool: &str, flags: &str) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let tcp_port = free_tcp_port();
    let _server = serve(folder.path(), &tcp_port, &format!("{tool} {of_server}"));
    let output = Command::cargo_bin("ferroce")
        .unwrap()
        .args([
            tool,
            "-p",
            &tcp_port,
            "--ip",
            "10.7.0.2/24,fd00:7::2/64",
            "--out_json_file",
            "out.json",
            "--port",
        ])
        .arg(format!("memif:{},client", folder.path().join("x.sock").display()))
        .args(flags.split_whitespace())
        .arg("127.0.0.1")
        .current_dir(folder.path())
        .timeout(Duration::from_secs(120))
        .assert()
        .success()
        .get_output()
        .clone();
    let json = std::fs::read(folder.path().join("out.json")).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_slice(&json).unwrap())
}

#[test]
fn bandwidth_of_every_verb_arrives_intact() {
    for tool in ["write-bw", "send-bw", "read-bw"] {
        let (text, json) = run(tool, "-s 70001 -n 300 -q 2 --verify --report_gbits");
        assert!(text.contains("verified: 70001 bytes on each of 2 QPs"), "{tool}: {text}");
        assert!(text.contains("BW average[Gb/sec]"), "{tool}: {text}");
        assert_eq!(json["results"]["n_iterations"], 600, "{tool}: {json}");
        assert!(json["results"]["BW_average"].as_f64().unwrap() > 0.0, "{tool}: {json}");
        assert!(json["ferroce"]["congestion"]["window_bytes"].as_u64().unwrap() > 0, "{tool}: {json}");
        assert!(discards_nothing(&json), "{tool}: {json}");
    }
}

#[test]
fn both_directions_of_a_bandwidth_test_arrive_intact() {
    for tool in ["write-bw", "send-bw", "read-bw"] {
        let (text, _) = run(tool, "-b -s 9000 -n 500 -l 8 -t 64 --verify");
        assert!(text.contains("Bidirectional"), "{tool}: {text}");
        assert!(text.contains("verified: 9000 bytes"), "{tool}: {text}");
    }
}

#[test]
fn a_reversed_test_sends_from_the_server_to_the_client() {
    for tool in ["write-bw", "send-bw", "read-bw"] {
        let (text, json) = run(tool, "--reversed -s 9000 -n 500 -q 2 --verify");
        assert!(text.contains("verified: 9000 bytes on each of 2 QPs"), "{tool}: {text}");
        assert_eq!(json["results"]["n_iterations"], 1000, "{tool}: {json}");
        let counters = &json["ferroce"]["counters"];
        let [sent, received] =
            ["tx_payload_bytes", "rx_payload_bytes"].map(|name| counters[name].as_u64().unwrap());
        assert!((received > sent) == (tool != "read-bw"), "{tool}: {json}");
    }
    let (text, _) = run("atomic-bw", "--reversed -n 200 --verify");
    assert!(text.contains("verified: 200 atomics"), "{text}");
}

#[test]
fn queue_pairs_are_connected_by_rdma_cm_if_asked() {
    for tool in ["write-bw", "send-bw", "read-bw"] {
        let (text, json) = run(tool, "-R -b -s 9000 -n 300 -q 3 --verify");
        assert!(text.contains("rdma_cm QPs     : ON"), "{tool}: {text}");
        assert!(text.contains("verified: 9000 bytes on each of 3 QPs"), "{tool}: {text}");
        assert_eq!(json["test_info"]["rdma_cm_QPs"], "ON", "{tool}: {json}");
    }
    run_with("-R --use-srq --wait_destroy 10ms", "send-lat", "-R -n 100");
}

#[test]
fn both_directions_are_reported_one_by_one_if_asked() {
    let (text, _) = run("write-bw", "-b -s 4096 -n 500 --report-both");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(" 4096 ")).collect();
    assert_eq!(rows.len(), 3, "{text}");
    let average = |row: &str| row.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap();
    assert!((average(rows[0]) - average(rows[1]) - average(rows[2])).abs() < 0.02, "{text}");
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    let (text, _) = run_with("--use-srq -r 64", "send-bw", "-s 9000 -n 500 -q 3");
    assert!(text.contains("Using SRQ      : OFF"), "each side has its own: {text}");
    let (text, json) = run("send-bw", "--reversed --use-srq -r 64 -s 9000 -n 500 -q 3");
    assert!(text.contains("Using SRQ      : ON"), "{text}");
    assert_eq!(json["test_info"]["Using_SRQ"], "ON");
    assert_eq!(json["results"]["n_iterations"], 1500, "{json}");
    run("send-bw", "--reversed --use-srq --verify -s 9000 -n 500");
    run_with("--use-srq", "send-lat", "--use-srq -n 100");
    run_with("--use-srq", "send-lat", "--use-srq -n 100 -c UD");
}

#[test]
fn a_rate_limit_is_not_exceeded() {
    let (_, json) = run("write-bw", "-s 4096 -n 200 -q 2 -l 4 -t 16 --rate_limit 40 --rate_units M");
    // Four of the 400 messages of 4 KiB may be sent at once.
    let average = json["results"]["BW_average"].as_f64().unwrap();
    assert!(average > 0.0 && average < 40.0 * 400.0 / 396.0 + 0.1, "{json}");
}

#[test]
fn latencies_are_printed_one_by_one_if_asked() {
    let (text, _) = run("send-lat", "-n 50 -H");
    let samples = |text: &str| -> Vec<f64> {
        let lines = text.lines().filter_map(|line| line.split_once(", "));
        lines.filter_map(|(number, latency)| number.parse::<u32>().ok().and(latency.parse().ok())).collect()
    };
    assert!(samples(&text).len() == 50 && samples(&text).is_sorted(), "{text}");
    let (text, _) = run("read-lat", "-n 20 -U --latency_gap 100");
    assert_eq!(samples(&text).len(), 20, "{text}");
}

#[test]
fn the_use_of_the_cpus_is_a_column() {
    let (text, json) = run("write-bw", "-D 400ms --cpu_util --wait_destroy 10ms");
    assert!(text.contains("MsgRate[Mpps]    CPU_Util[%]"), "{text}");
    let used = json["results"]["CPU_util"].as_f64().unwrap();
    assert!((0.0..=100.0).contains(&used), "{json}");
}

#[test]
fn both_sides_use_ipv6_if_asked() {
    let (text, json) = run_with("--ipv6", "write-bw", "--ipv6 -L 9 -T 8 -n 100 -s 4096");
    assert!(text.contains(" GID: 253:00:00:07:"), "{text}");
    assert!(json["test_info"]["GID_index"].as_u64().unwrap() > 0, "{json}");
}

/// Starts the client of an endless run, which prints a row every 50 ms. Returns it with its first three rows, and its output, which stays
/// open.
fn endless(folder: &Path, tcp_port: &str, line: &str) -> (Child, Vec<String>, impl Sized) {
    let mut client = std::process::Command::new(assert_cmd::cargo::cargo_bin("ferroce"))
        .args(line.split_whitespace())
        .args([
            "-s",
            "1024",
            "--run_infinitely",
            "-D",
            "50ms",
            "-p",
            tcp_port,
            "--ip",
            "10.7.0.2/24",
            "--port",
        ])
        .arg(format!("memif:{},client", folder.join("x.sock").display()))
        .arg("127.0.0.1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    let rows: Vec<String> = lines.by_ref().filter(|line| line.starts_with(" 1024 ")).take(3).collect();
    assert_eq!(rows.len(), 3);
    (client, rows, lines)
}

#[test]
fn an_endless_run_prints_rows_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let tcp_port = free_tcp_port();
    let _server = serve(folder.path(), &tcp_port, "write-bw");
    let (mut client, rows, _output) = endless(folder.path(), &tcp_port, "write-bw");
    assert!(rows.iter().all(|row| row.split_whitespace().nth(1).unwrap() != "0"), "{rows:?}");
    let pid = client.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(client.wait().unwrap().code(), Some(130));
}

/// Datagrams do not fail when nobody receives them.
#[test]
fn an_endless_run_of_datagrams_ends_with_the_other_side() {
    let folder = tempfile::tempdir().unwrap();
    let tcp_port = free_tcp_port();
    let server = serve(folder.path(), &tcp_port, "send-bw -c UD");
    let (mut client, _, _output) = endless(folder.path(), &tcp_port, "send-bw -c UD");
    drop(server);
    assert_eq!(client.wait().unwrap().code(), Some(1));
}

#[test]
fn every_size_that_perftest_runs() {
    let (_, json) = run("write-bw", "-a -n 20 --verify");
    let sizes: Vec<u64> =
        json["all_results"].as_array().unwrap().iter().map(|row| row["MsgSize"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|power| 1 << power).collect::<Vec<u64>>());
}

#[test]
fn latency_of_every_verb_has_its_percentiles() {
    for tool in ["write-lat", "send-lat", "read-lat", "atomic-lat"] {
        let size = if tool == "atomic-lat" { "" } else { "-s 300" };
        let (text, json) = run(tool, &format!("-n 200 {size}"));
        assert!(
            text.contains("99.9% percentile[usec]") && text.contains("percentiles[usec]:"),
            "{tool}: {text}"
        );
        let at = |key: &str| json["results"][key].as_f64().unwrap();
        assert_eq!(json["results"]["n_iterations"], 200, "{tool}: {json}");
        assert!(at("t_min") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("max"), "{tool}: {json}");
    }
}

#[test]
fn atomics_for_a_time_and_in_number() {
    let (_, json) = run("atomic-bw", "-n 300 -A CMP_AND_SWAP");
    assert_eq!(json["results"]["n_iterations"], 300, "{json}");
    let (_, json) = run("atomic-bw", "-D 400ms");
    assert!(json["results"]["MsgRate"].as_f64().unwrap() > 0.0, "{json}");
}

#[test]
fn a_paced_run_reports_its_window_and_rate() {
    let (text, json) =
        run("write-bw", "-D 500ms --cc hpcc --cc-line-rate 1G --cc-base-rtt 100us --report_gbits");
    assert!(text.contains("Congestion      : HPCC++"), "{text}");
    let rate = json["ferroce"]["congestion"]["rate_bps"].as_u64().unwrap();
    assert!(rate <= 1_000_000_000, "{json}");
    let average = json["results"]["BW_average"].as_f64().unwrap();
    assert!(average > 0.0 && average < 1.1, "{json}");
}

/// The second queue pair sends in the second phase only. A side that sleeps instead of polling loses nothing.
#[test]
fn queue_pairs_join_by_phases_and_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.csv");
    let flags = format!(
        "-s 4096 -e --progress dedicated --cc fixed --cc-line-rate 50M --active 1x300ms,2x300ms --series {}",
        file.display()
    );
    let (_, json) = run("write-bw", &flags);
    assert!(discards_nothing(&json), "{json}");
    let mut series = csv::Reader::from_path(file).unwrap();
    let columns = ["seconds", "qp", "active", "rate_bps", "window", "in_flight", "bytes"];
    assert_eq!(series.headers().unwrap(), columns.as_slice());
    let rows: Vec<_> = series.records().map(Result::unwrap).collect();
    let of = |qp: &str, active: &str| rows.iter().filter(|row| &row[1] == qp && &row[2] == active).count();
    assert!(of("0", "1") > 0 && of("1", "1") > 0, "{} and {}", of("0", "1"), of("1", "1"));
    let first = rows.iter().position(|row| &row[1] == "1" && &row[2] == "1").unwrap();
    assert!(rows[..first].iter().all(|row| &row[1] == "0" || (&row[2] == "0" && &row[6] == "0")));
    let last = |qp: &str| rows.iter().rfind(|row| &row[1] == qp).unwrap()[6].parse::<u64>().unwrap();
    assert!(last("0") > last("1") && last("1") > 0, "{} and {}", last("0"), last("1"));
    assert!(rows.iter().all(|row| &row[3] == "50000000"));
}

#[test]
fn a_server_refuses_a_client_of_another_tool() {
    let folder = tempfile::tempdir().unwrap();
    let tcp_port = free_tcp_port();
    let _server = serve(folder.path(), &tcp_port, "write-lat");
    let output = Command::cargo_bin("ferroce")
        .unwrap()
        .args(["write-bw", "-p", &tcp_port, "--ip", "10.7.0.2", "--port"])
        .arg(format!("memif:{},client", folder.path().join("x.sock").display()))
        .arg("127.0.0.1")
        .timeout(Duration::from_secs(60))
        .assert()
        .code(1)
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the client runs write-bw, the server write-lat"), "{error}");
}

#[test]
fn a_run_below_its_limit_fails_after_its_report() {
    for (flags, code, part) in [
        ("-w 100000000 -n 100", 1, "is below the limit of 100000000 (-w)"),
        ("-y 100000000 -n 100", 1, "are below the limit of 100000000 (-y)"),
        ("-w 0.0001 -y 0.0000001 -n 100", 0, ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let tcp_port = free_tcp_port();
        let _server = serve(folder.path(), &tcp_port, "write-bw");
        let output = Command::cargo_bin("ferroce")
            .unwrap()
            .args(["write-bw", "-p", &tcp_port, "--ip", "10.7.0.2/24", "--output", "bandwidth", "-d"])
            .arg(format!("memif:{},client", folder.path().join("x.sock").display()))
            .args(flags.split_whitespace())
            .arg("127.0.0.1")
            .timeout(Duration::from_secs(60))
            .assert()
            .code(code)
            .get_output()
            .clone();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(part), "{flags}: {error}");
        let figure = String::from_utf8(output.stdout).unwrap();
        assert!(figure.trim().parse::<f64>().is_ok_and(|bandwidth| bandwidth > 0.0), "{flags}: {figure}");
    }
}

#[test]
fn an_interrupted_server_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("x.sock");
    let mut server = std::process::Command::new(assert_cmd::cargo::cargo_bin("ferroce"))
        .args(["write-bw", "-p", &free_tcp_port(), "--ip", "10.7.0.1/24", "--port"])
        .arg(format!("memif:{},server", socket.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The server prints this after its port has opened.
    let mut lines = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("Waiting for client")));
    assert!(socket.exists());
    let pid = server.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(server.wait().unwrap().code(), Some(130));
    assert!(!socket.exists());
}
