//! A runner and a faulty port, on ports that are queues in this process.

use crate::script::{BROADCAST, Buf, at, frame, station, tag};
use cc::Instant;
use datapath::io::{Burst, Caps, PacketIo};
use ferroce_fabric::{FaultConfig, Faulty, PortConfig, Probability, Runner, Switch, SwitchConfig};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Wire(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Wire {
    fn put(&self, frame: Vec<u8>) {
        self.0.lock().unwrap().push_back(frame);
    }
    fn take(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }
}

/// A port that sends at most five frames per call.
#[derive(Clone, Default)]
struct TestPort {
    incoming: Wire,
    outgoing: Wire,
}

impl PacketIo for TestPort {
    type Buf = Buf;

    fn receive(&mut self, into: &mut Burst<Buf>) {
        while !into.is_full()
            && let Some(frame) = self.incoming.take()
        {
            into.push(Buf::of(&frame));
        }
    }
    fn alloc(&mut self) -> Option<Buf> {
        Some(Buf::empty())
    }
    fn transmit(&mut self, from: &mut Burst<Buf>) {
        let taken = from.len().min(5);
        from.drain(..taken).for_each(|buf| self.outgoing.put(buf.to_vec()));
    }
    fn caps(&self) -> Caps {
        Caps { max_frame: 2048, speed_mbps: None }
    }
}

fn runner(ports: &[TestPort]) -> Runner<TestPort> {
    let config = SwitchConfig { ports: vec![PortConfig::default(); ports.len()], ..SwitchConfig::default() };
    Runner::new(Switch::new(&config).unwrap(), ports.to_vec())
}

#[test]
fn frames_stay_in_order_when_the_port_accepts_few_per_burst() {
    let ports = [TestPort::default(), TestPort::default(), TestPort::default()];
    let mut runner = runner(&ports);
    ports[1].incoming.put(frame(BROADCAST, station(1), 64, 0));
    runner.turn(at(1));
    assert!(ports[0].outgoing.take().is_some() && ports[2].outgoing.take().is_some());

    for n in 0..100 {
        ports[0].incoming.put(frame(station(1), station(0), 64, n));
    }
    let mut turns = 2;
    while runner.turn(at(turns)) > 0 {
        turns += 1;
    }
    let tags: Vec<_> = std::iter::from_fn(|| ports[1].outgoing.take()).map(|frame| tag(&frame)).collect();
    assert_eq!(tags, (0..100).collect::<Vec<_>>());
    assert!(ports[2].outgoing.take().is_none());
}

#[test]
fn a_runner_stops_when_its_flag_is_set() {
    let ports = [TestPort::default(), TestPort::default()];
    let mut runner = runner(&ports);
    ports[0].incoming.put(frame(BROADCAST, station(0), 64, 9));
    let stop = AtomicBool::new(false);
    let mut turns = 0_u64;
    let clock = {
        let mut micros = 0;
        move || {
            micros += 1;
            at(micros)
        }
    };
    runner.run(&stop, clock, |_, _| {
        turns += 1;
        stop.store(turns == 100, Ordering::Relaxed);
    });
    assert_eq!(turns, 100);
    assert_eq!(ports[1].outgoing.take().map(|frame| tag(&frame)), Some(9));
}

#[test]
fn a_faulty_port_loses_what_it_sends_and_nothing_that_comes_in() {
    let below = TestPort::default();
    let loss = Probability::new(0.5).unwrap();
    let mut now = 0;
    let mut port = Faulty::new(below.clone(), FaultConfig { loss, ..FaultConfig::default() }, move || {
        now += 1;
        Instant::from_nanos(now)
    });
    let mut burst = Burst::new();
    for n in 0..200 {
        below.incoming.put(frame(station(1), station(0), 64, n));
    }
    let mut received = 0;
    for _ in 0..100 {
        port.receive(&mut burst);
        received += burst.len();
        port.transmit(&mut burst);
    }
    assert_eq!((received, burst.len(), port.on_link()), (200, 0, 0));
    let sent = std::iter::from_fn(|| below.outgoing.take()).count() as u64;
    assert_eq!(sent + port.counters().lost, 200);
    assert!((60..140).contains(&sent), "{sent}");
}
