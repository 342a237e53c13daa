//! Flow steering: which raw packet queue pair takes a frame, by rules on the frame's headers (`ibv_create_flow(3)`).

mod headers;
mod spread;
mod table;

use alloc::vec::Vec;
pub(crate) use headers::Headers;
pub use spread::{HASH_KEY, HashFields, MOST_ENTRIES, Spread};
pub(crate) use table::{Cursor, FlowTable};
pub use table::{FlowId, MOST_FLOWS};

/// The value that some bits of a header field must have. All fields are in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked<const N: usize> {
    /// The value.
    pub value: [u8; N],
    /// The bits of the field that are compared with it.
    pub mask: [u8; N],
}

impl<const N: usize> Masked<N> {
    /// Matches any value.
    pub const ANY: Self = Self { value: [0; N], mask: [0; N] };

    /// Matches exactly this value.
    #[must_use]
    pub const fn exactly(value: [u8; N]) -> Self {
        Self { value, mask: [0xff; N] }
    }

    fn is_any(&self) -> bool {
        self.mask == [0; N]
    }

    fn fits(&self, field: &[u8; N]) -> bool {
        let bits = self.value.iter().zip(&self.mask).zip(field);
        bits.into_iter().all(|((value, mask), field)| (value ^ field) & mask == 0)
    }
}

impl<const N: usize> Default for Masked<N> {
    fn default() -> Self {
        Self::ANY
    }
}

/// Fields of an Ethernet header. Those that are not set match any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetSpec {
    /// The destination address.
    pub destination: Masked<6>,
    /// The source address.
    pub source: Masked<6>,
    /// The EtherType; of a tagged frame, the one behind the 802.1Q tag.
    pub ether_type: Masked<2>,
    /// The 802.1Q tag: priority (3 bits), DEI, VLAN identifier (12 bits). If any bit is compared, untagged frames do not match.
    pub vlan: Masked<2>,
}

/// Fields of an IPv4 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Spec {
    /// The source address.
    pub source: Masked<4>,
    /// The destination address.
    pub destination: Masked<4>,
    /// The protocol: 6 for TCP, 17 for UDP.
    pub protocol: Masked<1>,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: Masked<1>,
    /// The time to live.
    pub time_to_live: Masked<1>,
    /// Flags as verbs have them: 2 is "don't fragment", 4 is "more fragments".
    pub flags: Masked<1>,
}

/// Fields of an IPv6 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Spec {
    /// The source address.
    pub source: Masked<16>,
    /// The destination address.
    pub destination: Masked<16>,
    /// The flow label, in the low 20 bits.
    pub flow_label: Masked<4>,
    /// The next header: 6 for TCP, 17 for UDP.
    pub next_header: Masked<1>,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: Masked<1>,
    /// The hop limit.
    pub hop_limit: Masked<1>,
}

/// The ports of TCP or UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// The source port.
    pub source: Masked<2>,
    /// The destination port.
    pub destination: Masked<2>,
}

/// One header that a frame must have, and the fields of it that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSpec {
    /// Ethernet II, with an 802.1Q tag or without.
    Ethernet(EthernetSpec),
    /// IPv4.
    Ipv4(Ipv4Spec),
    /// IPv6.
    Ipv6(Ipv6Spec),
    /// TCP right behind the IP header, in no later fragment.
    Tcp(PortSpec),
    /// UDP right behind the IP header, in no later fragment.
    Udp(PortSpec),
}

/// The frames that a rule is about. RoCEv2 packets are never among them: their queue pairs take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowFrames {
    /// Those that match all of these; any frame if there are none.
    Matching(Vec<FlowSpec>),
    /// Those that no rule of [`Self::Matching`] takes.
    Rest,
    /// Those of [`Self::Rest`] that are to a group's Ethernet address.
    RestOfGroups,
}

/// The fate of the frames of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowAction {
    /// The queue pair takes them.
    Take,
    /// The queue pair gets a copy, and later rules see them too.
    Copy,
    /// They are dropped.
    Drop,
}

/// A rule: what happens to which frames. Rules of a lower priority number come first, and of two with one number the older one. Queue pairs
/// with equal rules get a copy each.
///
/// ```
/// # use ferroce_roce::steering::{FlowAction, FlowFrames, FlowRule, FlowSpec, Masked, PortSpec};
/// let dns = PortSpec { destination: Masked::exactly(53_u16.to_be_bytes()), ..PortSpec::default() };
/// let rule = FlowRule::new(vec![FlowSpec::Udp(dns)]);
/// assert_eq!((rule.priority, rule.action), (0, FlowAction::Take));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The lowest number comes first.
    pub priority: u16,
    /// The frames that it is about.
    pub frames: FlowFrames,
    /// Their fate.
    pub action: FlowAction,
}

impl FlowRule {
    /// Creates a rule of the first priority by which a queue pair takes the frames that match all of `specs`.
    #[must_use]
    pub const fn new(specs: Vec<FlowSpec>) -> Self {
        Self { priority: 0, frames: FlowFrames::Matching(specs), action: FlowAction::Take }
    }

    fn fits(&self, headers: &Headers<'_>) -> bool {
        match &self.frames {
            FlowFrames::Matching(specs) => specs.iter().all(|spec| headers.fit(spec)),
            FlowFrames::Rest => true,
            FlowFrames::RestOfGroups => headers.are_of_a_group(),
        }
    }

    /// Returns the rule's place in the order in which rules are tried.
    fn order(&self) -> (bool, u16) {
        (!matches!(self.frames, FlowFrames::Matching(_)), self.priority)
    }
}
