//! All figures, in the order of the table.

use crate::figure::{Figure, Goal, Run};
use crate::host::{Link, Veth};
use crate::one_core::{self, Traffic};
use crate::two_cores::{self, Work};
use crate::{dropin, echo, interface, memory, ring, scale, testpmd, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs and links with which figures are measured.
pub struct Place {
    /// The `ferroce` program.
    pub ferroce: PathBuf,
    /// Two processes on a memif.
    pub memif: Link,
    /// Two processes on vhost-user.
    pub virtio: Link,
    /// Two network namespaces, if available.
    pub af_packet: Option<Veth>,
    /// The program that measures between two Soft-RoCE guests, if available. Its arguments are `ours` or `rxe`, and the figure.
    pub guests: Option<PathBuf>,
}

/// The bytes around the payload of a WRITE in one packet: Ethernet, IPv4, UDP, BTH, RETH, ICRC.
const WRITE_OVERHEAD: usize = 14 + 20 + 8 + 12 + 16 + 4;
/// The bytes around the payload of a SEND in one packet.
const SEND_OVERHEAD: usize = WRITE_OVERHEAD - 16;

/// The goal for messages of 64 bytes.
const SMALL: Goal = Goal::LeastOr { ratio: 0.5, ours: 10.0 };
const MILLION: f64 = 1e6;
const COPY_AND_CRC: &str = "one copy and one CRC of the same bytes on one core";
const RAW_ECHO: &str = "a raw echo of frames of the same size";

/// Returns every figure that `place` allows.
pub fn all(place: &Place) -> Vec<Figure> {
    let mut figures = one_core();
    figures.extend(two_cores());
    figures.extend(ring());
    figures.extend(between(place, &place.memif, "memif", SMALL, Goal::Least(0.6)));
    figures.push(library(place, &place.memif));
    figures.extend(between(place, &place.virtio, "virtio", SMALL, Goal::Least(0.6)));
    if let Some(veth) = &place.af_packet {
        figures.extend(interface::figures(&place.ferroce, veth));
        let link = Link::Veth(veth.clone());
        figures.extend(between(place, &link, "af_packet", Goal::Least(0.5), Goal::Least(0.95)));
        figures.extend(shared(place, veth));
    }
    figures.extend(inside());
    if let Some(measure) = &place.guests {
        figures.extend(guests(measure));
    }
    figures
}

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
    let figure = |name: &str, what: &str, unit, of, goal| Figure {
        name: name.into(),
        what: what.into(),
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

fn between(place: &Place, link: &Link, port: &str, small: Goal, packets: Goal) -> Vec<Figure> {
    let named = |what: &str| (format!("{port}-{what}"), place, link);
    let over = |what: &str| format!("{what} over {}", link.name());
    vec![
        rate(named("write-64"), over("WRITE of 64 B"), small, 64, &WRITE_64),
        rate(named("write-4k"), over("WRITE of 4 KiB"), packets, 4096, &WRITE_4K),
        gigabits(named("write-64k"), over("WRITE of 64 KiB"), "write-bw", 4096),
        gigabits(named("write-64k-1k"), over("WRITE of 64 KiB"), "write-bw", 1024),
        gigabits(named("read-64k"), over("READ of 64 KiB"), "read-bw", 4096),
        latency(named("send-64"), over("SEND of 64 B")),
    ]
}

/// Returns the figures of two processes that share an interface, compared with the two ends of a veth pair.
fn shared(place: &Place, veth: &Veth) -> Vec<Figure> {
    let veth = veth.with("eth2", "10.79.0.1");
    let own = &Link::Veth(Veth { client: veth.server.clone(), ..veth.clone() });
    let link = &Link::Veth(veth);
    let figure = |name: &str, what: &str, unit, goal, run: &dyn Fn(&Link) -> Run| Figure {
        name: name.into(),
        what: format!("{what}, between processes of one interface"),
        unit,
        yardstick: "the same through veth",
        goal,
        ours: run(own),
        theirs: run(link),
    };
    let write = |name: &str, mtu| {
        let run = |link: &Link| bandwidth(place, link, "write-bw", mtu);
        figure(name, &format!("WRITE of 64 KiB, MTU {mtu}"), "Gb/s", Goal::Least(5.0), &run)
    };
    let send = |link: &Link| tool_run(place, link, &SEND_64, "t_typical");
    vec![
        write("shared-write-64k", 4096),
        write("shared-write-64k-1k", 1024),
        figure("shared-send-64", "SEND of 64 B, half a round trip", "µs", Goal::Most(0.2), &send),
    ]
}

/// Flags of the tools. Half of the time is for warming up. Small messages use HPCC++, which does not reduce the rate without a switch.
const WRITE_64: [&str; 15] = [
    "write-bw",
    "-s",
    "64",
    "-D",
    "1",
    "-t",
    "512",
    "-l",
    "32",
    "--cc",
    "hpcc",
    "--cc-line-rate",
    "400G",
    "--cc-base-rtt",
    "20us",
];
const WRITE_4K: [&str; 9] = ["write-bw", "-s", "4096", "-m", "4096", "-D", "1", "-l", "8"];
const SEND_64: [&str; 5] = ["send-lat", "-s", "64", "-n", "20000"];

fn library(place: &Place, link: &Link) -> Figure {
    const TOOL: [&str; 6] = ["write-bw", "-s", "65536", "-D", "2", "--report_gbits"];
    let (ferroce, own) = (place.ferroce.clone(), link.clone());
    Figure {
        name: "dropin-write-64k".into(),
        what: "WRITE of 64 KiB over memif by Debian's ib_write_bw on the drop-in library".into(),
        unit: "Gb/s",
        yardstick: "ferroce write-bw",
        goal: Goal::Least(0.9),
        ours: Box::new(move || dropin::write_bandwidth(&ferroce, &own)),
        theirs: tool_run(place, link, &TOOL, "BW_average"),
    }
}

/// Returns the figures with both ends in one thread. Their baseline is a constant.
fn one_core() -> Vec<Figure> {
    let nanos = |name: &str, what: &str, traffic, yardstick, goal: f64| Figure {
        name: name.into(),
        what: format!("{what}, both ends on one core"),
        unit: "ns",
        yardstick,
        goal: Goal::Most(1.0),
        ours: Box::new(move || one_core::run_afresh(traffic)),
        theirs: Box::new(move || Ok(goal)),
    };
    let bits = 65_536.0 * 8.0;
    vec![
        nanos("one-core-64", "WRITE of 64 B in lists of 32", Traffic::Write64, "150 ns", 150.0),
        nanos("one-core-4k", "WRITE of 4 KiB in lists of 32", Traffic::Write4k, "420 ns", 420.0),
        Figure {
            name: "one-core-64k".into(),
            what: "WRITE of 64 KiB, MTU 4096, both ends on one core".into(),
            unit: "Gb/s",
            yardstick: "75 Gb/s",
            goal: Goal::Least(1.0),
            ours: Box::new(move || Ok(bits / one_core::run_afresh(Traffic::Write64k)?)),
            theirs: Box::new(|| Ok(75.0)),
        },
        nanos("one-core-single", "WRITE of 64 B, post to completion", Traffic::Single64, "500 ns", 500.0),
    ]
}

/// Returns the figures of two threads on a CPU each, compared with one thread, per second of CPU time of each thread.
fn two_cores() -> Vec<Figure> {
    let run =
        |work, threads| -> Run { Box::new(move || Ok(two_cores::run_afresh(work, threads)? / MILLION)) };
    let figure = |name: &str, what: &str, work, yardstick| Figure {
        name: name.into(),
        what: what.into(),
        unit: "M/s",
        yardstick,
        goal: Goal::Least(1.9),
        ours: run(work, 2),
        theirs: run(work, 1),
    };
    let (pair, core) = ("one pair on one CPU", "the same device with one core");
    vec![
        figure("two-pairs-64", "WRITE of 64 B, two pairs of ends on two CPUs", Work::Pair64, pair),
        figure("two-pairs-4k", "WRITE of 4 KiB, two pairs of ends on two CPUs", Work::Pair4k, pair),
        figure(
            "two-cores-64",
            "WRITE of 64 B into `null`, UC, one device with two cores",
            Work::Null64,
            core,
        ),
        figure(
            "two-cores-4k",
            "WRITE of 4 KiB into `null`, UC, one device with two cores",
            Work::Null4k,
            core,
        ),
    ]
}

fn ring() -> Vec<Figure> {
    let run = |what, size: usize, mtu, unit: f64| -> Run {
        Box::new(move || Ok(ring::run_afresh(what, size as u32, mtu)? * unit))
    };
    let rate = |name: &str, what: &str, size: usize, goal| Figure {
        name: name.into(),
        what: what.into(),
        unit: "M/s",
        yardstick: "raw frames of the same size through such a ring",
        goal,
        ours: run(ring::Run::Write, size, 4096, 1.0 / MILLION),
        theirs: run(ring::Run::Frames, size + WRITE_OVERHEAD, 4096, 1.0 / MILLION),
    };
    let gigabits = |name: &str, what: &str, verb, mtu| Figure {
        name: name.into(),
        what: format!("{what} over a ring, MTU {mtu}"),
        unit: "Gb/s",
        yardstick: COPY_AND_CRC,
        goal: Goal::LeastOr { ratio: 0.8, ours: 100.0 },
        ours: run(verb, 65_536, mtu, 65_536.0 * 8.0 / 1e9),
        theirs: Box::new(move || Ok(memory::copy_and_crc(mtu as usize))),
    };
    vec![
        rate("ring-write-64", "WRITE of 64 B over a ring, packets", 64, SMALL),
        rate("ring-write-4k", "WRITE of 4 KiB over a ring, packets", 4096, Goal::Least(0.6)),
        gigabits("ring-write-64k", "WRITE of 64 KiB", ring::Run::Write, 4096),
        gigabits("ring-write-64k-1k", "WRITE of 64 KiB", ring::Run::Write, 1024),
        gigabits("ring-read-64k", "READ of 64 KiB", ring::Run::Read, 4096),
        Figure {
            name: "ring-send-64".into(),
            what: "SEND of 64 B over a ring, half a round trip".into(),
            unit: "µs",
            yardstick: RAW_ECHO,
            goal: Goal::Most(1.10),
            ours: run(ring::Run::Send, 64, 4096, 1.0),
            theirs: run(ring::Run::Echo, 64 + SEND_OVERHEAD, 4096, 1.0),
        },
    ]
}

/// Returns the figures that need no second process.
fn inside() -> Vec<Figure> {
    vec![
        Figure {
            name: "idle-qp".into(),
            what: "a connected, idle queue pair of 100,000, resident bytes".into(),
            unit: "B",
            yardstick: "2 KiB",
            goal: Goal::Most(1.0),
            ours: Box::new(|| tool::afresh(&["idle", "100000"])),
            theirs: Box::new(|| Ok(2048.0)),
        },
        Figure {
            name: "active-qp".into(),
            what: "a queue pair that has a request outstanding, of 10,000, resident bytes".into(),
            unit: "B",
            yardstick: "an idle one",
            goal: Goal::Most(2.0),
            ours: Box::new(|| tool::afresh(&["active", "10000"])),
            theirs: Box::new(|| tool::afresh(&["idle", "10000"])),
        },
        many("scale-100", "100 queue pairs paced by HPCC++, ns a packet", 100),
        many("scale-10k", "10,000 queue pairs paced by HPCC++, ns a packet", 10_000),
        many("scale-100k", "100,000 queue pairs paced by HPCC++, ns a packet", 100_000),
        fair("fair-100", "how evenly 100 queue pairs share a core, Jain's index", 100),
        fair("fair-10k", "how evenly 10,000 queue pairs share a core, Jain's index", 10_000),
        fair("fair-100k", "how evenly 100,000 queue pairs share a core, Jain's index", 100_000),
    ]
}

type Named<'a> = (String, &'a Place, &'a Link);

fn rate(
    (name, place, link): Named<'_>,
    what: String,
    goal: Goal,
    payload: usize,
    args: &'static [&'static str],
) -> Figure {
    let theirs = link.clone();
    Figure {
        name,
        what: format!("{what}, packets"),
        unit: "M/s",
        yardstick: "testpmd, frames of the same size",
        goal,
        ours: tool_run(place, link, args, "MsgRate"),
        theirs: Box::new(
            move || Ok(testpmd::frames_per_second(&theirs, payload + WRITE_OVERHEAD)? / MILLION),
        ),
    }
}

fn gigabits((name, place, link): Named<'_>, what: String, command: &'static str, mtu: usize) -> Figure {
    Figure {
        name,
        what: format!("{what}, MTU {mtu}"),
        unit: "Gb/s",
        yardstick: COPY_AND_CRC,
        goal: Goal::LeastOr { ratio: 0.8, ours: 100.0 },
        ours: bandwidth(place, link, command, mtu),
        theirs: Box::new(move || Ok(memory::copy_and_crc(mtu))),
    }
}

/// Measures messages of 64 KiB, Gb/s.
fn bandwidth(place: &Place, link: &Link, command: &'static str, mtu: usize) -> Run {
    let (ferroce, link, mtu) = (place.ferroce.clone(), link.clone(), mtu.to_string());
    Box::new(move || {
        let args = [command, "-s", "65536", "-m", &mtu, "-D", "1", "--report_gbits"];
        tool::run(&ferroce, &link, &args, "BW_average")
    })
}

fn latency((name, place, link): Named<'_>, what: String) -> Figure {
    let echo_link = link.clone();
    Figure {
        name,
        what: format!("{what}, half a round trip"),
        unit: "µs",
        yardstick: RAW_ECHO,
        goal: Goal::Most(1.10),
        ours: tool_run(place, link, &SEND_64, "t_typical"),
        theirs: Box::new(move || echo::half_round_trip(&echo_link, 64 + SEND_OVERHEAD)),
    }
}

fn many(name: &str, what: &str, count: u32) -> Figure {
    let cost = |count| Ok(scale::run(count, 500_000)?.nanos_per_packet);
    Figure {
        name: name.into(),
        what: what.into(),
        unit: "ns",
        yardstick: "one queue pair",
        goal: Goal::Most(1.25),
        ours: Box::new(move || cost(count)),
        theirs: Box::new(move || cost(1)),
    }
}

fn fair(name: &str, what: &str, count: u32) -> Figure {
    Figure {
        name: name.into(),
        what: what.into(),
        unit: "",
        yardstick: "1, each the same",
        // With round robin, no queue pair is more than one packet ahead, which the last round may show.
        goal: Goal::Least(0.99),
        ours: Box::new(move || Ok(scale::run(count, 4 * u64::from(count))?.fairness)),
        theirs: Box::new(|| Ok(1.0)),
    }
}

fn tool_run(place: &Place, link: &Link, args: &'static [&'static str], field: &'static str) -> Run {
    let (ferroce, link) = (place.ferroce.clone(), link.clone());
    Box::new(move || tool::run(&ferroce, &link, args, field))
}
