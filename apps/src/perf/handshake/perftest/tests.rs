//! Tests of the handshake with stock perftest.

use super::*;
use crate::perf::args::{AtomicType, Connection};
use crate::perf::plan::Tool;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn plan(verb: Verb, kind: Kind) -> Plan {
    Plan {
        tool: Tool { verb, kind },
        sizes: vec![64],
        amount: Amount::Messages(100),
        qps: 2,
        bidirectional: false,
        reversed: false,
        rdma_cm: false,
        atomic: AtomicType::FetchAndAdd,
        connection: Connection::Rc,
        mtu: Some(4096),
        verify: false,
        seed: 5,
    }
}

fn side(ip: &str, qps: u32) -> Side {
    let qp = |number| QpEndpoint {
        ip: ip.parse().unwrap(),
        qpn: Qpn::new(0x11 + number),
        psn: verbs::Psn::new(0xabcdef),
        mtu: Mtu::M4096,
        max_rd_atomic: 16,
        selective_repeat: false,
    };
    Side {
        qps: (0..qps).map(qp).collect(),
        buffer: RemoteBuffer { address: 0x7f00_0000_0000, length: 8192, rkey: 0x1234 },
    }
}

fn connection() -> (TcpStream, Control) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, Control::new(server).unwrap())
}

fn quiet() -> Result<bool, Failure> {
    Ok(false)
}

/// A key of `ib_write_bw` 4.5 with the GID ::ffff:10.77.0.9.
const STOCK_KEY: &[u8; KEY_BYTES] = b"0000:0001:000012:a6242e:0000037e:000055f1b404f000:\
    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:09:00000000:\0";

#[test]
fn keys_are_written_as_stock_perftest_writes_them() {
    let key = Key::parse(STOCK_KEY).unwrap();
    assert_eq!((key.qpn, key.psn, key.rkey, key.max_rd_atomic), (0x12, 0xa6242e, 0x37e, 1));
    assert_eq!(key.address, 0x55f1_b404_f000);
    assert_eq!(key.ip(), "10.77.0.9".parse::<IpAddr>().unwrap());
    assert_eq!(key.write(), *STOCK_KEY);
    let v6 = Key { gid: gid("fd77::9".parse().unwrap()), ..key };
    assert_eq!(Key::parse(&v6.write()).unwrap().ip(), "fd77::9".parse::<IpAddr>().unwrap());
}

#[test]
fn a_stock_write_client_is_served() {
    let (mut stock, control) = connection();
    let there = std::thread::spawn(move || {
        let mut server =
            Perftest::new(control, Plan { qps: 1, ..plan(Verb::Write, Kind::Bandwidth) }, false).unwrap();
        let agreed = server.agree(&mut |_| Ok(()), &mut quiet).unwrap();
        let peer = server.swap_sides(&side("10.77.0.1", 1), &mut quiet).unwrap();
        server.barrier(0, &mut quiet).unwrap();
        server.send_outcome(&Outcome::default()).unwrap();
        let outcome = server.wait_outcome(&mut quiet).unwrap();
        server.finish(&mut quiet).unwrap();
        (agreed.mtu, peer, outcome)
    });
    let mut say = |bytes: &[u8]| {
        stock.write_all(bytes).unwrap();
        let mut answer = vec![0; bytes.len()];
        stock.read_exact(&mut answer).unwrap();
        answer
    };
    assert_eq!(say(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"), VERSION);
    assert_eq!(say(&4096_u32.to_be_bytes()), 4096_u32.to_be_bytes());
    assert_eq!(say(&64_u32.to_be_bytes()), 64_u32.to_be_bytes());
    assert_eq!(say(b"3\0"), b"5\0");
    let key = Key::parse(&say(STOCK_KEY)).unwrap();
    assert_eq!((key.qpn, key.psn, key.rkey, key.address), (0x11, 0xabcdef, 0x1234, 0x7f00_0000_0000));
    // The keys after connecting, the first key again, and the first key after the run.
    for _ in 0..3 {
        say(STOCK_KEY);
    }
    // With a peak of 2 Gb/s and an average of 1 Gb/s, only their ratio is used.
    for field in [4096, 100, 2.0_f64.to_bits(), 1.0_f64.to_bits(), 0.03_f64.to_bits()] {
        say(&field.to_be_bytes());
    }
    say(STOCK_KEY);
    assert_eq!(say(DONE), DONE);
    let (mtu, peer, outcome) = there.join().unwrap();
    assert_eq!(mtu, Some(1024));
    assert_eq!(peer.qps[0].mtu, Mtu::M1024);
    assert_eq!((peer.buffer.address, peer.buffer.rkey), (0x55f1_b404_f000, 0x37e));
    let told = outcome.bandwidth.unwrap();
    assert_eq!((told.messages, told.rate, told.average), (100, 30_000.0, 30_000.0 * 4096.0));
    assert_eq!(told.peak, 2.0 * told.average);
}

fn play(mut side_of: Perftest, own: &Side) -> Side {
    if side_of.is_client {
        let plan = side_of.plan.clone();
        side_of.propose(plan, &mut quiet).unwrap();
    } else {
        side_of.agree(&mut |_| Ok(()), &mut quiet).unwrap();
    }
    let peer = side_of.swap_sides(own, &mut quiet).unwrap();
    side_of.barrier(0, &mut quiet).unwrap();
    side_of.send_outcome(&Outcome::default()).unwrap();
    side_of.wait_outcome(&mut quiet).unwrap();
    side_of.control.patience = Duration::from_secs(60);
    side_of.finish(&mut quiet).unwrap();
    assert_eq!(side_of.control.pending, b"", "bytes left over");
    peer
}

#[test]
fn both_sides_stay_in_step_in_every_tool() {
    for verb in [Verb::Write, Verb::Send, Verb::Read, Verb::Atomic] {
        for (kind, bidirectional) in
            [(Kind::Bandwidth, false), (Kind::Bandwidth, true), (Kind::Latency, false)]
        {
            let qps = if kind == Kind::Latency { 1 } else { 2 };
            let plan = Plan { qps, bidirectional, ..plan(verb, kind) };
            let (stream, control) = connection();
            let server = Perftest::new(control, plan.clone(), false).unwrap();
            let there = std::thread::spawn(move || play(server, &side("fd77::2", qps)));
            let client = Perftest::new(Control::new(stream).unwrap(), plan, true).unwrap();
            let told = play(client, &side("fd77::1", qps));
            assert_eq!(told.qps, side("fd77::2", qps).qps);
            assert_eq!(told.buffer.address, 0x7f00_0000_0000);
            assert_eq!(there.join().unwrap().qps, side("fd77::1", qps).qps);
        }
    }
}

#[test]
fn other_protocols_and_old_versions_are_refused() {
    for (said, part) in [
        (b"GET / HTTP/1.1\r\n", "cannot read its version"),
        (b"5.33\0\0\0\0\0\0\0\0\0\0\0\0", "older than 5.7"),
    ] {
        let (mut stock, control) = connection();
        stock.write_all(said).unwrap();
        let mut server = Perftest::new(control, plan(Verb::Write, Kind::Bandwidth), false).unwrap();
        let refused = server.agree(&mut |_| Ok(()), &mut quiet).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn keys_out_of_range_are_refused() {
    let text = std::str::from_utf8(STOCK_KEY).unwrap();
    for (from, to) in
        [("000012", "g00012"), (":0a:", ":-1:"), ("0000:0001", "0000 0001"), (":a6242e", "fa6242e")]
    {
        let wrong = text.replacen(from, to, 1);
        assert_eq!(wrong.len(), KEY_BYTES);
        assert_eq!(Key::parse(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(Key::parse(&[0xff; KEY_BYTES]), None);
}

#[test]
fn buffers_that_do_not_follow_each_other_are_refused() {
    let (mut stock, control) = connection();
    stock.write_all(STOCK_KEY).unwrap();
    stock.write_all(STOCK_KEY).unwrap();
    let mut server = Perftest::new(control, plan(Verb::Write, Kind::Bandwidth), false).unwrap();
    let refused = server.swap_sides(&side("10.77.0.1", 2), &mut quiet).unwrap_err().to_string();
    assert!(refused.contains("multiple of 64"), "{refused}");
}

#[test]
fn plans_that_stock_perftest_cannot_run_are_refused() {
    let time = Amount::Time { whole: Duration::from_secs(2), margin: Duration::from_millis(500) };
    let base = plan(Verb::Write, Kind::Bandwidth);
    for (wrong, part) in
        [(Plan { sizes: vec![2, 4], ..base.clone() }, "-a"), (Plan { amount: time, ..base.clone() }, "-D")]
    {
        let (_stock, control) = connection();
        let refused = Perftest::new(control, wrong, true).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
}
