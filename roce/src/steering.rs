//! Flow steering: rules on the headers of a frame select the raw packet queue pair that receives it (`ibv_create_flow(3)`).

mod headers;
mod rss;
mod table;

use alloc::vec::Vec;
pub(crate) use headers::Headers;
pub use rss::{HASH_KEY, HashFields, MAX_ENTRIES, Rss};
pub(crate) use table::{Cursor, FlowTable};
pub use table::{FlowId, MAX_FLOWS};

/// Value of selected bits of a header field. All fields are in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked<const N: usize> {
    /// Value of the field.
    pub value: [u8; N],
    /// Bits of the field that are compared.
    pub mask: [u8; N],
}

impl<const N: usize> Masked<N> {
    /// Matches any value.
    pub const ANY: Self = Self { value: [0; N], mask: [0; N] };

    /// Matches only this value.
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

/// Fields of an Ethernet header. Fields that are not set match any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetSpec {
    /// Destination address.
    pub destination: Masked<6>,
    /// Source address.
    pub source: Masked<6>,
    /// EtherType; in a tagged frame, the one after the 802.1Q tag.
    pub ether_type: Masked<2>,
    /// 802.1Q tag: priority (3 bits), DEI, VLAN identifier (12 bits). If any bit is compared, untagged frames do not match.
    pub vlan: Masked<2>,
}

/// Fields of an IPv4 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Spec {
    /// Source address.
    pub source: Masked<4>,
    /// Destination address.
    pub destination: Masked<4>,
    /// Protocol: 6 for TCP, 17 for UDP.
    pub protocol: Masked<1>,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: Masked<1>,
    /// Time to live.
    pub time_to_live: Masked<1>,
    /// Flags as in verbs: 2 is "don't fragment", 4 is "more fragments".
    pub flags: Masked<1>,
}

/// Fields of an IPv6 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Spec {
    /// Source address.
    pub source: Masked<16>,
    /// Destination address.
    pub destination: Masked<16>,
    /// Flow label, in the low 20 bits.
    pub flow_label: Masked<4>,
    /// Next header: 6 for TCP, 17 for UDP.
    pub next_header: Masked<1>,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: Masked<1>,
    /// Hop limit.
    pub hop_limit: Masked<1>,
}

/// Ports of TCP or UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// Source port.
    pub source: Masked<2>,
    /// Destination port.
    pub destination: Masked<2>,
}

/// Header that a frame must have, and its fields that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSpec {
    /// Ethernet II, with or without an 802.1Q tag.
    Ethernet(EthernetSpec),
    /// IPv4.
    Ipv4(Ipv4Spec),
    /// IPv6.
    Ipv6(Ipv6Spec),
    /// TCP directly after the IP header, not in a later fragment.
    Tcp(PortSpec),
    /// UDP directly after the IP header, not in a later fragment.
    Udp(PortSpec),
}

/// Frames to which a rule applies. RoCEv2 packets are excluded: their queue pairs receive them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowFrames {
    /// Frames that match all of these; any frame if the list is empty.
    Matching(Vec<FlowSpec>),
    /// Frames that no rule of [`Self::Matching`] has taken or dropped.
    Rest,
    /// Frames of [`Self::Rest`] to a multicast or broadcast address.
    RestOfGroups,
}

/// Action for the frames of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowAction {
    /// The queue pair receives them.
    Take,
    /// The queue pair receives a copy, and later rules also apply.
    Copy,
    /// The frames are dropped.
    Drop,
}

/// Flow rule: the frames, and the action for them. Rules are tried by priority number, lowest first, and of two with the same number the
/// older one first. Queue pairs with equal rules each receive a copy.
///
/// ```
/// # use ferroce_roce::steering::{FlowAction, FlowFrames, FlowRule, FlowSpec, Masked, PortSpec};
/// let dns = PortSpec { destination: Masked::exactly(53_u16.to_be_bytes()), ..PortSpec::default() };
/// let rule = FlowRule::new(vec![FlowSpec::Udp(dns)]);
/// assert_eq!((rule.priority, rule.action), (0, FlowAction::Take));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Priority; the lowest number is first.
    pub priority: u16,
    /// Frames to which the rule applies.
    pub frames: FlowFrames,
    /// Action for these frames.
    pub action: FlowAction,
}

impl FlowRule {
    /// Creates a rule of priority 0 by which a queue pair receives the frames that match all of `specs`.
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

    /// Returns the sort key of the order in which rules are tried.
    fn order(&self) -> (bool, u16) {
        (!matches!(self.frames, FlowFrames::Matching(_)), self.priority)
    }
}
