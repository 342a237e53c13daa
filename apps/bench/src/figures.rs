//! All figures, in the order of the table.

use crate::figure::{Figure, Goal, Run};
use crate::host::Link;
use crate::{dropin, echo, memory, ring, scale, testpmd, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where figures are measured.
pub struct Place {
    /// The tools.
    pub ferroce: PathBuf,
    /// Two processes.
    pub memif: Link,
    /// Two processes.
    pub virtio: Link,
    /// Two namespaces, where there are some.
    pub af_packet: Option<Link>,
    /// What measures between two Soft-RoCE guests, where there are some: called with `ours` or `rxe` and the figure.
    pub guests: Option<PathBuf>,
}

/// What surrounds the payload of a WRITE that is one packet: Ethernet, IPv4, UDP, BTH, RETH, ICRC.
const WRITE_OVERHEAD: usize = 14 + 20 + 8 + 12 + 16 + 4;
/// The same of a SEND.
const SEND_OVERHEAD: usize = WRITE_OVERHEAD - 16;

const MILLION: f64 = 1e6;

/// Every figure that this place allows.
pub fn all(place: &Place) -> Vec<Figure> {
    let mut figures = memif(place);
    figures.extend(virtio(place));
    if let Some(link) = &place.af_packet {
        figures.extend(af_packet(place, link));
    }
    figures.extend(inside());
    if let Some(measure) = &place.guests {
        figures.extend(guests(measure));
    }
    figures
}

/// Linux's own RoCEv2, in the same two guests.
fn guests(measure: &Path) -> Vec<Figure> {
    let run = |who: &'static str, what: &'static str| -> Run {
        let measure = measure.to_owned();
        Box::new(move || {
            let output = Command::new(&measure).args([who, what]).output();
            let output = output.map_err(|error| format!("{}: {error}", measure.display()))?;
            let text = String::from_utf8_lossy(&output.stdout);
            text.trim().parse().map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
        })
    };
    let figure = |name, what, unit, of, goal| Figure {
        name,
        what,
        unit,
        yardstick: "Linux's rdma_rxe with perftest in the same guests",
        goal,
        ours: run("ours", of),
        theirs: run("rxe", of),
    };
    vec![
        figure("rxe-write-64k", "WRITE of 64 KiB between two guests", "Gb/s", "bandwidth", Goal::Least(5.0)),
        figure(
            "rxe-write-64",
            "WRITE of 64 B between two guests, messages",
            "M/s",
            "rate",
            Goal::Least(10.0),
        ),
        figure(
            "rxe-write-lat",
            "WRITE of 64 B between two guests, half a round trip",
            "µs",
            "latency",
            Goal::Most(1.0),
        ),
    ]
}

fn memif(place: &Place) -> Vec<Figure> {
    let link = &place.memif;
    let goal = Goal::LeastOr { ratio: 0.5, ours: 10.0 };
    vec![
        small("memif-write-64", "WRITE of 64 B over memif, messages", place, link, goal),
        packets("memif-write-4k", "WRITE of 4 KiB over memif, packets", place, link, Goal::Least(0.6)),
        gigabits("memif-write-64k", "WRITE of 64 KiB over memif, MTU 4096", place, link, "write-bw", 4096),
        gigabits("memif-write-64k-1k", "WRITE of 64 KiB over memif, MTU 1024", place, link, "write-bw", 1024),
        gigabits("memif-read-64k", "READ of 64 KiB over memif, MTU 4096", place, link, "read-bw", 4096),
        latency("memif-send-64", "SEND of 64 B over memif, half a round trip", place, link),
        library(place, link),
    ]
}

/// What a program on the drop-in library reaches of what our tool does.
fn library(place: &Place, link: &Link) -> Figure {
    let (ferroce, own) = (place.ferroce.clone(), link.clone());
    Figure {
        name: "dropin-write-64k",
        what: "WRITE of 64 KiB over memif by Debian's ib_write_bw on the drop-in library",
        unit: "Gb/s",
        yardstick: "ferroce write-bw",
        goal: Goal::Least(0.9),
        ours: Box::new(move || dropin::write_bandwidth(&ferroce, &own)),
        theirs: tool_run(
            place,
            link,
            &["write-bw", "-s", "65536", "-D", "2", "--report_gbits"],
            "BW_average",
        ),
    }
}

fn virtio(place: &Place) -> Vec<Figure> {
    let link = &place.virtio;
    let goal = Goal::LeastOr { ratio: 0.5, ours: 10.0 };
    vec![
        small("virtio-write-64", "WRITE of 64 B over vhost-user, messages", place, link, goal),
        packets("virtio-write-4k", "WRITE of 4 KiB over vhost-user, packets", place, link, Goal::Least(0.6)),
        gigabits(
            "virtio-write-64k",
            "WRITE of 64 KiB over vhost-user, MTU 4096",
            place,
            link,
            "write-bw",
            4096,
        ),
        latency("virtio-send-64", "SEND of 64 B over vhost-user, half a round trip", place, link),
    ]
}

fn af_packet(place: &Place, link: &Link) -> Vec<Figure> {
    vec![
        packets(
            "af_packet-write-4k",
            "WRITE of 4 KiB over af_packet, packets",
            place,
            link,
            Goal::Least(0.95),
        ),
        small("af_packet-write-64", "WRITE of 64 B over af_packet, messages", place, link, Goal::Least(0.5)),
        gigabits(
            "af_packet-write-64k",
            "WRITE of 64 KiB over af_packet, MTU 4096",
            place,
            link,
            "write-bw",
            4096,
        ),
        gigabits(
            "af_packet-write-64k-1k",
            "WRITE of 64 KiB over af_packet, MTU 1024",
            place,
            link,
            "write-bw",
            1024,
        ),
        gigabits(
            "af_packet-read-64k",
            "READ of 64 KiB over af_packet, MTU 4096",
            place,
            link,
            "read-bw",
            4096,
        ),
        latency("af_packet-send-64", "SEND of 64 B over af_packet, half a round trip", place, link),
    ]
}

/// What needs no second process.
fn inside() -> Vec<Figure> {
    vec![
        ring_write("ring-write-64", "WRITE of 64 B over a ring, both ends on one core, messages", 64),
        Figure {
            name: "ring-write-64k",
            what: "WRITE of 64 KiB over a ring, both ends on one core, MTU 4096",
            unit: "Gb/s",
            yardstick: "two copies and two CRCs of the same bytes on one core",
            goal: Goal::LeastOr { ratio: 0.8, ours: 100.0 },
            ours: Box::new(|| Ok(ring::writes_per_second(65_536, 100_000)? * 65_536.0 * 8.0 / 1e9)),
            theirs: Box::new(|| Ok(memory::copy_and_crc(4096) / 2.0)),
        },
        Figure {
            name: "idle-qp",
            what: "a connected, idle queue pair of 100,000, resident bytes",
            unit: "B",
            yardstick: "2 KiB",
            goal: Goal::Most(1.0),
            ours: Box::new(|| scale::idle_bytes_afresh(100_000)),
            theirs: Box::new(|| Ok(2048.0)),
        },
        Figure {
            name: "active-qp",
            what: "a queue pair that has a request outstanding, of 10,000, resident bytes",
            unit: "B",
            yardstick: "an idle one",
            goal: Goal::Most(2.0),
            ours: Box::new(|| scale::active_bytes_afresh(10_000)),
            theirs: Box::new(|| scale::idle_bytes_afresh(10_000)),
        },
        many("scale-100", "100 queue pairs paced by HPCC++, ns a packet", 100),
        many("scale-10k", "10,000 queue pairs paced by HPCC++, ns a packet", 10_000),
        many("scale-100k", "100,000 queue pairs paced by HPCC++, ns a packet", 100_000),
    ]
}

/// WRITEs of one packet over a ring, beside raw frames of that size.
fn ring_write(name: &'static str, what: &'static str, size: u32) -> Figure {
    Figure {
        name,
        what,
        unit: "M/s",
        yardstick: "raw frames through the same ring, nothing read or written",
        goal: Goal::LeastOr { ratio: 0.5, ours: 10.0 },
        ours: Box::new(move || Ok(ring::writes_per_second(size, 500_000)? / MILLION)),
        theirs: Box::new(move || {
            Ok(ring::frames_per_second(size as usize + WRITE_OVERHEAD, 5_000_000)? / MILLION)
        }),
    }
}

fn small(name: &'static str, what: &'static str, place: &Place, link: &Link, goal: Goal) -> Figure {
    let args = &["write-bw", "-s", "64", "-D", "2", "-t", "512", "-l", "32"];
    rate(name, what, place, link, goal, args, 64)
}

fn packets(name: &'static str, what: &'static str, place: &Place, link: &Link, goal: Goal) -> Figure {
    let args = &["write-bw", "-s", "4096", "-m", "4096", "-D", "2", "-l", "8"];
    rate(name, what, place, link, goal, args, 4096)
}

/// WRITEs of one packet each, beside testpmd.
fn rate(
    name: &'static str,
    what: &'static str,
    place: &Place,
    link: &Link,
    goal: Goal,
    args: &'static [&'static str],
    payload: usize,
) -> Figure {
    Figure {
        name,
        what,
        unit: "M/s",
        yardstick: "testpmd, frames of the same size",
        goal,
        ours: tool_run(place, link, args, "MsgRate"),
        theirs: frames(link, payload + WRITE_OVERHEAD),
    }
}

fn gigabits(
    name: &'static str,
    what: &'static str,
    place: &Place,
    link: &Link,
    command: &'static str,
    mtu: usize,
) -> Figure {
    let (ferroce, link) = (place.ferroce.clone(), link.clone());
    let mtu_text = mtu.to_string();
    let ours = move || {
        let args = [command, "-s", "65536", "-m", &mtu_text, "-D", "2", "--report_gbits"];
        tool::run(&ferroce, &link, &args, "BW_average")
    };
    Figure {
        name,
        what,
        unit: "Gb/s",
        yardstick: "one copy and one CRC of the same bytes on one core",
        goal: Goal::LeastOr { ratio: 0.8, ours: 100.0 },
        ours: Box::new(ours),
        theirs: Box::new(move || Ok(memory::copy_and_crc(mtu))),
    }
}

fn latency(name: &'static str, what: &'static str, place: &Place, link: &Link) -> Figure {
    let echo_link = link.clone();
    Figure {
        name,
        what,
        unit: "µs",
        yardstick: "a raw echo of frames of the same size",
        goal: Goal::Most(1.10),
        ours: tool_run(place, link, &["send-lat", "-s", "64", "-n", "20000"], "t_typical"),
        theirs: Box::new(move || echo::half_round_trip(&echo_link, 64 + SEND_OVERHEAD)),
    }
}

fn many(name: &'static str, what: &'static str, count: u32) -> Figure {
    let cost = |count| {
        let scale::Cost { nanos_per_packet, fairness } = scale::run(count, 500_000)?;
        // Round robin: nobody is more than a packet ahead, which the last round may show.
        if fairness < 0.99 {
            Err(format!("unfair: Jain's index {fairness:.3}"))
        } else {
            Ok(nanos_per_packet)
        }
    };
    Figure {
        name,
        what,
        unit: "ns",
        yardstick: "one queue pair",
        goal: Goal::Most(1.25),
        ours: Box::new(move || cost(count)),
        theirs: Box::new(move || cost(1)),
    }
}

fn tool_run(place: &Place, link: &Link, args: &'static [&'static str], field: &'static str) -> Run {
    let (ferroce, link) = (place.ferroce.clone(), link.clone());
    Box::new(move || tool::run(&ferroce, &link, args, field))
}

fn frames(link: &Link, length: usize) -> Run {
    let link = link.clone();
    Box::new(move || Ok(testpmd::frames_per_second(&link, length)? / MILLION))
}
