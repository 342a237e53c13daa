//! A connected peer changes its Ethernet address.

use crate::common::*;
use datapath::io::{Burst, PacketBuf, PacketIo};
use ferroce_verbs::port::{Loopback, Mac, OwnPort, pair};
use ferroce_verbs::state::AckTimeout;
use ferroce_verbs::{
    Capabilities, CompletionStatus, ConnectOptions, Device, DeviceConfig, Progress, SendRequest,
};

const NEW: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// The network between two devices. A side that has moved uses another Ethernet address in both directions.
struct Network {
    ends: [Loopback; 2],
    moved: [bool; 2],
    /// Number of frames to an Ethernet address that no host has.
    lost: u32,
}

impl Network {
    fn carry(&mut self) {
        for from in [0, 1] {
            let mut burst = Burst::new();
            self.ends[from].receive(&mut burst);
            for frame in burst.drain(..).map(|frame| frame.to_vec()).collect::<Vec<_>>() {
                if let Some(frame) = self.translate(from, frame) {
                    self.put(1 - from, &frame);
                }
            }
        }
    }

    /// Translates the addresses of a frame. Returns `None` if no host has its destination address.
    fn translate(&mut self, from: usize, mut frame: Vec<u8>) -> Option<Vec<u8>> {
        let to = 1 - from;
        if self.moved[to] && frame[0] & 1 == 0 {
            if frame[..6] != NEW.0 {
                self.lost += 1;
                return None;
            }
            frame[..6].copy_from_slice(&MACS[to].0);
        }
        if self.moved[from] {
            frame[6..12].copy_from_slice(&NEW.0);
            if frame[12..14] == [0x08, 0x06] {
                frame[22..28].copy_from_slice(&NEW.0);
            }
        }
        Some(frame)
    }

    fn put(&mut self, to: usize, frame: &[u8]) {
        let mut buffer = self.ends[to].alloc().unwrap();
        buffer.set_len(frame.len());
        buffer.copy_from_slice(frame);
        let mut burst = Burst::new();
        burst.push(buffer);
        self.ends[to].transmit(&mut burst);
    }
}

fn devices(network: &mut Option<Network>) -> [Device; 2] {
    let [(left, near), (far, right)] = [pair(1024, FRAME), pair(1024, FRAME)];
    *network = Some(Network { ends: [near, far], moved: [false; 2], lost: 0 });
    let open = |port, side: usize| {
        let address = format!("10.0.0.{}/24", side + 1).parse().unwrap();
        let config = DeviceConfig::new().address(address).progress(Progress::Inline);
        Device::open_on(port, OwnPort { name: format!("pair{side}"), mac: MACS[side] }, &config).unwrap()
    };
    [open(left, 0), open(right, 1)]
}

/// Resolves each side's address from the other by ARP.
fn meet(network: &mut Network, devices: &[Device; 2]) {
    let ports = [0, 1].map(|side| devices[side].open_management().unwrap());
    for side in [0, 1] {
        let peer = format!("10.0.0.{}", 2 - side).parse().unwrap();
        while !ports[side].poll_resolution(peer).unwrap() {
            devices.iter().for_each(|device| _ = device.progress());
            network.carry();
        }
    }
}

fn write(network: &mut Network, a: &mut Side, b: &Side, seed: u8) -> CompletionStatus {
    let data = pattern(2000, seed);
    a.region.write(0, &data).unwrap();
    let to = b.region.remote().at(100);
    a.qp.post_send(SendRequest::write(u64::from(seed), a.region.sge(0, 2000).unwrap(), to)).unwrap();
    loop {
        if let Some(completion) = a.send_cq.poll_one().unwrap() {
            assert_eq!(contents(&b.region, 100, 2000), data);
            return completion.status;
        }
        b.device.progress();
        network.carry();
    }
}

/// First the responder moves, so that requests are lost. Then the requester moves, so that responses are lost.
#[test]
fn a_connection_follows_its_peer() {
    for moves in [1, 0] {
        let mut network = None;
        let devices = devices(&mut network);
        let mut network = network.unwrap();
        meet(&mut network, &devices);
        let [mut a, mut b] = [0, 1].map(|n| side(&devices[n], 4096, Capabilities::default(), 64));
        // A timeout of 134 ms, after which the ARP entry is old enough to be resolved again.
        let options = ConnectOptions::new().ack_timeout(AckTimeout::new(15));
        connect(&mut a, &mut b, &options);
        assert_eq!(write(&mut network, &mut a, &b, 1), CompletionStatus::Success);
        network.moved[moves] = true;
        assert_eq!(write(&mut network, &mut a, &b, 2), CompletionStatus::Success, "side {moves} moved");
        assert!(network.lost > 0);
        // After the new address is known and packets in flight have arrived, no more frames are lost.
        for _ in 0..10 {
            devices.iter().for_each(|device| _ = device.progress());
            network.carry();
        }
        network.lost = 0;
        assert_eq!(write(&mut network, &mut a, &b, 3), CompletionStatus::Success);
        assert_eq!(network.lost, 0);
    }
}
