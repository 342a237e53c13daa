//! The flags that select congestion control.

use super::args::Connection;
use crate::completion;
use crate::failure::Failure;
use cc::Parameters;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use std::path::PathBuf;
use verbs::DeviceConfig;
use verbs::congestion::{Congestion, CongestionAlgorithm, CongestionChoice, Format, Reverse, Setting};

/// Flags of congestion control: one per element of [`CongestionChoice::SETTINGS`], and one for the file of the telemetry key.
#[derive(Clone, Debug, Default)]
pub struct CongestionArgs {
    choice: CongestionChoice,
    feedback_key: Option<PathBuf>,
}

const HEADING: &str = "Congestion control (each side its own)";
const FEEDBACK_KEY: &str = "feedback-key";

impl Args for CongestionArgs {
    fn augment_args(command: Command) -> Command {
        let key = Arg::new(FEEDBACK_KEY)
            .long(FEEDBACK_KEY)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help_heading(HEADING)
            .help(
                "Seals answers to telemetry with the key in this file (32 hex digits, mode 0600), and accepts no others \
                 [default: the key in ferroce.toml's feedback_key_file, or in FERROCE_FEEDBACK_KEY, or none]",
            );
        CongestionChoice::SETTINGS.iter().map(flag).fold(command, Command::arg).arg(key)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The key of the flag whose value contains several settings, like `FERROCE_CC` and `ferroce run --cc`.
const LINE: &str = "cc";

fn flag(setting: &'static Setting) -> Arg {
    let Setting { flag, value, help, .. } = setting;
    let (accepts, default) = (setting.accepts(), setting.default());
    let whose = setting.users().map_or_else(String::new, |users| users + ": ");
    let arg = Arg::new(*flag).long(*flag).help_heading(HEADING);
    if value.is_empty() {
        return arg.action(ArgAction::SetTrue).help(format!("{whose}{help}"));
    }
    if setting.key == LINE {
        let check = |text: &str| text.parse::<CongestionChoice>().map(|_| text.to_owned());
        let arg = arg.value_name("NAME[,KEY=VALUE...]").add(completion::congestion());
        return arg.value_parser(check).help(format!(
            "{help} It is {accepts}, followed by keys of a congestion rule: hpcc,line_rate=1G,base_rtt=2ms [default: {default}]"
        ));
    }
    let check = |text: &str| {
        let checked = setting.set(&mut CongestionChoice::default(), text);
        checked.map(|()| text.to_owned()).map_err(|error| error.reason_as_values())
    };
    arg.value_name(*value)
        .value_parser(check)
        .help(format!("{whose}{help} It is {accepts} [default: {default}]"))
}

impl FromArgMatches for CongestionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in CongestionChoice::SETTINGS {
            let text = if setting.value.is_empty() {
                matches.get_flag(setting.flag).then_some("true")
            } else {
                matches.get_one::<String>(setting.flag).map(String::as_str)
            };
            let Some(text) = text else { continue };
            let set = match setting.get(&self.choice) {
                Some(first) => Err(format!(
                    "--{}: {}={first} in --cc sets it, too; leave one of them out",
                    setting.flag, setting.key
                )),
                None if setting.key == LINE => text.parse().map(|choice| self.choice = choice),
                None => setting.set(&mut self.choice, text).map_err(|error| error.as_flags()),
            };
            set.map_err(|wrong| clap::Error::raw(ErrorKind::InvalidValue, wrong))?;
        }
        if let Some(path) = matches.get_one::<PathBuf>(FEEDBACK_KEY) {
            self.feedback_key = Some(path.clone());
        }
        Ok(())
    }
}

impl CongestionArgs {
    /// Returns `config` with the key in the flag's file; unchanged without the flag.
    ///
    /// # Errors
    /// Returns a failure if the file contains no key.
    pub fn with_key(&self, config: DeviceConfig) -> Result<DeviceConfig, Failure> {
        let Some(path) = &self.feedback_key else { return Ok(config) };
        config.feedback_key_file(path).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Returns the congestion control of the flags. `None` leaves the choice to the library and its rules.
    ///
    /// # Errors
    /// Returns a failure if the algorithm does not use a flag or lacks one, or if it cannot pace this type of connection.
    pub fn congestion(&self, connection: Connection) -> Result<Option<Congestion>, Failure> {
        let choice = self.choice;
        if choice.is_empty() {
            return Ok(None);
        }
        let built = match connection {
            Connection::Ud => choice.build_for_datagrams(),
            Connection::Rc | Connection::Uc => choice.build(),
        };
        built.map(Some).map_err(|error| Failure::usage(error.as_flags()))
    }
}

/// Describes congestion control in one line.
pub fn describe(congestion: Option<&Congestion>) -> String {
    let Some(congestion) = congestion else {
        return "as ferroce.toml says, or auto".into();
    };
    let mut said = algorithm(&congestion.algorithm);
    if congestion.unknown.base_rtt {
        said += ", T measured from then on";
    }
    if let Some(every) = congestion.in_band {
        said += &format!(", telemetry in 1 of {every} data packets");
    }
    if let Some(every) = congestion.probe_interval {
        said += &format!(", a probe every {every:?}");
    }
    if congestion.format != Format::Hpcc {
        said += &format!(" as {}", congestion.format);
    }
    if congestion.subscribe {
        said += ", subscribed to direct responses";
    }
    match congestion.reverse {
        Reverse::Ack => {}
        Reverse::Notification => said += ", notifications",
        Reverse::Window => said += ", windows",
    }
    if congestion.all_hops {
        said += " of all hops";
    }
    if let Some(upgrade) = &congestion.upgrade {
        said += &format!("; then {}", algorithm(&upgrade.to));
    }
    if let Some(paths) = &congestion.paths {
        let way = match paths.spray {
            true => "sprayed over".into(),
            false => format!("one probed every {:?}", paths.interval),
        };
        said += &format!(", {} paths, {way}", paths.count);
    }
    said
}

fn algorithm(algorithm: &CongestionAlgorithm) -> String {
    match algorithm {
        CongestionAlgorithm::Fixed { window, rate: None } => format!("fixed window {window} B"),
        CongestionAlgorithm::Fixed { window, rate: Some(rate) } => {
            format!("fixed window {window} B, paced at {rate}")
        }
        CongestionAlgorithm::Dctcp(dctcp) => {
            format!("DCTCP, T {:?}, line rate {}, g {}", dctcp.base_rtt, dctcp.line_rate, dctcp.gain)
        }
        CongestionAlgorithm::Dcqcn(dcqcn) => {
            format!("DCQCN, line rate {}, g {}", dcqcn.line_rate, dcqcn.gain)
        }
        CongestionAlgorithm::Registered(registration, Parameters { hpcc, .. }) => {
            let eta = algorithm.as_hpcc().map(|hpcc| format!(", eta {}", hpcc.target_utilisation));
            let eta = eta.unwrap_or_default();
            format!("{}, T {:?}, line rate {}{eta}", registration.name, hpcc.base_rtt, hpcc.line_rate)
        }
        CongestionAlgorithm::Hpcc(hpcc)
        | CongestionAlgorithm::HpccFair(hpcc)
        | CongestionAlgorithm::HpccReceiver(hpcc) => format!(
            "HPCC++{}, T {:?}, line rate {}, eta {}, maxStage {}, W_AI {}",
            match algorithm {
                CongestionAlgorithm::HpccReceiver(_) => " at the receiver",
                CongestionAlgorithm::HpccFair(_) => ", hpcc-fair",
                _ => "",
            },
            hpcc.base_rtt,
            hpcc.line_rate,
            hpcc.target_utilisation,
            hpcc.max_stage,
            hpcc.additive_increase
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::Rate;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: CongestionArgs,
    }

    fn parse(line: &str) -> Result<Line, clap::Error> {
        Line::try_parse_from(line.split_whitespace())
    }

    fn congestion(flags: &str) -> Result<Option<Congestion>, String> {
        let line = parse(&format!("tool {flags}")).unwrap();
        line.args.congestion(Connection::Rc).map_err(|error| error.to_string())
    }

    #[test]
    fn hpcc_gets_its_additive_increase_from_eta_and_flows() {
        let congestion =
            congestion("--cc hpcc --cc-line-rate 1G --cc-base-rtt 2ms --cc-flows 10").unwrap().unwrap();
        assert_eq!(congestion.probe_interval, Some(Duration::from_millis(2)));
        let CongestionAlgorithm::Hpcc(config) = congestion.algorithm else { panic!("{congestion:?}") };
        assert_eq!(config.additive_increase, Rate::from_mbps(5));
        assert_eq!(config.max_stage, 5);
    }

    #[test]
    fn flags_of_the_other_algorithm_are_refused() {
        for (flags, part) in [
            ("--cc hpcc --cc-window 1", "--cc fixed"),
            ("--cc fixed --cc-eta 0.9", "--cc-eta"),
            ("--cc fixed --cc-flows 2", "--cc hpcc"),
            ("--cc-window 1 --cc-flows 2", "--cc fixed has no use"),
            ("--cc hpcc-rx", "--cc-base-rtt"),
        ] {
            let error = congestion(flags).unwrap_err();
            assert!(error.contains(part), "{flags}: {error}");
        }
        assert_eq!(congestion(""), Ok(None));
    }

    #[test]
    fn algorithms_that_cannot_pace_datagrams_are_refused_by_name() {
        let of = |flags: &str| {
            let args = parse(&format!("tool {flags}")).unwrap().args;
            args.congestion(Connection::Ud).map_err(|error| error.to_string())
        };
        for name in ["hpcc-rx --cc-base-rtt 2ms", "dctcp", "dcqcn", "swift"] {
            let error = of(&format!("--cc {name} --cc-line-rate 1G")).unwrap_err();
            assert!(error.starts_with("--cc ") && error.ends_with("choose auto"), "{error}");
        }
        let error = of("--cc hpcc --format aecn").unwrap_err();
        assert!(error.starts_with("--format aecn: "), "{error}");
        for name in ["fixed", "hpcc", "hpcc-fair", "powertcp", "auto"] {
            assert!(of(&format!("--cc {name}")).is_ok(), "{name}");
        }
    }

    #[test]
    fn one_congestion_line_equals_separate_flags() {
        let line = congestion("--cc hpcc,line_rate=1G,base-rtt=2ms,telemetry=inband:4 --cc-flows 10");
        let flags = "--cc hpcc --cc-line-rate 1G --cc-base-rtt 2ms --telemetry inband:4 --cc-flows 10";
        assert_eq!(line.unwrap().unwrap(), congestion(flags).unwrap().unwrap());
        for (flags, part) in [
            ("--cc hpcc,line_rate=1G --cc-line-rate 2G", "--cc-line-rate: line_rate=1G in --cc sets it, too"),
            ("--cc hpcc,colour=red", "colour: no such key; use one of cc, window, line_rate"),
            ("--cc hpcc,eta=2", "write eta=0.95"),
            ("--cc cubic,eta=0.9", "cubic: not one of fixed"),
        ] {
            let error = parse(&format!("tool {flags}")).unwrap_err().to_string();
            assert!(error.contains(part), "{flags}: {error}");
        }
    }

    #[test]
    fn every_setting_has_its_flag() {
        let flags = "--cc-window 4K --cc-line-rate 1G --cc-base-rtt 2ms --cc-min-rate 1M --cc-eta 0.9 --cc-max-stage 0 --cc-flows 2 \
                     --cc-gain 0.5 --cc-additive-increase 1M --cc-hyper-increase 2M --cc-alpha-interval 1us --cc-decrease-interval 1us \
                     --cc-increase-interval 1us --cc-byte-counter 1M --cc-fast-recovery 5 --cc-hop-delay 1us --cc-flow-delay 1us \
                     --cc-max-rtt 1ms --telemetry probe --feedback ack --all-hops --subscribe --format hpcc --probe-interval 1ms \
                     --paths 2 --spray --ratio-only --feedback-key /nowhere";
        let args = parse(&format!("tool --cc hpcc {flags}")).unwrap().args;
        let missing = CongestionChoice::SETTINGS.iter().find(|setting| setting.get(&args.choice).is_none());
        assert!(missing.is_none() && args.feedback_key.is_some(), "{missing:?}");
    }

    #[test]
    fn the_error_of_a_value_outside_the_limits_states_them() {
        let wrong = parse("tool --cc hpcc --cc-eta 2").unwrap_err().to_string();
        assert!(wrong.contains("'2' for '--cc-eta <SHARE>'"), "{wrong}");
        assert!(wrong.contains("not a share above 0 and at most 1; write 0.95"), "{wrong}");
    }

    #[test]
    fn the_error_of_an_unknown_name_lists_the_known_ones() {
        let wrong = parse("tool --cc cubic").unwrap_err().to_string();
        assert!(wrong.contains("cubic") && wrong.contains("dcqcn"), "{wrong}");
        let wrong = parse("tool --cc hpcc --telemetry inband:0").unwrap_err().to_string();
        assert!(wrong.contains("inband:N"), "{wrong}");
        let wrong = parse("tool --cc hpcc --format ebpf").unwrap_err().to_string();
        assert!(wrong.contains("int-md") && wrong.contains("aecn"), "{wrong}");
        let line = "tool --cc hpcc --telemetry inband:4 --format ioam --subscribe --feedback notification --cc-line-rate 1G --cc-base-rtt 2ms";
        let congestion = parse(line).unwrap().args.congestion(Connection::Uc).unwrap();
        let said = describe(congestion.as_ref());
        assert!(
            said.contains("1 of 4 data packets as ioam, subscribed to direct responses, notifications"),
            "{said}"
        );
    }
}
