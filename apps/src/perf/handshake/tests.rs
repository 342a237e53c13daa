//! Tests of Ferroce's own handshake.

use super::super::args::{AtomicType, Connection};
use super::super::plan::{Amount, Kind, Tool, Verb};
use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use verbs::{Mtu, Qpn};

fn pair() -> (JsonLines, JsonLines) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (JsonLines::new(Control::new(client).unwrap()), JsonLines::new(Control::new(server).unwrap()))
}

/// Returns a TCP stream for arbitrary messages, and the server at its other end.
fn raw() -> (TcpStream, JsonLines) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, JsonLines::new(Control::new(server).unwrap()))
}

fn plan() -> Plan {
    Plan {
        tool: Tool { verb: Verb::Write, kind: Kind::Bandwidth },
        sizes: vec![2, 4096],
        amount: Amount::Time { whole: Duration::from_secs(2), margin: Duration::from_millis(500) },
        qps: 2,
        bidirectional: true,
        reversed: false,
        rdma_cm: false,
        atomic: AtomicType::CmpAndSwap,
        connection: Connection::Rc,
        mtu: Some(1024),
        verify: true,
        seed: 5,
    }
}

fn side(qps: u32) -> Side {
    let qp = |number| QpEndpoint {
        ip: "fd00::1".parse().unwrap(),
        qpn: Qpn::new(number),
        psn: roce::Psn::new(7),
        mtu: Mtu::M4096,
        max_rd_atomic: 16,
        selective_repeat: false,
    };
    Side { qps: (0..qps).map(qp).collect(), buffer: RemoteBuffer { address: 1, length: 2, rkey: 3 } }
}

fn quiet() -> Result<bool, Failure> {
    Ok(false)
}

#[test]
fn both_sides_stay_in_step_during_a_whole_test() {
    let (mut client, mut server) = pair();
    let there = std::thread::spawn(move || {
        let plan = server.agree(&mut |_| Ok(()), &mut quiet).unwrap();
        let peer = server.swap_sides(&side(2), &mut quiet).unwrap();
        server.barrier(0, &mut quiet).unwrap();
        let outcome = server.wait_outcome(&mut quiet).unwrap();
        server.send_outcome(&Outcome::default()).unwrap();
        (plan, peer, outcome)
    });
    client.propose(plan(), &mut quiet).unwrap();
    client.swap_sides(&side(2), &mut quiet).unwrap();
    client.barrier(0, &mut quiet).unwrap();
    let told =
        Outcome { bandwidth: Some(Bandwidth::over(2, 3, 4)), sent: Some(u64::MAX), ..Outcome::default() };
    client.send_outcome(&told).unwrap();
    client.wait_outcome(&mut quiet).unwrap();
    assert_eq!(there.join().unwrap(), (plan(), side(2), told));
}

#[test]
fn the_client_receives_the_servers_reason_for_a_refusal() {
    let (mut client, mut server) = pair();
    let there = std::thread::spawn(move || {
        server.agree(&mut |_| Err(Failure::run("different -s; give both the same")), &mut quiet).unwrap_err()
    });
    let heard = client.propose(plan(), &mut quiet).unwrap_err().to_string();
    assert_eq!(heard, "the other side stopped: different -s; give both the same");
    assert!(there.join().unwrap().to_string().contains("different -s"));
}

#[test]
fn another_version_is_named() {
    let (mut client, mut server) = raw();
    client
        .write_all(b"{\"hello\":{\"ferroce_perf\":9,\"release\":\"7.1.0\",\"plan\":{\"new\":1}}}\n")
        .unwrap();
    let refused = server.agree(&mut |_| Ok(()), &mut quiet).unwrap_err().to_string();
    for part in ["7.1.0", "version 9", "version 1", "same ferroce"] {
        assert!(refused.contains(part), "{refused}");
    }
    let mut answer = String::new();
    drop(server);
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"failed\":"), "{answer}");
}

#[test]
fn clients_of_other_protocols_are_refused() {
    for said in [
        "0000:0011:abcdef:000000:00000000:0000000000000000\0\n",
        "GET / HTTP/1.1\r\n",
        "{}\n",
        "{\"hello\":{}}\n",
    ] {
        let (mut client, mut server) = raw();
        client.write_all(said.as_bytes()).unwrap();
        let refused = server.agree(&mut |_| Ok(()), &mut quiet).unwrap_err().to_string();
        assert!(refused.contains("not a ferroce of this version"), "{said}: {refused}");
    }
}

#[test]
fn a_line_has_a_limit() {
    let (mut client, mut server) = raw();
    let there = std::thread::spawn(move || server.agree(&mut |_| Ok(()), &mut quiet).unwrap_err());
    let flood = vec![b'x'; LONGEST_LINE * 4];
    // The server may close the connection before everything is sent.
    let _ = client.write_all(&flood);
    assert!(there.join().unwrap().to_string().contains("not a ferroce"));
}

#[test]
fn a_wait_ends_when_the_peer_closes_or_does_not_answer_in_time() {
    let (client, mut server) = raw();
    drop(client);
    assert!(server.wait_outcome(&mut quiet).unwrap_err().to_string().contains("closed"));
    let (_client, mut server) = raw();
    server.control.patience = Duration::ZERO;
    let silent = server.barrier(0, &mut quiet).unwrap_err().to_string();
    assert!(silent.contains("did not answer within 0 s"), "{silent}");
}

#[test]
fn a_message_out_of_step_is_named_in_the_error() {
    let (mut client, mut server) = pair();
    server.send(&Message::Reached(4)).unwrap();
    let wrong = client.barrier(1, &mut quiet).unwrap_err().to_string();
    assert!(wrong.contains("sent `reached`"), "{wrong}");
    server.send(&Message::Reached(1)).unwrap();
    let wrong = client.wait_outcome(&mut quiet).unwrap_err().to_string();
    assert!(wrong.contains("instead of `outcome`"), "{wrong}");
}

#[test]
fn queue_pair_counts_must_match() {
    let (mut client, mut server) = pair();
    server.send(&Message::Side(side(3))).unwrap();
    let wrong = client.swap_sides(&side(2), &mut quiet).unwrap_err().to_string();
    assert!(wrong.contains("3 queue pairs, this one 2"), "{wrong}");
}

#[test]
fn an_error_of_the_idle_callback_ends_a_wait() {
    let (_client, mut server) = raw();
    let wrong = server.wait_outcome(&mut || Err(Failure::run("the core stopped"))).unwrap_err();
    assert_eq!(wrong.to_string(), "the core stopped");
}
