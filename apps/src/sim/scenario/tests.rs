//! Tests of reading scenarios.

use super::*;
use cc::AlgorithmConfig;
use fabric::sim::{LinkChange, Rival, Which};

fn read(
    name: &str,
    text: &str,
    flows: Option<&Path>,
    seed: u64,
    vary: &[(String, String)],
) -> Result<Scenario, Failure> {
    super::read(name, text, &Options { flows, seed, vary, ..Options::default() })
}

const TEXT: &str = "topology = 'star'\nhosts = 3\nrate = '100G'\ndelay = '1us'\ncompat = 'hpcc-ns3'\n\
    congestion = 'hpcc,line_rate=100G,base_rtt=4160ns,flows=100'\n\
    [[flow]]\nsource = 1\ndestination = 3\nbytes = 1000\n";

#[test]
fn a_scenario_sets_hosts_flows_and_algorithm() {
    let scenario = read("x", TEXT, None, 1, &[("max_stage".into(), "0".into())]).unwrap();
    assert_eq!((scenario.setup.topology.hosts(), scenario.setup.flows[0].destination), (3, 2));
    let AlgorithmConfig::Hpcc(config) = scenario.setup.congestion.algorithm else { panic!() };
    assert_eq!((config.max_stage, config.additive_increase), (0, Rate::from_mbps(50)));
    assert_eq!(scenario.setup.hosts, Hosts::Model);
    let product = read("x", &TEXT.replace("compat = 'hpcc-ns3'", ""), None, 1, &[]).unwrap();
    assert_eq!(product.setup.hosts, Hosts::Endpoints);
    assert!(read("x", &TEXT.replace("compat", "host = 'endpoint'\ncompat"), None, 1, &[]).is_err());
    let dctcp = read("x", TEXT, None, 1, &[("cc".into(), "dctcp".into())]).unwrap();
    assert_eq!(dctcp.setup.congestion.algorithm.name(), "dctcp");
    assert!(dctcp.setup.red.is_some() && scenario.setup.red.is_none());
    assert!(dctcp.warnings.is_empty() && scenario.warnings.is_empty());
    let reference = Reference { scenario: "b".into(), variant: "hpcc_ms5".into() };
    assert_eq!(varied(reference.clone(), &[("max_stage".into(), "0".into())]).variant, "hpcc_ms0");
    assert_eq!(varied(reference, &[("cc".into(), "dctcp".into())]).variant, "dctcp");
    assert!(read("x", &TEXT.replace("hosts = 3", ""), None, 1, &[]).is_err());
}

/// The algorithm discards settings of the scenario, and none of `vary`, in whichever order the keys are.
#[test]
fn varied_algorithms_take_what_is_varied_with_them() {
    let text = TEXT.replace("compat = 'hpcc-ns3'", "");
    let base_rtt = |vary: &[(&str, &str)]| {
        let vary: Vec<_> = vary.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        match read("x", &text, None, 1, &vary).unwrap().setup.congestion.algorithm {
            AlgorithmConfig::Dcqcn(config) => config.base_rtt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(base_rtt(&[("cc", "dcqcn")]), None);
    assert_eq!(base_rtt(&[("cc", "dcqcn_vwin")]), Some(Duration::from_nanos(4160)));
    let eight = Some(Duration::from_micros(8));
    assert_eq!(base_rtt(&[("cc", "dcqcn"), ("base_rtt", "8us")]), eight);
    assert_eq!(base_rtt(&[("base_rtt", "8us"), ("cc", "dcqcn")]), eight);
}

#[test]
fn an_algorithm_of_marks_is_warned_of_if_no_switch_marks() {
    let text = TEXT.replace("compat = 'hpcc-ns3'", "").replace("hpcc,", "dcqcn,");
    let text = text.replace(",base_rtt=4160ns,flows=100", "");
    let warnings = read("x", &text, None, 1, &[]).unwrap().warnings;
    let (_, remedy) = warnings[0].split_once("add the line ").unwrap();
    let marked = format!("{remedy}\n{text}");
    assert!(read("x", &marked, None, 1, &[]).unwrap().warnings.is_empty());
}

#[test]
fn a_rate_without_a_code_is_warned_of_if_telemetry_names_rates_by_codes() {
    let text = TEXT.replace("compat = 'hpcc-ns3'", "").replace("rate = '100G'", "rate = '75G'");
    assert!(text.contains("75G"), "{text}");
    let warnings = |text: &str| read("x", text, None, 1, &[]).unwrap().warnings;
    let said = warnings(&text);
    assert!(said[0].starts_with("x: rate 75G: HPCC INT and IFA cannot express it"), "{said:?}");
    assert_eq!(said.len(), 1);
    for exact in ["hpcc,format=int-md,", "dctcp,"] {
        let other = text.replace("hpcc,", exact).replace(",flows=100", "");
        assert!(warnings(&other).iter().all(|said| !said.contains("cannot express")), "{exact}");
    }
}

#[test]
fn host_numbers_out_of_range_are_named() {
    let incast = |senders: u32, bytes: u32| {
        let traffic =
            "[traffic]\nsizes = 'web-search'\nload = 0.1\ntime = '1us'\n[traffic.incast]\nload = 0.1\n";
        let flows = TEXT.find("[[flow]]").unwrap();
        format!("{}{traffic}senders = {senders}\nbytes = {bytes}\n", &TEXT[..flows])
    };
    for (text, part) in [
        (
            TEXT.replace("source = 1", "senders = 4"),
            "senders = 4: more senders than hosts, or none; use 1 to 3",
        ),
        (TEXT.replace("source = 1", "senders = 4294967295"), "1 to 3"),
        (TEXT.replace("source = 1", ""), "either source or senders"),
        (TEXT.replace("source = 1", "source = 0"), "source 0: not a host of the topology; use 1 to 3"),
        (TEXT.replace("source = 1", "source = 4294967295"), "source 4294967295: not a host"),
        (TEXT.replace("destination = 3", "destination = 4"), "destination 4: not a host"),
        (TEXT.replace("source = 1", "source = 3"), "source 3, destination 3: the same host"),
        (TEXT.replace("source = 1", "senders = 3"), "source 3, destination 3: the same host"),
        (TEXT.replace("bytes = 1000", "bytes = 0"), "bytes 0: use at least 1"),
        (format!("first_host = 4294967293\n{TEXT}"), "first_host: 4294967293: 3 hosts"),
        (incast(2, 0), "incast.bytes = 0"),
        (incast(3, 1), "incast.senders = 3"),
        (
            incast(1, 1).replace("'star'", "'parking-lot'\nswitches = 1").replace("hosts = 3", "hosts = 1"),
            "one host",
        ),
    ] {
        let error = read("x", &text, None, 1, &[]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(read("x", &incast(2, 1), None, 1, &[]).is_ok());
}

#[test]
fn a_list_of_flows_is_refused_in_its_own_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.csv");
    std::fs::write(&file, "src,dst,bytes,start_ns\n1,2,1000,0\n0,1,1000,0\n").unwrap();
    let error = read("x", TEXT, Some(&file), 1, &[]).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("line 3: source 0: not a host of the topology; use 1 to 3"), "{error}");
}

#[test]
fn links_of_a_graph_come_from_the_scenario_or_a_file() {
    let graph = TEXT.replace("topology = 'star'\nhosts = 3", "topology = 'graph'\nhosts = 3\nswitches = 2");
    let link = |a: &str, b: &str, more: &str| format!("[[link]]\nends = ['{a}', '{b}']\n{more}\n");
    let links = link("h1", "s1", "") + &link("h2", "s1", "") + &link("s2", "h3", "rate = '40G'");
    let trunk = link("s1", "s2", "rate = '10G'\ndelay = '5us'");
    let scenario = read("x", &format!("{graph}{links}{trunk}"), None, 1, &[]).unwrap();
    let topology = scenario.setup.topology;
    assert_eq!((topology.hosts(), topology.switches()), (3, 2));

    let folder = tempfile::tempdir().unwrap();
    let file = "5 2 4\n3 4\n0 3 100Gbps 1us 0\n1 3 100Gbps 1us 0\n4 2 40Gbps 1us 0\n3 4 10Gbps 5us 0\n";
    std::fs::write(folder.path().join("net.txt"), file).unwrap();
    let text = TEXT.replace("topology = 'star'\nhosts = 3", "topology = 'graph'\nlinks = 'net.txt'");
    let text = text.replace("rate = '100G'\ndelay = '1us'\n", "");
    let text = text.replace("source = 1\ndestination = 3", "source = 0\ndestination = 2");
    let name = folder.path().join("x.toml").display().to_string();
    let from_file = read(&name, &text, None, 1, &[]).unwrap();
    assert_eq!((from_file.setup.topology, from_file.first_host), (topology, 0));

    for (text, part) in [
        (format!("{graph}{links}"), "x: line 12: link: no path leads from h1 to h3; connect them"),
        (
            format!("{graph}{}", link("h1", "s3", "")),
            "x: line 12: link 1: 's3': no such node; use h1 to h3 and s1 to s2",
        ),
        (format!("{graph}{links}{}", link("s1", "s2", "rate = 'fast'")), "x: line 21: link 4: "),
        (format!("{graph}{trunk}{trunk}{}", link("h1", "h2", "")), "link 3: between two hosts"),
        (TEXT.to_owned() + &trunk, "only a graph has links of its own"),
        (text.replace("net.txt", "none.txt"), "x: line 2: links: none.txt: "),
        (
            graph.replace("graph'", "graph'\nlinks = 'net.txt'"),
            "x: line 3: hosts: the file of links has the number; remove it",
        ),
    ] {
        let error = read("x", &text, None, 1, &[]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn requests_loss_and_a_second_algorithm_are_set() {
    let more = "loss = 0.01\nrival = [{ dscp = 8, congestion = 'dcqcn' }]\nrequests = { verb = 'read', bytes = 4096, depth = 8 }\n";
    let text = format!("{more}{}", TEXT.replace("compat = 'hpcc-ns3'\n", ""));
    let setup = read("x", &text, None, 1, &[]).unwrap().setup;
    let rival = |rival: &Rival| (rival.which.clone(), rival.congestion.algorithm.name());
    assert_eq!(setup.rivals.iter().map(rival).collect::<Vec<_>>(), [(Which::Class(8), "dcqcn")]);
    assert_eq!((setup.requests.verb, setup.requests.bytes, setup.requests.depth), (Verb::Read, 4096, 8));
    assert_eq!(Some(setup.loss), Probability::new(0.01));
    for (from, to, part) in [
        ("dscp = 8", "dscp = 64", "x: line 2: rival 1: dscp = 64: out of range; use 0 to 63"),
        ("dcqcn", "reno", "x: line 2: rival 1: "),
        ("0.01", "2", "x: line 1: loss: 2: out of range; use 0 to 1"),
        ("loss", "lost", "x: line 1: no key `lost`; write `loss`"),
    ] {
        let error = read("x", &text.replacen(from, to, 1), None, 1, &[]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn flows_hosts_and_classes_have_algorithms_of_their_own() {
    let flow = "[[flow]]\nsource = 2\ndestination = 3\nbytes = 1\n";
    let rivals = "[[rival]]\nhosts = [2]\ncongestion = 'powertcp,base_rtt=5us'\n";
    let text = format!("{TEXT}{flow}congestion = 'hpcc-fair'\n{flow}{rivals}");
    let setup = read("x", &text, None, 1, &[]).unwrap().setup;
    let names: Vec<_> = setup.rivals.iter().map(|rival| rival.congestion.algorithm.name()).collect();
    assert_eq!(
        (setup.rivals[0].which.clone(), &names[..]),
        (Which::Flows(1..2), &["hpcc-fair", "powertcp"][..])
    );
    assert_eq!(setup.rivals[1].which, Which::Hosts(vec![1]));
    for (from, to, part) in [
        ("hosts = [2]", "hosts = [9]", "x: line 20: rival 1: host 9: not a host of the topology; use 1 to 3"),
        ("hosts = [2]", "", "x: line 20: rival 1: a rival needs either dscp or hosts"),
        ("hpcc-fair", "reno", "x: line 11: flow 2: "),
    ] {
        let error = read("x", &text.replacen(from, to, 1), None, 1, &[]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_circle_and_a_rate_that_telemetry_cannot_express_have_a_line() {
    let flow = "[[flow]]\nsource = 2\ndestination = 3\nbytes = 1\nafter = 3\n";
    let text = format!("{TEXT}{flow}{}", flow.replace("after = 3", "after = 2"));
    let error = |text: &str| read("x", text, None, 1, &[]).map(|_| ()).unwrap_err().to_string();
    let said = "x: line 11: flow 2: begins after flows that begin after it";
    assert!(error(&text).contains(said), "{}", error(&text));
    let change = format!("{TEXT}[[change]]\ntime = '1ms'\nlink = ['s1', 'h2']\nrate = '2.5G'\n");
    let said = "x: line 11: change 1: link of 2500000000 bit/s: telemetry cannot express it";
    assert!(error(&change).contains(said), "{}", error(&change));
    let slow = TEXT.replace("rate = '100G'", "rate = '10M'");
    assert!(error(&slow).contains("x: line 3: rate: link of 10000000 bit/s"), "{}", error(&slow));
}

#[test]
fn links_change_and_flows_wait_as_the_scenario_says() {
    let change = |more: &str| format!("[[change]]\ntime = '1ms'\n{more}\n");
    let changes = change("link = ['s1', 'h2']\nrate = '40G'") + &change("node = 's1'\ndown = true");
    let after = "[[flow]]\nsenders = 2\ndestination = 3\nbytes = 1\nafter = 1\n";
    let collective = "[[collective]]\nkind = 'ring'\nhosts = 2\nbytes = 10\nstart = '5us'\n";
    let setup = read("x", &format!("{TEXT}{after}{changes}{collective}"), None, 1, &[]).unwrap().setup;
    let at = Duration::from_millis(1);
    let rate = LinkChange::Rate(Rate::from_gbps(40));
    let expected = [
        Change { at, links: vec![1], what: rate },
        Change { at, links: vec![0, 1, 2], what: LinkChange::Down },
    ];
    assert_eq!(setup.changes, expected);
    let waits: Vec<_> = setup.dependencies.iter().map(|pair| (pair.flow, pair.after)).collect();
    assert_eq!(waits, [(1, 0), (2, 0), (5, 4), (6, 3)]);
    assert_eq!((setup.flows.len(), setup.flows[3].start), (7, Duration::from_micros(5)));
    assert!(setup.check().is_ok());
}

#[test]
fn the_load_of_a_link_is_that_of_its_flows() {
    let flows = TEXT.find("[[flow]]").unwrap();
    let text = TEXT[..flows].replace("'star'", "'dumbbell'");
    let traffic = "[traffic]\nsizes = 'uniform:10000'\nload = 0.5\ntime = '10ms'\n";
    let bytes = |more: &str| {
        let setup = read("x", &format!("{text}{traffic}{more}"), None, 1, &[]).unwrap().setup;
        let left = |host: u32| host < 3;
        let crossing = setup.flows.iter().filter(|flow| left(flow.source) && !left(flow.destination));
        crossing.map(|flow| flow.bytes).sum::<u64>() as f64
    };
    // In 10 ms the link carries 125 MB. Three hosts send three fifths of their flows over it.
    let near =
        |bytes: f64, share: f64| assert!((bytes / 125e6 / share - 1.0).abs() < 0.05, "{bytes} for {share}");
    near(bytes(""), 0.5 * 3.0 * 0.6);
    near(bytes("load_link = ['s1', 's2']\n"), 0.5);
    near(bytes("load_link = ['s1', 's2']\nburst = 10\n"), 0.5);
}

#[test]
fn the_library_of_scenarios_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric/scenarios");
    for (folder, least) in [(folder.clone(), 9), (folder.join("reference"), 8)] {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        for path in &files {
            let text = std::fs::read_to_string(path).unwrap();
            let read = read(&path.display().to_string(), &text, None, 1, &[]);
            assert!(read.is_ok_and(|scenario| !scenario.setup.flows.is_empty()), "{}", path.display());
        }
        assert!(files.len() >= least, "{files:?}");
    }
}
