//! An endpoint with outstanding requests that receives frames: any bytes, and packets of which only the ICRC is correct. Besides its
//! connection, it has datagram queue pairs with HPCC++ and PowerTCP, which receive probes and telemetry responses.
#![no_main]

use arbitrary::Arbitrary;
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use harness::raw::Raw;
use harness::script::{PEER, PSN, Script};
use harness::{BASE, Options, path};
use libfuzzer_sys::fuzz_target;
use roce::qp::{
    CompletionStatus, Congestion, CongestionAlgorithm, Datagram, Modify, QpInit, RecvRequest, Remote,
    SendRequest, State,
};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{Bth, Feedback, Header, MAX_OVERHEAD, Mtu, Report, Service, emit, reseal};
use roce::{AddressId, Discard, Psn, Qpn, Rkey};

use testkit::harness;

const POSTED: u64 = 6;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    Packet {
        opcode: u8,
        flags: u8,
        ack_request: bool,
        /// Offset from the expected PSN for a request, or from the oldest sent PSN for a response.
        ahead: i8,
        extension: Extension,
        payload: u16,
    },
    Wait(u16),
    Datagrams(Telling),
}

/// A probe or a telemetry response for one of the queue pairs of [`Datagrams`].
#[derive(Arbitrary, Debug)]
struct Telling {
    to: u8,
    is_answer: bool,
    from: u8,
    number: u8,
    is_forged: bool,
    hops: u8,
    record: [u32; 4],
    /// Offsets and XOR masks of bytes to corrupt.
    edits: [(u8, u8); 2],
}

/// The first bytes after the BTH.
#[derive(Arbitrary, Debug)]
enum Extension {
    None,
    Reth {
        offset: u16,
        forged: bool,
        length: u16,
    },
    Atomic {
        offset: u16,
        operands: [u64; 2],
    },
    Aeth {
        syndrome: u8,
    },
    /// The bit map of a selective acknowledgement.
    Held(u128),
    Offer {
        accepts: bool,
    },
    Any([u8; 16]),
}

impl Extension {
    fn bytes(&self, script: &Script) -> Vec<u8> {
        let key = script.rkey().get();
        let at = |offset: u16| (BASE + u64::from(offset)).to_be_bytes();
        match *self {
            Self::None => Vec::new(),
            Self::Reth { offset, forged, length } => {
                let key = (key ^ u32::from(forged)).to_be_bytes();
                [&at(offset)[..], &key, &u32::from(length).to_be_bytes()].concat()
            }
            Self::Atomic { offset, operands: [one, two] } => {
                [&at(offset)[..], &key.to_be_bytes(), &one.to_be_bytes(), &two.to_be_bytes()].concat()
            }
            Self::Aeth { syndrome } => vec![syndrome, 0, 0, 1],
            Self::Held(held) => [&[0, 0, 0, 1][..], &held.to_be_bytes()].concat(),
            Self::Offer { accepts } => [[u8::from(accepts), 0, 0, 0], [0; 4]]
                .iter()
                .flat_map(|word| (u32::from_be_bytes(*word) | PSN).to_be_bytes())
                .collect(),
            Self::Any(bytes) => bytes.to_vec(),
        }
    }
}

const KEY: u32 = 0x1234;
const LINE_RATE: Rate = Rate::from_gbps(10);

struct Datagrams {
    qps: [Qpn; 2],
    to: AddressId,
}

impl Datagrams {
    fn new(script: &mut Script) -> Self {
        let hpcc = HpccConfig::new(LINE_RATE, Duration::from_micros(10), NonZeroU32::MIN);
        let powertcp = CongestionAlgorithm::Registered(&cc::POWERTCP, hpcc.into());
        let qps = [CongestionAlgorithm::Hpcc(hpcc), powertcp].map(|algorithm| {
            let init = QpInit { service: Service::Ud, ..script.host.init(&Options::default()) };
            let endpoint = &mut script.host.endpoint;
            let qpn = endpoint.create_qp(script.now, init).expect("room");
            for modify in [
                Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
                Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
                Modify::ReadyToSendDatagrams {
                    send_psn: Psn::new(7),
                    congestion: Congestion::new(algorithm),
                },
            ] {
                endpoint.modify_qp(script.now, qpn, modify).expect("legal");
            }
            qpn
        });
        let to = script.host.endpoint.create_address(script.host.pd, &path(2, 1)).expect("legal");
        Self { qps, to }
    }

    /// Posts a datagram to each queue pair, after which it sends a probe.
    fn post(&self, script: &mut Script) {
        for qpn in self.qps {
            if script.host.endpoint.report(qpn).expect("it is there").outstanding > 0 {
                continue;
            }
            let to = Datagram { address: self.to, qpn: Qpn::new(PEER), queue_key: KEY };
            let request = SendRequest::send_to(0, script.host.sge(0, 8), to).unsignalled();
            script.host.endpoint.post_send(script.now, qpn, request).expect("room");
        }
    }

    fn feed(&self, script: &mut Script, telling: &Telling) {
        self.post(script);
        drain(script);
        let Telling {
            to, is_answer, from, number, is_forged, hops, record: [code, time, sent, queue], ..
        } = *telling;
        let qpn = self.qps[usize::from(to) % self.qps.len()];
        let bth = Bth { partition_key: 0xffff, ..Bth::new(qpn, Psn::new(number.into())) };
        let speed =
            Speed::from_code(code as u8 % 16).unwrap_or_else(|| Speed::from_rate(LINE_RATE).expect("known"));
        let record = HopRecord::new(speed, time.into(), sent.into(), queue.into());
        let header = if is_answer {
            let report = Report::Busiest { path_id: 0, hops: 1, busiest: Some((0, record)) };
            Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } }
        } else {
            let bth = Bth { congestion: Bth::TELEMETRY, ..bth };
            Header::DatagramTelemetryRequest {
                bth,
                queue_key: KEY ^ u32::from(is_forged),
                source: Qpn::new(PEER),
            }
        };
        let mut frame = vec![0; 2 * MAX_OVERHEAD];
        let length = emit(&path(from.clamp(1, 9), 2), 0, &header, 0, &mut frame).expect("room").seal();
        frame.truncate(length);
        for switch in 0..hops % 10 {
            stamp(&mut frame, u16::from(switch), record);
        }
        for (place, byte) in telling.edits.iter().filter(|(_, byte)| *byte != 0) {
            let behind_the_network = 42 + usize::from(*place) % (length - 42);
            frame[behind_the_network] ^= byte;
        }
        let _ = reseal(&mut frame);
        feed(script, &frame, false);
        let report = script.host.endpoint.report(qpn).expect("it is there");
        assert!(report.rate.is_none_or(|rate| rate <= LINE_RATE), "{report:?}");
    }
}

fn start(selective_repeat: bool, offered: bool) -> Script {
    let mut script =
        Script::new(Options { memory: 1 << 13, selective_repeat, offered, ..Options::default() });
    let (qpn, remote) = (script.host.qpn, Remote { address: BASE, rkey: Rkey::new(1) });
    for id in 0..POSTED {
        let sge = script.host.sge(0, 2500);
        script.host.endpoint.post_recv(qpn, RecvRequest::new(id, sge)).expect("room");
        let request = match id % 3 {
            0 => SendRequest::write(id, sge, remote),
            1 => SendRequest::read(id, sge, remote),
            _ => SendRequest::fetch_add(id, script.host.sge(0, 8), remote, 1),
        };
        script.host.endpoint.post_send(script.now, qpn, request).expect("room");
    }
    script
}

fn drain(script: &mut Script) {
    let mut frame = vec![0; 4096 + MAX_OVERHEAD];
    while let Some(length) = script.host.endpoint.poll_transmit(script.now, &script.host.ram, &mut frame) {
        assert_eq!(roce::wire::verify(&frame[..length]), Ok(()));
    }
}

fn feed(script: &mut Script, frame: &[u8], may_hold: bool) {
    let before = script.host.ram.0.clone();
    let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, frame);
    // With selective repeat, a correct packet may release an incorrect one that waited for it.
    if taken.is_err() && !may_hold {
        assert!(script.host.ram.0 == before, "{taken:?} wrote");
    }
    drain(script);
}

fn packet(script: &mut Script, datagrams: &Datagrams, input: &Input<'_>, may_hold: bool) {
    match *input {
        Input::Datagrams(ref telling) => datagrams.feed(script, telling),
        Input::Bytes(bytes) => feed(script, bytes, may_hold),
        Input::Wait(micros) => script.wait(Duration::from_micros(micros.into())),
        Input::Packet { opcode, flags, ack_request, ahead, ref extension, payload } => {
            let is_answer = matches!(opcode, 13..=18 | 0xc8 | 0xc9);
            let report = script.host.endpoint.report(script.host.qpn).expect("it is there");
            let base = if is_answer { PSN } else { report.expected_psn.get() };
            let mut rest = extension.bytes(script);
            rest.resize(rest.len() + usize::from(payload % 1100), 0xee);
            let psn = base.wrapping_add_signed(ahead.into()) & 0xff_ffff;
            let raw = Raw { opcode, flags, partition_key: 0xffff, ack_request, psn, rest };
            let frame = raw.frame(script.host.qpn);
            feed(script, &frame, may_hold);
        }
    }
}

fuzz_target!(|input: (u8, Vec<Input<'_>>)| {
    let (recovery, inputs) = input;
    let (selective_repeat, offered) = (recovery % 3 == 1, recovery % 3 == 2);
    let may_hold = selective_repeat || offered;
    let mut script = start(selective_repeat, offered);
    let datagrams = Datagrams::new(&mut script);
    drain(&mut script);
    inputs.iter().take(64).for_each(|input| packet(&mut script, &datagrams, input, may_hold));
    drain(&mut script);
    let (sent, received) = (script.host.sent(), script.host.received());
    for completions in [&sent, &received] {
        let first_error = completions.iter().position(|c| c.status != CompletionStatus::Success);
        let after = &completions[first_error.map_or(completions.len(), |first| first + 1)..];
        assert!(after.iter().all(|c| c.status == CompletionStatus::Flushed), "{completions:?}");
        assert!(completions.iter().zip(0..).all(|(completion, id)| completion.id == id), "{completions:?}");
    }
    if script.state() == State::Error {
        assert_eq!((sent.len() as u64, received.len() as u64), (POSTED, POSTED));
        let frame =
            Raw { opcode: 4, flags: 0, partition_key: 0xffff, ack_request: true, psn: PSN, rest: vec![] }
                .frame(script.host.qpn);
        let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame);
        assert_eq!(taken, Err(Discard::QpState));
    }
});
