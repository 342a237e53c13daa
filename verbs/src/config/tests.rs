//! Tests of the configuration.

use super::*;

#[test]
fn the_networks_numbers_are_checked() {
    let numbers = |text: &str| text.parse::<DeviceConfig>().map(|config| config.numbers);
    assert_eq!(numbers("int_port = 5000"), Ok(Numbers::new(5000, 0x3e).unwrap()));
    assert_eq!(numbers("aecn_option = '0x3f'"), Ok(Numbers::new(1021, 0x3f).unwrap()));
    assert_eq!(numbers("csig_tpid = '0x88b5'"), Ok(Numbers::DEFAULT.with_csig_tpid(0x88b5).unwrap()));
    assert_eq!(numbers(""), Ok(Numbers::DEFAULT));
    for (text, says) in [
        ("int_port = 4791", "4791"),
        ("aecn_option = '0x31'", "IOAM"),
        ("aecn_option = 'x'", "0x3e"),
        ("csig_tpid = '0x0800'", "0x0800"),
        ("csig_tpid = 'x'", "0x9900"),
    ] {
        assert!(numbers(text).unwrap_err().to_string().contains(says), "{text}");
    }
}

#[test]
fn a_file_has_every_setting_of_the_builder() {
    let text = "port = 'veth0'\nip = ['10.0.0.1/24', 'fd00::1']\nprogress = 'dedicated:1'\nvlan = 7\nmtu = 2048\nidle = 'busy'\nlink_rate = '10G'";
    let built = DeviceConfig::on("veth0")
        .address("10.0.0.1/24".parse().unwrap())
        .address("fd00::1".parse().unwrap())
        .vlan(7)
        .unwrap()
        .progress(Progress::Dedicated { core: Some(1) })
        .idle(Idle::Busy)
        .link_rate(Rate::from_gbps(10))
        .mtu(Mtu::M2048);
    assert_eq!(text.parse(), Ok(built));
}

#[test]
fn the_toml_examples_in_documents_parse() {
    let texts = [
        include_str!("../../../README.md"),
        include_str!("../../README.md"),
        include_str!("../../../docs/guide/congestion.md"),
    ];
    let blocks = texts.iter().flat_map(|text| text.split("```toml\n").skip(1));
    let files = blocks.filter_map(|rest| rest.split("```").next()).filter(|block| block.contains("cc ="));
    let rules: Vec<_> = files.map(|file| file.parse::<DeviceConfig>().unwrap().rules.len()).collect();
    assert_eq!(rules, [1, 2, 1]);
}

#[test]
fn the_readme_lists_every_setting() {
    let readme = include_str!("../../README.md");
    for (key, _) in DeviceConfig::on("eth0").settings() {
        assert!(readme.contains(&format!("| `{key}` |")), "verbs/README.md does not list {key}");
    }
}

#[test]
fn a_port_has_its_own_table_or_the_common_settings() {
    let text =
        "mtu = 1024\n[[device]]\nport = 'eth0'\nip = ['10.0.0.1/24']\n[[device]]\nport = 'eth1'\nmtu = 4096";
    let file = || config_file::devices(text, Path::new("")).unwrap();
    let found = of_ports(file(), &["eth1", "eth9"]).unwrap();
    assert_eq!(found, [DeviceConfig::on("eth1").mtu(Mtu::M4096), DeviceConfig::on("eth9").mtu(Mtu::M1024)]);
    assert_eq!(of_ports(file(), &["eth0"]).unwrap(), [file()[0].clone()]);
    let text = "[[device]]\nport = 'eth0'\nname = 'mlx5_0'\n[[device]]\nport = 'eth1'";
    let found = of_ports(config_file::devices(text, Path::new("")).unwrap(), &["mlx5_0", "eth9"]).unwrap();
    assert_eq!(found, [DeviceConfig::on("eth0").named("mlx5_0").unwrap(), DeviceConfig::on("eth9")]);
    let one = || config_file::devices("ip = ['10.0.0.1/24']", Path::new("")).unwrap();
    let error = of_ports(one(), &["eth0", "eth1"]).unwrap_err();
    assert_eq!(error, ConfigError::AddressesOfSeveral { devices: 2 });
    assert_eq!(of_ports(one(), &["eth0"]).unwrap()[0].addresses.len(), 1);
    assert_eq!(of_ports(one(), &["a", "a"]).unwrap_err(), ConfigError::AddressesOfSeveral { devices: 2 });
}

#[test]
fn a_port_is_found_before_a_name() {
    let file = |text| config_file::devices(text, Path::new(""));
    let error = file("[[device]]\nport = 'eth0'\nname = 'eth1'\n[[device]]\nport = 'eth1'").unwrap_err();
    assert_eq!(error.to_string(), "name `eth1`: the port of another device; choose another");
    let own = "[[device]]\nport = 'eth0'\nname = 'eth0'\n[[device]]\nport = 'eth1'";
    assert_eq!(file(own).unwrap()[0].name_at(0), "eth0");
    let configs = vec![DeviceConfig::on("eth0").named("eth1").unwrap(), DeviceConfig::on("eth1")];
    assert_eq!(of_ports(configs, &["eth1"]).unwrap(), [DeviceConfig::on("eth1")]);
    // Without a port in the file, the name selects nothing.
    let found = of_ports(file("name = 'eth7'").unwrap(), &["eth7"]).unwrap();
    assert_eq!(found, [DeviceConfig::on("eth7").named("eth7").unwrap()]);
}

#[test]
fn the_name_of_a_file_stays_with_its_port() {
    let of = |text, ports| of_ports(config_file::devices(text, Path::new("")).unwrap(), ports).unwrap();
    let with_port = "port = 'eth0'\nname = 'mlx5_0'\nmtu = 1024";
    let [own, other] = ["eth0", "eth9"].map(|port| DeviceConfig::on(port).mtu(Mtu::M1024));
    let own = own.named("mlx5_0").unwrap();
    assert_eq!(of(with_port, &["eth0", "eth9"]), [own.clone(), other.clone()]);
    assert_eq!(of(with_port, &["mlx5_0"]), [own]);
    assert_eq!(of(with_port, &["eth9"]), [other]);
    let without_port = "name = 'mlx5_0'";
    assert_eq!(of(without_port, &["eth9"]), [DeviceConfig::on("eth9").named("mlx5_0").unwrap()]);
    assert_eq!(of(without_port, &["eth0", "eth9"]), ["eth0", "eth9"].map(DeviceConfig::on));
}

#[test]
fn ports_are_listed_in_one_text() {
    for (text, ports) in [
        ("eth0", &["eth0"][..]),
        ("eth0,eth1", &["eth0", "eth1"]),
        ("memif:/run/a.sock,server", &["memif:/run/a.sock,server"]),
        ("memif:/run/a.sock,server; eth0,eth1;", &["memif:/run/a.sock,server", "eth0", "eth1"]),
    ] {
        assert_eq!(port_list(text), ports);
    }
}

#[test]
fn an_invalid_setting_is_named() {
    for (text, part) in [
        ("port = 1", "line 1"),
        ("colour = 'red'", "colour"),
        ("ip = ['10.0.0.1/33']", "10.0.0.1/33"),
        ("ip = ['nowhere']", "nowhere"),
        ("mtu = 1500", "1500"),
        ("vlan = 4095", "VLAN \"4095\": not a VLAN; write 1 to 4094"),
        ("progress = 'dedicated:x'", "dedicated:x"),
        ("idle = 'nap'", "nap"),
        ("link_rate = 'fast'", "link_rate"),
        ("buffers = 1", "1048576"),
        ("queue_pairs = 0", "1 to 262144"),
        ("selective_repeat = 'no'", "line 1"),
        ("early_memory = 'much'", "early_memory \"much\": `much` is no size; write bytes, or 4K, 1M, 1G"),
        ("early_memory = 64", "line 1"),
        ("queue_pairs = 262145", "queue_pairs = 262145"),
        ("cores = 0", "cores = 0: out of range; write 1 to 16"),
        ("cores = 17", "1 to 16"),
        ("[[congestion]]\ncc = 'fixed'\n[[congestion]]\ncc = 'hpcc-rx'", "congestion rule 2: line 4: cc"),
        (
            "[[congestion]]\ncc = 'hpcc'\nline_rate = '1G'\nbase_rtt = '1ms'\neta = 2\n",
            "congestion rule 1: line 5: eta = 2: not a share above 0 and at most 1; write eta = 0.95",
        ),
        ("feedback_key_file = '/nowhere/key'", "/nowhere/key"),
    ] {
        let error = text.parse::<DeviceConfig>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
