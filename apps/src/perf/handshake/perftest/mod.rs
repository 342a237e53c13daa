//! The handshake of stock perftest over TCP, so that either side of a test can be `ib_write_bw` or one of its siblings.
//!
//! In every exchange the client sends first, and the server answers. The order is that of perftest 4.5, which calls this protocol version
//! 6.06:
//!
//! | what | bytes |
//! |---|---|
//! | version | 16: digits, zeros |
//! | size of the buffer that short messages cycle over; cache line size | 4 and 4, big-endian |
//! | MTU | 2: the verbs enumeration (1 = 256 ... 5 = 4096) as a digit, zero. The smaller one counts |
//! | keys, once per queue pair (write, read and atomic latency: the first one's twice) | 108, see [`Key`] |
//! | after connecting: keys again, and the first one's once more (SEND: that one first) | 108 each |
//! | SEND, and bidirectional tests of the others: the first one's keys, for "ready" | 108 |
//! | bandwidth except one-way SEND, after the run: the first one's keys (one way only), then the report | 108, 5 × 8 |
//! | all except write latency: the first one's keys, then both send "done" | 108, 5 |
//!
//! The server begins a ping-pong of WRITEs, the client one of SENDs.
//!
//! Neither side sends its plan. Both sides need the same flags, as with two perftests.

use super::{Control, Handshake, Idle, Outcome, Side};
use crate::failure::Failure;
use crate::perf::plan::{Amount, Kind, Plan, Verb};
use crate::perf::stats::Bandwidth;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;
use verbs::{Mtu, QpEndpoint, Qpn, RemoteBuffer};

/// The version of this implementation, which is that of perftest 4.5. Newer perftests use it with peers of this version.
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// The oldest supported version. Older versions have another format of reports and of the MTU.
const OLDEST: f32 = 5.70;
/// The size of the buffer through which the peer's short messages cycle, bytes.
const WANDER: u32 = 4096;
const CACHE_LINE: u32 = 64;
const KEY_BYTES: usize = 108;
const DONE: &[u8; 5] = b"done\0";

/// One side of a test with stock perftest.
#[derive(Debug)]
pub struct Perftest {
    control: Control,
    plan: Plan,
    is_client: bool,
    mtu: Mtu,
    keys: Vec<Key>,
    own: Outcome,
}

/// A queue pair and its buffer as text: `lid:out_reads:qpn:psn:rkey:vaddr:` in hexadecimal, the 16 bytes of the GID, each followed by a
/// colon, `srqn:` and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    max_rd_atomic: u8,
    qpn: u32,
    psn: u32,
    rkey: u32,
    address: u64,
    gid: [u8; 16],
}

impl Key {
    fn write(&self) -> [u8; KEY_BYTES] {
        let Self { max_rd_atomic, qpn, psn, rkey, address, gid } = self;
        let mut text = format!("0000:{max_rd_atomic:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}:");
        for byte in gid {
            let _ = write!(text, "{byte:02x}:");
        }
        text.push_str("00000000:");
        let mut bytes = [0; KEY_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let fields: Vec<&str> = text.split(':').collect();
        let number = |index: usize| u64::from_str_radix(fields.get(index)?, 16).ok();
        let short = |index: usize| u32::try_from(number(index)?).ok();
        let mut gid = [0; 16];
        for (index, byte) in gid.iter_mut().enumerate() {
            *byte = u8::try_from(number(6 + index)?).ok()?;
        }
        let (qpn, psn) = (short(2)?, short(3)?);
        let sane = fields.len() == 24 && qpn < 1 << 24 && psn < 1 << 24;
        sane.then_some(Self {
            max_rd_atomic: short(1)?.min(255) as u8,
            qpn,
            psn,
            rkey: short(4)?,
            address: number(5)?,
            gid,
        })
    }

    fn ip(&self) -> IpAddr {
        std::net::Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// Returns an address as a GID, with IPv4 mapped to IPv6.
pub fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Perftest {
    /// Creates the handshake on `control`. Both sides run `plan`.
    ///
    /// # Errors
    /// Returns a failure if stock perftest cannot run the plan.
    pub fn new(control: Control, plan: Plan, is_client: bool) -> Result<Self, Failure> {
        let refusal = if plan.rdma_cm {
            "-R is not supported with stock perftest, which then uses no TCP; leave it out, or run perftest on both sides: ferroce run -- ib_write_bw -R"
        } else if plan.reversed {
            "--reversed is not supported with stock perftest; leave it out, and exchange client and server"
        } else if plan.sizes.len() > 1 {
            "-a is not supported with stock perftest; give one -s on both sides"
        } else if !matches!(plan.amount, Amount::Messages(_)) {
            "-D and --run_infinitely are not supported with stock perftest; give the same -n on both sides"
        } else {
            return Ok(Self {
                control,
                plan,
                is_client,
                mtu: Mtu::M4096,
                keys: Vec::new(),
                own: Outcome::default(),
            });
        };
        Err(Failure::usage(refusal))
    }

    /// Sends `own` and receives the same number of bytes. The client sends first.
    fn exchange(&mut self, own: &[u8], idle: &mut Idle) -> Result<Vec<u8>, Failure> {
        if self.is_client {
            self.control.send(own)?;
        }
        self.control.wait_bytes(own.len(), Some(self.control.patience), idle)?;
        let theirs = self.control.pending.drain(..own.len()).collect();
        if !self.is_client {
            self.control.send(own)?;
        }
        Ok(theirs)
    }

    fn exchange_key(&mut self, qp: usize, idle: &mut Idle) -> Result<Key, Failure> {
        let own = self.keys[qp].write();
        let theirs = self.exchange(&own, idle)?;
        Key::parse(&theirs).ok_or_else(|| out_of_step("its keys"))
    }

    fn greet(&mut self, idle: &mut Idle) -> Result<(), Failure> {
        let theirs = self.exchange(VERSION, idle)?;
        let text: String =
            theirs.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        match text.parse::<f32>() {
            Ok(version) if version >= OLDEST => {}
            Ok(version) => {
                return Err(Failure::run(format!(
                    "the other side's perftest has version {version}, which is older than {OLDEST}; update it"
                )));
            }
            Err(_) => return Err(out_of_step("its version")),
        }
        let wander = self.exchange(&WANDER.to_be_bytes(), idle)?;
        self.exchange(&CACHE_LINE.to_be_bytes(), idle)?;
        let wander = wander.try_into().map_or(u32::MAX, u32::from_be_bytes);
        if wander > WANDER && self.plan.largest() < u64::from(wander) {
            return Err(Failure::run(format!(
                "the other side moves short messages within a page of {wander} bytes, which is not supported; give -s {wander} or more"
            )));
        }
        let asked = Mtu::ALL.into_iter().find(|mtu| Some(mtu.bytes()) == self.plan.mtu).unwrap_or(Mtu::M4096);
        let theirs = self.exchange(&[b'0' + asked.code(), 0], idle)?;
        let code = theirs.first().map_or(0, |digit| digit.wrapping_sub(b'0'));
        let theirs = Mtu::from_code(code).ok_or_else(|| out_of_step("its MTU"))?;
        self.mtu = asked.min(theirs);
        self.plan.mtu = Some(self.mtu.bytes());
        Ok(())
    }

    /// Returns the offset in this side's memory of the buffer for the peer's messages, or for the data of its READs.
    fn exposed(&self) -> u64 {
        let half = self.plan.memory().unwrap_or(0) as u64 / 2;
        if self.plan.both_ways() && self.plan.tool.verb != Verb::Read { half } else { 0 }
    }

    fn slot(&self) -> u64 {
        let all = self.plan.memory().unwrap_or(0) as u64;
        let ways = if self.plan.both_ways() { 2 } else { 1 };
        all / ways / u64::from(self.plan.qps)
    }

    fn is(&self, verb: Verb) -> bool {
        self.plan.tool.verb == verb
    }

    fn latency(&self) -> bool {
        self.plan.tool.kind == Kind::Latency
    }

    fn ends_without_a_word(&self) -> bool {
        self.latency() && self.is(Verb::Write)
    }

    /// Returns true if the peer does not send results, only the end of the run.
    fn is_told_nothing(&self) -> bool {
        self.latency() || (self.is(Verb::Send) && !self.plan.bidirectional)
    }

    fn report(&mut self, idle: &mut Idle) -> Result<Bandwidth, Failure> {
        const MB: f64 = (1 << 20) as f64;
        let own = self.own.bandwidth.unwrap_or_default();
        let mut theirs = [0_u64; 5];
        let told = [
            own.size,
            own.messages,
            (own.peak / MB).to_bits(),
            (own.average / MB).to_bits(),
            (own.rate / 1e6).to_bits(),
        ];
        for (field, told) in theirs.iter_mut().zip(told) {
            let bytes = self.exchange(&told.to_be_bytes(), idle)?;
            *field = bytes.try_into().map_or(0, u64::from_be_bytes);
        }
        let [size, messages, peak, average, rate] = theirs;
        let rate = f64::from_bits(rate) * 1e6;
        // Bandwidths are in MB/s or Gb/s, depending on the peer's flags, so only the ratio of peak and average is used. The message rate
        // always has the same unit.
        let average_here = rate * size as f64;
        let peak = average_here * f64::from_bits(peak) / f64::from_bits(average);
        let peak = if peak.is_finite() { peak } else { 0.0 };
        Ok(Bandwidth { size, messages, peak, average: average_here, rate })
    }
}

impl Handshake for Perftest {
    fn propose(&mut self, plan: Plan, idle: &mut Idle) -> Result<Plan, Failure> {
        self.plan = plan;
        self.greet(idle)?;
        Ok(self.plan.clone())
    }

    fn agree(
        &mut self,
        judge: &mut dyn FnMut(&Plan) -> Result<(), Failure>,
        idle: &mut Idle,
    ) -> Result<Plan, Failure> {
        judge(&self.plan)?;
        self.greet(idle)?;
        Ok(self.plan.clone())
    }

    fn swap_sides(&mut self, own: &Side, idle: &mut Idle) -> Result<Side, Failure> {
        let (exposed, slot) = (self.exposed(), self.slot());
        let key = |(index, qp): (usize, &QpEndpoint)| Key {
            max_rd_atomic: qp.max_rd_atomic,
            qpn: qp.qpn.get(),
            psn: qp.psn.get(),
            rkey: own.buffer.rkey,
            address: own.buffer.address + exposed + index as u64 * slot,
            gid: gid(qp.ip),
        };
        self.keys = own.qps.iter().enumerate().map(key).collect();
        if self.latency() && !self.is(Verb::Send) {
            self.exchange_key(0, idle)?;
        }
        let theirs =
            (0..own.qps.len()).map(|qp| self.exchange_key(qp, idle)).collect::<Result<Vec<_>, _>>()?;
        let first = theirs.first().ok_or_else(|| out_of_step("its keys"))?;
        let in_a_row = |(index, key): (usize, &Key)| {
            key.rkey == first.rkey && key.address == first.address.wrapping_add(index as u64 * slot)
        };
        if !theirs.iter().enumerate().all(in_a_row) {
            return Err(Failure::run(
                "the other side's buffers are not -s bytes apart; give a -s that is a multiple of 64, or -q 1",
            ));
        }
        let buffer = RemoteBuffer {
            // The peer's address is that of its receiving half. This subtracts the offset of our half, which the requests add.
            address: first.address.wrapping_sub(exposed),
            length: own.buffer.length,
            rkey: first.rkey,
        };
        let endpoint = |key: &Key| QpEndpoint {
            ip: key.ip(),
            qpn: Qpn::new(key.qpn),
            psn: verbs::Psn::new(key.psn),
            mtu: self.mtu,
            max_rd_atomic: key.max_rd_atomic,
            selective_repeat: false,
        };
        Ok(Side { qps: theirs.iter().map(endpoint).collect(), buffer })
    }

    fn barrier(&mut self, _step: u32, idle: &mut Idle) -> Result<(), Failure> {
        if self.is(Verb::Send) {
            self.exchange_key(0, idle)?;
        }
        for qp in 0..self.keys.len() {
            self.exchange_key(qp, idle)?;
        }
        if !self.is(Verb::Send) {
            self.exchange_key(0, idle)?;
        }
        if self.is(Verb::Send) || self.plan.bidirectional {
            self.exchange_key(0, idle)?;
        }
        Ok(())
    }

    fn send_outcome(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        self.own = *outcome;
        Ok(())
    }

    fn try_outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        Ok(None)
    }

    fn wait_outcome(&mut self, idle: &mut Idle) -> Result<Outcome, Failure> {
        if self.is_told_nothing() {
            // The server waits for the last keys of the client, which `finish` answers.
            if !self.is_client && !self.ends_without_a_word() {
                self.control.wait_bytes(KEY_BYTES, None, idle)?;
            }
            return Ok(Outcome::default());
        }
        if !self.plan.bidirectional {
            if !self.is_client {
                self.control.wait_bytes(KEY_BYTES, None, idle)?;
            }
            self.exchange_key(0, idle)?;
        }
        let theirs = self.report(idle)?;
        let heard = self.plan.bidirectional || !self.is_client;
        Ok(Outcome { bandwidth: heard.then_some(theirs), ..Outcome::default() })
    }

    fn finish(&mut self, idle: &mut Idle) -> Result<(), Failure> {
        if self.ends_without_a_word() {
            return self.linger(idle);
        }
        self.exchange_key(0, idle)?;
        self.control.send(DONE)?;
        // A stock server may close the connection without sending "done".
        if self.control.wait_bytes(DONE.len(), Some(self.control.patience), idle).is_ok() {
            self.control.pending.drain(..DONE.len());
        }
        idle().map(|_| ())
    }

    fn give_up(&mut self, _why: &Failure) {
        // The protocol has no message for a failure. The closed connection informs the other side.
    }

    fn check(&mut self) -> Result<(), Failure> {
        self.control.take_in().map(drop)
    }

    fn be_patient(&mut self, patience: Duration) {
        self.control.patience = patience;
    }

    fn tells(&self) -> bool {
        false
    }
}

impl Perftest {
    /// Waits for up to 1 s, because write latency has no last exchange, and the peer's last message may still need an acknowledgement.
    fn linger(&mut self, idle: &mut Idle) -> Result<(), Failure> {
        self.control.patience = self.control.patience.min(Duration::from_secs(1));
        // Two instances of Ferroce both wait until this limit.
        let _ = self.control.wait_close(idle);
        idle().map(|_| ())
    }
}

fn out_of_step(what: &str) -> Failure {
    Failure::run(format!(
        "cannot read {what}: the other side is not perftest or runs another test; run the same tool with the same flags there"
    ))
}

#[cfg(test)]
mod tests;
