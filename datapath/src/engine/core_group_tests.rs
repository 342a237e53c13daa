//! Tests of several cores behind one port: commands to all, the core that receives a frame, and the common end.

use super::config::{CoreConfig, Progress, StartError};
use super::tests::TestPort;
use super::{CoreSet, Engine};
use crate::io::{self, Burst, Loopback, PacketBuf, PacketIo};
use roce::EndpointConfig;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const MODES: [Progress; 2] = [Progress::Inline, Progress::Adaptive];

fn config(progress: Progress, cores: u8) -> CoreConfig {
    let config = super::tests::config(progress);
    CoreConfig { cores, endpoint: EndpointConfig { max_qps: 8, ..config.endpoint }, ..config }
}

fn start(port: Loopback, config: &CoreConfig) -> Result<Engine, StartError> {
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(port, config) }
}

#[test]
fn commands_reach_all_cores_and_one_core() {
    for mode in MODES {
        let (port, other) = io::pair(1024, 2048);
        let engine = start(port, &config(mode, 3)).unwrap();
        assert_eq!(engine.cores(), 3);
        assert_eq!(engine.call_all(|state, _| state.index()), Ok(vec![0, 1, 2]));
        for core in 0..3 {
            assert_eq!(engine.call_on(core, |state, _| state.index()), Ok(core));
        }
        drop(engine);
        assert_eq!(other.free_buffers(), 1024);
    }
}

/// Threads send commands to all cores concurrently. Each core runs them in the same order, so all allocate the same numbers.
#[test]
fn all_cores_run_commands_in_one_order() {
    for mode in MODES {
        let (port, _other) = io::pair(1024, 2048);
        let engine = start(port, &config(mode, 4)).unwrap();
        let seen: [Arc<Mutex<Vec<u32>>>; 4] = Default::default();
        let next = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (number, seen) = (next.fetch_add(1, Ordering::Relaxed), seen.clone());
                        let pds = engine.call_all(move |state, _| {
                            seen[state.index()].lock().unwrap().push(number);
                            state.endpoint.create_pd()
                        });
                        let pds = pds.unwrap();
                        assert!(pds.iter().all(|pd| *pd == pds[0]), "{pds:?}");
                    }
                });
            }
        });
        let orders = seen.map(|order| order.lock().unwrap().clone());
        assert_eq!(orders[0].len(), 200);
        assert!(orders.iter().all(|order| *order == orders[0]));
    }
}

#[test]
fn a_defect_of_one_core_ends_all() {
    for (mode, core) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 2)]) {
        let (port, _other) = io::pair(1024, 2048);
        let engine = start(port, &config(mode, 3)).unwrap();
        let stopped = engine.call_on(core, |_, _| panic!("a bad call")).map(|(): ()| ()).unwrap_err();
        assert!(stopped.reason.contains("a bad call"), "{stopped}");
        assert_eq!(engine.check(), Err(stopped.clone()));
        assert_eq!(engine.call_all(|_, _| ()), Err(stopped));
    }
}

#[test]
fn wrong_numbers_of_cores_are_refused() {
    for cores in [0, 17] {
        let (port, _other) = io::pair(64, 2048);
        let error = start(port, &config(Progress::Inline, cores)).unwrap_err().to_string();
        assert!(error.contains(&format!("cores = {cores}")) && error.contains("write 1 to 16"), "{error}");
    }
    let (port, _other) = io::pair(64, 2048);
    let mut many = config(Progress::Inline, 2);
    many.endpoint.max_qps = 1 << 18;
    let error = start(port, &many).unwrap_err().to_string();
    assert!(error.contains("queue_pairs = 262144") && error.contains("131072"), "{error}");
}

/// No queue pair belongs to core 1, so only core 0 is polled. The queue of core 1 is still emptied.
#[test]
fn polling_core_0_handles_its_frames_in_other_cores_queues() {
    for has_in_place in [false, true] {
        let ((port, mut wire), (second, mut second_wire)) = (io::pair(1024, 2048), io::pair(1024, 2048));
        let mut port = TestPort::new(port);
        (port.second, port.has_in_place) = (Some(second), has_in_place);
        // SAFETY: the test registers no memory.
        let engine = unsafe { Engine::start(port, &config(Progress::Inline, 2)) }.unwrap();
        let peer = [2, 0, 0, 0, 0, 2];
        let question = [0, 1, 8, 0, 6, 4, 0, 1];
        let who_has =
            [&[255; 6][..], &peer, &[8, 6], &question, &peer, &[10, 0, 0, 2], &[0; 6], &[10, 0, 0, 1]]
                .concat();
        for wire in [&mut wire, &mut second_wire] {
            let mut frame = wire.alloc().unwrap();
            frame.set_len(who_has.len());
            frame.copy_from_slice(&who_has);
            wire.transmit(&mut [frame].into_iter().collect());
        }
        for _ in 0..8 {
            engine.progress_of(&CoreSet::default());
        }
        let counters = engine.call_all(|state, _| state.counters).unwrap();
        assert_eq!(
            (counters[0].neighbour_packets, counters[1].handed_over),
            (2, 1),
            "in place: {has_in_place}"
        );
        let mut answers = Burst::new();
        wire.receive(&mut answers);
        // An ARP reply to that peer.
        assert!(answers.iter().any(|frame| frame[..6] == peer && frame[20..22] == [0, 2]), "core 0 answers");
    }
}

#[test]
fn a_suspected_peer_is_reported_only_to_the_port_or_queue_that_sent_the_packets() {
    let peer = IpAddr::from([10, 0, 0, 2]);
    for has_queue in [false, true] {
        let ((port, _wire), (second, _second_wire)) = (io::pair(1024, 2048), io::pair(1024, 2048));
        let mut port = TestPort::new(port);
        port.second = has_queue.then_some(second);
        let suspected = port.suspected.clone();
        // SAFETY: the test registers no memory.
        let engine = unsafe { Engine::start(port, &config(Progress::Inline, 2)) }.unwrap();
        engine.call_on(1, move |state, _| state.peer_moves.record(peer)).unwrap();
        // An answer arrives before the turn of its command ends.
        for core in [1, 0, 0] {
            engine.call_on(core, |_, _| ()).unwrap();
        }
        assert_eq!(*suspected.lock().unwrap(), [(peer, has_queue)]);
    }
}
