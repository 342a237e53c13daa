//! The congestion control of a scenario: an algorithm of Ferroce, or a registered one.

use super::flows::{FlowText, Numbering};
use super::mistake::Mistake;
use super::scenario::{Compat, EcnText};
use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, Registration};
use fabric::sim::{Rival, Setup, Which};
use roce::qp::{Congestion, Upgrade, When};
use serde::Deserialize;
use std::ops::Range;
use verbs::congestion::{CcName, CongestionChoice, split_congestion};

/// Another congestion control for some flows: an entry of `[[rival]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RivalText {
    dscp: Option<u8>,
    /// Numbers of the sending hosts, in place of `dscp`.
    hosts: Option<Vec<u32>>,
    congestion: String,
}

/// Reads the congestion control of flows that have their own, and of `[[rival]]`. `entries` are the indices of the flows of each
/// `[[flow]]`. Of several that match a flow, the first applies.
pub(super) fn rivals(
    (flows, entries): (&[FlowText], &[Range<u32>]),
    rivals: &[RivalText],
    numbering: Numbering,
    parse: impl Fn(&str) -> Result<Congestion, String>,
) -> Result<Vec<Rival>, Mistake> {
    let mut all = Vec::new();
    for (place, (flow, range)) in flows.iter().zip(entries).enumerate() {
        let Some(text) = &flow.congestion else { continue };
        let congestion = parse(text).map_err(|why| Mistake::in_entry("flow", place, why))?;
        all.push(Rival { which: Which::Flows(range.clone()), congestion });
    }
    for (place, rival) in rivals.iter().enumerate() {
        let wrong = |why: String| Mistake::in_entry("rival", place, why);
        let which = match (rival.dscp, &rival.hosts) {
            (Some(dscp), None) if dscp <= 63 => Which::Class(dscp),
            (Some(dscp), None) => return Err(wrong(format!("dscp = {dscp}: out of range; use 0 to 63"))),
            (None, Some(hosts)) => {
                let hosts = hosts.iter().map(|&host| numbering.host("host", host));
                Which::Hosts(hosts.collect::<Result<_, _>>().map_err(wrong)?)
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(wrong(
                    "a rival needs either dscp or hosts; give one of them: hosts = [1, 2]".into(),
                ));
            }
        };
        all.push(Rival { which, congestion: parse(&rival.congestion).map_err(wrong)? });
    }
    Ok(all)
}

/// Returns the names of all congestion control in a setup: `hpcc`, or `hpcc, dcqcn`.
pub(super) fn algorithm_names(setup: &Setup) -> String {
    let others = setup.rivals.iter().map(|rival| &rival.congestion);
    let mut names: Vec<&str> = Vec::new();
    for name in [&setup.congestion].into_iter().chain(others).map(algorithm_name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Returns the name of a congestion control in the syntax of scenarios.
pub(super) fn algorithm_name(congestion: &Congestion) -> &'static str {
    match &congestion.upgrade {
        Some(Upgrade { when: When::TelemetryAnswered, .. }) => CcName::Auto.as_str(),
        Some(Upgrade { when: When::RttBelow(_), to }) => to.name(),
        None => congestion.algorithm.name(),
    }
}

/// Returns the marking thresholds of the HPCC authors' simulator for these algorithms.
pub(super) fn authors_marks(compat: Compat, algorithm: &AlgorithmConfig) -> Option<EcnText> {
    match (compat, algorithm) {
        (Compat::HpccNs3, AlgorithmConfig::Dctcp(_)) => {
            Some(EcnText { min: 300_000, max: 300_000, probability: 1.0 })
        }
        (Compat::HpccNs3, AlgorithmConfig::Dcqcn(_)) => {
            Some(EcnText { min: 400_000, max: 1_600_000, probability: 0.2 })
        }
        _ => None,
    }
}

/// The value of `cc` in `vary` that selects DCQCN with the window that `base_rtt` gives it. The reference uses the same name. `dcqcn`
/// selects DCQCN as in its paper, without a window.
pub(super) const WINDOWED_DCQCN: &str = "dcqcn_vwin";

/// Parses congestion control in the syntax of `ferroce.toml`. `vary` replaces values of keys. If it selects `auto`, all other keys of
/// `text` are ignored, because `auto` measures these values. With `compat = "hpcc-ns3"`, DCTCP and DCQCN have the parameters of the
/// authors' simulator.
pub(super) fn congestion(
    text: &str,
    vary: &[(String, String)],
    compat: Compat,
    algorithms: &[&'static Registration],
) -> Result<Congestion, String> {
    let mut pairs = split_congestion(text)?;
    // The algorithm comes first, because it discards settings of the scenario, but none of `vary`.
    for (_, value) in vary.iter().filter(|(key, _)| key == "cc") {
        let name = if value == WINDOWED_DCQCN { "dcqcn" } else { value };
        name.clone_into(&mut pairs[0].1);
        match value.as_str() {
            "dcqcn" => pairs.retain(|(key, _)| key != "base_rtt"),
            "auto" => pairs.truncate(1),
            _ => {}
        }
    }
    for (key, value) in vary.iter().filter(|(key, _)| key != "cc") {
        pairs.retain(|(name, _)| name != key);
        pairs.push((key.clone(), value.clone()));
    }
    let name = pairs[0].1.as_str();
    let registered = algorithms.iter().find(|algorithm| algorithm.name == name);
    let algorithm = registered.map(|algorithm| CcName::Registered(algorithm)).or(name.parse().ok());
    if algorithm.is_none() && !name.contains('=') && !algorithms.is_empty() {
        return Err(unknown(name, algorithms));
    }
    // The new algorithm may not have the settings of the replaced one.
    if let Some(algorithm) = algorithm.filter(|_| vary.iter().any(|(key, _)| key == "cc")) {
        pairs.retain(|(key, _)| {
            let setting = CongestionChoice::SETTINGS.iter().find(|setting| key == setting.key);
            setting.is_none_or(|setting| algorithm.uses(setting))
        });
    }
    let choice = CongestionChoice::from_pairs(pairs, algorithms)?;
    let congestion = choice.build().map_err(|error| error.as_words())?;
    let algorithm = match (congestion.algorithm, compat) {
        (AlgorithmConfig::Dctcp(config), Compat::HpccNs3) => {
            let min_rate = config.min_rate;
            let usual = DctcpConfig { min_rate, ..DctcpConfig::simulator(config.base_rtt) };
            AlgorithmConfig::Dctcp(choice.over_dctcp(usual))
        }
        (AlgorithmConfig::Dcqcn(config), Compat::HpccNs3) => {
            let DcqcnConfig { min_rate, base_rtt, .. } = config;
            AlgorithmConfig::Dcqcn(
                choice.over_dcqcn(DcqcnConfig { min_rate, ..DcqcnConfig::simulator(base_rtt) }),
            )
        }
        (algorithm, _) => algorithm,
    };
    Ok(Congestion { algorithm, ..congestion })
}

/// Checks the names of registered algorithms.
///
/// # Errors
/// Returns the first name that cannot be written in a scenario, or that another algorithm has.
pub(super) fn check_names(algorithms: &[&'static Registration]) -> Result<(), String> {
    for (place, name) in algorithms.iter().map(|algorithm| algorithm.name).enumerate() {
        if name.is_empty() || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-') {
            return Err(format!("algorithm '{name}': not a name; use letters, digits and '-'"));
        }
        let is_taken = algorithms[..place].iter().any(|other| other.name == name);
        if is_taken || name.parse::<CcName>().is_ok() {
            return Err(format!("algorithm {name}: another has this name; choose another name"));
        }
    }
    Ok(())
}

fn unknown(name: &str, algorithms: &[&'static Registration]) -> String {
    let names: Vec<_> =
        CcName::all().map(CcName::as_str).chain(algorithms.iter().map(|algorithm| algorithm.name)).collect();
    format!("{name}: no such algorithm; use one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::{CongestionController, Feedback, Rate};
    use std::num::NonZeroU32;

    #[derive(Debug)]
    struct Line(Rate);

    impl CongestionController for Line {
        fn window(&self) -> u64 {
            u64::MAX
        }

        fn pacing_rate(&self) -> Option<Rate> {
            Some(self.0)
        }
    }

    const fn line(name: &'static str, feedback: Feedback) -> Registration {
        Registration {
            name,
            feedback,
            flows: 1,
            keys: &[("additive_increase", "")],
            build: |parameters| Box::new(Line(parameters.hpcc.line_rate)),
        }
    }

    static READS: Registration = line("reads", Feedback::Telemetry);
    static MARKS: Registration = line("marks", Feedback::Marks);
    static WAITS: Registration = line("waits", Feedback::Delay);
    const ALL: [&Registration; 3] = [&READS, &MARKS, &WAITS];

    fn read(text: &str) -> Result<Congestion, String> {
        congestion(text, &[], Compat::Ferroce, &ALL)
    }

    #[test]
    fn a_registered_algorithm_has_the_keys_of_its_feedback() {
        let reads = read("reads,line_rate=100G,base_rtt=5us,flows=10,telemetry=inband").unwrap();
        assert_eq!((reads.algorithm.name(), reads.in_band), ("reads", Some(NonZeroU32::MIN)));
        let increase = reads.algorithm.as_hpcc().map(|config| config.additive_increase);
        assert_eq!(increase, Some(Rate::from_mbps(500)));
        let marks = read("marks,base_rtt=5us,additive_increase=40M").unwrap();
        assert!(marks.algorithm.wants_ecn() && marks.in_band.is_none());
        assert!(read("waits,base_rtt=5us").unwrap().algorithm.is_by_delay());
        for (text, part) in [
            ("cubic", "cubic: no such algorithm; use one of fixed, hpcc"),
            ("cubic", "swift, reads, marks, waits"),
            ("waits,hop_delay=1us", "hop_delay=1us: waits has no use for it, only swift"),
            ("waits,flows=1", "flows=1"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn a_name_is_that_of_one_algorithm() {
        assert_eq!(check_names(&ALL), Ok(()));
        static HPCC: Registration = line("hpcc", Feedback::Delay);
        static TWO: Registration = line("two words", Feedback::Delay);
        for (algorithms, part) in [
            (&[&READS, &READS][..], "algorithm reads: another has this name"),
            (&[&HPCC], "algorithm hpcc: another has this name"),
            (&[&TWO], "algorithm 'two words': not a name"),
        ] {
            let why = check_names(algorithms).unwrap_err();
            assert!(why.starts_with(part), "{why}");
        }
    }
}
