//! Many queue pairs on one core, each paced by HPCC++: two endpoints that exchange frames in memory, in virtual time.

use cc::{HpccConfig, Instant, Rate};
use roce::qp::{
    AckTimeout, Capabilities, Congestion, CongestionAlgorithm, LossRecovery, Modify, QpInit, Remote,
    RtrSettings, RtsSettings, SendRequest, Sge,
};
use roce::wire::{MAX_OVERHEAD, Mac, Mtu, Path, RnrTimer, Service};
use roce::{Access, CqId, Endpoint, EndpointConfig, Psn, Qpn, Region};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;
use testkit::harness::{BASE, Ram};

const SIZE: u32 = 1024;
const FRAME: usize = 1024 + MAX_OVERHEAD;
/// Frames passed at a time, as in the burst of a port.
const BURST: usize = 32;

/// One end: an endpoint with its queue pairs, and their buffer.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) ram: Ram,
    pub(crate) cq: CqId,
    region: Region,
    pub(crate) qps: Vec<Qpn>,
}

impl Host {
    pub(crate) fn new(core: u8, count: u32, size: u32, depth: u32) -> Result<Self, String> {
        let config = EndpointConfig {
            max_qps: count,
            max_cqs: 1,
            max_regions: 1,
            seed: [core + 1; 32],
            process: core,
            numbers: roce::wire::Numbers::DEFAULT,
        };
        let mut endpoint = Endpoint::new(config);
        let text = |error: roce::ControlError| error.to_string();
        let pd = endpoint.create_pd();
        let cq = endpoint.create_cq(1 << 20).map_err(text)?;
        let region = endpoint.register(pd, BASE, u64::from(size), Access::ALL).map_err(text)?;
        let capabilities = Capabilities { max_send: depth, max_recv: 1, ..Capabilities::default() };
        let init = QpInit {
            service: Service::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            capabilities,
            signal_all: false,
            srq: None,
        };
        let qps = (0..count)
            .map(|_| endpoint.create_qp(Instant::ZERO, init).map_err(text))
            .collect::<Result<_, _>>()?;
        Ok(Self { endpoint, ram: Ram(vec![0; size as usize]), cq, region, qps })
    }

    pub(crate) fn connect(
        &mut self,
        from: u8,
        to: u8,
        peers: &[Qpn],
        mtu: Mtu,
        loss_recovery: LossRecovery,
    ) -> Result<(), String> {
        let address = |host| IpAddr::from([10, 0, 0, host]);
        let path = Path {
            udp_source: 0xc123,
            traffic_class: 2,
            ..Path::new((Mac([2, 0, 0, 0, 0, from]), address(from)), (Mac([2, 0, 0, 0, 0, to]), address(to)))
        };
        let flows = NonZeroU32::new(peers.len() as u32).unwrap_or(NonZeroU32::MIN);
        let hpcc = HpccConfig::new(Rate::from_gbps(100), Duration::from_micros(20), flows);
        let congestion = Congestion::new(CongestionAlgorithm::Hpcc(hpcc));
        for (index, &peer) in peers.iter().enumerate() {
            let qpn = self.qps[index];
            let receive = RtrSettings {
                path,
                destination: peer,
                mtu,
                receive_psn: Psn::new(0),
                max_dest_rd_atomic: 1,
                min_rnr_timer: RnrTimer::new(1),
                loss_recovery,
                feedback_key: None,
            };
            let send = RtsSettings {
                send_psn: Psn::new(0),
                ack_timeout: AckTimeout::new(18),
                retry_count: 7,
                rnr_retry: 7,
                max_rd_atomic: 1,
                congestion,
            };
            let init = Modify::Init { access: Access::ALL, partition_key: 0xffff };
            for modify in [init, Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)] {
                self.endpoint.modify_qp(Instant::ZERO, qpn, modify).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

impl Host {
    /// Returns a WRITE from this end's buffer to the buffer of `peer`.
    pub(crate) fn write_to(&self, peer: &Self, length: u32) -> SendRequest {
        let sge = Sge { address: BASE, length, lkey: self.region.lkey };
        SendRequest::write(0, sge, Remote { address: BASE, rkey: peer.region.rkey })
    }
}

/// The cost of a number of queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// CPU time per packet at both ends together, ns.
    pub nanos_per_packet: f64,
    /// Jain's index of the packets sent per queue pair; 1 is fair.
    pub fairness: f64,
}

/// Returns the resident memory of a connected, idle queue pair out of `count`, bytes.
///
/// # Errors
/// Returns an error if an endpoint refuses an object, or /proc is missing.
pub fn idle_bytes(count: u32) -> Result<f64, String> {
    let before = resident()?;
    let mut host = Host::new(0, count, SIZE, 4)?;
    let peers = host.qps.clone();
    host.connect(1, 2, &peers, Mtu::M1024, LossRecovery::Offered)?;
    Ok((resident()? - before) as f64 / f64::from(count))
}

/// Returns the resident memory of a queue pair out of `count` with one of its four requests outstanding, bytes. The first request allocates
/// room for all requests of its queue.
///
/// # Errors
/// Returns an error if an endpoint refuses an object, or /proc is missing.
pub fn active_bytes(count: u32) -> Result<f64, String> {
    let before = resident()?;
    let mut host = Host::new(0, count, SIZE, 4)?;
    let peers = host.qps.clone();
    host.connect(1, 2, &peers, Mtu::M1024, LossRecovery::Offered)?;
    let request = host.write_to(&host, SIZE);
    let mut frame = [0; FRAME];
    for qp in &peers {
        host.endpoint.post_send(Instant::ZERO, *qp, request.clone()).map_err(|error| error.to_string())?;
        host.endpoint.poll_transmit(Instant::ZERO, &host.ram, &mut frame).ok_or("a packet is due")?;
    }
    Ok((resident()? - before) as f64 / f64::from(count))
}

/// Returns the resident memory of this process, bytes.
fn resident() -> Result<u64, String> {
    let text =
        std::fs::read_to_string("/proc/self/statm").map_err(|error| format!("/proc/self/statm: {error}"))?;
    let pages: Option<u64> = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| format!("/proc/self/statm: {text}"))
}

/// Lets `count` queue pairs write 1 KiB each in rounds, `packets` in total.
///
/// # Errors
/// Returns an error if an endpoint refuses an object, a request or a frame.
pub fn run(count: u32, packets: u64) -> Result<Cost, String> {
    let [mut a, mut b] = [Host::new(0, count, SIZE, 4)?, Host::new(1, count, SIZE, 4)?];
    let (of_a, of_b) = (a.qps.clone(), b.qps.clone());
    a.connect(1, 2, &of_b, Mtu::M1024, LossRecovery::Offered)?;
    b.connect(2, 1, &of_a, Mtu::M1024, LossRecovery::Offered)?;
    let request = a.write_to(&b, SIZE);
    // The id of a request is the index of its queue pair.
    let request_of = |place: u64| SendRequest { id: place, ..request.clone() };
    for (place, qp) in (0..).zip(&of_a) {
        a.endpoint.post_send(Instant::ZERO, *qp, request_of(place)).map_err(|error| error.to_string())?;
    }
    let mut frames = vec![[0; FRAME]; BURST];
    let mut sent = vec![0_u64; count as usize];
    let (mut now, mut done) = (Instant::ZERO, 0);
    let mut start = crate::cpu::time();
    let warm_up = u64::from(count);
    while done < warm_up + packets {
        // The duration of a burst of packets at 100 Gb/s.
        now = now + Duration::from_nanos(90 * BURST as u64);
        a.endpoint.on_timeout(now);
        carry(now, &mut a, &mut b, &mut frames)?;
        b.endpoint.on_timeout(now);
        carry(now, &mut b, &mut a, &mut frames)?;
        let mut ended = Vec::with_capacity(BURST);
        a.endpoint.poll_cq(a.cq, &mut |completion| {
            ended.push((completion.id, completion.qpn));
            ended.len() < BURST
        });
        for (place, qpn) in ended {
            if done == warm_up {
                start = crate::cpu::time();
            }
            done += 1;
            sent[place as usize] += 1;
            a.endpoint.post_send(now, qpn, request_of(place)).map_err(|error| error.to_string())?;
        }
    }
    let nanos = (crate::cpu::time() - start).as_nanos() as f64 / packets as f64;
    let (sum, squares) =
        sent.iter().fold((0.0, 0.0), |(sum, squares), &n| (sum + n as f64, squares + (n * n) as f64));
    Ok(Cost { nanos_per_packet: nanos, fairness: sum * sum / (squares * f64::from(count)) })
}

fn carry(now: Instant, from: &mut Host, to: &mut Host, frames: &mut [[u8; FRAME]]) -> Result<(), String> {
    let mut lengths = [0; BURST];
    let mut count = 0;
    while count < BURST {
        let Some(length) = from.endpoint.poll_transmit(now, &from.ram, &mut frames[count]) else { break };
        lengths[count] = length;
        count += 1;
    }
    for (frame, &length) in frames.iter().zip(&lengths[..count]) {
        to.endpoint.on_frame(now, &mut to.ram, &frame[..length]).map_err(|error| format!("{error:?}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hundred_queue_pairs_share_fairly() {
        let cost = super::run(100, 10_000).unwrap();
        assert!(cost.fairness > 0.999, "{cost:?}");
    }
}
