//! `ferroce pcap` on captures of Linux Soft-RoCE.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

fn captures() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roce/tests/captures");
    let entries = fs::read_dir(folder).expect("the folder of captures");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    assert_eq!(files.len(), 20);
    files
}

fn capture(name: &str) -> PathBuf {
    captures().into_iter().find(|file| file.ends_with(name)).expect("a capture of that name")
}

/// Returns exit code, standard output and standard error.
fn pcap(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("ferroce").expect("the binary");
    let output = command.arg("pcap").args(arguments).write_stdin(input).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

fn summary(json_lines: &str) -> Value {
    let last = json_lines.lines().last().expect("a line");
    serde_json::from_str::<Value>(last).expect("JSON")["summary"].clone()
}

#[test]
fn every_capture_decodes_and_its_icrcs_verify() {
    for file in captures() {
        let (code, out, _) = pcap(&["--json", file.to_str().expect("UTF-8")], b"");
        let summary = summary(&out);
        assert_eq!(code, 0, "{}", file.display());
        assert_eq!(summary["icrc_ok"], summary["frames"], "{}", file.display());
        assert_eq!(summary["roce"], summary["frames"], "{}", file.display());
    }
}

#[test]
fn a_line_has_the_fields_of_its_packet() {
    let file = capture("rc_write_loss.pcap");
    let (code, out, _) = pcap(&[file.to_str().expect("UTF-8")], b"");
    assert_eq!(code, 0);
    let first = out.lines().next().expect("a line");
    assert!(first.contains("RC RDMA WRITE First qpn 0x000053 psn 264678 "), "{first}");
    assert!(first.contains(" dma_length 8192 1024 B ICRC ok"), "{first}");
    let nak = out.lines().find(|line| line.contains("NAK")).expect("a NAK after the loss");
    assert!(
        nak.contains("RC Acknowledge qpn 0x000047 psn 264706 syndrome NAK PsnSequenceError msn 3 0 B"),
        "{nak}"
    );
}

#[test]
fn a_flipped_byte_is_reported_with_exit_1() {
    let mut bytes = fs::read(capture("rc_send_1k.pcap")).expect("the capture");
    // A byte of the first frame's payload: after the headers of the file and of the record, and 54 bytes of packet headers.
    bytes[24 + 16 + 100] ^= 1;
    let (code, out, _) = pcap(&["-"], &bytes);
    assert_eq!(code, 1);
    assert!(out.lines().next().expect("a line").ends_with("ICRC BAD"), "{out}");
    assert!(out.contains("ICRC: 6 ok, 1 BAD"), "{out}");
}

#[test]
fn a_file_that_is_not_a_capture_is_refused_with_one_line_and_exit_2() {
    let cut = &fs::read(capture("rc_send_1k.pcap")).expect("the capture")[..200];
    for (input, says) in [
        (&b"hello, world, this is text"[..], "not a pcap or pcapng file"),
        (b"", "not a pcap or pcapng file"),
        (cut, "ends inside a record"),
    ] {
        let (code, _, error) = pcap(&["--summary", "-"], input);
        assert_eq!(code, 2);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(says), "{error}");
    }
    let (code, out, error) = pcap(&["/nonexistent.pcap"], b"");
    assert_eq!((code, &*out), (2, ""), "nothing was read, so there is nothing to sum up");
    assert!(error.contains("/nonexistent.pcap: No such file"), "{error}");
}

/// Returns the times and frames of a little-endian capture in µs.
fn records(bytes: &[u8]) -> Vec<(u32, u32, &[u8])> {
    let mut rest = &bytes[24..];
    let mut records = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(16) {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (frame, after) = after.split_at(word(8) as usize);
        records.push((word(0), word(4), frame));
        rest = after;
    }
    records
}

fn big_endian_ns(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0002_0004, 0, 0, 65535, 1] {
        out.extend(word.to_be_bytes());
    }
    for (seconds, micros, frame) in records(bytes) {
        for word in [seconds, micros * 1000, frame.len() as u32, frame.len() as u32] {
            out.extend(word.to_be_bytes());
        }
        out.extend(frame);
    }
    out
}

fn pcapng(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = (12 + body.len().next_multiple_of(4)) as u32;
        out.extend(kind.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(body);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(length.to_le_bytes());
    };
    block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    // Ethernet, no snapshot length, if_tsresol 9: ns.
    block(1, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    for (seconds, micros, frame) in records(bytes) {
        let ns = u64::from(seconds) * 1_000_000_000 + u64::from(micros) * 1000;
        let mut body = Vec::new();
        for word in [0, (ns >> 32) as u32, ns as u32, frame.len() as u32, frame.len() as u32] {
            body.extend(word.to_le_bytes());
        }
        body.extend(frame);
        block(6, &body);
    }
    out
}

#[test]
fn every_format_gives_the_same_packets() {
    let bytes = fs::read(capture("rc_send_5001.pcap")).expect("the capture");
    let (code, expected, _) = pcap(&["--json", "-"], &bytes);
    assert_eq!(code, 0);
    for other in [big_endian_ns(&bytes), pcapng(&bytes)] {
        assert_eq!(pcap(&["--json", "-"], &other), (0, expected.clone(), String::new()));
    }
}

/// Returns a capture with the link type `link`. `packet` converts each Ethernet frame to a packet of that type, of which at most `snap`
/// bytes are captured.
fn relinked(bytes: &[u8], link: u32, snap: usize, packet: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, snap as u32, link] {
        out.extend(word.to_le_bytes());
    }
    for (seconds, micros, frame) in records(bytes) {
        let packet = packet(frame);
        let captured = &packet[..packet.len().min(snap)];
        for word in [seconds, micros, captured.len() as u32, packet.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(captured);
    }
    out
}

const ALL: usize = 65535;

#[test]
fn every_link_type_and_encapsulation_gives_the_same_packets() {
    let bytes = fs::read(capture("rc_send_5001.pcap")).expect("the capture");
    let (_, expected, _) = pcap(&["--json", "-"], &bytes);
    let raw = |frame: &[u8]| frame[14..].to_vec();
    let any = |frame: &[u8]| [&[0; 14], &frame[12..]].concat();
    let any2 = |frame: &[u8]| [&frame[12..14], &[0; 18], &frame[14..]].concat();
    let qinq = |frame: &[u8]| [&frame[..12], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], &frame[12..]].concat();
    let vxlan = |frame: &[u8]| {
        let mut outer = [&[0; 12][..], &[8, 0, 0x45], &[0; 27], &[8, 0, 0, 0, 0, 0, 5, 0]].concat();
        outer[23] = 17;
        outer[36..38].copy_from_slice(&4789_u16.to_be_bytes());
        [&outer, frame].concat()
    };
    for (what, other) in [
        ("raw", relinked(&bytes, 101, ALL, raw)),
        ("any", relinked(&bytes, 113, ALL, any)),
        ("any, newer", relinked(&bytes, 276, ALL, any2)),
        ("QinQ", relinked(&bytes, 1, ALL, qinq)),
        ("VXLAN", relinked(&bytes, 1, ALL, vxlan)),
    ] {
        assert_eq!(pcap(&["--json", "-"], &other), (0, expected.clone(), String::new()), "{what}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.pcap.gz");
    let mut gzip =
        flate2::write::GzEncoder::new(fs::File::create(&file).expect("a file"), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &bytes)
        .and_then(|()| gzip.finish().map(drop))
        .expect("it is written");
    let (code, out, _) = pcap(&["--json", file.to_str().expect("UTF-8")], b"");
    assert_eq!((code, summary(&out)), (0, summary(&expected)));
}

#[test]
fn packets_that_the_snapshot_length_cuts_off_are_shown_without_a_verdict() {
    let bytes = fs::read(capture("rc_send_5001.pcap")).expect("the capture");
    let cut = relinked(&bytes, 1, 56, <[u8]>::to_vec);
    let (code, out, _) = pcap(&["--json", "-"], &cut);
    let sums = summary(&out);
    assert_eq!((code, &sums["cut_off"], &sums["icrc_bad"]), (0, &sums["frames"], &Value::from(0)));
    assert_eq!(
        (&sums["roce"], sums["discards"].as_object().map(serde_json::Map::len)),
        (&sums["frames"], Some(0))
    );
    let (_, out, _) = pcap(&["-"], &cut);
    assert!(out.lines().next().expect("a line").ends_with("ICRC not captured"), "{out}");
    assert!(out.contains("cut off by the snapshot length"), "{out}");
}

#[test]
fn an_interface_without_roce_does_not_end_a_pcapng_file() {
    let bytes = fs::read(capture("rc_send_1k.pcap")).expect("the capture");
    let mut file = pcapng(&bytes);
    // Interface 1 has link type 802.11 (105), and one packet of 4 bytes.
    for word in [1_u32, 20, 105, 0, 20, 6, 36, 1, 0, 0, 4, 4, 0, 36] {
        file.extend(word.to_le_bytes());
    }
    let (code, out, _) = pcap(&["--json", "-"], &file);
    let sums = summary(&out);
    assert_eq!((code, &sums["other"], &sums["roce"]), (0, &Value::from(1), &Value::from(7)));
    // A capture with only such an interface cannot be decoded.
    let (code, _, error) = pcap(&["-"], &relinked(&bytes, 105, ALL, <[u8]>::to_vec));
    assert!(code == 2 && error.contains("link type 105 carries no RoCEv2"), "{error}");
}

/// The test that writes the capture stamped these records: 200 Mb/s and more.
#[test]
fn records_of_every_format_are_printed() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roce/tests/formats/formats.pcap");
    let (code, out, _) = pcap(&["--json", file.to_str().expect("UTF-8")], b"");
    assert_eq!(code, 0);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for format in ["int-md", "ioam", "ifa", "aecn", "csig", "csig-wide"] {
        let told = lines.iter().filter(|line| line["format"] == format);
        let records: Vec<&Value> =
            told.flat_map(|line| line["records"].as_array().expect("an array")).collect();
        assert!(!records.is_empty(), "{format}");
        for record in records {
            let says = match format {
                "aecn" => &record["utilisation"],
                "csig" | "csig-wide" => &record["available"],
                _ => &record["queue_bytes"],
            };
            assert!(says.as_f64().is_some_and(|number| number > 0.0), "{format}: {record}");
        }
    }
    let (_, text, _) = pcap(&[file.to_str().expect("UTF-8")], b"");
    assert!(text.lines().any(|line| line.contains(" format ioam record {")), "{text}");
}
