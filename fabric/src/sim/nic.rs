//! A simulated host: its cores and their objects.

use super::cores::HostCores;
use super::setup::{LONGEST, Verb};
use cc::Instant;
use roce::qp::{
    AckTimeout, Capabilities, CompletionOpcode, CompletionStatus, Congestion, LossRecovery, Modify, QpInit,
    QpReport, RecvRequest, Remote, RtrSettings, RtsSettings, SendRequest, Sge, udp_source_port,
};
use roce::wire::{Format, Mac, Mtu, Path, RnrTimer, Service};
use roce::{Access, AccessError, ControlError, CqId, EndpointConfig, Memory, PdId, Psn, Qpn, Region, Slice};
use std::net::IpAddr;

/// Address of each host's only region, which has [`LONGEST`] bytes.
const BASE: u64 = 1 << 32;
/// ECT(0).
const ECT: u8 = 2;
/// 4.2 ms.
const PATIENCE: AckTimeout = AckTimeout::new(10);

/// Memory that counts placed bytes and does not store them.
#[derive(Debug, Default)]
pub(super) struct Counted {
    placed: u64,
    /// Whether the payload of sent frames is overwritten with zeros, for captures. If not, it is what the buffer contained before.
    clears: bool,
}

impl Memory for Counted {
    fn place(&mut self, to: Slice, _: &[u8]) -> Result<(), AccessError> {
        self.placed += u64::from(to.len());
        Ok(())
    }

    fn gather(&self, _: Slice, to: &mut [u8]) -> Result<(), AccessError> {
        if self.clears {
            to.fill(0);
        }
        Ok(())
    }

    fn fetch_add(&mut self, _: Slice, _: u64) -> Result<u64, AccessError> {
        Ok(0)
    }

    fn compare_swap(&mut self, _: Slice, _: u64, _: u64) -> Result<u64, AccessError> {
        Ok(0)
    }
}

pub(super) struct Link {
    pub(super) now: Instant,
    pub(super) mtu: Mtu,
    pub(super) dscp: u8,
    pub(super) selective_repeat: bool,
}

pub(super) struct Ended {
    pub(super) flow: u32,
    pub(super) status: CompletionStatus,
    /// Bytes of a received message; `None` for a request.
    pub(super) received: Option<u32>,
}

/// Limit on outstanding READs of a queue pair, as in the command-line tools.
const READS: u8 = 16;

pub(super) struct Nic {
    pub(super) cores: HostCores,
    pub(super) memory: Counted,
    number: u32,
    pd: PdId,
    cq: CqId,
    region: Region,
}

impl Nic {
    pub(super) fn new(
        number: u32,
        cores: u8,
        flows: u32,
        (depth, seed): (u32, u64),
        clears: bool,
    ) -> Result<Self, ControlError> {
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        secret[8..12].copy_from_slice(&number.to_le_bytes());
        let config = EndpointConfig {
            max_qps: flows.max(1),
            max_cqs: 1,
            max_regions: 1,
            seed: secret,
            process: 0,
            numbers: roce::wire::Numbers::DEFAULT,
        };
        let mut cores = HostCores::new(config, cores);
        let pd = cores.on_all(|core| Ok(core.create_pd()))?;
        let cq = cores.on_all(|core| core.create_cq((flows.max(1) + depth) * 2))?;
        let region = cores.on_all(|core| core.register(pd, BASE, LONGEST, Access::ALL))?;
        Ok(Self { cores, memory: Counted { placed: 0, clears }, number, pd, cq, region })
    }

    const fn mac(&self) -> Mac {
        let [a, b, c, d] = self.number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    /// Returns the number of the host that a frame is addressed to.
    pub(super) fn addressed(frame: &[u8]) -> u32 {
        frame
            .get(2..6)
            .and_then(|number| number.first_chunk())
            .map_or(0, |number| u32::from_be_bytes(*number))
    }

    /// Returns an IPv4 address, or an IPv6 address for formats that require it.
    fn address(&self, format: Format) -> IpAddr {
        let [_, b, c, d] = (self.number + 1).to_be_bytes();
        let short = IpAddr::from([10, b, c, d]);
        let long = IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b, c, d]);
        if format.fits(short) { short } else { long }
    }

    pub(super) fn create_qp(&mut self, now: Instant, requests: u32) -> Result<Qpn, ControlError> {
        let capabilities = Capabilities {
            max_send: requests,
            max_recv: requests,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let init = QpInit {
            service: Service::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            capabilities,
            signal_all: true,
            srq: None,
        };
        self.cores.create_qp(now, init)
    }

    pub(super) fn connect(
        &mut self,
        &Link { now, mtu, dscp, selective_repeat }: &Link,
        ours: Qpn,
        (peer, theirs): (&Self, Qpn),
        congestion: Congestion,
    ) -> Result<(), ControlError> {
        let source = self.address(congestion.format);
        let path = Path {
            udp_source: udp_source_port(source, ours, theirs),
            traffic_class: dscp << 2 | ECT,
            ..Path::new((self.mac(), source), (peer.mac(), peer.address(congestion.format)))
        };
        let receive = RtrSettings {
            path,
            destination: theirs,
            mtu,
            receive_psn: Psn::new(0),
            max_dest_rd_atomic: READS,
            min_rnr_timer: RnrTimer::new(1),
            loss_recovery: match selective_repeat {
                true => LossRecovery::SelectiveRepeat,
                false => LossRecovery::GoBackN,
            },
            feedback_key: None,
        };
        let send = RtsSettings {
            send_psn: Psn::new(0),
            ack_timeout: PATIENCE,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: READS,
            congestion,
        };
        let init = Modify::Init { access: Access::ALL, partition_key: 0xffff };
        for modify in [init, Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)] {
            self.cores.of_mut(ours).modify_qp(now, ours, modify)?;
        }
        Ok(())
    }

    pub(super) fn post(
        &mut self,
        now: Instant,
        qpn: Qpn,
        flow: u32,
        (verb, bytes): (Verb, u32),
        peer: Region,
    ) -> Result<(), String> {
        let sge = Sge { address: BASE, length: bytes, lkey: self.region.lkey };
        let to = Remote { address: BASE, rkey: peer.rkey };
        let request = match verb {
            Verb::Write => SendRequest::write(flow.into(), sge, to),
            Verb::Read => SendRequest::read(flow.into(), sge, to),
            Verb::Send => SendRequest::send(flow.into(), sge),
        };
        self.cores.of_mut(qpn).post_send(now, qpn, request).map_err(|error| error.to_string())
    }

    pub(super) const fn region(&self) -> Region {
        self.region
    }

    pub(super) fn receive(&mut self, qpn: Qpn, flow: u32) -> Result<(), String> {
        let sge = Sge { address: BASE, length: LONGEST as u32, lkey: self.region.lkey };
        let request = RecvRequest { id: flow.into(), buffers: [sge].into_iter().collect() };
        self.cores.of_mut(qpn).post_recv(qpn, request).map_err(|error| error.to_string())
    }

    pub(super) fn ended(&mut self) -> Option<Ended> {
        let cq = self.cq;
        self.cores.iter_mut().find_map(|core| {
            let mut ended = None;
            core.poll_cq(cq, &mut |completion| {
                let received = (completion.opcode == CompletionOpcode::Recv).then_some(completion.length);
                ended = Some(Ended { flow: completion.id as u32, status: completion.status, received });
                false
            });
            ended
        })
    }

    pub(super) fn report(&self, qpn: Qpn) -> Option<QpReport> {
        self.cores.of(qpn).report(qpn)
    }
}
