//! The counters of an endpoint, and the reasons for which it drops packets.

use thiserror::Error;

macro_rules! discards {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Reason for dropping a packet. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
        pub enum Discard {
            $($(#[doc = $doc])+ #[error($text)] $name,)+
        }

        impl Discard {
            /// All reasons, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

discards! {
    /// Shorter than its headers state, or than the smallest RoCEv2 packet.
    Truncated = "truncated packet",
    /// Longer than the path MTU allows.
    Oversized = "payload longer than the path MTU",
    /// Neither IPv4 nor IPv6 over Ethernet.
    EtherType = "not IP",
    /// An IP header that is malformed, fragmented or has a wrong checksum.
    IpHeader = "bad IP header",
    /// Not UDP, or not to port 4791.
    NotRoce = "not RoCEv2",
    /// A UDP length or checksum that does not fit the packet.
    UdpHeader = "bad UDP header",
    /// A BTH transport version other than 0 (IBA 9.2.4).
    TransportVersion = "BTH version is not 0",
    /// An opcode that is not defined, or that the service does not have.
    Opcode = "unknown opcode",
    /// The invariant CRC does not match (IBA 9.6.1.1).
    Icrc = "wrong ICRC",
    /// An AETH syndrome that the tables reserve (IBA 9.7.5.2.1).
    Syndrome = "reserved AETH syndrome",
    /// No queue pair has that number.
    UnknownQp = "unknown QPN",
    /// No queue pair is attached to that multicast group.
    UnknownGroup = "multicast group without a queue pair",
    /// Dropped by a flow rule.
    FlowRule = "dropped by a flow rule",
    /// The queue pair is in a state that receives no packets.
    QpState = "QP state takes no packets",
    /// The addresses are not those of the queue pair's peer.
    Address = "not from the connected peer",
    /// The partition key does not match (IBA 9.6.1.1.3).
    PartitionKey = "wrong P_Key",
    /// The queue key of a datagram does not match (IBA 9.6.1.1.3).
    QueueKey = "wrong Q_Key",
    /// Ahead of the expected PSN; a NAK requests the missing packets.
    PsnGap = "PSN ahead of expected",
    /// Received before; acknowledged again if the rules require it.
    Duplicate = "duplicate PSN",
    /// An acknowledgement for packets that were never sent, or acknowledged before.
    StaleAcknowledge = "acknowledgement outside what is in flight",
    /// An offer of selective repeat, or an acceptance, of no connection or of another one.
    StaleOffer = "offer of selective repeat outside the connection",
    /// First, middle and last packets out of order, or another receive queue than at the beginning of the message.
    Sequence = "wrong opcode sequence",
    /// A payload or a length that the opcode, or the message so far, does not allow.
    Length = "length that does not fit the opcode",
    /// An atomic operation at an address that is not a multiple of 8 (IBA 9.4.5).
    Misaligned = "misaligned atomic operation",
    /// A FLUSH of a kind or selectivity that the specification does not define.
    FlushKind = "undefined kind of FLUSH",
    /// A response that does not answer the oldest request; the request fails.
    BadResponse = "response that does not fit the request",
    /// An R_Key of no region.
    RemoteKey = "unknown rkey",
    /// A range that is not completely inside the region.
    RemoteRange = "range outside the region",
    /// The region or queue pair does not allow the access.
    RemoteAccess = "access not allowed",
    /// A local buffer is too small or not allowed.
    LocalProtection = "local buffer error",
    /// Registered memory that the application unmapped, or whose file it truncated.
    Vanished = "registered memory that is no longer mapped",
    /// No receive request is posted; an RNR NAK is sent.
    ReceiverNotReady = "no receive posted",
    /// An XRCETH with no shared receive queue of an XRC domain (IBA annex A14).
    UnknownSrq = "unknown XRC SRQ",
    /// An XRCETH with a shared receive queue of another XRC domain.
    XrcDomain = "XRC SRQ of another domain",
    /// More READs or atomics outstanding than negotiated.
    ResponderResources = "too many outstanding READs or atomics",
    /// Telemetry that is malformed or was not requested.
    Telemetry = "bad telemetry",
    /// A telemetry request to a datagram queue pair whose limit of pending answers is reached.
    AnswersFull = "more telemetry requests than answers may wait",
    /// Feedback without authentication, or not authenticated by the shared key.
    ForgedFeedback = "feedback not sealed by the peer",
    /// Authenticated feedback that was received before, or is older than the last one.
    StaleFeedback = "feedback replayed or overtaken",
}

/// Counts of one endpoint since it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Frames received, valid or not.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Payload bytes placed or delivered.
    pub rx_payload_bytes: u64,
    /// Payload bytes sent, including retransmissions.
    pub tx_payload_bytes: u64,
    /// Data packets sent more than once.
    pub retransmitted: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// NAKs sent for a PSN gap.
    pub naks_sent: u64,
    /// NAKs received for a PSN gap.
    pub naks_received: u64,
    /// Early packets held, with selective repeat.
    pub held_early: u64,
    /// Held packets dropped to make room, or because their peer stopped. The peer retransmits them.
    pub evicted_early: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Telemetry requests (probes) sent.
    pub probes_sent: u64,
    /// Telemetry responses received.
    pub probe_responses: u64,
    /// Moves of queue pairs to a less loaded path.
    pub path_moves: u64,
    /// Packets received with CE.
    pub rx_marked: u64,
    /// Congestion notification packets (CNPs) sent.
    pub notifications_sent: u64,
    /// Congestion notification packets (CNPs) received.
    pub notifications_received: u64,
    /// Answers to telemetry sent, with acknowledgements or in separate packets.
    pub feedback_sent: u64,
    /// Answers received to the telemetry of data packets.
    pub feedback_received: u64,
    discards: [u64; Discard::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            rx_frames: 0,
            tx_frames: 0,
            rx_payload_bytes: 0,
            tx_payload_bytes: 0,
            retransmitted: 0,
            timeouts: 0,
            naks_sent: 0,
            naks_received: 0,
            held_early: 0,
            evicted_early: 0,
            rnr_naks_sent: 0,
            rnr_naks_received: 0,
            probes_sent: 0,
            probe_responses: 0,
            path_moves: 0,
            rx_marked: 0,
            notifications_sent: 0,
            notifications_received: 0,
            feedback_sent: 0,
            feedback_received: 0,
            discards: [0; Discard::ALL.len()],
        }
    }
}

impl Counters {
    /// Counts one dropped packet.
    pub fn discard(&mut self, reason: Discard) {
        self.discards[reason as usize] += 1;
    }

    /// Adds the counts of another endpoint.
    pub fn add(&mut self, other: &Self) {
        let Self {
            rx_frames,
            tx_frames,
            rx_payload_bytes,
            tx_payload_bytes,
            retransmitted,
            timeouts,
            naks_sent,
            naks_received,
            held_early,
            evicted_early,
            rnr_naks_sent,
            rnr_naks_received,
            probes_sent,
            probe_responses,
            path_moves,
            rx_marked,
            notifications_sent,
            notifications_received,
            feedback_sent,
            feedback_received,
            discards,
        } = self;
        for (sum, more) in [
            (rx_frames, other.rx_frames),
            (tx_frames, other.tx_frames),
            (rx_payload_bytes, other.rx_payload_bytes),
            (tx_payload_bytes, other.tx_payload_bytes),
            (retransmitted, other.retransmitted),
            (timeouts, other.timeouts),
            (naks_sent, other.naks_sent),
            (naks_received, other.naks_received),
            (held_early, other.held_early),
            (evicted_early, other.evicted_early),
            (rnr_naks_sent, other.rnr_naks_sent),
            (rnr_naks_received, other.rnr_naks_received),
            (probes_sent, other.probes_sent),
            (probe_responses, other.probe_responses),
            (path_moves, other.path_moves),
            (rx_marked, other.rx_marked),
            (notifications_sent, other.notifications_sent),
            (notifications_received, other.notifications_received),
            (feedback_sent, other.feedback_sent),
            (feedback_received, other.feedback_received),
        ] {
            *sum += more;
        }
        discards.iter_mut().zip(other.discards).for_each(|(sum, more)| *sum += more);
    }

    /// Returns the packets dropped for `reason`.
    #[must_use]
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.discards[reason as usize]
    }
}
