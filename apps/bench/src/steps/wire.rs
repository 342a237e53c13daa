//! Encodes and decodes headers, ICRC and telemetry.

use super::{Meter, Step};
use datapath::linux::datagrams::{Group, HEADROOM, Received, VnetHeader};
use roce::wire::format::{PortState, Request};
use roce::wire::telemetry::IntHeader;
use roce::wire::{
    self, Bth, Format, Header, IcrcAmender, Mac, Numbers, Operation, Path, Reth, Service, SourceFields,
    Template,
};
use roce::{Psn, Qpn, Rkey};
use std::hint::black_box;
use std::net::IpAddr;

pub const STEPS: &[Step] = &[
    Step { name: "header-emit", what: "headers of a WRITE written", budget: 245, run: emit },
    Step { name: "header-parse", what: "headers of a WRITE read", budget: 430, run: parse },
    Step { name: "icrc-64", what: "ICRC of a 64 B WRITE", budget: 385, run: |meter| verify(meter, 64) },
    Step { name: "icrc-1k", what: "ICRC of a 1 KiB WRITE", budget: 1080, run: |meter| verify(meter, 1024) },
    Step { name: "icrc-4k", what: "ICRC of a 4 KiB WRITE", budget: 2540, run: |meter| verify(meter, 4096) },
    Step {
        name: "copy-icrc-64",
        what: "headers, 64 B copied, ICRC",
        budget: 515,
        run: |meter| seal(meter, 64),
    },
    Step {
        name: "copy-icrc-1k",
        what: "headers, 1 KiB copied, ICRC",
        budget: 1330,
        run: |meter| seal(meter, 1024),
    },
    Step {
        name: "copy-icrc-4k",
        what: "headers, 4 KiB copied, ICRC",
        budget: 3095,
        run: |meter| seal(meter, 4096),
    },
    Step {
        name: "codec-hpcc",
        what: "HPCC INT: requested, stamped, read",
        budget: 1160,
        run: |meter| codec(meter, Format::Hpcc),
    },
    Step {
        name: "codec-int-md",
        what: "INT-MD: requested, stamped, read",
        budget: 1740,
        run: |meter| codec(meter, Format::IntMd),
    },
    Step {
        name: "codec-ioam",
        what: "IOAM: requested, stamped, read",
        budget: 2065,
        run: |meter| codec(meter, Format::Ioam),
    },
    Step {
        name: "codec-ifa",
        what: "IFA: requested, stamped, read",
        budget: 1750,
        run: |meter| codec(meter, Format::Ifa),
    },
    Step {
        name: "codec-aecn",
        what: "AECN: requested, stamped, read",
        budget: 1730,
        run: |meter| codec(meter, Format::Aecn),
    },
    Step {
        name: "datagram-group",
        what: "a 1 KiB packet grouped, one of 61 of a large datagram",
        budget: 265,
        run: group,
    },
    Step { name: "datagram-split", what: "the same split off", budget: 152, run: split },
    Step {
        name: "amend-1k",
        what: "ICRC of a 1 KiB packet amended for a UDP socket",
        budget: 215,
        run: amend,
    },
];

/// Packets of a large datagram.
const SEGMENTS: usize = 61;
/// Bytes of its headers: Ethernet, IPv4, UDP.
const DATAGRAM_HEADERS: usize = 14 + 20 + 8;

const BATCH: usize = 32;
const ROOM: usize = wire::MAX_OVERHEAD + wire::MAX_PAYLOAD + 256;

fn way(v6: bool) -> Path {
    let address = |host: u8| match v6 {
        true => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, host.into()]),
        false => IpAddr::from([10, 0, 0, host]),
    };
    Path {
        udp_source: 0xc123,
        traffic_class: 2,
        ..Path::new((Mac([2, 0, 0, 0, 0, 1]), address(1)), (Mac([2, 0, 0, 0, 0, 2]), address(2)))
    }
}

fn template(v6: bool) -> Template {
    Template::new(&way(v6)).expect("one family")
}

fn bth() -> Bth {
    Bth::new(Qpn::new(7), Psn::new(1))
}

fn write(length: usize) -> Header {
    let reth = Reth { address: 0x1000, rkey: Rkey::new(5), length: length as u32 };
    Header::Connected { service: Service::Rc, bth: bth(), operation: Operation::WriteOnly(reth, None) }
}

fn emit(meter: &mut Meter) {
    let (template, header, mut frame) = (template(false), write(64), vec![0; ROOM]);
    for _ in 0..meter.rounds {
        meter.part(BATCH, &mut || {
            for id in 0..BATCH {
                let _ = black_box(template.emit(id as u16, black_box(&header), 64, &mut frame));
            }
        });
    }
}

fn sealed(length: usize) -> Vec<u8> {
    let mut frame = vec![0; ROOM];
    let length = template(false).emit(1, &write(length), length, &mut frame).expect("room").seal();
    frame.truncate(length);
    frame
}

/// Returns consecutive packets of 1 KiB.
fn segments() -> Vec<Vec<u8>> {
    let segment = |id| {
        let mut frame = vec![0; ROOM];
        let length = template(false).emit(id, &write(1024), 1024, &mut frame).expect("room").seal();
        frame.truncate(length);
        frame
    };
    (0..SEGMENTS as u16).map(segment).collect()
}

fn group(meter: &mut Meter) {
    let frames = segments();
    for _ in 0..meter.rounds {
        meter.part(SEGMENTS, &mut || {
            let group = Group::first_of(black_box(&frames)).expect("a group");
            assert_eq!(group.count(), SEGMENTS);
            black_box(group.start(&frames[0]));
            frames.iter().for_each(|frame| _ = black_box(group.payload(frame)));
        });
    }
}

fn split(meter: &mut Meter) {
    let frames = segments();
    let group = Group::first_of(&frames).expect("a group");
    let vnet = VnetHeader::of_datagram((DATAGRAM_HEADERS - 8) as u16, group.payload(&frames[0]).len() as u16);
    let headers = group.start(&frames[0])[10..].to_vec();
    let whole: Vec<u8> = [vec![0; HEADROOM], headers]
        .into_iter()
        .chain(frames.iter().map(|frame| group.payload(frame).to_vec()))
        .flatten()
        .collect();
    for _ in 0..meter.rounds {
        let mut room = whole.clone();
        let length = room.len() - HEADROOM;
        meter.part(SEGMENTS, &mut || {
            let received = Received::parse(vnet, &room[HEADROOM..], length, None).expect("a datagram");
            assert_eq!(received.count(), SEGMENTS);
            (0..SEGMENTS).for_each(|number| _ = black_box(received.frame(number, &mut room)));
        });
    }
}

fn amend(meter: &mut Meter) {
    let (mut frames, mut amender) = (segments(), IcrcAmender::default());
    for _ in 0..meter.rounds {
        meter.part(SEGMENTS, &mut || {
            for (id, frame) in (0..).zip(&mut frames) {
                let before = SourceFields { source_port: id, identification: id };
                amender.amend(black_box(frame), before).expect("a good frame");
            }
        });
    }
}

fn parse(meter: &mut Meter) {
    let frame = sealed(64);
    for _ in 0..meter.rounds {
        meter.part(BATCH, &mut || {
            for _ in 0..BATCH {
                let _ = black_box(wire::parse_unverified(black_box(&frame)));
            }
        });
    }
}

fn verify(meter: &mut Meter, length: usize) {
    let frame = sealed(length);
    for _ in 0..meter.rounds {
        meter.part(BATCH, &mut || {
            (0..BATCH).for_each(|_| wire::verify(black_box(&frame)).expect("a good frame"));
        });
    }
}

fn seal(meter: &mut Meter, length: usize) {
    let (template, header, mut frame) = (template(false), write(length), vec![0; ROOM]);
    let payload = vec![7; length];
    for _ in 0..meter.rounds {
        meter.part(BATCH, &mut || {
            for id in 0..BATCH {
                let mut draft =
                    template.emit(id as u16, black_box(&header), length, &mut frame).expect("room");
                draft.payload().copy_from_slice(&payload);
                black_box(draft.seal());
            }
        });
    }
}

/// A sender inserts telemetry into a probe, a switch writes into it, and the receiver reads it.
fn codec(meter: &mut Meter, format: Format) {
    let template = template(true);
    let int = IntHeader::with_room(if format == Format::Hpcc { 8 } else { 0 });
    let header = Header::TelemetryRequest { bth: bth(), int };
    let port = PortState {
        switch: 0x123,
        port: 1,
        rate: cc::Rate::from_gbps(100),
        time: 5_000_000_001,
        tx_bytes: 77_000,
        queue: 1600,
        sojourn: 99,
        load: Default::default(),
    };
    let (gap, mut plain) = (format.inserted(), vec![0; ROOM]);
    let length = template.emit(1, &header, int.room_bytes(), &mut plain[gap..]).expect("room").seal();
    for _ in 0..meter.rounds {
        let mut frames = vec![plain.clone(); BATCH];
        let mut read = 0;
        meter.part(BATCH, &mut || {
            for frame in &mut frames {
                let length = format.insert(frame, length, Numbers::DEFAULT).expect("a place for it");
                let length = Request::find(frame, Numbers::DEFAULT)
                    .and_then(|request| request.stamp(frame, length, black_box(&port)))
                    .expect("room for a hop");
                let parsed = wire::parse_unverified(&frame[..length]).expect("a good frame");
                read += match (parsed.header, parsed.network.telemetry()) {
                    (_, Some(carried)) => usize::from(carried.read().is_some()),
                    (Header::TelemetryRequest { int, .. }, None) => int.records(parsed.payload).count(),
                    _ => 0,
                };
            }
        });
        assert_eq!(read, BATCH, "every packet has a hop record");
    }
}
