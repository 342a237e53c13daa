//! The handshake of libibverbs' examples, so that the other side of `send-lat` can be `ibv_rc_pingpong`, `ibv_uc_pingpong` or
//! `ibv_ud_pingpong`.
//!
//! Each side sends one line of 52 bytes, `lid:qpn:psn:gid` in hexadecimal and a zero, the client first. The server answers when it can
//! receive. The client then sends "done", and both close the connection. Both sides need the same size, number and MTU.

use super::perftest::gid;
use super::{Control, Handshake, Idle, Outcome, Side};
use crate::failure::Failure;
use crate::perf::plan::{Amount, Kind, Plan, Verb};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};
use verbs::{Mtu, Psn, QpEndpoint, Qpn, RemoteBuffer};

const LINE_BYTES: usize = 52;
const DONE: &[u8; 5] = b"done\0";
/// The time for polling after the last message, in which the peer's last message is acknowledged.
const STAY: Duration = Duration::from_millis(100);

/// One side of a ping-pong with libibverbs' examples.
#[derive(Debug)]
pub struct Pingpong {
    control: Control,
    plan: Plan,
    is_client: bool,
    line: [u8; LINE_BYTES],
}

fn write(qp: &QpEndpoint) -> [u8; LINE_BYTES] {
    let gid = u128::from_be_bytes(gid(qp.ip));
    let text = format!("0000:{:06x}:{:06x}:{gid:032x}", qp.qpn.get(), qp.psn.get());
    let mut line = [0; LINE_BYTES];
    line[..text.len()].copy_from_slice(text.as_bytes());
    line
}

fn parse(line: &[u8], mtu: Mtu) -> Option<QpEndpoint> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches('\0');
    let fields: Vec<&str> = text.split(':').collect();
    let [_lid, qpn, psn, gid] = fields[..] else { return None };
    let number = |text| u32::from_str_radix(text, 16).ok().filter(|number| *number < 1 << 24);
    let ip = Ipv6Addr::from(u128::from_str_radix(gid, 16).ok()?).to_canonical();
    let (qpn, psn) = (Qpn::new(number(qpn)?), Psn::new(number(psn)?));
    Some(QpEndpoint { ip, qpn, psn, mtu, max_rd_atomic: 1, selective_repeat: false })
}

impl Pingpong {
    /// Creates the handshake on `control`. Both sides run `plan`.
    ///
    /// # Errors
    /// Returns a failure if the plan is not a ping-pong of SENDs of one size and number.
    pub fn new(control: Control, plan: Plan, is_client: bool) -> Result<Self, Failure> {
        let is_pingpong = plan.tool.verb == Verb::Send && plan.tool.kind == Kind::Latency;
        if !is_pingpong || plan.rdma_cm || plan.sizes.len() > 1 || !matches!(plan.amount, Amount::Messages(_))
        {
            return Err(Failure::usage(
                "--handshake pingpong works with send-lat, one -s and an -n; give both sides the same values",
            ));
        }
        Ok(Self { control, plan, is_client, line: [0; LINE_BYTES] })
    }

    fn read_line(&mut self, idle: &mut Idle) -> Result<QpEndpoint, Failure> {
        self.control.wait_bytes(LINE_BYTES, Some(self.control.patience), idle)?;
        let line: Vec<u8> = self.control.pending.drain(..LINE_BYTES).collect();
        let asked = Mtu::ALL.into_iter().find(|mtu| Some(mtu.bytes()) == self.plan.mtu);
        parse(&line, asked.unwrap_or(Mtu::M1024)).ok_or_else(|| {
            Failure::run(
                "cannot read the other side's address: it is not ibv_rc_pingpong; run that tool there",
            )
        })
    }
}

impl Handshake for Pingpong {
    fn propose(&mut self, plan: Plan, _idle: &mut Idle) -> Result<Plan, Failure> {
        // The protocol does not negotiate the MTU. The default of the examples is 1024 bytes.
        self.plan = Plan { mtu: plan.mtu.or(Some(1024)), ..plan };
        Ok(self.plan.clone())
    }

    fn agree(
        &mut self,
        judge: &mut dyn FnMut(&Plan) -> Result<(), Failure>,
        idle: &mut Idle,
    ) -> Result<Plan, Failure> {
        judge(&self.plan)?;
        self.propose(self.plan.clone(), idle)
    }

    fn swap_sides(&mut self, own: &Side, idle: &mut Idle) -> Result<Side, Failure> {
        self.line =
            write(own.qps.first().ok_or_else(|| Failure::run("the run has no queue pair; give -q 1"))?);
        if self.is_client {
            self.control.send(&self.line)?;
        }
        let peer = self.read_line(idle)?;
        Ok(Side { qps: vec![peer], buffer: RemoteBuffer { address: 0, length: own.buffer.length, rkey: 0 } })
    }

    fn barrier(&mut self, _step: u32, idle: &mut Idle) -> Result<(), Failure> {
        if self.is_client {
            return self.control.send(DONE);
        }
        self.control.send(&self.line)?;
        self.control.wait_bytes(DONE.len(), Some(self.control.patience), idle)
    }

    fn send_outcome(&mut self, _outcome: &Outcome) -> Result<(), Failure> {
        Ok(())
    }

    fn try_outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        Ok(None)
    }

    fn wait_outcome(&mut self, _idle: &mut Idle) -> Result<Outcome, Failure> {
        Ok(Outcome::default())
    }

    fn finish(&mut self, idle: &mut Idle) -> Result<(), Failure> {
        let since = Instant::now();
        while since.elapsed() < STAY {
            idle()?;
        }
        Ok(())
    }

    fn give_up(&mut self, _why: &Failure) {
        // The protocol has no message for a failure. The closed connection informs the other side.
    }

    fn be_patient(&mut self, patience: Duration) {
        self.control.patience = patience;
    }

    fn tells(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::plan::Tool;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// The line of `ibv_rc_pingpong` of rdma-core 44 with the GID ::ffff:10.77.0.9.
    const STOCK: &[u8; LINE_BYTES] = b"0000:000011:3ce3f2:00000000000000000000ffff0a4d0009\0";

    fn plan(kind: Kind) -> Plan {
        Plan {
            tool: Tool { verb: Verb::Send, kind },
            sizes: vec![4096],
            amount: Amount::Messages(10),
            qps: 1,
            bidirectional: false,
            reversed: false,
            rdma_cm: false,
            atomic: Default::default(),
            connection: Default::default(),
            mtu: None,
            verify: false,
            seed: 0,
        }
    }

    fn quiet() -> Result<bool, Failure> {
        Ok(false)
    }

    #[test]
    fn a_line_is_written_as_the_examples_write_it() {
        let qp = parse(STOCK, Mtu::M1024).unwrap();
        assert_eq!((qp.qpn.get(), qp.psn.get()), (0x11, 0x3ce3f2));
        assert_eq!(qp.ip, "10.77.0.9".parse::<std::net::IpAddr>().unwrap());
        assert_eq!(write(&qp), *STOCK);
        for wrong in
            ["0000:000011:3ce3f2", "0000:1000000:000000:0", "0000:000011:zz:0", "0:0:0:0:0", "\u{fe}"]
        {
            assert_eq!(parse(wrong.as_bytes(), Mtu::M1024), None, "{wrong}");
        }
    }

    #[test]
    fn a_server_answers_once_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let control = Control::new(listener.accept().unwrap().0).unwrap();
        let mut server = Pingpong::new(control, plan(Kind::Latency), false).unwrap();
        let own = QpEndpoint { qpn: Qpn::new(5), ..parse(STOCK, Mtu::M1024).unwrap() };
        let own = Side { qps: vec![own], buffer: RemoteBuffer { address: 0, length: 8192, rkey: 1 } };
        stock.write_all(STOCK).unwrap();
        let agreed = server.agree(&mut |_| Ok(()), &mut quiet).unwrap();
        assert_eq!(agreed.mtu, Some(1024));
        let peer = server.swap_sides(&own, &mut quiet).unwrap();
        assert_eq!(peer.qps[0].qpn, Qpn::new(0x11));
        stock.write_all(DONE).unwrap();
        server.barrier(0, &mut quiet).unwrap();
        let mut answer = [0; LINE_BYTES];
        stock.read_exact(&mut answer).unwrap();
        assert_eq!(parse(&answer, Mtu::M1024), Some(own.qps[0]));
        // The examples close the connection after connecting, which is not a failure.
        drop(stock);
        server.wait_outcome(&mut quiet).unwrap();
        server.finish(&mut quiet).unwrap();
    }

    #[test]
    fn the_pingpong_protocol_is_refused_except_for_send_lat() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let refused = Pingpong::new(Control::new(stock).unwrap(), plan(Kind::Bandwidth), true).unwrap_err();
        assert!(refused.to_string().contains("send-lat"), "{refused}");
    }
}
