//! Address handles: the headers of their datagrams.

use crate::common::*;
use ferroce_verbs::{AddressOptions, Progress};
use std::collections::BTreeSet;
use std::net::IpAddr;

#[test]
fn datagrams_to_different_hosts_take_different_source_ports() {
    let [device, _peer] = devices(Progress::Inline);
    let pd = device.allocate_pd().unwrap();
    let port = |host: u8, flow_label| {
        let ip = IpAddr::from([10, 0, 0, host]);
        device.set_neighbour(ip, MACS[1]).unwrap();
        let options = AddressOptions::new().flow_label(flow_label);
        pd.address(ip, &options).unwrap().path().udp_source
    };
    let ports: BTreeSet<u16> = (2..66).map(|host| port(host, 0)).collect();
    assert!(ports.len() > 60, "{ports:?}");
    assert_eq!(port(2, 0), port(2, 0), "one flow, one path");
    assert_eq!(port(2, 1), 0xc001, "as the flow label says");
}
