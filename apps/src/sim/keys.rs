//! The keys of a scenario, for `docs/reference/scenarios.md`.

/// A key, its default (empty if there is none), and its description.
#[derive(Debug)]
pub struct ScenarioKey {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

const fn key(name: &'static str, default: &'static str, help: &'static str) -> ScenarioKey {
    ScenarioKey { name, default, help }
}

/// The tables of a scenario: heading, the TOML that begins the table (with `@` in place of a key and its value), and the keys.
#[rustfmt::skip]
pub const TABLES: &[(&str, &str, &[ScenarioKey])] = &[
    ("Topology", "@", &[
        key("topology", "", "`star`: hosts around a switch. `dumbbell`: two switches with `hosts` hosts each. `parking-lot`: a line of `switches` switches with `hosts` hosts each. `leaf-spine`: `switches` leaves with `hosts` hosts each, and `spines` spines. `fat-tree`: the 320 hosts of the HPCC paper. `graph`: the links that `link` or `links` lists"),
        key("hosts", "", "number of hosts; in `dumbbell`, `parking-lot` and `leaf-spine`, at each switch or leaf. 1 to 4096, in a graph to 200000; hosts times switches at most 2^27"),
        key("switches", "", "number of switches; in `leaf-spine`, of leaves. 1 to 256, in a graph to 200000"),
        key("spines", "", "number of spines, 1 to 256"),
        key("rate", "", "rate of the hosts' links, whole Gb/s from 1 to 1000: `\"100G\"`. In a graph, of the links that have none of their own"),
        key("fabric_rate", "`rate`", "rate of links between switches; not in a graph"),
        key("delay", "", "propagation delay of a link: `\"1us\"`. In a graph, of the links that have none of their own"),
        key("link", "", "a list of tables: the links of a graph"),
        key("links", "", "instead of `link`: file with the links of a graph, relative to the scenario, in the format of the simulator of HPCC's authors (`topology.txt`); its error rates are shares of packets. It has numbers, rates and delays, so `hosts`, `switches`, `rate` and `delay` are left out"),
        key("first_host", "1", "number of the first host in `[[flow]]`, `[[link]]` and flow lists. In a graph from a file, the number that the file gives it"),
    ]),
    ("`[[link]]`: a link of a graph", "[[link]]\n@", &[
        key("ends", "", "two nodes: `[\"h1\", \"s1\"]`, where `h1` is the first host (see `first_host`) and `s1` the first switch. Each host has one link"),
        key("rate", "the scenario's", "rate of each direction"),
        key("delay", "the scenario's", "propagation delay"),
        key("loss", "0", "probability that the link loses a packet, 0 to 1, in each direction. Endpoints only"),
    ]),
    ("Changes", "@", &[
        key("change", "", "a list of tables: links that change their rate, fail or return during the run"),
    ]),
    ("`[[change]]`: a change of links", "[[change]]\n@", &[
        key("time", "", "virtual time of the change"),
        key("link", "", "the two nodes that the link connects, in either order: `[\"s1\", \"s2\"]`. If several links connect them, all change"),
        key("node", "", "instead of `link`: all links of this node, `\"h1\"` or `\"s1\"`, change. The switches of a `leaf-spine` are its leaves, then its spines; those of the `fat-tree` are top of rack, aggregation, core"),
        key("rate", "", "the new rate of each direction, whole Gb/s from 1 to 1000. A packet that is being sent keeps the old one"),
        key("down", "false", "`true`: the link fails. Packets on it are lost, switches drop those that wait for it, and flows take the other shortest paths at once. Without a path, switches drop the packets. An endpoint whose retries run out ends the run with an error"),
        key("up", "false", "`true`: the link returns, and with it the paths over it"),
    ]),
    ("Hosts and packets", "@", &[
        key("congestion", "", "congestion control of the flows, as in `ferroce.toml`: `\"hpcc,line_rate=100G,base_rtt=4160ns\"`. Also an algorithm that the program registers"),
        key("rival", "", "a list of tables: other congestion control for some flows"),
        key("host", "`\"endpoint\"`", "`endpoint`: the product's endpoints. `model`: a faster model of them, the default with `compat = \"hpcc-ns3\"`"),
        key("compat", "`\"ferroce\"`", "`hpcc-ns3`: packet sizes, times and acknowledgements of the simulator of HPCC's authors"),
        key("mtu", "1024; 1000 with `hpcc-ns3`", "payload of a full packet, bytes: of endpoints 256, 512, 1024, 2048 or 4096, of the model 64 to 9000"),
        key("requests", "", "a table: how endpoints split a flow into requests"),
        key("application", "", "a list of tables: applications that are slower than the network"),
        key("loss", "0", "probability that a frame is lost on the link from its host, 0 to 1, in addition to the `loss` of that link. Endpoints only"),
        key("faults", "", "file with a script of faults, relative to the scenario, in the format of [`ferroce switch --faults`](faults.md). Its `port` is the node that sends and the node at the other end of the link, `\"s1_h3\"`; a fault without `port` applies to each frame when it leaves its host. Times are virtual times, and each port counts its own frames. With model hosts, whose packets have no headers, a fault has no `qp`, `opcode`, `psn`, `source`, `destination` and `udp_source`, and its action is not `corrupt`"),
        key("lie", "0", "probability that a host falsifies a report on a path, 0 to 1. Endpoints only"),
        key("deaf", "false", "hosts ignore packets that only Ferroce understands, such as probes. Endpoints only"),
    ]),
    ("`[[rival]]`: other congestion control", "[[rival]]\n@", &[
        key("dscp", "", "the DSCP of its flows, 0 to 63"),
        key("hosts", "", "instead of `dscp`: its flows are those that these hosts send, `[1, 2]`"),
        key("congestion", "", "their congestion control. Of several that match a flow, the first applies. With the model of hosts, either all algorithms compute with telemetry or none"),
    ]),
    ("`[requests]`: how endpoints split a flow", "[requests]\n@", &[
        key("verb", "`\"write\"`", "`write`, `read` or `send`"),
        key("bytes", "2^30", "bytes of a request, 1 to 2^30"),
        key("depth", "64", "requests outstanding at once, 1 to 4096"),
        key("selective_repeat", "false", "both ends use selective repeat instead of go-back-N"),
    ]),
    ("`[[application]]`: a slow application", "[[application]]\n@", &[
        key("host", "", "the number of its host"),
        key("rate", "", "rate at which it consumes the messages that the host receives: `\"10G\"`. It posts another receive when it has consumed a message; while none is posted, the host asks senders to wait (RNR NAK). Needs `verb = \"send\"`; endpoints only"),
    ]),
    ("Switches", "@", &[
        key("buffer", "33554432", "buffer of a switch, bytes, shared by its ports"),
        key("pfc", "true", "switches pause senders that fill their buffer (PFC); without it they drop"),
        key("ecn", "", "a table: when switches mark packets. Without it they do not mark; with `compat = \"hpcc-ns3\"`, `dctcp` and `dcqcn` have the authors' thresholds"),
        key("second_class", "", "a table: a second class of service"),
        key("tell_sojourn", "false", "telemetry reports the bytes that the link carries while the packet waits, instead of the queue's length"),
        key("direct", "", "a table: direct responses of congested switches"),
        key("linux_ioam", "false", "switches write telemetry as Linux does as an IOAM node; needs `format=ioam` in `congestion`"),
    ]),
    ("`[ecn]`: marks", "[ecn]\n@", &[
        key("min", "", "bytes in the queue of a link of 100 Gb/s above which packets are marked; other links in proportion"),
        key("max", "", "bytes above which every packet is marked"),
        key("probability", "1", "share of packets that are marked just below `max`, 0 to 1"),
    ]),
    ("`[second_class]`: a second class of service", "[second_class]\n@", &[
        key("dscp", "", "the DSCP of its packets, 0 to 63"),
        key("weights", "", "shares of a link for the first and the second class: `[3, 1]`"),
    ]),
    ("`[direct]`: direct responses", "[direct]\n@", &[
        key("threshold", "", "bytes in a queue above which the switch responds to senders itself"),
        key("interval", "", "shortest time between two responses to a sender"),
    ]),
    ("Flows", "@", &[
        key("flow", "", "a list of tables, each one flow or one flow from each of several hosts"),
        key("traffic", "", "a table: random flows instead of `flow`"),
        key("collective", "", "a list of tables: operations of several hosts, in addition to `flow` or `traffic`"),
        key("jitter", "`\"0ns\"`", "largest random delay of each start"),
    ]),
    ("`[[flow]]`: a flow", "[[flow]]\n@", &[
        key("source", "", "the host that sends"),
        key("senders", "", "instead of `source`: one flow from each of the first `senders` hosts"),
        key("destination", "", "the host that receives"),
        key("bytes", "", "payload of the flow, at least 1"),
        key("start", "`\"0ns\"`", "when it begins; with `after`, how long after that"),
        key("after", "", "the number of an entry of `[[flow]]`, from 1: the flow begins when all of its flows have ended"),
        key("dscp", "0", "DSCP of its packets, 0 to 63"),
        key("congestion", "the scenario's", "its congestion control, also in place of that of a `[[rival]]`"),
    ]),
    ("`[[collective]]`: an operation of several hosts", "[[collective]]\n@", &[
        key("kind", "", "`ring`: an all-reduce on a ring, in which each host sends a part of its data to the next in each of 2 (`hosts` - 1) steps, when it has received that of the step before. `all-to-all`: each host sends to each other, one after the other, first to the next"),
        key("hosts", "all", "number of hosts, counted from the first; at least 2"),
        key("bytes", "", "bytes of a host; in an `all-to-all`, for each other host"),
        key("start", "`\"0ns\"`", "when it begins"),
    ]),
    ("`[traffic]`: random flows", "[traffic]\n@", &[
        key("sizes", "", "`web-search`, `fb-hadoop`, `uniform:BYTES` (1 to BYTES), or `cdf:FILE`: lines of bytes and share of flows of at most that size, in percent or from 0 to 1"),
        key("load", "", "mean share of each host's link that the flows use, 0 to 1; in a graph, of a link as fast as the first host's"),
        key("load_link", "", "the link that `load` is a share of instead, from the first node to the second: `[\"s1\", \"s2\"]`. Flows divide equally among the shortest paths. `load` may then exceed 1, if the hosts can send as much"),
        key("time", "", "flows begin within this time, as a Poisson process"),
        key("burst", "1", "number of flows that a host begins at once, 1 to 100000. Bursts are a Poisson process with the same load"),
        key("incast", "", "a table: incasts in addition"),
    ]),
    ("`[traffic.incast]`: incasts in addition", "[traffic.incast]\n@", &[
        key("senders", "", "hosts that send to one at the same time"),
        key("bytes", "", "bytes of each"),
        key("load", "", "mean share of each host's link that incasts use, 0 to 1"),
    ]),
    ("The run", "@", &[
        key("sample", "", "interval of the rows of `series.csv`; without it there is no series"),
        key("sample_ports", "that to the first flow's destination", "the ports of the series, each by its node and the node at the other end of its link: `[[\"s1\", \"s2\"], [\"s2\", \"h3\"]]`, at most 64. The first is the bottleneck of the figures; the others have columns of their own"),
        key("limit", "`\"1s\"`", "virtual time at which the run ends at the latest"),
        key("reference", "", "a table: the name of this run in the folder of `--compare`"),
    ]),
    ("`[reference]`: the run to compare with", "[reference]\n@", &[
        key("scenario", "", "its scenario"),
        key("variant", "", "its variant; `--vary` changes it"),
    ]),
];

#[cfg(test)]
mod tests {
    use super::super::scenario::Text;
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the keys that the parser expects in place of @ in the text.
    fn expected(begin: &str) -> BTreeSet<String> {
        let error = toml::from_str::<Text>(&begin.replace('@', "unknown = 1")).map(drop).unwrap_err();
        let (_, names) =
            error.message().split_once("expected ").unwrap_or_else(|| panic!("{begin}: {error}"));
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_key_of_a_scenario_is_listed_once() {
        let begins: BTreeSet<_> = TABLES.iter().map(|(_, begin, _)| *begin).collect();
        for begin in begins {
            let tables = TABLES.iter().filter(|table| table.1 == begin);
            let mut listed: Vec<_> =
                tables.flat_map(|table| table.2).map(|key| key.name.to_owned()).collect();
            listed.sort();
            assert_eq!(listed, expected(begin).into_iter().collect::<Vec<_>>(), "{begin}");
        }
    }
}
