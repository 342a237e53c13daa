//! Queue pair 1 from both sides.

mod common;

use common::{FRAME, MACS};
use ferroce_verbs::*;
use std::net::IpAddr;

const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn open(port: Loopback, side: usize) -> Device {
    let address = ADDRESSES[side].parse::<IpAddr>().unwrap();
    let own = OwnPort { name: format!("pair{side}"), mac: MACS[side] };
    Device::open_on(port, own, &DeviceConfig::new().address(address.into())).unwrap()
}

/// A stranger that answers no ARP is answered all the same: whoever asks can't make us wait for its Ethernet address.
#[test]
fn who_asks_is_answered_without_being_resolved() {
    let (left, right) = pair(64, FRAME);
    let (asks, answers) = (open(left, 0), open(right, 1));
    let [asker, asked] = ADDRESSES.map(|ip| ip.parse::<IpAddr>().unwrap());
    asks.set_neighbour(asked, MACS[1]).unwrap();
    let (there, here) = (asks.open_management().unwrap(), answers.open_management().unwrap());
    let gid = |device: &Device, to| device.query().unwrap().gid_towards(to);
    there.send(gid(&asks, asked), asked, [1; MAD_LENGTH]).unwrap();
    asks.progress();
    answers.progress();
    assert_eq!(here.receive().unwrap(), Some((asker, [1; MAD_LENGTH])));
    // Nobody runs the asker's core meanwhile, so nobody would answer.
    here.send(gid(&answers, asker), asker, [2; MAD_LENGTH]).unwrap();
    answers.progress();
    asks.progress();
    assert_eq!(there.receive().unwrap(), Some((asked, [2; MAD_LENGTH])));
    assert_eq!(there.receive().unwrap(), None);
}
