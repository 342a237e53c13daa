//! Tests of the tables of a report.

use super::*;
use verbs::{Mtu, Qpn};

fn plan(verb: Verb, kind: Kind) -> Plan {
    Plan {
        tool: Tool { verb, kind },
        sizes: vec![65536],
        amount: Amount::Messages(5000),
        qps: 2,
        bidirectional: false,
        reversed: false,
        rdma_cm: false,
        atomic: AtomicType::FetchAndAdd,
        connection: crate::perf::args::Connection::Rc,
        mtu: None,
        verify: false,
        seed: 1,
    }
}

fn head_of(plan: &Plan) -> Head<'_> {
    Head {
        plan,
        device: "veth0",
        sends: true,
        tx_depth: 128,
        rx_depth: 512,
        post_list: 1,
        cq_mod: 1,
        inline_size: 0,
        outs: 16,
        mtu: 4096,
        gid_index: 0,
        shares_receives: false,
        congestion: "fixed window 524288 B",
        progress: "inline",
    }
}

#[test]
fn the_head_of_a_write_bandwidth_test() {
    let expected = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : veth0
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 0
 Max inline data : 0[B]
 rdma_cm QPs     : OFF
 Data ex. method : Ethernet
 Congestion      : fixed window 524288 B
 Progress        : inline
---------------------------------------------------------------------------------------";
    assert_eq!(head(&head_of(&plan(Verb::Write, Kind::Bandwidth))), expected);
}

#[test]
fn titles_name_the_operation() {
    let mut both = plan(Verb::Send, Kind::Bandwidth);
    both.bidirectional = true;
    assert_eq!(title(&both, 8), "Send Bidirectional Post List BW Test");
    assert_eq!(title(&plan(Verb::Read, Kind::Latency), 8), "RDMA_Read Latency Test");
    assert_eq!(title(&plan(Verb::Atomic, Kind::Bandwidth), 1), "Atomic FETCH_AND_ADD BW Test");
}

#[test]
fn a_reader_shows_outstanding_reads_and_no_completion_moderation() {
    let text = head(&head_of(&plan(Verb::Read, Kind::Latency)));
    assert!(text.contains("\n Outstand reads  : 16\n"), "{text}");
    assert!(!text.contains("CQ Moderation"), "{text}");
}

#[test]
fn addresses_are_shown_as_perftest_shows_them() {
    let qp = QpEndpoint {
        ip: "10.0.0.1".parse().unwrap(),
        qpn: Qpn::new(0x11),
        psn: roce::Psn::new(0xabcdef),
        mtu: Mtu::M4096,
        max_rd_atomic: 16,
        selective_repeat: false,
    };
    let buffer = RemoteBuffer { address: 0x7f00_1234_5000, length: 64, rkey: 0x8001 };
    let write = Tool { verb: Verb::Write, kind: Kind::Bandwidth };
    assert_eq!(
        addresses("local", write, 16, &[qp], &buffer),
        " local address: LID 0000 QPN 0x0011 PSN 0xabcdef RKey 0x008001 VAddr 0x007f0012345000\n \
         GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01"
    );
    let send = Tool { verb: Verb::Send, kind: Kind::Latency };
    assert!(
        addresses("remote", send, 16, &[qp], &buffer)
            .starts_with(" remote address: LID 0000 QPN 0x0011 PSN 0xabcdef\n")
    );
    let read = Tool { verb: Verb::Read, kind: Kind::Latency };
    assert!(addresses("local", read, 16, &[qp], &buffer).contains(" OUT 0x10 RKey "));
}

#[test]
fn a_bandwidth_row_in_both_units() {
    let run = Bandwidth { peak: 2.0 * 1_048_576.0, ..Bandwidth::over(65536, 5000, 1_000_000_000) };
    assert_eq!(
        columns(&plan(Verb::Write, Kind::Bandwidth), false),
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
    );
    assert_eq!(
        bandwidth_row(&run, false),
        " 65536      5000             2.00               312.50 \t\t     0.005000"
    );
    assert_eq!(
        bandwidth_row(&run, true),
        " 65536      5000             0.02               2.62   \t\t     0.005000"
    );
    let slow = Bandwidth::over(2, 1000, 1_000_000_000);
    assert_eq!(
        bandwidth_row(&slow, true),
        " 2          1000           0.000000            0.000016            0.001000"
    );
}

#[test]
fn a_latency_row_and_its_percentiles() {
    let run = Latency {
        size: 2,
        exchanges: 1000,
        min: 1.0,
        max: 20.5,
        average: 2.25,
        deviation: 0.5,
        p50: 2.0,
        p90: 3.0,
        p99: 4.0,
        p999: 10.0,
        p9999: 20.0,
        rate: 222_222.0,
    };
    let counted = latency_row(&run, Amount::Messages(1000));
    let mut lines = counted.lines();
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["2", "1000", "1.00", "20.50", "2.00", "2.25", "0.50", "4.00", "10.00"]
    );
    assert_eq!(
        lines.next().unwrap(),
        " percentiles[usec]: 50% 2.00  90% 3.00  99% 4.00  99.9% 10.00  99.99% 20.00  max 20.50"
    );
    let timed = latency_row(&run, Amount::Time { whole: Default::default(), margin: Default::default() });
    assert!(timed.starts_with(" 2             1000            2.25           222222.00\n"), "{timed}");
}

#[test]
fn the_use_of_cpus_is_a_column_of_the_first_line() {
    assert_eq!(with_cpu("row\nrest", Some(12.5)), "row\t    12.50\nrest");
    assert_eq!(with_cpu("row", Some(7.0)), "row\t    7.00");
    assert_eq!(with_cpu("row\nrest", None), "row\nrest");
}

#[test]
fn each_sample_has_its_number() {
    assert_eq!(samples(&[1.5, 0.25]), "#, usec\n1, 1.5\n2, 0.25");
}

#[test]
fn each_direction_has_a_row() {
    let run = Bandwidth::over(65536, 5000, 1_000_000_000);
    let text = directions(&run, &run.plus(run), false);
    let averages: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert_eq!(averages, ["312.50", "625.00"], "{text}");
}
