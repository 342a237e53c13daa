//! Connections by socket address between two devices of one process.

mod common;

use common::{Side, contents, devices, pattern, side, success};
use ferroce_verbs::cm::{self, Connection, Listener, Options};
use ferroce_verbs::state::{AckTimeout, LossRecovery};
use ferroce_verbs::{
    Capabilities, CompletionQueue, CompletionStatus, ConnectOptions, Device, Error, MemoryRegion, Progress,
    QueuePair, RecvRequest, SendRequest,
};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

const REGION: usize = 4096;

fn new(device: &Device) -> Side {
    side(device, REGION, Capabilities::default(), 64)
}

fn with_private_data(words: &[u8]) -> Options {
    Options::new().private_data(words)
}

fn begins_with(all: &[u8], words: &[u8]) {
    assert_eq!(all[..words.len()], *words);
    assert!(all[words.len()..].iter().all(|byte| *byte == 0));
}

type EndOf = (Connection, CompletionQueue, MemoryRegion);

fn connected(progress: Progress) -> (EndOf, EndOf, Vec<Device>) {
    let [server, client] = devices(progress);
    let listener = Listener::bind(&server, "0.0.0.0:7471".parse().unwrap()).unwrap();
    let (there, here) = (new(&server), new(&client));
    let serve = thread::spawn(move || {
        let request = listener.accept().unwrap();
        begins_with(request.private_data(), b"from the client");
        let Side { mut qp, recv_cq, region, .. } = there;
        qp.post_recv(RecvRequest::new(1, region.sge(0, 4096).unwrap())).unwrap();
        (request.accept(qp, &with_private_data(b"from the server")).unwrap(), recv_cq, region)
    });
    let to = "10.0.0.1:7471".parse().unwrap();
    let Side { qp, send_cq, region, .. } = here;
    let connection = cm::connect(qp, to, &with_private_data(b"from the client")).unwrap();
    begins_with(connection.private_data(), b"from the server");
    (serve.join().unwrap(), (connection, send_cq, region), vec![server, client])
}

#[test]
fn a_post_to_a_connection_arrives_in_every_progress_mode() {
    for progress in [Progress::Adaptive, Progress::Dedicated { core: None }, Progress::Inline] {
        let ((_server, mut received, memory), (mut client, mut sent, buffer), devices) = connected(progress);
        buffer.write(0, &pattern(3000, 7)).unwrap();
        client.post_send(SendRequest::send(2, buffer.sge(0, 3000).unwrap())).unwrap();
        assert_eq!(success(&mut received, &devices[1]).length, 3000);
        success(&mut sent, &devices[0]);
        assert_eq!(contents(&memory, 0, 3000), pattern(3000, 7));
    }
}

#[test]
fn disconnecting_ends_the_peers_queue_pair_too() {
    let ((mut server, mut received, memory), (mut client, ..), devices) = connected(Progress::Adaptive);
    server.post_recv(RecvRequest::new(3, memory.sge(0, 64).unwrap())).unwrap();
    assert!(!server.has_ended().unwrap() && !client.has_ended().unwrap());
    client.disconnect().unwrap();
    server.wait_end().unwrap();
    assert!(server.has_ended().unwrap() && client.has_ended().unwrap());
    for _ in 0..2 {
        assert_eq!(common::next(&mut received, &devices[1]).status, CompletionStatus::Flushed);
    }
}

#[test]
fn a_connection_that_is_dropped_ends_at_the_peer() {
    let ((mut server, ..), (client, ..), _devices) = connected(Progress::Adaptive);
    drop(client);
    server.wait_end().unwrap();
}

/// The peer may disconnect before `accept` returns. The program still receives the connection.
#[test]
fn accept_succeeds_even_if_the_peer_disconnects_at_once() {
    for _ in 0..20 {
        let [server, client] = devices(Progress::Adaptive);
        let listener = Listener::bind(&server, "10.0.0.1:7471".parse().unwrap()).unwrap();
        let qp = new(&client).qp;
        let leaves = thread::spawn(move || {
            cm::connect(qp, "10.0.0.1:7471".parse().unwrap(), &Options::default()).map(drop)
        });
        let mut connection = listener.accept().unwrap().accept(new(&server).qp, &Options::default()).unwrap();
        connection.wait_end().unwrap();
        leaves.join().unwrap().unwrap();
    }
}

#[test]
fn a_rejection_has_its_reason_and_the_programs_private_data() {
    let [server, client] = devices(Progress::Adaptive);
    let listener = Listener::bind(&server, "10.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr();
    // While the device has a listener, it answers requests for ports without one.
    let _other = Listener::bind(&server, "10.0.0.1:0".parse().unwrap()).unwrap();
    let refuse = thread::spawn(move || {
        listener.accept().unwrap().reject(b"not today").unwrap();
        listener
    });
    let error = cm::connect(new(&client).qp, to, &Options::default()).unwrap_err();
    let Error::Rejected { reason: 28, private_data, .. } = error else { panic!("{error}") };
    begins_with(&private_data, b"not today");
    drop(refuse.join().unwrap());
    let error = cm::connect(new(&client).qp, to, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Rejected { reason: 8, .. }), "{error}");
    assert!(error.remedy().unwrap().contains("check the port"), "{error}");
}

#[test]
fn a_port_has_one_listener() {
    let [server, _client] = devices(Progress::Adaptive);
    let bind = |at: &str| Listener::bind(&server, at.parse::<SocketAddr>().unwrap());
    let first = bind("10.0.0.1:7471").unwrap();
    assert!(matches!(bind("10.0.0.1:7471"), Err(Error::PortTaken { .. })));
    assert!(matches!(bind("0.0.0.0:7471"), Err(Error::PortTaken { .. })));
    assert!(bind("10.0.0.9:7472").is_err(), "no address of the device");
    let others = [bind("10.0.0.1:0").unwrap(), bind("10.0.0.1:0").unwrap()];
    assert_ne!(others[0].local_addr().port(), others[1].local_addr().port());
    drop(first);
    bind("10.0.0.1:7471").unwrap();
    drop(others);
    // Dropping the last listener ended the manager, so queue pair 1 is free.
    server.open_management().unwrap();
}

#[test]
fn an_invalid_setting_is_refused_before_a_request_is_sent() {
    let [server, client] = devices(Progress::Adaptive);
    let to = "10.0.0.1:7471".parse().unwrap();
    let error = cm::connect(new(&client).qp, to, &with_private_data(&[1; 57])).unwrap_err();
    assert!(error.to_string().contains("57: it must be at most 56 bytes"), "{error}");
    let mut failed = new(&client).qp;
    failed.fail().unwrap();
    assert!(matches!(cm::connect(failed, to, &Options::default()), Err(Error::NotInInit { .. })));
    let listener = Listener::bind(&server, to).unwrap();
    let qp = new(&client).qp;
    let ask = thread::spawn(move || cm::connect(qp, to, &Options::default()).unwrap_err());
    let wrong = listener.accept().unwrap().accept(new(&client).qp, &Options::default());
    assert!(matches!(wrong, Err(Error::OtherDevice { .. })));
    let error = ask.join().unwrap();
    assert!(matches!(error, Error::Rejected { reason: 28, .. }), "{error}");
}

#[test]
fn a_connection_attempt_without_an_answer_times_out() {
    let [server, client] = devices(Progress::Adaptive);
    // Queue pair 1 receives the request, and no manager answers it.
    let silent = server.open_management().unwrap();
    let options = Options::new().timeout(Duration::from_millis(50));
    let error = cm::connect(new(&client).qp, "10.0.0.1:7471".parse().unwrap(), &options).unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    assert!(silent.receive().unwrap().is_some(), "it received the request");
}

/// The peer sends a request and times out before the request is accepted.
#[test]
fn accepting_a_request_of_a_peer_that_has_ended_is_an_error() {
    let brief = Options::new().timeout(Duration::from_millis(20));
    let [server, client] = devices(Progress::Adaptive);
    let listener = Listener::bind(&server, "10.0.0.1:7471".parse().unwrap()).unwrap();
    let asks = |options: &Options| cm::connect(new(&client).qp, listener.local_addr(), options).map(drop);
    assert!(matches!(asks(&brief), Err(Error::NoAnswer { .. })));
    let request = listener.accept().unwrap();
    // The peer's REJ follows its REQ.
    let error = request.accept(new(&server).qp, &brief).unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}

#[test]
fn a_wait_with_a_timeout_returns_after_it() {
    let [server, _client] = devices(Progress::Adaptive);
    let listener = Listener::bind(&server, "10.0.0.1:7471".parse().unwrap()).unwrap();
    assert!(listener.accept_timeout(Duration::from_millis(1)).unwrap().is_none());
    drop(listener);
    for progress in [Progress::Adaptive, Progress::Inline] {
        let ((mut server, ..), (mut client, ..), _devices) = connected(progress);
        assert!(!client.wait_end_for(Duration::from_millis(1)).unwrap());
        server.disconnect().unwrap();
        assert!(client.wait_end_for(Duration::MAX).unwrap());
    }
}

fn join(devices: &[Device; 2], [there, here]: [QueuePair; 2], options: [Options; 2]) -> [Connection; 2] {
    let listener = Listener::bind(&devices[0], "10.0.0.1:7471".parse().unwrap()).unwrap();
    let [accepts, asks] = options;
    let serve = thread::spawn(move || listener.accept().unwrap().accept(there, &accepts).unwrap());
    let client = cm::connect(here, "10.0.0.1:7471".parse().unwrap(), &asks).unwrap();
    [serve.join().unwrap(), client]
}

#[test]
fn selective_repeat_is_used_if_both_ends_offer_it() {
    for offers in [[true, true], [true, false], [false, true]] {
        let devices = devices(Progress::Adaptive);
        let pairs = [0, 1].map(|n| {
            let (domain, cq) = (devices[n].allocate_pd().unwrap(), devices[n].create_cq(16).unwrap());
            domain.queue_pair(&cq, &cq).selective_repeat(offers[n]).build().unwrap()
        });
        let ends = join(&devices, pairs, [Options::default(), Options::default()]);
        for (end, ours) in ends.iter().zip(offers) {
            let agreed = match ours {
                true if offers == [true, true] => LossRecovery::SelectiveRepeat,
                true => LossRecovery::Offered,
                false => LossRecovery::GoBackN,
            };
            assert_eq!(end.settings().receive.unwrap().loss_recovery, agreed, "{offers:?}");
        }
    }
}

#[test]
fn a_peer_without_an_ack_timeout_leaves_this_sides_own() {
    let devices = devices(Progress::Adaptive);
    let pairs = [0, 1].map(|n| new(&devices[n]).qp);
    let [own, never] = [9, 0]
        .map(|code| Options::new().connection(ConnectOptions::new().ack_timeout(AckTimeout::new(code))));
    let codes =
        join(&devices, pairs, [own, never]).map(|end| end.settings().send.unwrap().ack_timeout.code());
    assert_eq!(codes, [9, 0]);
}

/// A child has neither the parent's threads nor its connections. Its calls fail at once, and dropping its copies does not affect the
/// parent.
#[test]
fn a_forked_process_cannot_use_connections() {
    let ((mut server, mut received, _memory), (client, _sent, buffer), devices) =
        connected(Progress::Adaptive);
    let listener = Listener::bind(&devices[0], "10.0.0.1:7472".parse().unwrap()).unwrap();
    // SAFETY: the child only calls this library, and exits with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm kills a child that waits for a lock.
        unsafe { libc::alarm(20) };
        let refused = listener.try_accept().is_err()
            && listener.accept().is_err()
            && server.wait_end().is_err()
            && server.disconnect().is_err()
            && Listener::bind(&devices[0], "10.0.0.1:7473".parse().unwrap()).is_err();
        drop((listener, client, server));
        // SAFETY: ends only this process.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for a child of this process, and there is room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    let mut client = client;
    client.post_send(SendRequest::send(2, buffer.sge(0, 30).unwrap())).unwrap();
    assert_eq!(success(&mut received, &devices[1]).length, 30);
    assert!(!server.has_ended().unwrap() && listener.try_accept().unwrap().is_none());
}
