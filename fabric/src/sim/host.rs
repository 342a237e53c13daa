use super::event::Picos;
use super::scenario::Scenario;
use cc::Instant;
use roce::qp::{
    AckTimeout, Capabilities, Modify, QpInit, Remote, RtrSettings, RtsSettings, SendRequest, Sge,
    udp_source_port,
};
use roce::wire::{Format, Mac, Path, RnrTimer, Service};
use roce::{Access, ControlError, CqId, Endpoint, EndpointConfig, Memory, PdId, Psn, Qpn, Region, Slice};
use std::net::IpAddr;

/// Where every host's one region begins; it is as long as any message.
const BASE: u64 = 1 << 32;
const LENGTH: u64 = 1 << 31;

/// Memory whose contents nobody asks for.
#[derive(Debug, Default)]
pub(super) struct Counted {
    placed: u64,
}

impl Memory for Counted {
    fn place(&mut self, to: Slice, _: &[u8]) {
        self.placed += u64::from(to.len());
    }

    fn gather(&self, _: Slice, _: &mut [u8]) {}

    fn fetch_add(&mut self, _: Slice, _: u64) -> u64 {
        0
    }

    fn compare_swap(&mut self, _: Slice, _: u64, _: u64) -> u64 {
        0
    }
}

/// A host: an endpoint behind a network card that sends one frame at a time.
pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    pub(super) memory: Counted,
    /// The last frame has left the card.
    pub(super) free_at: Picos,
    /// When it is to be woken; wakes for other times are stale.
    pub(super) wake_at: Option<Picos>,
    number: u32,
    pd: PdId,
    cq: CqId,
    region: Region,
}

impl Host {
    pub(super) fn new(number: u32, flows: u32, seed: u64) -> Result<Self, ControlError> {
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        secret[8..12].copy_from_slice(&number.to_le_bytes());
        let config =
            EndpointConfig { max_qps: flows.max(1), max_cqs: 1, max_regions: 1, seed: secret, core: 0 };
        let mut endpoint = Endpoint::new(config);
        let pd = endpoint.create_pd();
        let cq = endpoint.create_cq(flows.max(1) * 2)?;
        let region = endpoint.register(pd, BASE, LENGTH, Access::ALL)?;
        let (free_at, wake_at) = (Picos(0), None);
        Ok(Self { endpoint, memory: Counted::default(), free_at, wake_at, number, pd, cq, region })
    }

    pub(super) const fn mac(&self) -> Mac {
        let [a, b, c, d] = self.number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    /// IPv6 only for what needs it.
    fn address(&self, format: Format) -> IpAddr {
        let [_, b, c, d] = self.number.to_be_bytes();
        let short = IpAddr::from([10, b, c, d]);
        let long = IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b, c, d]);
        if format.fits(short) { short } else { long }
    }

    pub(super) fn create_qp(&mut self) -> Result<Qpn, ControlError> {
        self.endpoint.create_qp(
            Instant::ZERO,
            QpInit {
                service: Service::Rc,
                pd: self.pd,
                send_cq: self.cq,
                recv_cq: self.cq,
                capabilities: Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() },
                signal_all: true,
                srq: None,
            },
        )
    }

    pub(super) fn connect(
        &mut self,
        ours: Qpn,
        peer: &Self,
        theirs: Qpn,
        scenario: &Scenario,
    ) -> Result<(), ControlError> {
        let path = Path {
            source_mac: self.mac(),
            destination_mac: peer.mac(),
            vlan: None,
            source: self.address(scenario.congestion.format),
            destination: peer.address(scenario.congestion.format),
            udp_source: udp_source_port(ours, theirs),
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
        };
        let receive = RtrSettings {
            path,
            destination: theirs,
            mtu: scenario.mtu,
            receive_psn: Psn::new(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(1),
            selective_repeat: false,
        };
        let send = RtsSettings {
            send_psn: Psn::new(0),
            ack_timeout: AckTimeout::new(10),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            congestion: scenario.congestion,
        };
        let init = Modify::Init { access: Access::ALL, partition_key: 0xffff };
        for modify in [init, Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)] {
            self.endpoint.modify_qp(cc::Instant::ZERO, ours, modify)?;
        }
        Ok(())
    }

    /// What the peer writes to.
    pub(super) const fn remote(&self) -> Remote {
        Remote { address: BASE, rkey: self.region.rkey }
    }

    pub(super) fn start(&mut self, now: Picos, flow: usize, qpn: Qpn, bytes: u32, to: Remote) {
        let sge = Sge { address: BASE, length: bytes, lkey: self.region.lkey };
        let posted = self.endpoint.post_send(now.instant(), qpn, SendRequest::write(flow as u64, sge, to));
        debug_assert!(posted.is_ok(), "one request on a connected queue pair: {posted:?}");
    }

    /// Requests that ended: which, and whether well.
    pub(super) fn ended(&mut self) -> Vec<(usize, roce::qp::CompletionStatus)> {
        let mut ended = Vec::new();
        self.endpoint.poll_cq(self.cq, &mut |completion| {
            ended.push((completion.id as usize, completion.status));
            true
        });
        ended
    }
}
