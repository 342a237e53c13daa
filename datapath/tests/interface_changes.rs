//! Tests of the engine of a port whose Linux interface changes. Runs as root, in its own network namespace.

mod common;

use common::{core_config, ip, open, own_network};
use ferroce_datapath::engine::{AsyncEvent, Engine, EventQueue, Progress};
use roce::wire::Mtu;
use std::sync::{Arc, mpsc};
use std::thread;

/// Starts an engine on the interface `change0`, and subscribes to all events except those of the link.
fn start(progress: Progress) -> (Engine, Arc<EventQueue>) {
    let port = open("change0");
    let config = core_config(&port, "10.9.0.1/24", progress);
    // SAFETY: these tests register no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    let is_link = |event: &AsyncEvent| matches!(event, AsyncEvent::PortUp | AsyncEvent::PortDown);
    let events = Arc::new(EventQueue::new(move |event| !is_link(event)).unwrap());
    engine.subscribe(events.clone());
    (engine, events)
}

/// Returns the addresses of the GID table except the first, which is derived from the Ethernet address.
fn addresses(engine: &Engine) -> Vec<(usize, String)> {
    engine.gids().entries().skip(1).map(|(index, gid)| (index, gid.to_string())).collect()
}

fn follows(progress: Progress, end: &str) {
    ip("link add change0 mtu 4300 type veth peer name change1 mtu 4300");
    ip("addr add 10.9.0.1/24 dev change0");
    ip("link set change0 up");
    ip("link set change1 up");
    let (engine, events) = start(progress);
    assert_eq!((addresses(&engine), engine.path_mtu()), (vec![(1, "10.9.0.1".into())], Some(Mtu::M4096)));

    ip("addr add 10.9.0.2/32 dev change0");
    assert_eq!(events.wait().unwrap(), AsyncEvent::GidChange);
    assert_eq!(addresses(&engine)[1..], [(2, "10.9.0.2".into())]);

    // The kernel reports changes in their order, so that the event of the address follows the new MTU and name.
    ip("link set change0 mtu 1500");
    ip("link set change0 down");
    ip("link set change0 name change2");
    ip("link set change2 up");
    ip("addr del 10.9.0.1/24 dev change2");
    assert_eq!(events.wait().unwrap(), AsyncEvent::GidChange);
    assert_eq!((addresses(&engine), engine.path_mtu()), (vec![(2, "10.9.0.2".into())], Some(Mtu::M1024)));

    ip(end);
    while engine.check().is_ok() {
        engine.progress();
        thread::yield_now();
    }
    let reason = engine.check().unwrap_err().to_string();
    assert!(reason.contains("interface change0 is gone"), "{reason}");
    // The kernel may report that the addresses are gone before it reports that the interface is.
    let all: Vec<_> = std::iter::from_fn(|| events.take()).collect();
    let count = |wanted: AsyncEvent| all.iter().filter(|event| **event == wanted).count();
    assert_eq!(count(AsyncEvent::CoreFailed), 1, "{progress:?}: {all:?}");
    assert_eq!(count(AsyncEvent::GidChange) + 1, all.len(), "{progress:?}: {all:?}");
}

#[test]
fn an_engine_follows_its_interface_and_ends_when_that_is_deleted() {
    own_network();
    for progress in [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive] {
        follows(progress, "link del change2");
    }
}

#[test]
fn an_interface_that_moves_to_another_namespace_is_gone() {
    own_network();
    let ((tell, told), (leave, stay)) = (mpsc::channel(), mpsc::channel::<()>());
    let elsewhere = thread::spawn(move || {
        own_network();
        // SAFETY: gettid takes nothing.
        tell.send(unsafe { libc::gettid() }).unwrap();
        // Ends with an error, because nothing is sent.
        let _ = stay.recv();
    });
    follows(Progress::Adaptive, &format!("link set change2 netns {}", told.recv().unwrap()));
    drop(leave);
    elsewhere.join().unwrap();
}
