//! The table of all congestion control settings. It defines the fields of [`CongestionChoice`], the keys of `ferroce.toml` and
//! `FERROCE_CC`, the flags of the tools and `docs/reference/congestion.md`. `build.rs` turns a choice into the congestion control of a
//! queue pair.

use super::names::{CcName, FlowCount, REVERSE, TelemetryMode};
use super::setting::{ChoiceError, Setting, Written};
use super::units::{parse_bytes, parse_duration, parse_rate};
use cc::{HpccConfig, Rate};
use roce::qp::{PathChoice, Reverse};
use roce::wire::Format;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use CcName::{Auto, Dcqcn, Dctcp, Fixed, Hpcc, HpccFair, HpccRx};

const ALL: &[CcName] = &[Fixed, Hpcc, HpccFair, HpccRx, Dctcp, Dcqcn, Auto];
const PACED: &[CcName] = &[Hpcc, HpccFair, HpccRx, Dctcp, Dcqcn, Auto];
const TUNED: &[CcName] = &[Dctcp, Dcqcn];
const TELEMETRY: &[CcName] = &[Hpcc, HpccFair, HpccRx, Auto];

/// Declares a field for each setting, and the table of settings.
macro_rules! settings {
    ($($help:literal $field:ident: $type:ty, $read:expr, { $($name:ident: $word:expr),* $(,)? })*) => {
        /// A choice of congestion control, by names and units. A field that is not set has a default. [`build`](CongestionChoice::build)
        /// creates the settings of a queue pair from it.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct CongestionChoice {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl CongestionChoice {
            /// All settings, in the order of help texts and of the reference.
            pub const SETTINGS: &'static [Setting] = &[$(Setting {
                key: stringify!($field),
                help: $help,
                set: |choice, text| $read(text).map(|value| choice.$field = value.into()),
                get: |choice| choice.$field.written(),
                $($name: $word,)*
            },)*];
        }
    };
}

settings! {
    "The algorithm that computes window and rate; `auto` is hpcc-fair if switches answer probes, else dcqcn if the peer answers marks, else fixed."
    cc: Option<CcName>, word::<CcName>, {
        flag: "cc", value: "ALGORITHM", algorithms: ALL, example: "hpcc", default: "auto; fixed with a window",
        accepts: "one of ALGORITHMS",
    }
    "Bytes in flight on a queue pair."
    window: Option<u64>, |text| parse_bytes(text).ok().filter(|&bytes| bytes > 0), {
        flag: "cc-window", value: "BYTES", algorithms: &[Fixed], example: "512K", default: "512K",
        accepts: "a number of bytes from 1",
    }
    "The rate of this host's link; with `fixed` the pacing rate."
    line_rate: Option<Rate>, rate, {
        flag: "cc-line-rate", value: "RATE", algorithms: ALL, example: "25G", default: "the port's; fixed none",
        accepts: "a rate with its unit up to 10T, such as 200M or 2.5G",
    }
    "The round trip of the idle path."
    base_rtt: Option<Duration>, |text| time(text, NANOSECOND..=HpccConfig::MAX_BASE_RTT), {
        flag: "cc-base-rtt", value: "TIME", algorithms: PACED, example: "20us",
        default: "measured; dcqcn none; hpcc-rx needs it", accepts: "a time from 1ns to 1s",
    }
    "The rate below which a flow never falls."
    min_rate: Option<Rate>, rate, {
        flag: "cc-min-rate", value: "RATE", algorithms: PACED, example: "1M", default: "1M",
        accepts: "a rate with its unit up to the line rate",
    }
    "The share of a link to aim at. With `hpcc-fair` it falls with the flow's own rate, from 0.04 above to 0.04 below."
    eta: Option<f64>, |text| word::<f64>(text).filter(|&eta| eta > 0.0 && eta <= 1.0), {
        flag: "cc-eta", value: "SHARE", algorithms: TELEMETRY, example: "0.95", default: "0.95; auto without flows and all_hops 0.97",
        accepts: "a share above 0 and at most 1",
    }
    "Additive increases before a multiplicative one; 0 reclaims bandwidth faster."
    max_stage: Option<u32>, word::<u32>, {
        flag: "cc-max-stage", value: "COUNT", algorithms: &[Hpcc, HpccFair, HpccRx, Auto], example: "5", default: "5; hpcc-fair, and auto without flows and all_hops, 0",
        accepts: "a number from 0",
    }
    "Flows to expect on a link: W_AI = W_init (1 - eta) / flows. `reported` (hpcc, auto) is the number that the receiver reports, while its link is the busiest, and else 1."
    flows: Option<FlowCount>, word::<FlowCount>, {
        flag: "cc-flows", value: "COUNT", algorithms: &[Hpcc, HpccRx, Auto], example: "100",
        default: "hpcc reported, with all_hops 1; hpcc-rx 1; auto needs none",
        accepts: "a number from 1 to 1000000, or reported",
    }
    "How much a cut or an average weighs what is new: DCTCP's g (section 4), DCQCN's g (SIGCOMM 2015, equation 1), Swift's beta (SIGCOMM 2020, algorithm 1)."
    gain: Option<f64>, |text| word::<f64>(text).filter(|&gain| gain > 0.0 && gain <= 1.0), {
        flag: "cc-gain", value: "SHARE", algorithms: TUNED, example: "0.0625", default: "dctcp 0.0625; dcqcn 0.00390625",
        accepts: "a share above 0 and at most 1",
    }
    "The rate that an increase adds: with DCTCP and Swift in a round trip, with DCQCN R_AI (SIGCOMM 2015, figure 7)."
    additive_increase: Option<Rate>, rate, {
        flag: "cc-additive-increase", value: "RATE", algorithms: TUNED, example: "40M", default: "dctcp 1 KiB in base_rtt; dcqcn line_rate / 1000",
        accepts: "a rate with its unit up to the line rate",
    }
    "The rate that an increase adds once timer and byte counter have both passed fast_recovery: R_HAI."
    hyper_increase: Option<Rate>, rate, {
        flag: "cc-hyper-increase", value: "RATE", algorithms: &[Dcqcn], example: "400M", default: "line_rate / 100",
        accepts: "a rate with its unit up to the line rate",
    }
    "The time between updates of alpha without a notification."
    alpha_interval: Option<Duration>, interval, {
        flag: "cc-alpha-interval", value: "TIME", algorithms: &[Dcqcn], example: "55us", default: "55us, at least base_rtt",
        accepts: "a time from 1ns to 1s",
    }
    "The shortest time between two cuts of the rate."
    decrease_interval: Option<Duration>, interval, {
        flag: "cc-decrease-interval", value: "TIME", algorithms: &[Dcqcn], example: "50us", default: "50us, at least base_rtt",
        accepts: "a time from 1ns to 1s",
    }
    "The time after which the timer raises the rate: T."
    increase_interval: Option<Duration>, interval, {
        flag: "cc-increase-interval", value: "TIME", algorithms: &[Dcqcn], example: "55us", default: "55us, at least base_rtt",
        accepts: "a time from 1ns to 1s",
    }
    "The bytes sent after which the byte counter raises the rate: B."
    byte_counter: Option<u64>, |text| parse_bytes(text).ok().filter(|&bytes| bytes > 0), {
        flag: "cc-byte-counter", value: "BYTES", algorithms: &[Dcqcn], example: "10000000", default: "10000000",
        accepts: "a number of bytes from 1",
    }
    "Increases, of timer and byte counter each, that only return to the rate before the cut: F."
    fast_recovery: Option<u32>, word::<u32>, {
        flag: "cc-fast-recovery", value: "COUNT", algorithms: &[Dcqcn], example: "5", default: "5",
        accepts: "a number from 0",
    }
    "The queueing time beyond base_rtt that the target allows for a path's hops (SIGCOMM 2020, section 3.5)."
    hop_delay: Option<Duration>, |text| time(text, Duration::ZERO..=Duration::from_secs(1)), {
        flag: "cc-hop-delay", value: "TIME", algorithms: &[], example: "5us", default: "",
        accepts: "a time from 0 to 1s",
    }
    "The queueing time beyond that which the target allows for a flow with one packet in flight; falls with the root of the window."
    flow_delay: Option<Duration>, |text| time(text, Duration::ZERO..=Duration::from_secs(1)), {
        flag: "cc-flow-delay", value: "TIME", algorithms: &[], example: "40us", default: "",
        accepts: "a time from 0 to 1s",
    }
    "Runs DCTCP only if the first round trip is shorter than this, else a fixed window."
    max_rtt: Option<Duration>, |text| time(text, NANOSECOND..=Duration::MAX), {
        flag: "cc-max-rtt", value: "TIME", algorithms: &[Dctcp], example: "10ms", default: "none",
        accepts: "a time from 1ns",
    }
    "The packets that bring telemetry: probes, all data packets (inband), or one of N (inband:N)."
    telemetry: Option<TelemetryMode>, word::<TelemetryMode>, {
        flag: "telemetry", value: "PACKETS", algorithms: TELEMETRY, example: "inband:4", default: "probe; auto inband:4",
        accepts: "one of probe, inband, inband:N with N from 1",
    }
    "The time between probes while data is in flight."
    probe_interval: Option<Duration>, |text| time(text, Duration::from_micros(1)..=Duration::MAX), {
        flag: "probe-interval", value: "TIME", algorithms: ALL, example: "100us", default: "base_rtt; never without telemetry",
        accepts: "a time from 1us",
    }
    "The layout of telemetry in packets, also of the probes of several paths. ioam and aecn need IPv6."
    format: Option<Format>, word::<Format>, {
        flag: "format", value: "FORMAT", algorithms: TELEMETRY, example: "int-md", default: "hpcc",
        accepts: "one of hpcc, int-md, ioam, ifa, aecn, csig, csig-wide",
    }
    "How the peer answers telemetry: behind acknowledgements, by notifications, or with hpcc-rx by windows."
    feedback: Option<Reverse>, reverse, {
        flag: "feedback", value: "WAY", algorithms: TELEMETRY, example: "notification", default: "ack; hpcc-rx window",
        accepts: "one of ack, notification, window",
    }
    "The peer's answers name all links of the path, not only the busiest."
    all_hops: bool, word::<bool>, {
        flag: "all-hops", value: "", algorithms: &[Hpcc, Auto], example: "true", default: "false",
        accepts: "true or false",
    }
    "Data packets ask congested switches for a response at once, beside what telemetry brings."
    subscribe: bool, word::<bool>, {
        flag: "subscribe", value: "", algorithms: &[Hpcc, HpccFair], example: "true", default: "false",
        accepts: "true or false",
    }
    "Paths to choose from by UDP source port, probed in turns; needs switches that write telemetry, unless spray is set."
    paths: Option<u8>, |text| word::<u8>(text).filter(|paths| (1..=PathChoice::MAX).contains(paths)), {
        flag: "paths", value: "COUNT", algorithms: &[Fixed, Hpcc, HpccFair, Dctcp, Dcqcn, Auto], example: "4",
        default: "1", accepts: "a number from 1 to 8",
    }
    "Sprays packets over all paths, which then need no telemetry. Needs RC or XRC with selective repeat, which C programs do not offer."
    spray: bool, word::<bool>, {
        flag: "spray", value: "", algorithms: &[Fixed, Hpcc, HpccFair, Dctcp, Dcqcn, Auto], example: "true",
        default: "false", accepts: "true or false",
    }
    "Reports to the peer only how busy its path is."
    ratio_only: bool, word::<bool>, {
        flag: "ratio-only", value: "", algorithms: ALL, example: "true", default: "false",
        accepts: "true or false",
    }
}

impl CongestionChoice {
    /// Sets the setting with this key of `ferroce.toml`.
    ///
    /// # Errors
    /// Returns [`ChoiceError`] if there is no such key, or if the setting does not accept the value.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ChoiceError> {
        self.set_beside(&[], key, text)
    }

    /// Sets a value as [`set`](Self::set) does. The error for an unknown key also lists `others`, the keys that the caller handles.
    pub(super) fn set_beside(
        &mut self,
        others: &[&'static str],
        key: &str,
        text: &str,
    ) -> Result<(), ChoiceError> {
        let found = Self::SETTINGS.iter().find(|setting| setting.key == key);
        let unknown = || {
            let keys = Self::SETTINGS.iter().map(|setting| setting.key);
            let known = others.iter().copied().chain(keys).collect::<Vec<_>>().join(", ");
            ChoiceError::new(key, format!("no such key; use one of {known}"))
        };
        found.ok_or_else(unknown)?.set(self, text)
    }

    /// Returns whether no setting is chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

const NANOSECOND: Duration = Duration::from_nanos(1);

fn word<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn rate(text: &str) -> Option<Rate> {
    parse_rate(text).ok().filter(|&rate| rate <= HpccConfig::MAX_LINE_RATE)
}

fn time(text: &str, limits: RangeInclusive<Duration>) -> Option<Duration> {
    parse_duration(text).ok().filter(|time| limits.contains(time))
}

fn interval(text: &str) -> Option<Duration> {
    time(text, NANOSECOND..=Duration::from_secs(1))
}

fn reverse(text: &str) -> Option<Reverse> {
    REVERSE.iter().find(|(name, _)| *name == text).map(|(_, reverse)| *reverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_read_and_written_again() {
        for setting in CongestionChoice::SETTINGS {
            let mut choice = CongestionChoice::default();
            assert_eq!(setting.get(&choice), None, "{}", setting.key);
            setting.set(&mut choice, setting.example).unwrap();
            let written = setting.get(&choice).unwrap();
            let mut again = CongestionChoice::default();
            setting.set(&mut again, &written).unwrap();
            assert_eq!(again, choice, "{}: {written}", setting.key);
        }
    }

    #[test]
    fn a_value_outside_the_limits_is_named_with_them_and_the_remedy() {
        for (key, text) in [
            ("cc", "cubic"),
            ("window", "0"),
            ("line_rate", "11T"),
            ("line_rate", "fast"),
            ("line_rate", "25"),
            ("base_rtt", "0s"),
            ("base_rtt", "1.1s"),
            ("min_rate", "0"),
            ("eta", "0"),
            ("eta", "1.01"),
            ("eta", "nan"),
            ("max_stage", "-1"),
            ("flows", "0"),
            ("flows", "1000001"),
            ("max_rtt", "10m"),
            ("telemetry", "inband:0"),
            ("telemetry", "outband"),
            ("probe_interval", "999ns"),
            ("format", "ebpf"),
            ("feedback", "no"),
            ("paths", "0"),
            ("paths", "9"),
            ("window", "{}=}{"),
        ] {
            let setting = CongestionChoice::SETTINGS.iter().find(|setting| setting.key == key).unwrap();
            let error = CongestionChoice::default().set(key, text).unwrap_err();
            for said in [error.to_string(), error.as_flags()] {
                for part in [text, &setting.accepts(), setting.example] {
                    assert!(said.contains(part), "{key} {text}: {said}");
                }
            }
            assert!(error.as_flags().starts_with(&format!("--{}", setting.flag)));
        }
    }

    #[test]
    fn a_flag_without_a_value_is_named_alone() {
        let error = CongestionChoice::default().set("all_hops", "yes").unwrap_err();
        assert_eq!(error.to_string(), r#"all_hops = "yes": not true or false; write all_hops = true"#);
        assert!(error.as_flags().starts_with("--all-hops: "), "{}", error.as_flags());
    }

    #[test]
    fn the_error_of_an_unknown_key_lists_the_known_ones() {
        let error = CongestionChoice::default().set("colour", "red").unwrap_err().to_string();
        assert!(error.starts_with("colour: no such key") && error.contains("one of cc, window"), "{error}");
        assert!(error.contains("base_rtt"), "{error}");
    }
}
