//! Tests that a process forked from one with a device can open its own device.

mod common;

use common::{core_config, ip, own_network, small};
use ferroce_datapath::dpdk::{Eal, EalConfig, EalError, Hugepages, Port, PortError};
use ferroce_datapath::engine::{Engine, MAD_LENGTH, Progress};
use ferroce_datapath::event_fd::EventFd;
use roce::wire::Path;
use std::io::{Read, Write};
use std::sync::Arc;

/// Turns of a poll loop after which a frame is considered lost.
const TURNS: u32 = 1_000_000;

fn open(spec: &str) -> Result<Port, PortError> {
    let config =
        EalConfig { memory_mb: 256, hugepages: Hugepages::Never, shared: false, ..EalConfig::default() };
    Port::open(Eal::start(&config).unwrap(), &spec.parse().unwrap(), &small())
}

fn start() -> Engine {
    let port = open("opens0").unwrap();
    let config = core_config(&port, "10.9.0.1/24", Progress::Adaptive);
    // SAFETY: these tests register no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    let event_fd = Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    assert!(engine.call(move |state, _| state.open_management(event_fd)).unwrap());
    engine
}

fn send(engine: &Engine, byte: u8) {
    let mac = ferroce_datapath::linux::interface("opens0").unwrap().mac;
    let address = "10.9.0.1".parse().unwrap();
    let path = Path { udp_source: 0xd872, ..Path::new((mac, address), (mac, address)) };
    assert!(engine.call(move |state, _| state.send_mad(path, [byte; MAD_LENGTH])).unwrap());
}

fn receives(engine: &Engine, byte: u8) -> bool {
    (0..TURNS).any(|_| {
        engine.progress();
        std::thread::yield_now();
        let came = engine.call(|state, _| state.receive_mad()).unwrap();
        came.is_some_and(|(_, mad)| mad == [byte; MAD_LENGTH])
    })
}

#[test]
fn a_forked_child_opens_a_device_of_its_own() {
    own_network();
    ip("link add opens0 mtu 4200 type veth peer name opens1");
    ip("addr add 10.9.0.1/24 dev opens0");
    ip("link set opens0 up");
    ip("link set opens1 up");
    let ours = start();
    let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
    // SAFETY: the child opens a device, sends a frame, receives one, and ends with _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: takes integers. The child must not outlive the test.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        ours.check().unwrap_err();
        let own = start();
        let refused = open("memif:/tmp/never").err().map(|error| error.to_string());
        assert!(refused.is_some_and(|said| said.contains("forked")), "its handlers are the parent's");
        let shared =
            Eal::start(&EalConfig { hugepages: Hugepages::Never, memory_mb: 256, ..EalConfig::default() });
        assert!(matches!(shared, Err(EalError::Running { .. })), "{shared:?}");
        to_parent.write_all(&[own.siblings().unwrap().slot()]).unwrap();
        send(&own, 1);
        let received = receives(&own, 2);
        // SAFETY: ends this process, with its device open.
        unsafe { libc::_exit(i32::from(!received)) };
    }
    drop(to_parent);
    let mut slot = [0];
    from_child.read_exact(&mut slot).expect("the child opened its device");
    assert_ne!(slot[0], ours.siblings().unwrap().slot());
    assert!(receives(&ours, 1), "the child's frames reach its parent");
    send(&ours, 2);
    let mut status = -1;
    // SAFETY: waits for a child of this process, and there is room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the parent's frames reach the child");
    ours.call(|_, _| ()).expect("the parent's core goes on");
}
