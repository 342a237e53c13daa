//! A panic in a core: its queue pairs complete in error, the cause is logged, and other devices continue.

mod common;

use common::*;
use datapath::io::{Burst, Caps};
use ferroce_verbs::errors::PollError;
use ferroce_verbs::event::AsyncEvent;
use ferroce_verbs::port::{Loopback, OwnPort, PacketIo, pair};
use ferroce_verbs::{
    Capabilities, Completion, CompletionQueue, CompletionStatus, Completions, ConnectOptions, Data, Device,
    DeviceConfig, Progress, QpEndpoint, RecvRequest, SendRequest, cm,
};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Fragile {
    port: Loopback,
    broken: Arc<AtomicBool>,
}

impl PacketIo for Fragile {
    type Buf = <Loopback as PacketIo>::Buf;

    fn receive(&mut self, into: &mut Burst<Self::Buf>) {
        assert!(!self.broken.load(Ordering::Relaxed), "the port broke");
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<Self::Buf>) {
        self.port.transmit(from);
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

/// Returns a side on a fragile port, connected to a peer that never answers.
fn fragile(progress: Progress, name: &str) -> (Side, Arc<AtomicBool>, Loopback) {
    let (port, other) = pair(256, FRAME);
    let broken = Arc::new(AtomicBool::new(false));
    let config = DeviceConfig::new().address("10.0.0.1/24".parse().unwrap()).progress(progress);
    let own = OwnPort { name: name.to_owned(), mac: MACS[0] };
    let device = Device::open_on(Fragile { port, broken: broken.clone() }, own, &config).unwrap();
    let peer = "10.0.0.2".parse().unwrap();
    device.set_neighbour(peer, MACS[1]).unwrap();
    let mut side = side(&device, 4096, Capabilities::default(), 64);
    let to = QpEndpoint { ip: peer, ..side.qp.endpoint() };
    side.qp.connect(&to, &ConnectOptions::default()).unwrap();
    (side, broken, other)
}

fn next_of(cq: &mut CompletionQueue) -> Result<Completion, PollError> {
    loop {
        if let Some(completion) = cq.poll_one()? {
            return Ok(completion);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_core_that_panics_completes_its_queue_pairs_in_error_with_the_reason() {
    let log = Log::start(tracing::Level::INFO);
    for (progress, name) in [
        (Progress::Inline, "inline0"),
        (Progress::Dedicated { core: None }, "dedicated0"),
        (Progress::Adaptive, "adaptive0"),
    ] {
        let (mut side, broken, _other) = fragile(progress, name);
        let (mut c, mut d) = connected(progress, 4096);
        let events = side.device.events().unwrap();
        let listener = cm::Listener::bind(&side.device, "10.0.0.1:7471".parse().unwrap()).unwrap();
        let waits = std::thread::spawn(move || listener.accept().map(drop).unwrap_err().to_string());
        for id in 0..3 {
            side.qp.post_recv(RecvRequest::new(id, side.region.sge(0, 64).unwrap())).unwrap();
        }
        for id in 10..13 {
            side.qp
                .post_send(SendRequest::write(id, Data::inline(b"lost"), side.region.remote().at(0)))
                .unwrap();
        }
        broken.store(true, Ordering::Relaxed);
        for id in 10..13 {
            let sent = next_of(&mut side.send_cq).unwrap();
            assert_eq!((sent.id, sent.status), (id, CompletionStatus::Flushed), "{progress:?}");
        }
        for id in 0..3 {
            let received = next_of(&mut side.recv_cq).unwrap();
            assert_eq!((received.id, received.status), (id, CompletionStatus::Flushed), "{progress:?}");
        }
        let error = next_of(&mut side.send_cq).unwrap_err().to_string();
        assert!(error.contains("the port broke"), "{error}");
        let error = waits.join().unwrap();
        assert!(error.contains("the port broke"), "the wait for a connection: {error}");
        let told: Vec<_> = std::iter::from_fn(|| events.pop_after_read()).collect();
        assert_eq!(told.last(), Some(&AsyncEvent::CoreFailed), "{progress:?}: {told:?}");
        assert_eq!(
            events.wait().unwrap_err().kind(),
            ErrorKind::BrokenPipe,
            "{progress:?}: no event will come"
        );
        let logged = log.text();
        let line = logged.lines().find(|line| line.contains(&format!("{name}: a defect"))).unwrap();
        assert!(line.contains("ERROR") && line.contains("the port broke"), "{line}");

        c.qp.post_send(SendRequest::write(1, Data::inline(b"goes on"), d.region.remote().at(0))).unwrap();
        success(&mut c.send_cq, &d.device);
        assert_eq!(contents(&d.region, 0, 7), b"goes on");
        assert!(d.recv_cq.poll_one().unwrap().is_none());
    }
}

/// The completion queue receives no completion that could wake the task, because no request is posted.
#[tokio::test]
async fn a_panic_of_the_core_is_an_error_of_a_task_awaiting_completions() {
    for progress in [Progress::Dedicated { core: None }, Progress::Adaptive, Progress::Inline] {
        let (side, broken, _other) = fragile(progress, "awaited0");
        let mut completions = Completions::new(side.device.create_cq(4).unwrap()).unwrap();
        let breaks = async { broken.store(true, Ordering::Relaxed) };
        let (next, ()) = tokio::join!(completions.next(), breaks);
        let error = next.unwrap_err().to_string();
        assert!(error.contains("the port broke"), "{progress:?}: {error}");
    }
}
