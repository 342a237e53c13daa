//! Encodes blocks of a pcapng file (draft-ietf-opsawg-pcapng): a section header, an interface per port, packets with their direction, and
//! statistics. docs/decisions/012-captures-are-rings.md explains why no crate is used.

use verbs::observe::{Direction, Record};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Option codes. Each is valid only in its own block type.
const END: u16 = 0;
const APPLICATION: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const DROP_COUNT: u16 = 4;
const START_TIME: u16 = 2;
const END_TIME: u16 = 3;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

const ETHERNET: u16 = 1;

/// The counts of an interface during a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The time of the first packet, ns since 1970.
    pub start: u64,
    /// The time of the last packet, ns since 1970.
    pub end: u64,
    /// Packets sent and received, including dropped ones.
    pub received: u64,
    /// Packets dropped because the rings were full.
    pub dropped: u64,
}

/// Appends the header of a file. `application` is the name of the writer.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION, |out| {
        words(out, &[0x1a2b_3c4d, 1]);
        // The length of the section is unknown.
        out.extend(u64::MAX.to_le_bytes());
        option(out, APPLICATION, application.as_bytes());
        option(out, END, &[]);
    });
}

/// Appends an Ethernet interface with timestamps in ns. `snap` is the snapshot length, bytes. Interfaces are numbered from 0.
pub fn interface(out: &mut Vec<u8>, name: &str, snap: u32) {
    block(out, INTERFACE, |out| {
        words(out, &[ETHERNET.into(), snap]);
        option(out, NAME, name.as_bytes());
        option(out, RESOLUTION, &[9]);
        option(out, END, &[]);
    });
}

/// Appends a packet of interface `number`, of which `bytes` were captured.
pub fn packet(out: &mut Vec<u8>, number: u32, record: &Record, bytes: &[u8]) {
    block(out, PACKET, |out| {
        words(out, &[number, (record.time >> 32) as u32, record.time as u32]);
        words(out, &[bytes.len() as u32, record.length]);
        padded(out, bytes);
        let way: u32 = if record.direction == Direction::In { 1 } else { 2 };
        option(out, FLAGS, &way.to_le_bytes());
        if record.dropped > 0 {
            option(out, DROP_COUNT, &u64::from(record.dropped).to_le_bytes());
        }
        option(out, END, &[]);
    });
}

/// Appends the statistics of interface `number`.
pub fn statistics(out: &mut Vec<u8>, number: u32, statistics: &Statistics) {
    let time = |time: u64| [((time >> 32) as u32).to_le_bytes(), (time as u32).to_le_bytes()].concat();
    block(out, STATISTICS, |out| {
        words(out, &[number, (statistics.end >> 32) as u32, statistics.end as u32]);
        option(out, START_TIME, &time(statistics.start));
        option(out, END_TIME, &time(statistics.end));
        option(out, RECEIVED, &statistics.received.to_le_bytes());
        option(out, DROPPED, &statistics.dropped.to_le_bytes());
        option(out, END, &[]);
    });
}

/// Appends a block, which has its length before and after its body.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    words(out, &[kind, 0]);
    body(out);
    let length = ((out.len() - begin + 4) as u32).to_le_bytes();
    out[begin + 4..begin + 8].copy_from_slice(&length);
    out.extend(length);
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(1024)];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes);
    out.extend(&[0; 3][..bytes.len().wrapping_neg() % 4]);
}

#[cfg(test)]
mod tests {
    use super::super::reader::Reader;
    use super::*;

    fn record(time: u64, direction: Direction, length: u32, dropped: u32) -> Record {
        Record { time, direction, length, captured: length, dropped }
    }

    #[test]
    fn packets_are_read_as_they_were_written() {
        let mut file = Vec::new();
        section(&mut file, "ferroce");
        interface(&mut file, "here", 65_536);
        interface(&mut file, "there with a longer name", 65_536);
        let late = 1_800_000_000_123_456_789;
        packet(&mut file, 0, &record(7, Direction::In, 5, 0), &[1, 2, 3, 4, 5]);
        packet(&mut file, 1, &record(late, Direction::Out, 9, 3), &[9; 8]);
        statistics(&mut file, 0, &Statistics { start: 7, end: 7, received: 1, dropped: 0 });
        let mut reader = Reader::new(file.as_slice()).unwrap();
        // The second packet has 9 bytes, of which 8 were captured.
        for (time, bytes, is_cut) in
            [(7, &[1, 2, 3, 4, 5][..], false), (late, &[9, 9, 9, 9, 9, 9, 9, 9, 0], true)]
        {
            let read = reader.next().unwrap().unwrap();
            assert_eq!((read.time_ns, read.bytes, read.is_cut), (time, bytes, is_cut));
        }
        assert!(reader.next().unwrap().is_none());
        assert!(file.len().is_multiple_of(4));
    }

    #[test]
    fn a_packets_block_is_that_of_the_draft() {
        let mut out = Vec::new();
        packet(&mut out, 1, &record(0x1_0000_0002, Direction::Out, 6, 5), &[0xaa; 6]);
        let mut expected = Vec::new();
        words(&mut expected, &[6, 68, 1, 1, 2, 6, 6, 0xaaaa_aaaa, 0xaaaa]);
        words(&mut expected, &[2 | 4 << 16, 2, 4 | 8 << 16, 5, 0, 0, 68]);
        assert_eq!(out.len(), expected.len());
        assert_eq!(out[..4], expected[..4]);
        assert_eq!(out[8..60], expected[8..60]);
        assert_eq!(out[4..8], out[out.len() - 4..]);
        assert_eq!(out[4..8], (out.len() as u32).to_le_bytes());
    }
}
