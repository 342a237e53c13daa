//! Builds an algorithm from a choice of congestion control, and rejects contradictory choices.

use super::choice::CongestionChoice;
use super::default::{AUTO_EVERY, AUTO_TARGET, DEFAULT_WINDOW, UNPACED};
use super::names::{CcName, FlowCount, TelemetryMode};
use super::setting::ChoiceError;
use cc::{DcqcnConfig, DctcpConfig, Feedback, HpccConfig, Parameters, Rate, Registration};
use roce::qp::{Congestion, CongestionAlgorithm, PathChoice, Reverse, Unknown, Upgrade, When};
use roce::wire::Format;
use std::time::Duration;

/// Interval for counting the loads of sprayed paths, if no setting specifies it.
const DEFAULT_INTERVAL: Duration = Duration::from_micros(100);

impl CongestionChoice {
    /// Creates the congestion control of a queue pair.
    ///
    /// # Errors
    /// Returns [`ChoiceError`] if a key is out of its limits, if the algorithm does not use it, or if the algorithm needs another key.
    pub fn build(&self) -> Result<Congestion, ChoiceError> {
        self.check()?;
        let mut congestion = match self.name() {
            CcName::Fixed => self.fixed(),
            CcName::Hpcc => Congestion::new(CongestionAlgorithm::Hpcc(self.hpcc()?)),
            CcName::HpccFair => Congestion::new(CongestionAlgorithm::HpccFair(self.hpcc()?)),
            CcName::HpccRx => Congestion::new(CongestionAlgorithm::HpccReceiver(self.hpcc()?)),
            CcName::Dctcp => self.dctcp(),
            CcName::Dcqcn => Congestion::new(CongestionAlgorithm::Dcqcn(self.dcqcn())),
            CcName::Auto => {
                let hpcc = self.hpcc()?;
                let to = if self.is_fair() {
                    CongestionAlgorithm::HpccFair(hpcc)
                } else {
                    CongestionAlgorithm::Hpcc(hpcc)
                };
                let upgrade = Some(Upgrade { when: When::TelemetryAnswered, to });
                Congestion { upgrade, ..Congestion::new(UNPACED) }
            }
            CcName::Registered(registration) => {
                let parameters = Parameters {
                    hpcc: self.hpcc()?,
                    additive_increase: self.additive_increase,
                    gain: self.gain,
                    hop_delay: self.hop_delay,
                    flow_delay: self.flow_delay,
                };
                Congestion::new(CongestionAlgorithm::Registered(registration, parameters))
            }
        };
        if self.takes_telemetry() {
            let is_auto = self.name() == CcName::Auto;
            // Acknowledgements of sprayed data do not return telemetry.
            let is_usual = is_auto && !self.spray;
            let usual = if is_usual { TelemetryMode::InBand(AUTO_EVERY) } else { TelemetryMode::Probe };
            let mode = self.telemetry.unwrap_or(usual);
            if let TelemetryMode::InBand(every) = mode {
                congestion.in_band = Some(every);
            }
            if is_auto || mode == TelemetryMode::Probe {
                congestion.probe_interval = Some(self.probe_interval.unwrap_or(self.base_rtt()));
            }
            congestion.subscribe = self.subscribe;
            congestion.all_hops = self.all_hops;
            congestion.reported_flows = self.uses_reported_flows();
            congestion.reverse = self.feedback.unwrap_or_default();
        }
        congestion.format = self.format.unwrap_or_default();
        congestion.paths = self.path_choice()?;
        congestion.ratio_only = self.ratio_only;
        congestion.unknown = Unknown {
            line_rate: self.line_rate.is_none() && self.name() != CcName::Fixed,
            path_rate: false,
            base_rtt: self.base_rtt.is_none() && !matches!(self.name(), CcName::Fixed | CcName::Dcqcn),
        };
        let fits = congestion.algorithm.build().map(drop);
        let fits = fits.and_then(|()| congestion.upgrade.map_or(Ok(()), |up| up.to.build().map(drop)));
        fits.map_err(|error| ChoiceError::of("cc", self.name(), error.to_string()))?;
        Ok(congestion)
    }

    /// Creates the congestion control of a datagram queue pair.
    ///
    /// # Errors
    /// As [`build`](Self::build), and if the algorithm or the format cannot pace datagrams.
    pub fn build_for_datagrams(&self) -> Result<Congestion, ChoiceError> {
        let congestion = self.build()?;
        let plain = Congestion { format: Format::Hpcc, ..congestion };
        plain.check_datagrams().map_err(|reason| ChoiceError::of("cc", self.name(), reason))?;
        let fits = congestion.check_datagrams();
        fits.map_err(|reason| ChoiceError::of("format", congestion.format, reason))?;
        Ok(congestion)
    }

    fn path_choice(&self) -> Result<Option<PathChoice>, ChoiceError> {
        let Some(count) = self.paths.filter(|&count| count != 1) else { return Ok(None) };
        let spray = self.spray;
        // Sprayed data measures its paths without probes.
        let unprobed = spray.then_some(DEFAULT_INTERVAL);
        let interval = self.probe_interval.or(self.base_rtt).or(unprobed).ok_or_else(|| {
            ChoiceError::of("paths", count, "needs the time between probes; add {probe_interval=100us}")
        })?;
        Ok(Some(PathChoice { count, interval, spray }))
    }

    fn takes_telemetry(&self) -> bool {
        match self.name() {
            CcName::Registered(registration) => registration.feedback == Feedback::Telemetry,
            name => matches!(name, CcName::Hpcc | CcName::HpccFair | CcName::HpccRx | CcName::Auto),
        }
    }

    /// Returns the chosen algorithm, else `fixed` if a window is given, else `auto`.
    fn name(&self) -> CcName {
        self.cc.unwrap_or(if self.window.is_some() { CcName::Fixed } else { CcName::Auto })
    }

    /// Checks each key by itself, then the keys that depend on each other.
    fn check(&self) -> Result<(), ChoiceError> {
        for setting in Self::SETTINGS {
            let Some(value) = setting.get(self) else { continue };
            // The caller may have set a field to any value. That of `cc` may be registered in another crate, and have no name here.
            if setting.key != "cc" {
                setting.set(&mut Self::default(), &value)?;
            }
            let is_harmless = match setting.key {
                // Several paths are probed with any algorithm.
                "format" => self.paths.is_some(),
                "paths" => value == "1",
                _ => false,
            };
            if !self.name().uses(setting) && !is_harmless {
                let is_default = self.cc.is_none() && self.window.is_none();
                let default = if is_default { ", the default," } else { "" };
                let users = setting.users().unwrap_or_default();
                let first = users.split(',').next().unwrap_or("auto");
                let reason = format!(
                    "{{cc={}}}{default} has no use for it, only {users}; choose {{cc={first}}}, or leave it out",
                    self.name(),
                );
                return Err(ChoiceError::of(setting.key, value, reason));
            }
        }
        self.check_together()
    }

    fn check_together(&self) -> Result<(), ChoiceError> {
        let of = |key: &str, reason: &str| {
            let setting = Self::SETTINGS.iter().find(|setting| setting.key == key);
            let value = setting.and_then(|setting| setting.get(self)).unwrap_or_default();
            Err(ChoiceError::of(key, value, reason))
        };
        if self.all_hops && self.format.is_some_and(Format::reports_load) {
            return of(
                "all_hops",
                "{format=aecn} carries the path's highest share and no hops; leave {all_hops} out",
            );
        }
        if self.name() == CcName::Auto && self.format.is_some_and(Format::reports_load) {
            return of(
                "format",
                "{cc=auto} starts HPCC++ when a probe counts switches, and this format carries none; choose {cc=hpcc}, or leave {format} out",
            );
        }
        if self.flows == Some(FlowCount::Reported) {
            if matches!(self.name(), CcName::HpccRx | CcName::Registered(_)) {
                return of("flows", "only {cc=hpcc} and {cc=auto} read that number; leave {flows} out");
            }
            if self.all_hops || self.format.is_some_and(Format::reports_load) {
                return of(
                    "flows",
                    "neither answers with {all_hops} nor the formats aecn, csig and csig-wide bring that number; write {flows=1}",
                );
            }
        }
        let windows = self.feedback == Some(Reverse::Window);
        if self.cc == Some(CcName::HpccRx) && self.feedback.is_some() && !windows {
            return of("feedback", "{cc=hpcc-rx} is answered by windows; leave {feedback} out");
        }
        if self.cc != Some(CcName::HpccRx) && windows {
            return of("feedback", "only {cc=hpcc-rx} is answered by windows; choose it, or {feedback=ack}");
        }
        if self.spray && self.paths.is_none_or(|count| count < 2) {
            return of("spray", "needs 2 to 8 paths; add {paths=4}");
        }
        let is_in_band = matches!(self.telemetry, Some(TelemetryMode::InBand(_)));
        if self.spray && is_in_band && self.feedback != Some(Reverse::Notification) {
            return of(
                "spray",
                "selective acknowledgements bring no feedback; add {feedback=notification}, or {telemetry=probe}",
            );
        }
        let is_probed = self.takes_telemetry() && self.name() != CcName::Auto;
        if self.probe_interval.is_some() && is_probed && is_in_band {
            return of(
                "probe_interval",
                "data packets bring the telemetry; add {telemetry=probe}, or leave it out",
            );
        }
        Ok(())
    }

    fn fixed(&self) -> Congestion {
        let window = self.window.unwrap_or(DEFAULT_WINDOW);
        let algorithm = CongestionAlgorithm::Fixed { window, rate: self.line_rate };
        Congestion::new(algorithm).probing(self.probe_interval)
    }

    /// Returns the line rate, or a placeholder that the port's rate replaces.
    fn line_rate(&self) -> Rate {
        self.line_rate.unwrap_or(HpccConfig::MAX_LINE_RATE)
    }

    /// Returns the base round trip, or a placeholder until the first round trip is measured.
    fn base_rtt(&self) -> Duration {
        self.base_rtt.unwrap_or(Congestion::FIRST_BASE_RTT)
    }

    /// Returns whether HPCC++ shares links fairly without a configured number of flows. With `auto`, `flows` and `all_hops` select the
    /// draft's algorithm, because only that one uses them.
    fn is_fair(&self) -> bool {
        match self.name() {
            CcName::Auto => self.flows.is_none() && !self.all_hops,
            name => name == CcName::HpccFair,
        }
    }

    /// Returns whether the draft's algorithm asks receivers for the number of their flows. Answers with all links, or with a load instead of
    /// links, do not carry it.
    fn uses_reported_flows(&self) -> bool {
        let is_draft = match self.name() {
            CcName::Auto => !self.is_fair(),
            name => name == CcName::Hpcc,
        };
        let names_a_link = !self.all_hops && !self.format.is_some_and(Format::reports_load);
        is_draft && names_a_link && matches!(self.flows, None | Some(FlowCount::Reported))
    }

    fn min_rate(&self, line_rate: Rate) -> Rate {
        self.min_rate.unwrap_or(Rate::from_mbps(1).min(line_rate))
    }

    fn hpcc(&self) -> Result<HpccConfig, ChoiceError> {
        let line_rate = self.line_rate();
        let base_rtt = match self.cc {
            Some(CcName::HpccRx) => self.base_rtt.ok_or_else(|| {
                ChoiceError::of("cc", "hpcc-rx", "needs the idle round trip; add {base_rtt=100us}")
            })?,
            _ => self.base_rtt(),
        };
        // hpcc-fair needs no W_AI (cc/README.md).
        let (max_stage, growth, flows) = match self.name() {
            _ if self.is_fair() => (0, 0.0, 1),
            CcName::Registered(Registration { flows, .. }) => (0, 1.0, *flows),
            _ => (HpccConfig::DEFAULT_MAX_STAGE, 1.0, 1),
        };
        let usual = match self.name() {
            CcName::Auto if self.is_fair() => AUTO_TARGET,
            _ => HpccConfig::DEFAULT_TARGET_UTILISATION,
        };
        let eta = self.eta.unwrap_or(usual);
        let headroom = line_rate.as_bps() as f64 * (1.0 - eta) * growth;
        let flows = match self.flows {
            Some(FlowCount::Number(number)) => number.get(),
            Some(FlowCount::Reported) | None => flows,
        };
        let increase = headroom / f64::from(flows);
        Ok(HpccConfig {
            base_rtt,
            line_rate,
            min_rate: self.min_rate(line_rate),
            target_utilisation: eta,
            max_stage: self.max_stage.unwrap_or(max_stage),
            additive_increase: Rate::from_bps(increase.round() as u64),
        })
    }

    fn dctcp(&self) -> Congestion {
        let line_rate = self.line_rate();
        let base_rtt = self.base_rtt();
        let min_rate = self.min_rate(line_rate);
        let usual = DctcpConfig { min_rate, ..DctcpConfig::new(line_rate, base_rtt) };
        let to = CongestionAlgorithm::Dctcp(self.over_dctcp(usual));
        match self.max_rtt {
            None => Congestion::new(to),
            Some(limit) => {
                let upgrade = Some(Upgrade { when: When::RttBelow(limit), to });
                Congestion { upgrade, ..Congestion::new(UNPACED) }
            }
        }
    }

    /// Returns `usual` with the parameters of this choice in place of its own.
    #[must_use]
    pub fn over_dctcp(&self, usual: DctcpConfig) -> DctcpConfig {
        DctcpConfig {
            gain: self.gain.unwrap_or(usual.gain),
            additive_increase: self.additive_increase.unwrap_or(usual.additive_increase),
            ..usual
        }
    }

    fn dcqcn(&self) -> DcqcnConfig {
        let line_rate = self.line_rate();
        let min_rate = self.min_rate(line_rate);
        self.over_dcqcn(DcqcnConfig { min_rate, ..DcqcnConfig::new(line_rate, self.base_rtt) })
    }

    /// Returns `usual` with the parameters of this choice in place of its own.
    #[must_use]
    pub fn over_dcqcn(&self, usual: DcqcnConfig) -> DcqcnConfig {
        DcqcnConfig {
            gain: self.gain.unwrap_or(usual.gain),
            alpha_interval: self.alpha_interval.unwrap_or(usual.alpha_interval),
            decrease_interval: self.decrease_interval.unwrap_or(usual.decrease_interval),
            increase_interval: self.increase_interval.unwrap_or(usual.increase_interval),
            byte_counter: self.byte_counter.or(usual.byte_counter),
            fast_recovery: self.fast_recovery.unwrap_or(usual.fast_recovery),
            additive_increase: self.additive_increase.unwrap_or(usual.additive_increase),
            hyper_increase: self.hyper_increase.unwrap_or(usual.hyper_increase),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::DEFAULT_CONGESTION;
    use std::num::NonZeroU32;

    const POWERTCP: CcName = CcName::Registered(&cc::POWERTCP);
    const SWIFT: CcName = CcName::Registered(&cc::SWIFT);

    fn choice(cc: CcName) -> CongestionChoice {
        CongestionChoice {
            cc: Some(cc),
            line_rate: Some(Rate::from_gbps(10)),
            base_rtt: Some(Duration::from_micros(20)),
            ..CongestionChoice::default()
        }
    }

    #[test]
    fn each_name_selects_its_algorithm() {
        for (cc, algorithm) in [
            (CcName::Hpcc, "hpcc"),
            (CcName::HpccFair, "hpcc-fair"),
            (CcName::HpccRx, "hpcc-rx"),
            (POWERTCP, "powertcp"),
            (SWIFT, "swift"),
            (CcName::Dctcp, "dctcp"),
            (CcName::Dcqcn, "dcqcn"),
            (CcName::Auto, "fixed"),
        ] {
            let congestion = choice(cc).build().unwrap();
            assert_eq!(congestion.algorithm.name(), algorithm);
            let probes = ![CcName::Dctcp, CcName::Dcqcn, SWIFT].contains(&cc);
            assert_eq!(congestion.probe_interval.is_some(), probes, "{cc:?}");
        }
        let auto = choice(CcName::Auto).build().unwrap();
        assert_eq!(auto.upgrade.unwrap().to.name(), "hpcc-fair");
        let sixteen = NonZeroU32::new(16).map(FlowCount::Number);
        let told = CongestionChoice { flows: sixteen, ..choice(CcName::Auto) }.build().unwrap();
        assert_eq!(told.upgrade.unwrap().to.name(), "hpcc");
        let near = CongestionChoice { max_rtt: Some(Duration::from_millis(10)), ..choice(CcName::Dctcp) };
        let near = near.build().unwrap();
        assert_eq!((near.algorithm.name(), near.upgrade.unwrap().to.name()), ("fixed", "dctcp"));
        let default = CongestionChoice::default();
        assert_eq!(default.build(), Ok(DEFAULT_CONGESTION));
        assert_eq!(CongestionChoice { cc: Some(CcName::Auto), ..default }.build(), Ok(DEFAULT_CONGESTION));
        let window = CongestionChoice { window: Some(1000), ..default }.build().unwrap();
        assert_eq!(window, Congestion::new(CongestionAlgorithm::Fixed { window: 1000, rate: None }));
    }

    /// The algorithm keeps each chosen parameter after the link's rate and the base RTT are set.
    #[test]
    fn chosen_parameters_are_kept_on_any_link() {
        let tuned = CongestionChoice {
            gain: Some(0.25),
            additive_increase: Some(Rate::from_mbps(7)),
            ..CongestionChoice::default()
        };
        let known = |choice: CongestionChoice| {
            let congestion = choice.build().unwrap().on_link(Rate::from_gbps(25));
            congestion.algorithm.at_base_rtt(Duration::from_millis(2))
        };
        let (gain, increase) = (0.25, Rate::from_mbps(7));
        let CongestionAlgorithm::Dctcp(dctcp) = known(CongestionChoice { cc: Some(CcName::Dctcp), ..tuned })
        else {
            panic!("not DCTCP")
        };
        assert_eq!((dctcp.gain, dctcp.additive_increase), (gain, increase));
        let [hop_delay, flow_delay] = [3, 4].map(Duration::from_micros);
        let swift = CongestionChoice {
            cc: Some(SWIFT),
            hop_delay: Some(hop_delay),
            flow_delay: Some(flow_delay),
            ..tuned
        };
        let CongestionAlgorithm::Registered(_, swift) = known(swift) else { panic!("not Swift") };
        assert_eq!((swift.gain, swift.additive_increase), (Some(gain), Some(increase)));
        assert_eq!((swift.hop_delay, swift.flow_delay), (Some(hop_delay), Some(flow_delay)));
        let [alpha, decrease, raise] = [5, 6, 7].map(Duration::from_micros);
        let chosen = CongestionChoice {
            cc: Some(CcName::Dcqcn),
            base_rtt: Some(Duration::from_micros(20)),
            hyper_increase: Some(Rate::from_mbps(8)),
            alpha_interval: Some(alpha),
            decrease_interval: Some(decrease),
            increase_interval: Some(raise),
            byte_counter: Some(9),
            fast_recovery: Some(10),
            ..tuned
        };
        let CongestionAlgorithm::Dcqcn(dcqcn) = known(chosen) else { panic!("not DCQCN") };
        assert_eq!((dcqcn.gain, dcqcn.additive_increase), (gain, increase));
        assert_eq!(dcqcn.hyper_increase, Rate::from_mbps(8));
        assert_eq!((dcqcn.byte_counter, dcqcn.fast_recovery), (Some(9), 10));
        let intervals = (dcqcn.alpha_interval, dcqcn.decrease_interval, dcqcn.increase_interval);
        assert_eq!(intervals, (alpha, decrease, raise));
        let above = CongestionChoice { additive_increase: Some(Rate::from_gbps(11)), ..choice(SWIFT) };
        assert!(above.build().is_err(), "above the line rate");
    }

    #[test]
    fn the_ports_rate_is_used_if_none_is_configured() {
        for cc in [CcName::Hpcc, POWERTCP, SWIFT, CcName::Dctcp, CcName::Dcqcn, CcName::Auto] {
            let configured = choice(cc).build().unwrap();
            let open = CongestionChoice { line_rate: None, ..choice(cc) }.build().unwrap();
            let ports = open.on_link(Rate::from_gbps(10));
            assert_eq!(Congestion { unknown: configured.unknown, ..ports }, configured, "{cc}");
            assert!(ports.unknown.path_rate && !ports.unknown.line_rate, "{cc}");
            assert_eq!(open.on_link(Rate::from_bps(0)), open, "a port without a known rate");
            assert_eq!(configured.on_link(Rate::from_gbps(100)), configured, "a configured rate stays");
        }
    }

    #[test]
    fn telemetry_and_feedback_are_configured_independently() {
        let fourth = TelemetryMode::InBand(NonZeroU32::new(4).unwrap());
        let chosen = CongestionChoice {
            telemetry: Some(fourth),
            feedback: Some(Reverse::Notification),
            format: Some(Format::Ioam),
            ..choice(CcName::Hpcc)
        };
        let congestion = chosen.build().unwrap();
        assert_eq!(congestion.format, Format::Ioam);
        let blind = CongestionChoice { format: Some(Format::Ifa), ..choice(CcName::Dctcp) };
        assert_eq!(
            blind.build().unwrap_err().as_flags(),
            "--format ifa: --cc dctcp has no use for it, only hpcc, hpcc-fair, hpcc-rx, auto, powertcp; choose --cc hpcc, or leave it out"
        );
        assert_eq!((congestion.in_band, congestion.probe_interval), (NonZeroU32::new(4), None));
        assert_eq!(congestion.reverse, Reverse::Notification);
        assert_eq!("inband:4".parse(), Ok(fourth));
        for wrong in ["inband:0", "inband:", "outband", "probe:2"] {
            assert!(wrong.parse::<TelemetryMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_hops_are_reported_only_with_hop_telemetry() {
        let all = |cc, format| CongestionChoice { all_hops: true, format, ..choice(cc) }.build();
        assert!(all(CcName::Hpcc, Some(Format::Ioam)).unwrap().all_hops);
        assert!(all(CcName::Auto, None).unwrap().all_hops);
        assert!(!choice(CcName::Hpcc).build().unwrap().all_hops);
        let shares = all(CcName::Hpcc, Some(Format::Aecn)).unwrap_err();
        assert!(shares.as_flags().ends_with("leave --all-hops out"), "{}", shares.as_flags());
        for cc in [CcName::HpccRx, CcName::HpccFair, CcName::Dctcp, CcName::Fixed] {
            let cc = if cc == CcName::Fixed {
                CongestionChoice { cc: Some(cc), all_hops: true, ..CongestionChoice::default() }.build()
            } else {
                all(cc, None)
            };
            let said = cc.unwrap_err().as_flags();
            assert!(said.starts_with("--all-hops: --cc "), "{said}");
            assert!(
                said.ends_with("has no use for it, only hpcc, auto; choose --cc hpcc, or leave it out"),
                "{said}"
            );
        }
    }

    #[test]
    fn hpcc_uses_the_reported_number_of_flows_unless_one_is_configured() {
        let reported = Some(FlowCount::Reported);
        let built = |choice: CongestionChoice| choice.build().unwrap();
        let hpcc = built(choice(CcName::Hpcc));
        assert_eq!(hpcc, built(CongestionChoice { flows: reported, ..choice(CcName::Hpcc) }));
        assert!(hpcc.reported_flows);
        let one = Some(FlowCount::Number(NonZeroU32::MIN));
        assert!(!built(CongestionChoice { flows: one, ..choice(CcName::Hpcc) }).reported_flows);
        assert!(!built(CongestionChoice { all_hops: true, ..choice(CcName::Hpcc) }).reported_flows);
        assert!(!built(choice(CcName::Auto)).reported_flows, "hpcc-fair uses it anyway");
        let auto = built(CongestionChoice { flows: reported, ..choice(CcName::Auto) });
        assert_eq!((auto.reported_flows, auto.upgrade.unwrap().to.name()), (true, "hpcc"));
        for refused in [
            choice(CcName::HpccRx),
            choice(POWERTCP),
            CongestionChoice { all_hops: true, ..choice(CcName::Hpcc) },
            CongestionChoice { format: Some(Format::Aecn), ..choice(CcName::Hpcc) },
        ] {
            let said = CongestionChoice { flows: reported, ..refused }.build().unwrap_err().as_flags();
            assert!(said.starts_with("--cc-flows reported: "), "{said}");
        }
    }

    /// Otherwise `auto` would keep its fixed window and report no error.
    #[test]
    fn auto_refuses_formats_that_count_no_switches() {
        for (name, format) in Format::ALL {
            let built = CongestionChoice { format: Some(format), ..CongestionChoice::default() }.build();
            assert_eq!(built.is_err(), format.reports_load(), "{name}");
            let named = CongestionChoice { format: Some(format), ..choice(CcName::Hpcc) };
            assert!(named.build().is_ok(), "{name}");
        }
        let csig = CongestionChoice { format: Some(Format::Csig), ..CongestionChoice::default() };
        let error = csig.build().unwrap_err().to_string();
        assert!(error.starts_with(r#"format = "csig": cc = "auto" starts HPCC++ when"#), "{error}");
        let probed = CongestionChoice {
            cc: Some(CcName::Fixed),
            paths: Some(2),
            probe_interval: Some(Duration::from_millis(1)),
            ..csig
        };
        assert!(probed.build().is_ok(), "paths are probed in any format");
    }

    #[test]
    fn paths_are_probed_in_any_format() {
        let probed = CongestionChoice { paths: Some(2), format: Some(Format::Ifa), ..choice(CcName::Dctcp) };
        assert_eq!(probed.build().unwrap().format, Format::Ifa);
    }

    #[test]
    fn spraying_needs_paths_and_feedback_of_its_own() {
        let sprayed = CongestionChoice { paths: Some(4), spray: true, ..CongestionChoice::default() };
        assert!(sprayed.build().unwrap().paths.is_some_and(|paths| paths.spray && paths.count == 4));
        let alone = CongestionChoice { paths: None, ..sprayed }.build().unwrap_err();
        assert_eq!(alone.as_flags(), "--spray: needs 2 to 8 paths; add --paths 4");
        let in_band = CongestionChoice {
            paths: Some(4),
            spray: true,
            telemetry: Some(TelemetryMode::InBand(NonZeroU32::MIN)),
            ..choice(CcName::Hpcc)
        };
        let said = in_band.build().unwrap_err().as_flags();
        assert!(said.contains("add --feedback notification, or --telemetry probe"), "{said}");
        assert!(
            CongestionChoice { feedback: Some(Reverse::Notification), ..in_band }.build().is_ok(),
            "notifications leave by themselves"
        );
        let auto = CongestionChoice { paths: Some(4), spray: true, ..choice(CcName::Auto) }.build().unwrap();
        assert!(auto.in_band.is_none() && auto.probe_interval.is_some(), "{auto:?}");
        let windows = CongestionChoice { paths: None, spray: true, ..choice(CcName::HpccRx) };
        assert!(windows.build().unwrap_err().as_flags().starts_with("--spray: --cc hpcc-rx"));
    }

    #[test]
    fn probes_leave_room_for_data() {
        let every = |interval| CongestionChoice { probe_interval: Some(interval), ..choice(CcName::Hpcc) };
        assert!(every(Duration::from_micros(1)).build().is_ok());
        let always = every(Duration::ZERO).build().unwrap_err();
        assert!(always.as_flags().starts_with("--probe-interval 0s: not a time from 1us; "), "{always}");
    }

    #[test]
    fn errors_have_key_and_remedy_as_toml_and_as_flags() {
        let lacks = CongestionChoice { base_rtt: None, ..choice(CcName::HpccRx) }.build().unwrap_err();
        assert_eq!(lacks.to_string(), r#"cc = "hpcc-rx": needs the idle round trip; add base_rtt = "100us""#);
        assert_eq!(lacks.as_flags(), "--cc hpcc-rx: needs the idle round trip; add --cc-base-rtt 100us");
        let window = CongestionChoice { window: Some(1), ..choice(CcName::Hpcc) }.build().unwrap_err();
        assert_eq!(
            window.as_flags(),
            "--cc-window 1: --cc hpcc has no use for it, only fixed; choose --cc fixed, or leave it out"
        );
        let eta = CongestionChoice { eta: Some(2.0), ..choice(CcName::Hpcc) }.build().unwrap_err();
        assert!(eta.to_string().starts_with("eta = 2: not a share above 0 and at most 1"), "{eta}");
        let feedback = CongestionChoice { feedback: Some(Reverse::Window), ..choice(CcName::Hpcc) };
        assert!(feedback.build().unwrap_err().as_flags().contains("--cc hpcc-rx"));
    }
}
