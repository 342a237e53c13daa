//! The report of a process, as sent through its socket.

use super::names::{CORE_FRAMES, named_core_counters, named_counters};
use super::sanitize::sanitized;
use crate::device::Inner;
use datapath::engine::{CoreCounters, CoreState, Observed, Stopped};
use roce::qp::{Waiting, WaitingTimes};
use roce::{Counters, Discard, FailureReason, Observation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the protocol between process and observer. An observer reads only its own.
pub const FORMAT: u32 = 4;

/// The number of queue pairs that a core reports between two turns.
const QPS_PER_TURN: usize = 64;

/// A process with open devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// [`FORMAT`] of the process.
    pub format: u32,
    /// Its version of Ferroce.
    #[serde(deserialize_with = "sanitized")]
    pub version: String,
    /// Its identifier.
    pub pid: u32,
    /// Its command line.
    #[serde(deserialize_with = "sanitized")]
    pub command: String,
    /// Its open devices.
    pub devices: Vec<DeviceStatus>,
}

/// A device at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The port's name.
    #[serde(deserialize_with = "sanitized")]
    pub port: String,
    /// Its driver.
    #[serde(deserialize_with = "sanitized")]
    pub driver: String,
    /// Its addresses.
    #[serde(deserialize_with = "sanitized")]
    pub addresses: Vec<String>,
    /// Its speed in Mb/s, if the port knows it.
    pub speed_mbps: Option<u32>,
    /// Why its core stopped. All fields below are then empty.
    #[serde(default, deserialize_with = "sanitized")]
    pub stopped: Option<String>,
    /// The moment, in ns since the core's clock began.
    pub now: u64,
    /// The endpoint's counters, by the names of [`named_counters`].
    #[serde(deserialize_with = "sanitized")]
    pub counters: BTreeMap<String, u64>,
    /// Dropped packets by reason, without zeros.
    #[serde(deserialize_with = "sanitized")]
    pub discards: BTreeMap<String, u64>,
    /// Counters of the cores, summed, for everything but packets of queue pairs.
    #[serde(deserialize_with = "sanitized")]
    pub core: BTreeMap<String, u64>,
    /// ns in each state ([`Waiting::name`]), summed over all queue pairs of the device, including destroyed ones.
    #[serde(deserialize_with = "sanitized")]
    pub waited: BTreeMap<String, u64>,
    /// Its cores.
    pub cores: Vec<CoreStatus>,
    /// Its queue pairs.
    pub queue_pairs: Vec<QueuePairStatus>,
}

/// A core of a device. The device's figures are the sums of those of its cores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreStatus {
    /// Its counters: those of [`DeviceStatus::core`], and frames sent and received by its queue pairs.
    #[serde(deserialize_with = "sanitized")]
    pub counters: BTreeMap<String, u64>,
    /// ns in each state, summed over its queue pairs, including destroyed ones.
    #[serde(deserialize_with = "sanitized")]
    pub waited: BTreeMap<String, u64>,
}

impl CoreStatus {
    fn of(endpoint: &Counters, core: &CoreCounters, waited: &WaitingTimes) -> Self {
        let mut counters = core_counters(core);
        let frames = CORE_FRAMES.into_iter().zip([endpoint.rx_frames, endpoint.tx_frames]);
        counters.extend(frames.map(|(name, count)| (name.into(), count)));
        Self { counters, waited: times(waited) }
    }
}

/// The peer of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its address.
    #[serde(deserialize_with = "sanitized")]
    pub address: String,
    /// Its queue pair's number.
    pub qpn: u32,
}

/// A hop of a queue pair's path, from the latest telemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopStatus {
    /// Its position on the path; 0 is the first switch.
    pub index: u8,
    /// Bytes in its egress queue.
    pub queue: u64,
    /// The utilisation of its link; 1 is full without a queue. `None` until telemetry has arrived twice.
    pub utilisation: Option<f64>,
    /// The age of this telemetry, ns.
    pub age: u64,
}

impl HopStatus {
    fn of(hop: &cc::RecordedHop, now: cc::Instant) -> Self {
        Self {
            index: hop.index,
            queue: hop.queue.into(),
            utilisation: hop.permille.map(|permille| f64::from(permille) / 1e3),
            age: now.saturating_since(hop.recorded_at).as_nanos() as u64,
        }
    }
}

/// The likely reason why a peer keeps a queue pair waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The reason, as [`FailureReason`](crate::event::FailureReason) displays it.
    #[serde(deserialize_with = "sanitized")]
    pub reason: String,
    /// The remedy for the user.
    #[serde(deserialize_with = "sanitized")]
    pub remedy: String,
    /// True if packets are longer than a link of the path carries.
    pub is_path_mtu: bool,
}

impl Diagnosis {
    fn of(reason: &FailureReason) -> Self {
        let (remedy, is_path_mtu) = (reason.remedy().into(), reason.is_path_mtu());
        Self { reason: reason.to_string(), remedy, is_path_mtu }
    }
}

/// A queue pair at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueuePairStatus {
    /// Its number.
    pub qpn: u32,
    /// The index of its core in [`DeviceStatus::cores`].
    pub core: usize,
    /// Its service: RC, UC, UD, XRC.
    #[serde(deserialize_with = "sanitized")]
    pub service: String,
    /// Its state.
    #[serde(deserialize_with = "sanitized")]
    pub state: String,
    /// The failure in one line with the remedy; `None` if it has not failed, or if the program caused it on request.
    #[serde(default, deserialize_with = "sanitized")]
    pub failure: Option<String>,
    /// Its peer; `None` without a connection.
    pub peer: Option<PeerStatus>,
    /// The congestion control algorithm; empty before RTS.
    #[serde(deserialize_with = "sanitized")]
    pub algorithm: String,
    /// Its window, bytes.
    pub window: u64,
    /// Payload bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Its pacing rate, bit/s.
    pub rate_bps: Option<u64>,
    /// The rate of its link in the settings of its algorithm, bit/s.
    #[serde(default)]
    pub line_rate_bps: Option<u64>,
    /// Its path MTU, bytes; 0 without a connection.
    #[serde(default)]
    pub mtu: u32,
    /// Payload bytes of SENDs and WRITEs that the peer acknowledged since the connection started; 0 on UC and UD.
    #[serde(default)]
    pub acknowledged_bytes: u64,
    /// Its path: every hop of which telemetry has arrived, in path order.
    pub hops: Vec<HopStatus>,
    /// The index in `hops` of the busiest one.
    pub busiest: Option<usize>,
    /// Why its peer keeps it waiting; `None` if the peer does not.
    pub suspected: Option<Diagnosis>,
    /// The utilisation of the path's busiest link; 1 is full without a queue.
    pub utilisation: Option<f64>,
    /// The last measured round trip, ns.
    pub round_trip: Option<u64>,
    /// The shortest one, ns.
    pub shortest_round_trip: Option<u64>,
    /// The next PSN to send.
    pub send_psn: u32,
    /// The last PSN that the peer acknowledged.
    pub acknowledged_psn: u32,
    /// Outstanding send requests.
    pub outstanding: u32,
    /// Receive requests that wait in its own queue.
    pub receives: u32,
    /// Completions of send requests that the program has not polled.
    pub unpolled: u32,
    /// The state in which it waits now ([`Waiting::name`]).
    #[serde(deserialize_with = "sanitized")]
    pub waiting: String,
    /// ns in each state since it was created.
    #[serde(deserialize_with = "sanitized")]
    pub waited: BTreeMap<String, u64>,
}

fn core_counters(counters: &CoreCounters) -> BTreeMap<String, u64> {
    named_core_counters(counters).into_iter().map(|(name, _, value)| (name.into(), value)).collect()
}

fn times(waited: &WaitingTimes) -> BTreeMap<String, u64> {
    Waiting::ALL.iter().map(|&state| (state.name().into(), waited.nanos(state))).collect()
}

impl ProcessStatus {
    /// Returns the device on `port`.
    #[must_use]
    pub fn device(&self, port: &str) -> Option<&DeviceStatus> {
        self.devices.iter().find(|device| device.port == port)
    }

    pub(super) fn of(devices: &[std::sync::Arc<Inner>]) -> Self {
        let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            command: words.trim_end_matches('\0').replace('\0', " "),
            devices: devices.iter().map(|device| DeviceStatus::of(device)).collect(),
        }
    }
}

impl DeviceStatus {
    /// Returns the queue pair `qpn`.
    #[must_use]
    pub fn queue_pair(&self, qpn: u32) -> Option<&QueuePairStatus> {
        self.queue_pairs.iter().find(|pair| pair.qpn == qpn)
    }

    fn of(device: &Inner) -> Self {
        let mut status = Self {
            port: device.info.port.clone(),
            driver: device.info.driver.clone(),
            addresses: device.engine.gids().addresses().map(|gid| gid.to_string()).collect(),
            speed_mbps: device.info.speed_mbps,
            stopped: None,
            now: 0,
            counters: BTreeMap::new(),
            discards: BTreeMap::new(),
            core: BTreeMap::new(),
            waited: BTreeMap::new(),
            cores: Vec::new(),
            queue_pairs: Vec::new(),
        };
        if let Err(stopped) = status.read_cores(device) {
            status.stopped = Some(stopped.to_string());
        }
        status
    }

    fn read_cores(&mut self, device: &Inner) -> Result<(), Stopped> {
        let mut observed = Vec::new();
        for core in 0..device.engine.cores() {
            let mut from = Some(0);
            while let Some(place) = from {
                let observe = move |state: &mut CoreState, now| state.observe(now, place, QPS_PER_TURN);
                let (seen, more) = device.engine.call_on(core, observe)?;
                observed.extend(seen.into_iter().map(|seen| (core, seen)));
                from = more;
            }
        }
        let (mut now, mut counters) = (cc::Instant::ZERO, Counters::default());
        let (mut core, mut waited) = (CoreCounters::default(), WaitingTimes::default());
        for (at, of_endpoint, of_core, waits) in device.engine.call_all(|state, now| {
            let endpoint = &state.endpoint;
            (now, endpoint.counters().clone(), state.counters, endpoint.waited(now))
        })? {
            self.cores.push(CoreStatus::of(&of_endpoint, &of_core, &waits));
            now = now.max(at);
            counters.add(&of_endpoint);
            core.add(&of_core);
            waited.add(&waits);
        }
        self.now = now.as_nanos();
        let named = named_counters(&counters).into_iter();
        self.counters = named.map(|(name, _, value)| (name.into(), value)).collect();
        let reasons = Discard::ALL.iter().map(|&reason| (reason.to_string(), counters.discarded(reason)));
        self.discards = reasons.filter(|(_, count)| *count > 0).collect();
        self.core = core_counters(&core);
        self.waited = times(&waited);
        self.queue_pairs =
            observed.iter().map(|(core, observed)| QueuePairStatus::of(*core, observed, now)).collect();
        Ok(())
    }
}

impl QueuePairStatus {
    /// Returns the hop that is the path's bottleneck.
    #[must_use]
    pub fn busiest_hop(&self) -> Option<&HopStatus> {
        self.hops.get(self.busiest?)
    }

    fn of(core: usize, observed: &Observed, now: cc::Instant) -> Self {
        let Observation { qpn, service, peer, report, hops, suspected, waiting, waited, .. } =
            &observed.queue_pair;
        let nanos = |time: std::time::Duration| time.as_nanos() as u64;
        Self {
            qpn: qpn.get(),
            core,
            service: format!("{service:?}").to_uppercase(),
            state: format!("{:?}", report.state),
            peer: peer.map(|(address, qpn)| PeerStatus { address: address.to_string(), qpn: qpn.get() }),
            algorithm: report.algorithm.into(),
            window: report.window,
            in_flight: report.in_flight,
            rate_bps: report.rate.map(cc::Rate::as_bps),
            line_rate_bps: report.line_rate.map(cc::Rate::as_bps),
            mtu: report.mtu,
            acknowledged_bytes: report.acknowledged_bytes,
            hops: hops.iter().map(|hop| HopStatus::of(hop, now)).collect(),
            busiest: hops.iter().position(|hop| Some(*hop) == report.busiest),
            suspected: suspected.as_ref().map(Diagnosis::of),
            utilisation: report.utilisation.filter(|utilisation| utilisation.is_finite()),
            round_trip: report.round_trip.map(|(last, _)| nanos(last)),
            shortest_round_trip: report.round_trip.map(|(_, shortest)| nanos(shortest)),
            send_psn: report.send_psn.get(),
            acknowledged_psn: report.acknowledged_psn.get(),
            failure: report.failure.map(|failure| failure.to_string()),
            outstanding: report.outstanding,
            receives: report.receives,
            unpolled: observed.unpolled,
            waiting: waiting.name().into(),
            waited: times(waited),
        }
    }
}
