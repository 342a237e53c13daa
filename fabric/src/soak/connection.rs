//! Hosts and the connections between them.

use super::core_group::Cores;
use super::memory::{BASE, Ram};
use super::network::mac;
use super::plan::{Fate, Plan, Talk};
use super::repeats::Repeats;
use super::requests::SideRequests;
use super::windows::Window;
use crate::random::Random;
use cc::Instant;
use roce::qp::{
    AckTimeout, Capabilities, Modify, QpInit, QpReport, RtrSettings, RtsSettings, Sge, State, udp_source_port,
};
use roce::wire::{Path, RnrTimer, Service};
use roce::{
    Access, AddressId, ControlError, CqId, Endpoint, EndpointConfig, PdId, Psn, Qpn, Region, Rkey, SrqId,
    SrqInit, SrqNumber, WindowKind, XrcReceives,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

pub(super) const QUEUE_KEY: u32 = 0x11;
/// Depth of send and receive queues.
pub(super) const DEPTH: u32 = 64;
/// Offsets of the words that the peer's FETCH_ADDs and COMPARE_SWAPs change.
pub(super) const SUM: u64 = 0;
pub(super) const SWAPPED: u64 = 8;
const AREAS: u64 = 64;

fn rights() -> Access {
    Access::ALL | Access::REMOTE_FLUSH
}

/// The areas of a side's memory. Each has one place per request.
#[derive(Clone, Copy)]
pub(super) enum Area {
    /// Data of this side's SENDs and WRITEs.
    Outgoing,
    /// Data of the peer's SENDs, by receive.
    Received,
    /// Data of the peer's WRITEs, by the peer's request.
    Written,
    /// Results of this side's READs and atomics.
    Fetched,
    /// Data of the peer's READs.
    Offered,
}

pub(super) struct Host {
    pub(super) cores: Cores,
    pub(super) ram: Ram,
    /// Initial contents of the memory.
    pub(super) before: Vec<u8>,
    pd: PdId,
    pub(super) free_at: u64,
    pub(super) is_dead: bool,
    /// Index of the connection and side of each queue pair.
    pub(super) sides: Vec<(usize, usize)>,
}

pub(super) struct Side {
    pub(super) host: usize,
    pub(super) core: usize,
    pub(super) qpn: Qpn,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    pub(super) region: Region,
    pub(super) srq: Option<SrqId>,
    /// Number of an XRC target's SRQ, which the peer's requests carry.
    pub(super) number: Option<SrqNumber>,
    pub(super) window: Window,
    /// Current rkey of the window.
    pub(super) key: Rkey,
    pub(super) address: Option<AddressId>,
    pub(super) requests: SideRequests,
    pub(super) repeats: Repeats,
    pub(super) fate: Option<Fate>,
    pub(super) is_deregistered: bool,
    /// Contents of the side's memory at its deregistration.
    pub(super) frozen: Vec<u8>,
    /// Offset of the side's memory in its host's memory.
    base: u64,
}

pub(super) struct Connection {
    pub(super) talk: Talk,
    pub(super) sides: [Side; 2],
    pub(super) random: Random,
    /// Frames affected by faults; each may cost a retry without progress.
    pub(super) harmed_frames: u32,
    pub(super) is_cut: bool,
    /// Bytes per place, and places per area.
    place: u64,
    pub(super) places: usize,
}

impl Talk {
    /// Returns the places per area: one per request, two for the last messages, and the rest for spare receives.
    fn places(&self) -> usize {
        self.requests[0].max(self.requests[1]) + 12
    }

    const fn place(&self) -> u64 {
        // A datagram follows a global header of 40 bytes.
        ((self.longest + 48 + 7) & !7) as u64
    }

    fn memory(&self) -> u64 {
        AREAS + 5 * self.places() as u64 * self.place()
    }
}

impl Host {
    pub(super) fn new(number: usize, plan: &Plan, random: &mut Random, alive: &Arc<AtomicUsize>) -> Self {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&random.next().to_le_bytes());
        let config = EndpointConfig {
            max_qps: 16,
            max_cqs: 16,
            max_regions: 16,
            seed,
            process: 0,
            numbers: roce::wire::Numbers::DEFAULT,
        };
        let mut cores = Cores::new(number, plan.cores_per_host, config, alive);
        let pd = cores.on_all(Endpoint::create_pd);
        let ends = plan.talks.iter().flat_map(|talk| talk.hosts.map(|host| (host, talk.memory())));
        let length: u64 = ends.filter(|(host, _)| *host == number).map(|(_, memory)| memory).sum();
        let mut bytes = vec![0; length as usize];
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        Self { cores, before: Vec::new(), ram: Ram(bytes), pd, free_at: 0, is_dead: false, sides: Vec::new() }
    }

    fn side(&mut self, (host, which): (usize, usize), base: u64, talk: &Talk) -> Result<Side, ControlError> {
        let core = talk.core(which, self.cores.count());
        let (cores, pd) = (&mut self.cores, self.pd);
        let send_cq = cores.on_all(|endpoint| endpoint.create_cq(talk.completions))?;
        let recv_cq = cores.on_all(|endpoint| endpoint.create_cq(talk.completions))?;
        let (length, access) = (talk.memory(), rights() | Access::WINDOWS);
        let region = cores.on_all(|endpoint| endpoint.register(pd, BASE + base, length, access))?;
        let key = cores.on_all(|endpoint| endpoint.create_window(pd, WindowKind::Two))?;
        let domain =
            (!talk.sends_requests(which)).then(|| cores.on_all(Endpoint::create_xrcd)).transpose()?;
        let xrc = domain.map(|domain| XrcReceives { domain, cq: recv_cq });
        let shared = SrqInit { pd, depth: DEPTH, max_sge: 4, xrc };
        let shares = talk.shared_receives && talk.service != Service::Xrc;
        let srq = (shares || xrc.is_some()).then(|| cores.on_all(|endpoint| endpoint.create_srq(shared)));
        let srq = srq.transpose()?;
        let endpoint = &mut cores.all[core].endpoint;
        let number = srq.filter(|_| xrc.is_some()).and_then(|srq| endpoint.srq_number(srq));
        let qpn = match domain {
            Some(domain) => endpoint.create_xrc_target(Instant::ZERO, domain)?,
            None => endpoint.create_qp(
                Instant::ZERO,
                QpInit {
                    service: talk.service,
                    pd,
                    send_cq,
                    recv_cq,
                    capabilities: Capabilities {
                        max_send: DEPTH,
                        max_recv: DEPTH,
                        ..Capabilities::default()
                    },
                    signal_all: false,
                    srq,
                },
            )?,
        };
        self.ram.0[base as usize..(base + AREAS) as usize].fill(0);
        Ok(Side {
            host,
            core,
            qpn,
            send_cq,
            recv_cq,
            region,
            srq,
            number,
            window: Window::Free,
            key,
            address: None,
            requests: SideRequests::default(),
            repeats: Repeats::default(),
            fate: None,
            is_deregistered: false,
            frozen: Vec::new(),
            base,
        })
    }

    pub(super) fn report(&self, side: &Side) -> Option<QpReport> {
        self.endpoint(side).report(side.qpn)
    }

    pub(super) fn endpoint(&self, side: &Side) -> &Endpoint {
        &self.cores.all[side.core].endpoint
    }

    pub(super) fn endpoint_mut(&mut self, side: &Side) -> &mut Endpoint {
        &mut self.cores.all[side.core].endpoint
    }

    pub(super) fn state(&self, side: &Side) -> Option<State> {
        self.report(side).map(|report| report.state)
    }

    pub(super) fn overflowed(&self, side: &Side) -> bool {
        let endpoint = self.endpoint(side);
        endpoint.cq_overflowed(side.send_cq) || endpoint.cq_overflowed(side.recv_cq)
    }
}

impl Connection {
    /// Creates and connects both ends. `used` is the memory in use per host, in bytes.
    pub(super) fn new(
        talk: &Talk,
        plan: &Plan,
        hosts: &mut [Host],
        used: &mut [u64],
    ) -> Result<Self, ControlError> {
        let mut make = |side: usize| {
            let host = talk.hosts[side];
            let base = used[host];
            used[host] += talk.memory();
            hosts[host].side((host, side), base, talk)
        };
        let mut connection = Self {
            sides: [make(0)?, make(1)?],
            random: Random::new(talk.seed),
            harmed_frames: 0,
            is_cut: false,
            place: talk.place(),
            places: talk.places(),
            talk: talk.clone(),
        };
        for side in 0..2 {
            connection.connect(side, plan, &mut hosts[talk.hosts[side]])?;
        }
        Ok(connection)
    }

    fn connect(&mut self, side: usize, plan: &Plan, host: &mut Host) -> Result<(), ControlError> {
        let talk = &self.talk;
        let (ours, theirs) = (self.sides[side].qpn, self.sides[1 - side].qpn);
        let path = path(talk.hosts[side], talk.hosts[1 - side], plan.ipv6, [ours, theirs]);
        let psn = Psn::new(talk.first_psn);
        let modifies = if talk.service == Service::Ud {
            let pd = host.pd;
            let address = host.endpoint_mut(&self.sides[side]).create_address(pd, &path)?;
            self.sides[side].address = Some(address);
            [
                Modify::InitDatagram { queue_key: QUEUE_KEY, partition_key: 0xffff },
                Modify::ReadyToReceiveDatagrams { mtu: talk.mtu, feedback_key: None },
                Modify::ReadyToSendDatagrams { send_psn: psn, congestion: talk.congestion },
            ]
        } else {
            let receive = RtrSettings {
                path,
                destination: theirs,
                mtu: talk.mtu,
                receive_psn: psn,
                max_dest_rd_atomic: talk.reads,
                min_rnr_timer: RnrTimer::new(1),
                loss_recovery: talk.loss_recovery,
                feedback_key: None,
            };
            let send = RtsSettings {
                send_psn: psn,
                ack_timeout: AckTimeout::new(talk.ack_timeout),
                retry_count: 7,
                rnr_retry: talk.rnr_retry,
                max_rd_atomic: talk.reads,
                congestion: talk.congestion,
            };
            let init = Modify::Init { access: rights(), partition_key: 0xffff };
            [init, Modify::ReadyToReceive(receive), Modify::ReadyToSend(send)]
        };
        let endpoint = host.endpoint_mut(&self.sides[side]);
        modifies.into_iter().try_for_each(|modify| endpoint.modify_qp(Instant::ZERO, ours, modify))
    }

    pub(super) fn offset(&self, side: usize, area: Area, index: usize) -> u64 {
        debug_assert!(index < self.places, "each request has its own place");
        self.sides[side].base + AREAS + (area as u64 * self.places as u64 + index as u64) * self.place
    }

    pub(super) const fn word(&self, side: usize, word: u64) -> u64 {
        self.sides[side].base + word
    }

    pub(super) const fn place(&self) -> u64 {
        self.place
    }

    pub(super) fn memory<'h>(&self, side: usize, hosts: &'h [Host]) -> &'h [u8] {
        let side = &self.sides[side];
        hosts[side.host].ram.bytes(side.base, self.talk.memory() as u32)
    }

    pub(super) const fn sge(&self, side: usize, offset: u64, length: u32) -> Sge {
        Sge { address: BASE + offset, length, lkey: self.sides[side].region.lkey }
    }

    /// Returns whether the side can no longer post requests.
    pub(super) const fn is_gone(&self, side: usize) -> bool {
        matches!(self.sides[side].fate, Some(Fate::Destroyed | Fate::Reset | Fate::HostDies))
    }
}

fn path(from: usize, to: usize, ipv6: bool, [ours, theirs]: [Qpn; 2]) -> Path {
    let address = |host: usize| match ipv6 {
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1]),
        false => IpAddr::from([10, 0, 0, host as u8 + 1]),
    };
    let udp_source = udp_source_port(address(from), ours, theirs);
    Path { udp_source, ..Path::new((mac(from), address(from)), (mac(to), address(to))) }
}
