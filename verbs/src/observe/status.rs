//! The report of a process, as sent through its socket.

use super::names::{CORE_FRAMES, named_core_counters, named_counters};
use super::sanitize::sanitized;
use crate::device::Inner;
use datapath::engine::{CoreCounters, CoreState, Observed, Stopped};
use roce::qp::{Waiting, WaitingTimes};
use roce::{Counters, Discard, FailureReason, Observation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the protocol between process and observer. An observer can read only its own version.
pub const FORMAT: u32 = 4;

/// Number of queue pairs that a core reports between two turns.
const QPS_PER_TURN: usize = 64;

/// A process with open devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process's [`FORMAT`].
    pub format: u32,
    /// The process's version of Ferroce.
    #[serde(deserialize_with = "sanitized")]
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// The command line.
    #[serde(deserialize_with = "sanitized")]
    pub command: String,
    /// The open devices.
    pub devices: Vec<DeviceStatus>,
}

/// The state of a device at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The port's name.
    #[serde(deserialize_with = "sanitized")]
    pub port: String,
    /// The port's driver.
    #[serde(deserialize_with = "sanitized")]
    pub driver: String,
    /// The device's addresses.
    #[serde(deserialize_with = "sanitized")]
    pub addresses: Vec<String>,
    /// The link's speed in Mb/s, if the port reports it.
    pub speed_mbps: Option<u32>,
    /// The reason why the core stopped. All fields below are then empty.
    #[serde(default, deserialize_with = "sanitized")]
    pub stopped: Option<String>,
    /// Time of the report, in ns since the start of the core's clock.
    pub now: u64,
    /// The endpoint's counters, by the names of [`named_counters`].
    #[serde(deserialize_with = "sanitized")]
    pub counters: BTreeMap<String, u64>,
    /// Dropped packets by reason, without zeros.
    #[serde(deserialize_with = "sanitized")]
    pub discards: BTreeMap<String, u64>,
    /// Counters of the cores for everything except packets of queue pairs, summed.
    #[serde(deserialize_with = "sanitized")]
    pub core: BTreeMap<String, u64>,
    /// ns in each state ([`Waiting::name`]), summed over all queue pairs of the device, including destroyed ones.
    #[serde(deserialize_with = "sanitized")]
    pub waited: BTreeMap<String, u64>,
    /// The device's cores.
    pub cores: Vec<CoreStatus>,
    /// The device's queue pairs.
    pub queue_pairs: Vec<QueuePairStatus>,
}

/// A core of a device. The figures of the device are the sums over its cores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreStatus {
    /// The core's counters: those of [`DeviceStatus::core`], and frames sent and received by its queue pairs.
    #[serde(deserialize_with = "sanitized")]
    pub counters: BTreeMap<String, u64>,
    /// ns in each state, summed over the core's queue pairs, including destroyed ones.
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
    /// The peer's address.
    #[serde(deserialize_with = "sanitized")]
    pub address: String,
    /// The QPN of the peer.
    pub qpn: u32,
}

/// A hop of a queue pair's path, from the latest telemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopStatus {
    /// Position on the path; 0 is the first switch.
    pub index: u8,
    /// Bytes in the switch's egress queue.
    pub queue: u64,
    /// Utilisation of the switch's link; 1 is full without a queue. `None` until two telemetry records have arrived.
    pub utilisation: Option<f64>,
    /// Age of this telemetry, ns.
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

/// The likely reason why a queue pair waits for its peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The reason, as [`FailureReason`](crate::event::FailureReason) displays it.
    #[serde(deserialize_with = "sanitized")]
    pub reason: String,
    /// The remedy for the user.
    #[serde(deserialize_with = "sanitized")]
    pub remedy: String,
    /// True if packets are longer than the MTU of a link on the path.
    pub is_path_mtu: bool,
}

impl Diagnosis {
    fn of(reason: &FailureReason) -> Self {
        let (remedy, is_path_mtu) = (reason.remedy().into(), reason.is_path_mtu());
        Self { reason: reason.to_string(), remedy, is_path_mtu }
    }
}

/// The state of a queue pair at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueuePairStatus {
    /// The queue pair number.
    pub qpn: u32,
    /// Index of the core in [`DeviceStatus::cores`].
    pub core: usize,
    /// The service: RC, UC, UD, XRC.
    #[serde(deserialize_with = "sanitized")]
    pub service: String,
    /// The state of the queue pair.
    #[serde(deserialize_with = "sanitized")]
    pub state: String,
    /// The failure in one line with the remedy. `None` if the queue pair has not failed, or if the program moved it to the error state.
    #[serde(default, deserialize_with = "sanitized")]
    pub failure: Option<String>,
    /// The peer; `None` without a connection.
    pub peer: Option<PeerStatus>,
    /// The congestion control algorithm; empty before RTS.
    #[serde(deserialize_with = "sanitized")]
    pub algorithm: String,
    /// The window, bytes.
    pub window: u64,
    /// Payload bytes sent and not acknowledged.
    pub in_flight: u64,
    /// The pacing rate, bit/s.
    pub rate_bps: Option<u64>,
    /// The link rate in the settings of the algorithm, bit/s.
    #[serde(default)]
    pub line_rate_bps: Option<u64>,
    /// The path MTU, bytes; 0 without a connection.
    #[serde(default)]
    pub mtu: u32,
    /// Payload bytes of SENDs and WRITEs that the peer acknowledged since the connection started; 0 on UC and UD.
    #[serde(default)]
    pub acknowledged_bytes: u64,
    /// The path: each hop from which telemetry has arrived, in path order.
    pub hops: Vec<HopStatus>,
    /// Index of the busiest hop in `hops`.
    pub busiest: Option<usize>,
    /// The likely reason why the queue pair waits for its peer; `None` if it does not.
    pub suspected: Option<Diagnosis>,
    /// Utilisation of the path's busiest link; 1 is full without a queue.
    pub utilisation: Option<f64>,
    /// The last measured RTT, ns.
    pub round_trip: Option<u64>,
    /// The shortest measured RTT, ns.
    pub shortest_round_trip: Option<u64>,
    /// The next PSN to send.
    pub send_psn: u32,
    /// The last PSN that the peer acknowledged.
    pub acknowledged_psn: u32,
    /// Outstanding send requests.
    pub outstanding: u32,
    /// Receive requests in the queue pair's own receive queue.
    pub receives: u32,
    /// Completions of send requests that the program has not polled.
    pub unpolled: u32,
    /// The current waiting state ([`Waiting::name`]).
    #[serde(deserialize_with = "sanitized")]
    pub waiting: String,
    /// ns in each state since the queue pair was created.
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
