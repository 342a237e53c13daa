//! The network of the model: any algorithm, and a switch that writes telemetry of any format.

use super::Setting;
use crate::harness::Filter;
use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, HpccConfig, POWERTCP, Rate, SWIFT};
use core::cell::Cell;
use core::num::NonZeroU32;
use core::time::Duration;
use roce::wire::format::{Format, PortState, Request, aecn::Load};
use roce::wire::{self, Header, Numbers};
use std::rc::Rc;

const LINE_RATE: Rate = Rate::from_gbps(10);
/// The base round-trip time, and the probe interval.
pub const T: Duration = Duration::from_micros(10);

/// The counters of the link's filter.
#[derive(Clone, Default)]
pub struct Observations {
    /// Counts of [`super::Reached`].
    pub holes: Rc<Cell<u64>>,
    pub answers: Rc<Cell<u64>>,
    pub sprayed: Rc<Cell<u64>>,
}

impl Setting {
    /// Returns the algorithm; half of all values give a fixed window of `window` bytes.
    pub fn congestion(&self, window: u64) -> AlgorithmConfig {
        let hpcc = HpccConfig::new(LINE_RATE, T, NonZeroU32::MIN);
        match self.algorithm % 14 {
            0 => AlgorithmConfig::Hpcc(hpcc),
            1 => AlgorithmConfig::HpccFair(hpcc),
            2 => AlgorithmConfig::HpccReceiver(hpcc),
            3 => AlgorithmConfig::Registered(&POWERTCP, hpcc.into()),
            4 => AlgorithmConfig::Dctcp(DctcpConfig::new(LINE_RATE, T)),
            5 => AlgorithmConfig::Dcqcn(DcqcnConfig::new(LINE_RATE, Some(T))),
            6 => AlgorithmConfig::Registered(&SWIFT, hpcc.into()),
            _ => AlgorithmConfig::Fixed { window, rate: None },
        }
    }

    /// Returns whether packets are sprayed over several paths. In-band telemetry and receiver-computed windows exclude spraying.
    pub fn sprays(&self) -> bool {
        let by_receiver = matches!(self.congestion(1), AlgorithmConfig::HpccReceiver(_));
        self.selective_repeat && !self.in_band && !by_receiver && self.load % 2 == 1
    }

    /// Returns whether the connection uses IPv6: some formats exist over IPv6 only.
    pub fn v6(&self) -> bool {
        !self.format().fits([10, 0, 0, 1].into())
    }

    pub fn format(&self) -> Format {
        Format::ALL[usize::from(self.format) % Format::ALL.len()].1
    }

    /// Returns a switch that stamps telemetry into passing frames and counts them. It drops none.
    pub fn network(&self, observations: &Observations) -> Filter {
        let (observations, load, queue) = (observations.clone(), u32::from(self.load), u32::from(self.queue));
        let (mut time, mut tx_bytes) = (0_u64, 0_u64);
        let mut first_ports = [None; 2];
        Box::new(move |from, frame| {
            let count = |of: &Cell<u64>| of.set(of.get() + 1);
            if let Ok(frame) = wire::parse(frame) {
                match frame.header {
                    Header::SelectiveAcknowledge { held, .. } if held != 0 => count(&observations.holes),
                    Header::TelemetryResponse { .. } => count(&observations.answers),
                    Header::Connected { .. } => {
                        let port = frame.network.udp_source();
                        if *first_ports[from].get_or_insert(port) != port {
                            count(&observations.sprayed);
                        }
                    }
                    _ => {}
                }
            }
            // 1 µs for each packet, in which the link carries 1250 bytes.
            time += 1000;
            tx_bytes += 1250 * u64::from(load) / 256;
            let told = Load {
                inflight: Load::share(f64::from(load) / 256.0),
                rate: 0,
                queue: 0,
                delay: 0,
                congested: 0,
            };
            let queue = queue * 1024;
            let port = PortState {
                switch: 1,
                port: 0,
                rate: LINE_RATE,
                time,
                tx_bytes,
                queue: queue.into(),
                sojourn: 0,
                load: told,
            };
            let mut length = frame.len();
            frame.resize(length + 64, 0);
            if let Some(request) = Request::find(&frame[..length], Numbers::DEFAULT) {
                length = request.stamp(frame, length, &port).unwrap_or(length);
            }
            frame.truncate(length);
            true
        })
    }
}
