//! `ferroce sim` as a process.

use assert_cmd::Command;
use std::fs;
use std::path::{Path, PathBuf};

fn ferroce() -> Command {
    Command::cargo_bin("ferroce").unwrap()
}

fn fabric(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric").join(path)
}

#[test]
fn a_run_writes_tables_and_a_self_contained_page() {
    let out = tempfile::tempdir().unwrap();
    let mut run = ferroce();
    run.arg("sim").arg(fabric("scenarios/reference/long-short.toml")).arg("--out").arg(out.path());
    let said = run.arg("--compare").arg(fabric("tests/data")).assert().success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    assert!(said.contains("3 hosts (model), 1 switch, 2 of 2 flows ended, hpcc"), "{said}");
    assert!(said.contains("11 of 11 in their bands"), "{said}");
    let file = |name: &str| fs::read_to_string(out.path().join(name)).unwrap();
    let fct = file("fct.csv");
    // The results of the authors' simulator, equal to the ns.
    for row in ["1,3,30000000,0,2865825,2519360", "2,3,1000000,300000,189060,88000"] {
        assert!(fct.contains(row), "{fct}");
    }
    assert!(file("series.csv").lines().count() > 2000);
    let page = file("report.html");
    assert!(page.matches("<figure>").count() == 4 && page.contains("11 of 11"), "plots and the comparison");
    assert!(!page.contains("src=") && !page.contains("href="), "nothing from elsewhere");
}

#[test]
fn files_of_other_simulators_are_run_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let scenario = "topology = \"graph\"\nlinks = \"topology.txt\"\ncongestion = \"auto\"\n";
    write("own.toml", scenario);
    write("topology.txt", "3 1 2\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 0.001ms 0\n");
    write("flow.txt", "2\n0 1 3 100 500000 0.0001\n1 0 3 100 500000 0\n");
    write("sizes.txt", "0 0\n1000 50\n100000 100\n");
    write(
        "drawn.toml",
        &format!("{scenario}[traffic]\nsizes = \"cdf:sizes.txt\"\nload = 0.3\ntime = \"100us\"\n"),
    );
    let said = |run: &[&str], file: &str| {
        let mut ferroce = ferroce();
        let done = ferroce.arg("sim").args(run).arg(folder.path().join(file)).assert().success();
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    let flows = folder.path().join("flow.txt");
    let flows = ["--flows", flows.to_str().unwrap()];
    let checked = said(&[flows[0], flows[1], "--check"], "own.toml");
    assert!(
        checked.ends_with("own.toml: 2 hosts (endpoints), 1 switch, 2 flows of 1000000 bytes in all, auto\n"),
        "{checked}"
    );
    assert!(said(&flows, "own.toml").contains("2 of 2 flows ended"));
    assert!(said(&[], "drawn.toml").contains("2 hosts (endpoints)"));

    write("topology.txt", "3 1 2\n2\n0 2 100Gbps 1us 0\n");
    let mut refused = ferroce();
    let refused = refused.arg("sim").arg("--check").arg(folder.path().join("own.toml")).assert().failure();
    let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(
        said.contains("own.toml: line 2: links: ")
            && said.contains("topology.txt: line 1: 2 links promised, 1 found"),
        "{said}"
    );
}

#[test]
fn a_wrong_script_of_faults_is_refused_with_its_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let scenario = "topology = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nfaults = \"script.toml\"\nflow = [{ source = 1, destination = 3, bytes = 1000 }]\n";
    fs::write(file("endpoints.toml"), scenario).unwrap();
    let fixed = scenario.replace("auto", "fixed,line_rate=100G");
    let many: String = (1..=257).map(|qp| format!("[[fault]]\nqp = {qp}\naction = \"drop\"\n")).collect();
    fs::write(file("model.toml"), format!("host = \"model\"\n{fixed}")).unwrap();
    for (script, of, part) in [
        (
            "[[fault]]\naction = \"drop\"\nport = \"s1_h9\"\n",
            "endpoints.toml",
            "script.toml, line 3: port = \"s1_h9\": 'h9': no such node",
        ),
        (
            "[[fault]]\naction = \"drop\"\nport = \"h1_h2\"\n",
            "endpoints.toml",
            "line 3: port = \"h1_h2\": no link connects them",
        ),
        ("[[fault]]\naction = \"lose\"\n", "endpoints.toml", "script.toml, line 2: action"),
        (
            "[[fault]]\nname = \"one\"\nqp = 1\naction = \"drop\"\n[[fault]]\nqp = 2\nname = \"one\"\naction = \"drop\"\n",
            "endpoints.toml",
            "script.toml, line 6: name = \"one\": another fault has this name",
        ),
        (&many, "endpoints.toml", "script.toml, line 770: at most 256 faults run at the same time"),
        (
            "[[fault]]\nname = \"acks\"\naction = \"drop\"\nopcode = \"acknowledge\"\n",
            "model.toml",
            "fault acks: opcode is about bytes",
        ),
    ] {
        fs::write(file("script.toml"), script).unwrap();
        let refused = ferroce().arg("sim").arg("--check").arg(file(of)).assert().failure();
        let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        assert!(said.contains(part), "{said}");
    }
}

/// Returns the summary of a scenario in `fabric/scenarios`.
fn summary(scenario: &str) -> serde_json::Value {
    let done = ferroce().arg("sim").arg(fabric("scenarios").join(scenario)).arg("--json").assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn scenarios_with_failing_lossy_and_slow_parts_end_with_counts() {
    let number = |summary: &serde_json::Value, key: &str| {
        summary[key].as_f64().unwrap_or_else(|| panic!("{key}: {summary}"))
    };
    // The hash assigns both flows to the spine whose link fails, and while the link is down, to the other. Their payload gets 0.95 * 1024 /
    // 1126 of the link: 10.8 MB in each of the first two ms, half as much in each of the next two, and the other 47.6 MB in 4.41 ms. The
    // total is 8.41 ms.
    let fails = summary("link-fails.toml");
    assert!(
        number(&fails, "lost") > 0.0 && number(&fails, "retransmitted") >= number(&fails, "lost"),
        "{fails}"
    );
    assert!((8410.0..8550.0).contains(&number(&fails, "virtual_us")), "{fails}");
    // 9766 packets, and their acknowledgements.
    let lossy = summary("lossy-link.toml");
    assert!((80.0..180.0).contains(&number(&lossy, "lost")), "{lossy}");
    assert!(number(&lossy, "retransmitted") >= 60.0, "{lossy}");
    // 10 MB at 20 Gb/s, without the last sixteen messages.
    let slow = summary("slow-application.toml");
    assert!((3580.0..4000.0).contains(&number(&slow, "virtual_us")), "{slow}");
    // 14 steps of 1 MB, each at least 90 µs.
    let ring = summary("ring.toml");
    assert_eq!((number(&ring, "flows"), number(&ring, "dropped")), (112.0, 0.0));
    assert!((14.0 * 90.0..14.0 * 110.0).contains(&number(&ring, "virtual_us")), "{ring}");
    let all = summary("all-to-all.toml");
    assert_eq!(number(&all, "flows"), 7.0 * 8.0 + 8.0);
    // Half of the flows stay in their rack. The others load the link of 200 Gb/s in both directions.
    let bursts = summary("bursts.toml");
    assert_eq!(number(&bursts, "flows") % 16.0, 0.0, "{bursts}");
    // The script loses the last packet of ten messages of each host. 2 * 31 are sent, and 20 again.
    let last = summary("lost-last.toml");
    let script = serde_json::json!([{"name": "lost-last", "fitted": 82, "happened": 20}]);
    assert_eq!((number(&last, "lost"), &last["faults"]), (20.0, &script));
    assert!(number(&last, "retransmitted") >= 20.0, "{last}");
    for each in [fails, lossy, slow, ring, all, bursts, last] {
        assert_eq!(each["finished"], each["flows"], "{each}");
    }
}

#[test]
fn the_series_has_columns_for_each_sampled_port() {
    let out = tempfile::tempdir().unwrap();
    let scenario = fabric("scenarios/sampled-ports.toml");
    ferroce().arg("sim").arg(scenario).arg("--out").arg(out.path()).assert().success();
    let series = fs::read_to_string(out.path().join("series.csv")).unwrap();
    let (header, rows) = series.split_once('\n').unwrap();
    assert!(header.ends_with(",q_bytes_s1_s2,tx_bytes_s1_s2,q_bytes_s3_h3,tx_bytes_s3_h3"), "{header}");
    let last: Vec<f64> =
        rows.lines().last().unwrap().split(',').map(|value| value.parse().unwrap()).collect();
    let (between, first, behind) = (last[2], last[last.len() - 3], last[last.len() - 1]);
    // Both flows pass the second link and the last link; one of them passes the first.
    assert!((between / behind - 1.0).abs() < 0.01 && (between / first - 2.0).abs() < 0.05, "{last:?}");
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("Queues of the sampled ports") && page.contains("s3 to h3"));
}

/// Returns the scenarios of `traces.txt` with their traces.
fn recorded_traces() -> Vec<(String, String)> {
    let traces = fs::read_to_string(fabric("scenarios/traces.txt")).unwrap();
    let rows = traces.lines().filter_map(|line| line.split_once(' ')).filter(|row| row.0 != "#");
    rows.map(|(scenario, trace)| (scenario.to_owned(), trace.to_owned())).collect()
}

fn recorded_trace(scenario: &str) -> String {
    recorded_traces().into_iter().find(|(name, _)| name == scenario).expect("the scenario has a row").1
}

/// `ci/sim` checks the same traces with the release build.
#[test]
fn traces_equal_the_recorded_ones() {
    let traces = recorded_traces();
    assert!(traces.len() >= 4, "{traces:?}");
    for (scenario, trace) in traces {
        let said = ferroce().arg("sim").arg(fabric("scenarios").join(&scenario)).assert().success();
        let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
        assert!(said.contains(&format!("trace {trace}")), "{scenario}: {said}");
    }
}

#[test]
fn merged_shards_are_the_unsplit_sweep_to_the_byte() {
    let out = tempfile::tempdir().unwrap();
    let sweep = |more: &[&str], folder: &str| {
        let mut run = ferroce();
        run.arg("sim").arg(fabric("scenarios/reference/long-short.toml"));
        run.args(["--sweep", "1..5", "--vary", "max_stage=5,0"])
            .args(more)
            .arg("--out")
            .arg(out.path().join(folder));
        run.assert()
    };
    sweep(&[], "whole").success();
    for shard in ["1/3", "2/3", "3/3"] {
        sweep(&["--shard", shard], "parts").success();
    }
    let part = |index: usize| out.path().join(format!("parts/sweep.{index}-of-3.json"));
    let merge = |parts: &[usize]| {
        let mut run = ferroce();
        run.args(["sim", "--merge"]).args(parts.iter().map(|&index| part(index)));
        run.arg("--out").arg(out.path().join("merged")).assert()
    };
    let lacking = merge(&[1, 3]).failure();
    let said = String::from_utf8(lacking.get_output().stderr.clone()).unwrap();
    assert!(said.contains("only 5 of 8 jobs are present, job 1 is missing"), "{said}");
    merge(&[3, 1, 2]).success();
    let read = |folder: &str| fs::read_to_string(out.path().join(folder).join("sweep.csv")).unwrap();
    assert_eq!(read("whole"), read("merged"));
    assert_eq!(read("whole").lines().count(), 9);
}

#[test]
fn a_sweep_runs_every_seed_with_every_value() {
    let mut run = ferroce();
    run.arg("sim").arg(fabric("scenarios/reference/incast-16.toml")).args([
        "--sweep",
        "1..4",
        "--vary",
        "max_stage=0,5",
    ]);
    let said = run.assert().success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    assert_eq!(said.lines().count(), 7, "{said}");
    assert_eq!(said.matches("\"max_stage=5\"").count(), 3, "{said}");
}

#[test]
fn an_invalid_topology_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let text = "topology = 'parking-lot'\nhosts = 2\nrate = '100G'\ndelay = '1us'\ncongestion = 'fixed,window=9000'\n";
    fs::write(&file, text).unwrap();
    let refused = ferroce().arg("sim").arg(&file).assert().failure();
    let why = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(why.contains("the topology needs switches; add switches = 8"), "{why}");
}

/// Returns the output of a successful `ferroce` with these arguments.
fn said(args: &[&str]) -> String {
    let done = ferroce().args(args).assert().success();
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

#[test]
fn the_frames_of_ports_are_captured_and_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let scenario = fabric("scenarios/incast-16.toml").display().to_string();
    let captured = |name: &str, more: &[&str]| {
        // The port of the bottleneck, and that of a host, in one capture.
        let [switch, host] = ["s1_h17", "h1_s1"].map(|port| format!("{port}={}", path(name)));
        let args = ["sim", &scenario, "--json", "--pcap", &switch, "--pcap", &host];
        let summary: serde_json::Value = serde_json::from_str(&said(&[&args, more].concat())).unwrap();
        assert_eq!(summary["trace"], recorded_trace("incast-16.toml"), "captures do not change the run");
        fs::read(path(name)).unwrap()
    };
    let one = captured("one.pcapng", &[]);
    assert_eq!(captured("three.pcapng", &["--threads", "3"]), one);
    let decoded = said(&["pcap", "--summary", &path("one.pcapng")]);
    assert!(decoded.contains("0x07 RC RDMA WRITE Middle") && decoded.contains(" ok, 0 BAD"), "{decoded}");
    let packets = said(&["pcap", "--json", &path("one.pcapng")]);
    let packets: Vec<serde_json::Value> =
        packets.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let times: Vec<_> = packets.iter().filter_map(|packet| packet["time_ns"].as_u64()).collect();
    // Flows begin within 100 ns, and the last one ends after 781 µs.
    assert!(times.is_sorted() && times[0] <= 100 && (700_000..800_000).contains(times.last().unwrap()));
    // Data has no telemetry record before the switch, and one after it.
    let hops = |packet: &serde_json::Value| packet["records"].as_array().map(Vec::len);
    for count in [0, 1] {
        assert!(packets.iter().any(|packet| packet["payload"] == 1024 && hops(packet) == Some(count)));
    }

    // The same file by another path is one capture.
    let twice = folder.path().join("other/..").join("one.pcapng").display().to_string();
    fs::create_dir(folder.path().join("other")).unwrap();
    let ports = [format!("s1_h17={}", path("one.pcapng")), format!("h1_s1={twice}")];
    said(&["sim", &scenario, "--json", "--pcap", &ports[0], "--pcap", &ports[1]]);
    assert_eq!(fs::read(path("one.pcapng")).unwrap(), one);

    let short = captured("short.pcapng", &["--snaplen", "320", "--pcap-limit", "100K"]);
    assert!((100_000..=102_400).contains(&short.len()), "{}", short.len());
    assert!(said(&["pcap", &path("short.pcapng")]).contains("ICRC not captured"));
}

#[test]
fn a_capture_that_is_not_possible_is_refused_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcapng");
    let file = path.display();
    let endpoints = "scenarios/incast-16.toml";
    for (scenario, ports, part) in [
        (endpoints, &["s1_h18"][..], "--pcap s1_h18: 'h18': no such node; use h1 to h17"),
        (endpoints, &["h1_h2"], "--pcap h1_h2: no link connects them; write the two ends of a link"),
        (endpoints, &["s1_h1", "s1_h1"], "--pcap s1_h1: the port has a capture already"),
        (
            "scenarios/reference/incast-16.toml",
            &["s1_h1"],
            "model hosts, which exchange no frames; choose endpoints",
        ),
    ] {
        let mut run = ferroce();
        run.arg("sim").arg(fabric(scenario));
        for port in ports {
            run.arg("--pcap").arg(format!("{port}={file}"));
        }
        let refused = run.assert().failure();
        let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        assert!(said.contains(part), "{said}");
        assert!(!path.exists());
    }
    let mut full = ferroce();
    full.arg("sim").arg(fabric(endpoints)).args(["--pcap", "s1_h17=/dev/full"]).assert().failure().code(1);
}

#[test]
fn a_followed_run_prints_its_state_and_has_the_same_results() {
    let scenario = fabric("scenarios/fairness-fair.toml").display().to_string();
    let lines = said(&["sim", &scenario, "--json", "--follow"]);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, states) = lines.split_last().unwrap();
    assert_eq!(summary["trace"], recorded_trace("fairness-fair.toml"));
    let first = &states[0]["progress"];
    assert_eq!(first["flows"], summary["flows"]);
    assert!(first["events"].as_u64() >= Some(1 << 18) && first["virtual_us"].as_f64() > Some(0.0), "{first}");
    assert!(first["queue_bytes"]["host 5"].is_u64(), "{first}");

    // Without a terminal, a line of text.
    let mut text = ferroce();
    let text = text.args(["sim", &scenario, "--follow"]).assert().success();
    let noted = String::from_utf8(text.get_output().stderr.clone()).unwrap();
    let first = noted.lines().next().unwrap();
    assert!(first.contains(" of 4 flows ended, ") && first.contains(", queues: host 5 "), "{noted}");
}
