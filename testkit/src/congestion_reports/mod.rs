//! Congestion reports that a peer and the network may send, as one enum: feedback of every kind, setups, telemetry in every format. They
//! are delivered to one queue pair of any algorithm, which must neither panic nor exceed its limits.
//!
//! The property test (`hostile_feedback.rs`) and the fuzzer use the same bytes.

use crate::harness::script::{PSN, ack};
use crate::harness::{Host, Options, path_over};
use arbitrary::{Arbitrary, Unstructured};
use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, HpccConfig, Instant, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{AckTimeout, Congestion, Modify, PathChoice, Remote, Reverse, RtsSettings, SendRequest};
use roce::wire::format::{Format, PortState, Request, aecn::Load};
use roce::wire::telemetry::{IntHeader, RECORD_LENGTH, Speed};
use roce::wire::{
    Bth, Feedback, Header, MAX_IN_BAND, MAX_OVERHEAD, Numbers, Operation, Path, ReportKind, Service, Setup,
    emit, verify,
};
use roce::{Psn, Rkey};

const LINE_RATE: Rate = Rate::from_gbps(10);
const T: Duration = Duration::from_micros(10);
/// The value of a probe's room field.
const ROOM: u8 = 8;

/// A 64-bit number of random length, because uniform numbers are rarely small.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Number {
    any: u64,
    bits: u8,
}

impl Number {
    fn get(self) -> u64 {
        self.any.checked_shr(64 - u32::from(self.bits % 65)).unwrap_or(0)
    }

    fn nanos(self) -> Duration {
        Duration::from_nanos(self.get() >> 16)
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Setting {
    algorithm: u8,
    v6: bool,
    in_band: bool,
    ratio_only: bool,
    paths: bool,
}

/// A report that arrives at the queue pair.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Message {
    /// In a separate packet or after an Acknowledge, about a packet or probe near those that were sent.
    Feedback {
        carrier: u8,
        behind: u8,
        report: Report,
    },
    /// The setup may have values that no sender sends.
    Setup {
        reverse: u8,
        reports: u8,
        base_rtt: u32,
        rates: [Number; 3],
        eta: Number,
        max_stage: u8,
    },
    /// Data or a probe that has passed switches.
    Telemetry {
        is_probe: bool,
        format: u8,
        port: u8,
        hops: u8,
        switch: [Switch; 2],
    },
    Ack {
        ahead: u8,
    },
    Wait(Number),
}

/// A report's fields on the wire, valid or not.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Report {
    kind: u8,
    path_id: u8,
    hops: u8,
    index: u8,
    words: [Number; 5],
    bits: [u8; 2],
    units: [Unit; 2],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Unit {
    Nothing,
    One,
    Thousand,
    Most,
    Any(u32),
}

impl Unit {
    fn get(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::One => 1,
            Self::Thousand => 1000,
            Self::Most => u32::MAX,
            Self::Any(unit) => unit,
        }
    }
}

impl Report {
    fn bytes(&self) -> Vec<u8> {
        let words: Vec<u8> = self.words.iter().flat_map(|word| word.get().to_be_bytes()).collect();
        let kind = self.kind % 8;
        let hops = if matches!(kind, 1..=3) { 0 } else { self.hops % 16 };
        let index = if hops == 0 || kind == 6 { 0 } else { self.index % hops };
        let content = match kind {
            0 if hops == 0 => Vec::new(),
            0..=2 => words[..RECORD_LENGTH].to_vec(),
            4 | 5 => {
                let mut hop = words[..32].to_vec();
                hop.extend(self.bits.map(|bits| bits % 66));
                hop.extend([0; 2]);
                hop.extend(self.units.iter().flat_map(|unit| unit.get().to_be_bytes()));
                hop.extend_from_slice(if kind == 5 { &words[36..] } else { &[] });
                hop
            }
            6 => words[..words.len().min(usize::from(hops) * RECORD_LENGTH)].to_vec(),
            _ => Vec::new(),
        };
        let path_id = if kind == 1 || kind == 3 { 0 } else { self.path_id % 2 };
        [&[kind << 4, path_id, hops, index][..], &content].concat()
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Switch {
    rate: Number,
    is_known_rate: bool,
    time: Number,
    tx_bytes: Number,
    queue: Number,
    sojourn: Number,
    load: [u8; 5],
    is_linux: bool,
}

impl Switch {
    fn state(&self, number: u16) -> PortState {
        let known = Speed::all().nth(self.rate.any as usize % 15).expect("15 speeds").rate();
        let [inflight, rate, queue, delay, congested] = self.load;
        PortState {
            switch: number,
            port: number,
            rate: if self.is_known_rate { known } else { Rate::from_bps(self.rate.get()) },
            time: self.time.get(),
            tx_bytes: self.tx_bytes.get(),
            queue: self.queue.get(),
            sojourn: self.sojourn.get(),
            load: Load { inflight, rate, queue, delay, congested },
        }
    }
}

impl Setting {
    fn algorithm(self) -> AlgorithmConfig {
        let hpcc = HpccConfig::new(LINE_RATE, T, NonZeroU32::MIN);
        match self.algorithm % 8 {
            0 | 1 => AlgorithmConfig::Hpcc(hpcc),
            2 | 3 => AlgorithmConfig::HpccFair(hpcc),
            4 => AlgorithmConfig::HpccReceiver(hpcc),
            5 => AlgorithmConfig::Dctcp(DctcpConfig::new(LINE_RATE, T)),
            6 => AlgorithmConfig::Dcqcn(DcqcnConfig::new(LINE_RATE, Some(T))),
            _ => AlgorithmConfig::Fixed { window: 65_536, rate: Some(LINE_RATE) },
        }
    }

    fn settings(self) -> RtsSettings {
        let mut congestion = Congestion::new(self.algorithm()).probing(Some(T));
        congestion.in_band = if self.in_band { NonZeroU32::new(2) } else { None };
        congestion.ratio_only = self.ratio_only;
        congestion.paths = self.paths.then_some(PathChoice { count: 3, interval: T, spray: false });
        RtsSettings {
            send_psn: Psn::new(PSN),
            ack_timeout: AckTimeout::new(0),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            congestion,
        }
    }
}

/// The queue pair, and the requests posted so far.
struct World {
    host: Host,
    now: Instant,
    v6: bool,
    posted: u64,
    acknowledged: u32,
}

impl World {
    fn new(setting: Setting) -> Self {
        let options = Options { memory: 1 << 17, ..Options::default() };
        let mut host = Host::new(2, &options);
        host.ready_to_receive(path_over(setting.v6, 2, 1), roce::Qpn::new(9), PSN, &options);
        let settings = Modify::ReadyToSend(setting.settings());
        host.endpoint.modify_qp(Instant::ZERO, host.qpn, settings).expect("legal settings");
        let mut world =
            Self { host, now: Instant::from_nanos(1), v6: setting.v6, posted: 0, acknowledged: 0 };
        world.drain();
        world
    }

    /// Keeps a request outstanding, and polls the packets of the endpoint.
    fn drain(&mut self) {
        while self.posted < 4 + self.host.sent().len() as u64 {
            let remote = Remote { address: 0x1000, rkey: Rkey::new(5) };
            let request = SendRequest::write(self.posted, self.host.sge(0, 1 << 17), remote);
            self.host.endpoint.post_send(self.now, self.host.qpn, request).expect("room for four");
            self.posted += 1;
        }
        let mut frame = [0; 4096 + MAX_OVERHEAD + MAX_IN_BAND];
        for _ in 0..64 {
            let Some(length) = self.host.endpoint.poll_transmit(self.now, &self.host.ram, &mut frame) else {
                break;
            };
            assert_eq!(verify(&frame[..length]), Ok(()));
        }
    }

    fn bth(&self, psn: u32) -> Bth {
        Bth { partition_key: 0xffff, ..Bth::new(self.host.qpn, Psn::new(psn)) }
    }

    /// Delivers a packet with `payload`, in `format`, stamped by `switches`.
    fn send(&mut self, port: u16, header: &Header, payload: &[u8], format: Format, switches: &[Switch]) {
        let path = Path { udp_source: port, ..path_over(self.v6, 1, 2) };
        let gap = format.inserted();
        let room = gap + payload.len() + MAX_OVERHEAD + MAX_IN_BAND;
        let mut frame = vec![0; room + 8 * 32];
        let Ok(mut draft) = emit(&path, 0, header, payload.len(), &mut frame[gap..]) else { return };
        draft.payload().copy_from_slice(payload);
        let sealed = draft.seal();
        let Ok(mut length) = format.insert(&mut frame, sealed, Numbers::DEFAULT) else { return };
        for (switch, number) in switches.iter().zip(1..) {
            let Some(request) = Request::find(&frame[..length], Numbers::DEFAULT) else { break };
            let state = switch.state(number);
            if !switch.is_linux || !request.stamp_as_linux(&mut frame, &state) {
                length = request.stamp(&mut frame, length, &state).unwrap_or(length);
            }
        }
        let _ = self.host.endpoint.on_frame(self.now, &mut self.host.ram, &frame[..length]);
    }

    fn plain(&mut self, header: &Header, payload: &[u8]) {
        self.send(0xc123, header, payload, Format::Hpcc, &[]);
    }

    fn feedback(&mut self, carrier: u8, behind: u8, report: &Report) {
        let bytes = report.bytes();
        // Only valid reports are put into packets. The same function refuses a packet with an invalid one.
        let Ok(feedback) = Feedback::read(&bytes) else { return };
        // About one of the newest packets in flight, or about a probe.
        let next = self.host.endpoint.report(self.host.qpn).expect("it is there").send_psn.get();
        let bth = self.bth(if carrier % 4 == 1 {
            behind.into()
        } else {
            next.wrapping_sub(u32::from(behind % 16))
        });
        let header = match carrier % 4 {
            0 => Header::TelemetryNotification { bth, feedback },
            1 => Header::TelemetryResponse { bth, feedback },
            2 => Header::DirectResponse { bth, feedback },
            _ => {
                let bth = Bth { congestion: Bth::TELEMETRY, psn: Psn::new(self.acknowledged + PSN), ..bth };
                let header = Header::Connected { service: Service::Rc, bth, operation: ack(0) };
                return self.plain(&header, &bytes);
            }
        };
        self.plain(&header, &[]);
    }

    fn take(&mut self, messages: &Message) {
        match *messages {
            Message::Feedback { carrier, behind, ref report } => self.feedback(carrier, behind, report),
            Message::Setup { reverse, reports, base_rtt, rates, eta, max_stage } => {
                let reverse =
                    [Reverse::Ack, Reverse::Notification, Reverse::Window][usize::from(reverse % 3)];
                let setup = Setup {
                    reverse,
                    base_rtt: Duration::from_nanos(base_rtt.into()),
                    line_rate: rates[0].get(),
                    min_rate: rates[1].get(),
                    additive_increase: rates[2].get(),
                    target_utilisation: eta.get() as u32,
                    max_stage: max_stage.into(),
                    reports: match reverse {
                        Reverse::Window => ReportKind::Busiest,
                        _ => [ReportKind::Busiest, ReportKind::Flows, ReportKind::All]
                            [usize::from(reports % 3)],
                    },
                };
                self.plain(&Header::TelemetrySetup { bth: self.bth(0), setup, seal: None }, &[]);
            }
            Message::Telemetry { is_probe, format, port, hops, ref switch } => {
                let format = Format::ALL[usize::from(format) % Format::ALL.len()].1;
                let switches = [switch[0], switch[1], switch[0], switch[1]];
                let switches = &switches[..usize::from(hops % 5)];
                let port = 0xc123 + u16::from(port % 3);
                let room = if format == Format::Hpcc { ROOM } else { 0 };
                if is_probe {
                    let header =
                        Header::TelemetryRequest { bth: self.bth(5), int: IntHeader::with_room(room) };
                    return self.send(
                        port,
                        &header,
                        &[0; 64][..usize::from(room) * RECORD_LENGTH],
                        format,
                        switches,
                    );
                }
                let psn = self.host.endpoint.report(self.host.qpn).expect("it is there").expected_psn.get();
                let congestion = if format == Format::Hpcc { Bth::TELEMETRY } else { 0 };
                let bth = Bth { congestion, ..self.bth(psn) };
                let operation = Operation::WriteOnly(
                    roce::wire::Reth {
                        address: crate::harness::BASE,
                        rkey: self.host.region.rkey,
                        length: 64,
                    },
                    None,
                );
                let header = Header::Connected { service: Service::Rc, bth, operation };
                self.send(port, &header, &[1; 64], format, switches);
            }
            Message::Ack { ahead } => {
                let next = self.host.endpoint.report(self.host.qpn).expect("it is there").send_psn;
                let sent = next.distance(Psn::new(PSN)).unsigned_abs();
                self.acknowledged = (self.acknowledged + u32::from(ahead)).min(sent.saturating_sub(1));
                let bth = self.bth(PSN + self.acknowledged);
                self.plain(&Header::Connected { service: Service::Rc, bth, operation: ack(0) }, &[]);
            }
            Message::Wait(time) => self.now = self.now + time.nanos(),
        }
    }
}

pub fn run(bytes: &[u8]) {
    let mut rest = Unstructured::new(bytes);
    let Ok(setting) = Setting::arbitrary(&mut rest) else { return };
    let mut world = World::new(setting);
    for _ in 0..100 {
        let Ok(messages) = Message::arbitrary(&mut rest) else { break };
        world.take(&messages);
        world.now = world.now + Duration::from_nanos(100);
        world.host.endpoint.on_timeout(world.now);
        world.drain();
        let report = world.host.endpoint.report(world.host.qpn).expect("it is there");
        assert!(report.rate.is_none_or(|rate| rate > Rate::default() && rate <= LINE_RATE), "{report:?}");
        assert!(
            report.utilisation.is_none_or(|share| (0.0..=cc::Inflight::MAX).contains(&share)),
            "{report:?}"
        );
        if rest.is_empty() {
            break;
        }
    }
}
