//! CSIG (draft-ravi-ippm-csig-01): a tag between the Ethernet header and IP with one signal. Each switch compares it with its own value,
//! and replaces it if its own is worse. No EtherType is assigned: the network uses one for the tag of 4 bytes, and the next one for that of
//! 8.

use super::reading::Signal;
use super::{Numbers, PortState, aecn};
use crate::wire::constants::BTH_LENGTH;
use crate::wire::layers::Layers;

/// `{TPID 16, T 3, R 1, S 5, LM 7}`.
pub const COMPACT: usize = 4;
/// `{TPID 16, LM 16, T 4, S 20, R 8}`.
pub const WIDE: usize = 8;

/// `T`: min(ABW/C), and max(per-hop delay).
const AVAILABLE: u32 = 1;
const DELAY: u32 = 2;

/// Largest `S`.
const COMPACT_MAX: u32 = 0x1f;
const WIDE_MAX: u32 = 0xf_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    kind: u32,
    value: u32,
    /// Identifies the switch that wrote the value; 0 if none has.
    locator: u32,
}

impl Fields {
    /// Reads the 2 or 6 bytes after the TPID. Returns the fields, and whether the tag is wide.
    fn read(data: &[u8]) -> Option<(Self, bool)> {
        match data {
            &[a, b] => {
                let word = u32::from(u16::from_be_bytes([a, b]));
                Some((Self { kind: word >> 13, value: word >> 7 & COMPACT_MAX, locator: word & 0x7f }, false))
            }
            [a, b, rest @ ..] => {
                let word = u32::from_be_bytes(*rest.first_chunk()?);
                let locator = u32::from(u16::from_be_bytes([*a, *b]));
                Some((Self { kind: word >> 28, value: word >> 8 & WIDE_MAX, locator }, true))
            }
            _ => None,
        }
    }

    /// Writes the fields to the bytes that [`read`](Self::read) reads; the reserved bits stay 0.
    fn write(self, data: &mut [u8]) {
        let Self { kind, value, locator } = self;
        if let [a, b] = data {
            [*a, *b] = ((kind << 13 | value << 7 | locator) as u16).to_be_bytes();
        } else if let Some((first, rest)) = data.split_first_chunk_mut::<2>() {
            *first = (locator as u16).to_be_bytes();
            if let Some(word) = rest.first_chunk_mut() {
                *word = (kind << 28 | value << 8).to_be_bytes();
            }
        }
    }
}

/// Returns the initial value, which the value of any switch replaces.
const fn unset(kind: u32, is_wide: bool) -> u32 {
    match (kind, is_wide) {
        (AVAILABLE, false) => COMPACT_MAX,
        (AVAILABLE, true) => WIDE_MAX,
        _ => 0,
    }
}

/// Implements [`Format::insert`](super::Format::insert). The parity of the ones in the PSN selects one of two signals. So of packets whose
/// distance is any power of two, at most two in a row request the same signal.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the sender's own packet has room for the tag before it"
)]
pub(in crate::wire) fn insert(frame: &mut [u8], layers: &Layers, numbers: Numbers, is_wide: bool) {
    let (length, tpid) =
        if is_wide { (WIDE, numbers.csig_tpid() + 1) } else { (COMPACT, numbers.csig_tpid()) };
    // Offset of IP's EtherType, after a VLAN tag if there is one.
    let at = layers.ip - 2;
    let psn = &frame[length + layers.bth + BTH_LENGTH - 3..length + layers.bth + BTH_LENGTH];
    let ones: u32 = psn.iter().map(|byte| byte.count_ones()).sum();
    let kind = if ones & 1 == 0 { AVAILABLE } else { DELAY };
    frame.copy_within(length..length + at, 0);
    frame[at..at + 2].copy_from_slice(&tpid.to_be_bytes());
    let fields = Fields { kind, value: unset(kind, is_wide), locator: 0 };
    let data = &mut frame[at + 2..at + length];
    data.fill(0);
    fields.write(data);
}

/// Returns the length of the tag with this EtherType; `None` if it is not CSIG's.
#[inline]
pub(in crate::wire) const fn length_of(ethertype: u16, numbers: Numbers) -> Option<usize> {
    let tpid = numbers.csig_tpid();
    match ethertype.wrapping_sub(tpid) {
        0 => Some(COMPACT),
        1 => Some(WIDE),
        _ => None,
    }
}

/// Writes a switch's value into the bytes after the TPID, if it is worse. Other signals are not changed. Returns whether the signal is one
/// of the two.
pub(in crate::wire) fn stamp(data: &mut [u8], port: &PortState) -> bool {
    let Some((fields, is_wide)) = Fields::read(data) else { return false };
    let own = match fields.kind {
        AVAILABLE => available(port.load.inflight, is_wide),
        DELAY => delay(port.sojourn, is_wide),
        _ => return false,
    };
    let is_worse = if fields.kind == AVAILABLE { own < fields.value } else { own > fields.value };
    if is_worse || fields.locator == 0 {
        let switch = u32::from(port.switch);
        let locator = if is_wide { 0x1000 | switch & 0xfff } else { (switch & 0x7f).max(1) };
        Fields { value: own, locator, ..fields }.write(data);
    }
    true
}

/// Half of 1/128, in 2^-20. The used share is written rounded down, and represents the middle of its step.
const HALF: u32 = 1 << 12;

/// Returns the share of a link that is available, in 1/128.
fn left(inflight: u8) -> u32 {
    (aecn::ONE as u32).saturating_sub(inflight.into())
}

/// Returns `S` of the available share. The compact tag has steps of 1/128 up to an eighth and of 1/16 beyond, because nearly full links are
/// the most important.
fn available(inflight: u8, is_wide: bool) -> u32 {
    match left(inflight) {
        left if is_wide => (left << 13).saturating_sub(HALF),
        left @ ..=16 => left,
        left => left.saturating_add(119) >> 3,
    }
}

/// Returns `S` of a delay in ns. The compact tag has the number of doublings of 64 ns, the wide one units of 256 ns.
fn delay(nanos: u64, is_wide: bool) -> u32 {
    if is_wide {
        return u32::try_from(nanos >> 8).unwrap_or(WIDE_MAX).min(WIDE_MAX);
    }
    u64::BITS.saturating_sub((nanos >> 6).leading_zeros()).min(COMPACT_MAX)
}

/// Reads the signal from the bytes after the TPID; `None` if no switch wrote a known one.
#[must_use]
pub fn read(data: &[u8]) -> Option<Signal> {
    let (Fields { kind, value, locator }, is_wide) = Fields::read(data)?;
    if locator == 0 {
        return None;
    }
    match (kind, is_wide) {
        (AVAILABLE, true) => Some(Signal::Available(value)),
        // The middle of the value's step.
        (AVAILABLE, false) if value <= 16 => Some(Signal::Available((value << 13).saturating_sub(HALF))),
        (AVAILABLE, false) => Some(Signal::Available((value << 3).saturating_sub(115).min(128) << 13)),
        (DELAY, true) => Some(Signal::Delay(u64::from(value) << 8)),
        (DELAY, false) => Some(Signal::Delay(value.checked_sub(1).map_or(0, |doubled| 96 << doubled))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::format::aecn::Load;
    use cc::Rate;

    fn port(switch: u16, inflight: u8, sojourn: u64) -> PortState {
        let load = Load { inflight, ..Load::default() };
        let rate = Rate::from_gbps(100);
        PortState { switch, port: 1, rate, time: 1, tx_bytes: 2, queue: 3, sojourn, load }
    }

    /// Two tags from public switch code, without their TPID.
    #[test]
    fn fields_have_the_layout_of_public_switch_code() {
        for (mut bytes, kind, value, locator) in [([0x2b, 0x85], 1, 0x17, 5), ([0x28, 0x42], 1, 0x10, 0x42)] {
            let fields = Fields { kind, value, locator };
            assert_eq!(Fields::read(&bytes), Some((fields, false)));
            bytes.fill(0);
            fields.write(&mut bytes);
            assert_eq!(u16::from_be_bytes(bytes), (kind << 13 | value << 7 | locator) as u16);
            assert_eq!(Fields::read(&bytes), Some((fields, false)));
        }
        let wide = [0x12, 0x34, 0x10, 0x00, 0x80, 0x00];
        let fields = Fields { kind: 1, value: 0x80, locator: 0x1234 };
        assert_eq!(Fields::read(&wide), Some((fields, true)));
        let mut written = [0; 6];
        fields.write(&mut written);
        assert_eq!(written, wide);
        assert_eq!(Fields::read(&[0; 3]), None);
        assert_eq!(Fields::read(&[]), None);
    }

    /// The worst value of three switches remains, with its locator, whichever signal is requested.
    #[test]
    fn a_switch_replaces_a_better_value() {
        for is_wide in [false, true] {
            for (kind, worst) in [(AVAILABLE, 2), (DELAY, 3)] {
                let mut data = [0; 6];
                let data = &mut data[..if is_wide { 6 } else { 2 }];
                Fields { kind, value: unset(kind, is_wide), locator: 0 }.write(data);
                assert_eq!(read(data), None, "no switch has written");
                for port in [port(1, 64, 0), port(2, 120, 1000), port(3, 100, 50_000)] {
                    assert!(stamp(data, &port));
                }
                let (fields, _) = Fields::read(data).unwrap();
                assert_eq!(fields.locator & 0xff, worst);
                let signal = read(data).unwrap();
                match signal {
                    Signal::Available(share) => assert_eq!(share, (8 << 13) - HALF),
                    Signal::Delay(nanos) => assert!((30_000..=75_000).contains(&nanos), "{nanos}"),
                }
            }
        }
        let mut other = [0x60, 0];
        assert!(!stamp(&mut other, &port(1, 1, 1)), "no value is written for the depth of a queue");
        assert_eq!((other, read(&other)), ([0x60, 0], None));
    }

    /// The value read is within a step of the value written. An idle link's value differs from that without a switch.
    #[test]
    fn a_stamped_value_is_read_within_a_step() {
        for is_wide in [false, true] {
            let mut before = None;
            for inflight in 0..=u8::MAX {
                let mut data = [0; 6];
                let data = &mut data[..if is_wide { 6 } else { 2 }];
                Fields { kind: AVAILABLE, value: unset(AVAILABLE, is_wide), locator: 0 }.write(data);
                assert!(stamp(data, &port(0, inflight, 0)));
                let Some(Signal::Available(share)) = read(data) else { panic!("{inflight}") };
                let step = if is_wide || left(inflight) <= 16 { 1 } else { 4 };
                assert!(share.abs_diff(left(inflight) << 13) <= step << 13, "{inflight}: {share}");
                assert!(before.is_none_or(|before| share <= before), "{inflight}");
                before = Some(share);
            }
        }
        for nanos in [0, 63, 64, 100, 1_000, 1_000_000, 4_000_000_000] {
            let value = delay(nanos, false);
            let mut data = [0; 2];
            Fields { kind: DELAY, value, locator: 1 }.write(&mut data);
            let Some(Signal::Delay(delay)) = read(&data) else { panic!("{nanos}") };
            assert!(delay <= nanos * 3 / 2 && delay + 64 >= nanos * 3 / 4, "{nanos}: {delay}");
        }
        assert_eq!((delay(u64::MAX, false), delay(u64::MAX, true)), (COMPACT_MAX, WIDE_MAX));
    }
}
