//! The names and descriptions of counters.

use datapath::engine::CoreCounters;
use roce::Counters;

/// Counters of an endpoint that are also reported for each core.
pub(super) const CORE_FRAMES: [&str; 2] = ["rx_frames", "tx_frames"];

/// Returns the name, description and value of each counter except the discards.
#[must_use]
pub fn named_counters(counters: &Counters) -> [(&'static str, &'static str, u64); 20] {
    [
        ("rx_frames", "frames received", counters.rx_frames),
        ("tx_frames", "frames sent", counters.tx_frames),
        ("rx_payload_bytes", "payload bytes received", counters.rx_payload_bytes),
        ("tx_payload_bytes", "payload bytes sent", counters.tx_payload_bytes),
        ("retransmitted", "data packets retransmitted", counters.retransmitted),
        ("timeouts", "acknowledgement timeouts", counters.timeouts),
        ("naks_sent", "NAKs sent", counters.naks_sent),
        ("naks_received", "NAKs received", counters.naks_received),
        ("held_early", "early packets held", counters.held_early),
        ("evicted_early", "early packets evicted", counters.evicted_early),
        ("rnr_naks_sent", "RNR NAKs sent", counters.rnr_naks_sent),
        ("rnr_naks_received", "RNR NAKs received", counters.rnr_naks_received),
        ("probes_sent", "probes sent", counters.probes_sent),
        ("probe_responses", "probe responses", counters.probe_responses),
        ("feedback_sent", "telemetry answers sent", counters.feedback_sent),
        ("feedback_received", "telemetry answers received", counters.feedback_received),
        ("path_moves", "moves to another path", counters.path_moves),
        ("rx_marked", "packets marked CE", counters.rx_marked),
        ("cnps_sent", "CNPs sent", counters.notifications_sent),
        ("cnps_received", "CNPs received", counters.notifications_received),
    ]
}

/// Returns the name, description and value of each counter of a core.
#[must_use]
pub fn named_core_counters(counters: &CoreCounters) -> [(&'static str, &'static str, u64); 21] {
    let port = &counters.port;
    [
        ("busy_turns", "turns that found work", counters.busy_turns),
        ("idle_turns", "turns that found nothing", counters.idle_turns),
        ("not_for_us", "frames to another Ethernet address", counters.not_for_us),
        ("other_processes", "frames to other processes of the interface", counters.siblings),
        (
            "other_processes_full",
            "frames lost because the ring to another process of the interface was full",
            counters.siblings_full,
        ),
        ("other_vlan", "frames of another VLAN than the port's", counters.other_vlan),
        ("neighbour_packets", "ARP and ND packets received", counters.neighbour_packets),
        ("neighbour_malformed", "malformed ARP and ND packets", counters.neighbour_malformed),
        ("pool_dry", "times that the port's pool had no buffer", counters.pool_dry),
        ("port_held", "frames lost because the port took none for 0.5 s", counters.port_held),
        ("unplugged", "frames lost while `ferroce fault` held the port down", counters.unplugged),
        ("cq_overflows", "completion queues that overflowed", counters.cq_overflows),
        (
            "handed_over",
            "frames that a core received and handed to that of their queue pair",
            counters.handed_over,
        ),
        ("hand_over_full", "frames lost because the ring to their core was full", counters.hand_over_full),
        ("port_odd_buffer", "received frames in several buffers, or in a shared one", port.odd_buffer),
        ("port_bad_length", "frames to be sent that were empty or too long", port.bad_length),
        (
            "port_malformed",
            "received datagrams of several packets whose lengths or headers do not fit",
            port.malformed,
        ),
        (
            "port_not_udp",
            "received segments of several packets that are not UDP, such as the kernel's TCP",
            port.not_udp,
        ),
        ("port_not_whole", "received frames that were too long, or not received whole", port.not_whole),
        ("port_ring_full", "received datagrams for which the receive ring had no room", port.ring_full),
        (
            "port_refused",
            "frames that the kernel refused to send, as while the interface is down",
            port.refused,
        ),
    ]
}
