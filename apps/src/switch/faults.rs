//! Parses a script of faults for `ferroce switch --faults FILE` and `ferroce switch ctl`.
//!
//! The whole script is checked before any rule is used. An error contains the line, the key and its value, the mistake, and a remedy.

use crate::units;
use datapath::port_spec::PortSpec;
use fabric::{FaultAction, FaultRule, Opcodes, PortId, Probability};
use roce::Qpn;
use roce::wire::Opcode;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::{Spanned, Value};
use verbs::errors::{line_of, with_remedy};

/// The largest QPN and PSN, which have 24 bits.
const MOST: u32 = (1 << 24) - 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    fault: Vec<Spanned<BTreeMap<Spanned<String>, Value>>>,
}

/// The offset of a mistake in the file, bytes, and its description.
type Wrong = (usize, String);

/// A rule and its position in the script.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The line of the first key.
    pub line: usize,
    /// The keys and values as written.
    pub keys: BTreeMap<String, String>,
    /// The rule. Its name is empty if the script has none.
    pub rule: FaultRule,
}

/// A function that returns the port with this name, or the reason why there is none.
pub type Ports<'a> = dyn Fn(&str) -> Result<PortId, String> + 'a;

/// Parses the rules of a script.
///
/// # Errors
/// Returns the line of the first mistake and its description.
pub fn read(text: &str, ports: &Ports<'_>) -> Result<Vec<Fault>, (usize, String)> {
    let line = |offset: usize| line_of(text, offset);
    let file: File = toml::from_str(text)
        .map_err(|error| (line(error.span().map_or(0, |span| span.start)), with_remedy(error.message())))?;
    let mut faults: Vec<Fault> = Vec::new();
    for table in &file.fault {
        let first = table.get_ref().keys().map(|key| key.span().start).min();
        let start = first.unwrap_or(table.span().start);
        let rule = Draft::of(table.get_ref(), ports)
            .and_then(|draft| draft.rule(start))
            .map_err(|(offset, reason)| (line(offset), reason))?;
        if let Some(Fault { line: other, .. }) = faults.iter().find(|earlier| earlier.rule.overlaps(&rule)) {
            let reason =
                format!("this fault and the one at line {other} match the same packets; {TELL_APART}");
            return Err((line(start), reason));
        }
        let keys = table.get_ref().iter().map(|(key, value)| (key.get_ref().clone(), written(value)));
        faults.push(Fault { line: line(start), keys: keys.collect(), rule });
    }
    Ok(faults)
}

/// The remedy for two faults that match the same packets.
pub const TELL_APART: &str = "distinguish them by port, time, qp, opcode, psn or udp_source";

fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The parsed keys of a rule, with their offsets in the file, before they are checked against each other.
struct Draft {
    rule: FaultRule,
    action: Option<String>,
    time: Option<Duration>,
    rate: Option<cc::Rate>,
    span: Option<u32>,
    good_icrc: Option<bool>,
    places: BTreeMap<String, usize>,
}

impl Draft {
    fn of(table: &BTreeMap<Spanned<String>, Value>, ports: &Ports<'_>) -> Result<Self, Wrong> {
        let mut draft = Self {
            rule: FaultRule::of(FaultAction::Drop),
            action: None,
            time: None,
            rate: None,
            span: None,
            good_icrc: None,
            places: BTreeMap::new(),
        };
        for (key, value) in table {
            let text = written(value);
            let (name, offset) = (key.get_ref(), key.span().start);
            draft.set(name, &text, ports).map_err(|reason| (offset, reason))?;
            draft.places.insert(name.clone(), offset);
        }
        Ok(draft)
    }

    fn set(&mut self, key: &str, text: &str, ports: &Ports<'_>) -> Result<(), String> {
        let Self { rule, .. } = self;
        let not = |accepts: &str, example: &str| {
            format!("{key} = {text:?}: not {accepts}; write {key} = {example}")
        };
        let time = || units::duration(text).map_err(|_| not("a time with its unit", "\"20ms\""));
        let number = |most: u32| number(text).filter(|&number| number <= most);
        let address = || text.parse().map_err(|_| not("an IP address", "\"10.0.0.1\""));
        match key {
            "name" => {
                let accepts = "1 to 64 letters, digits and hyphens, a letter first";
                rule.name = name(text).ok_or_else(|| not(accepts, "\"lost-acks\""))?;
            }
            "port" => rule.port = Some(ports(text)?),
            "after" => rule.after = time()?,
            "until" => rule.until = Some(time()?),
            "qp" => {
                let qp: Qpn = text.parse().map_err(|_| not("a number from 0 to 0xffffff", "0x000011"))?;
                rule.qp = Some(qp.get());
            }
            "opcode" => {
                let accepts = "a number from 0 to 255 or the name of an opcode";
                rule.opcodes =
                    Some(opcodes(text).ok_or_else(|| not(accepts, "\"rdma-write-only\" or 0x0a"))?);
            }
            "psn" => {
                rule.psns = Some(psns(text).ok_or_else(|| {
                    not(
                        "a PSN or a range of PSNs from 0 to 0xffffff, the first not above the last",
                        "\"100..199\"",
                    )
                })?);
            }
            "source" => rule.source = Some(address()?),
            "destination" => rule.destination = Some(address()?),
            "udp_source" => {
                let port = text.parse().map_err(|_| not("a UDP port from 0 to 65535", "49152"))?;
                rule.udp_source = Some(port);
            }
            "longer_than" => {
                rule.longer_than = Some(text.parse().map_err(|_| not("a number of bytes", "1514"))?);
            }
            "probability" => {
                let read = text.parse().ok().and_then(Probability::new);
                rule.probability = read.ok_or_else(|| not("a number from 0 to 1", "0.01"))?;
            }
            "count" => rule.count = Some(text.parse().map_err(|_| not("a number from 0", "3"))?),
            "action" => self.action = Some(text.to_owned()),
            "time" => self.time = Some(time()?),
            "rate" => {
                self.rate = Some(units::rate(text).map_err(|_| not("a rate with its unit", "\"10M\""))?)
            }
            "span" => {
                let span = number(64).filter(|&span| span > 0);
                self.span = Some(span.ok_or_else(|| not("a number from 1 to 64", "3"))?);
            }
            "icrc" => match text {
                "good" => self.good_icrc = Some(true),
                "bad" => self.good_icrc = Some(false),
                _ => return Err(not("good or bad", "\"bad\"")),
            },
            _ => return Err(format!("{key}: no such key; a fault has {}", KEYS.join(", "))),
        }
        Ok(())
    }

    /// Returns the rule after checks that its keys suit its action.
    fn rule(mut self, start: usize) -> Result<FaultRule, Wrong> {
        let place = |key: &str| self.places.get(key).copied();
        if let Some(until) = self.rule.until.filter(|until| *until <= self.rule.after) {
            let (after, reason) = (self.rule.after, "not later than its begin; write a later time");
            return Err((
                place("until").unwrap_or(start),
                format!("until = {until:?}: {reason} than {after:?}"),
            ));
        }
        let action = self.action.as_deref().unwrap_or_default();
        let Some((_, needs, takes)) = ACTIONS.iter().find(|(name, ..)| *name == action) else {
            let names = ACTIONS.map(|(name, ..)| name).join(", ");
            let reason = match &self.action {
                Some(action) => format!("action = {action:?}: not one of {names}; write action = \"drop\""),
                None => format!("action: missing; write action = \"drop\", or another of {names}"),
            };
            return Err((place("action").unwrap_or(start), reason));
        };
        if let Some(needs) = needs.iter().find(|key| place(key).is_none()) {
            return Err((start, format!("action = {action:?}: needs {needs}; add it")));
        }
        let of_actions = ["time", "rate", "span", "icrc", "probability", "count"];
        let useless = of_actions
            .iter()
            .find(|key| place(key).is_some() && !needs.contains(key) && !takes.contains(key));
        if let Some(key) = useless {
            let reason = format!("{key}: action = {action:?} does not use it; leave it out");
            return Err((place(key).unwrap_or(start), reason));
        }
        self.rule.action = match action {
            "duplicate" => FaultAction::Duplicate,
            "delay" => FaultAction::Delay(self.time.unwrap_or_default()),
            "reorder" => FaultAction::Reorder(self.span.unwrap_or(3)),
            "corrupt" => FaultAction::Corrupt { good_icrc: self.good_icrc.unwrap_or(false) },
            "pause" => FaultAction::Pause,
            "rate" => FaultAction::Rate(self.rate.unwrap_or(cc::Rate::from_gbps(1))),
            _ => FaultAction::Drop,
        };
        Ok(self.rule)
    }
}

/// All keys of a fault, for the error message.
const KEYS: [&str; 18] = [
    "name",
    "port",
    "after",
    "until",
    "qp",
    "opcode",
    "psn",
    "source",
    "destination",
    "udp_source",
    "longer_than",
    "probability",
    "count",
    "action",
    "time",
    "rate",
    "span",
    "icrc",
];

/// Each action with its required and its optional keys.
const ACTIONS: [(&str, &[&str], &[&str]); 8] = [
    ("drop", &[], &["probability", "count"]),
    ("duplicate", &[], &["probability", "count"]),
    ("delay", &["time"], &["probability", "count"]),
    ("reorder", &[], &["span", "probability", "count"]),
    ("corrupt", &[], &["icrc", "probability", "count"]),
    ("pause", &["until"], &[]),
    ("rate", &["rate"], &[]),
    ("black-hole", &[], &[]),
];

/// Returns the port of a switch with `ports` that has this name.
///
/// # Errors
/// Returns the names that exist.
pub fn port(text: &str, ports: &[PortSpec]) -> Result<PortId, String> {
    let found = ports.iter().position(|port| port.to_string() == text);
    found.map(|place| PortId(place as u16)).ok_or_else(|| {
        let names: Vec<_> = ports.iter().map(PortSpec::to_string).collect();
        format!("port = {text:?}: not a port of this switch; write one of {}", names.join(", "))
    })
}

/// Returns `text` if it is a legal name: 1 to 64 letters, digits and hyphens, the first a letter.
fn name(text: &str) -> Option<String> {
    let fits = text.len() <= 64
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    fits.then(|| text.to_owned())
}

/// Parses `17` or `0x11`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses `7` or `100..199`, which includes both ends.
fn psns(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last <= MOST).then_some(first..=last)
}

/// Parses an opcode: a number such as `0x0a`, or the operation's name in the specification, such as `rdma-write-only`, which selects the
/// opcodes of all services.
fn opcodes(text: &str) -> Option<Opcodes> {
    let number = number(text);
    let named =
        |code: Opcode| code.shape().is_some_and(|shape| shape.name.to_lowercase().replace(' ', "-") == text);
    let set = Opcodes::of(|code| number.map_or_else(|| named(code), |number| u32::from(code.0) == number));
    (!set.is_empty()).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<FaultRule>, String> {
        let ports = ["a", "b"].map(|name| PortSpec::Interface(name.into()));
        let faults = super::read(text, &|name| port(name, &ports))
            .map_err(|(line, reason)| format!("line {line}: {reason}"))?;
        Ok(faults.into_iter().map(|fault| fault.rule).collect())
    }

    #[test]
    fn a_queue_pair_is_named_in_either_base() {
        for qp in ["18", "0x12", "'18'", "'0x000012'"] {
            let rules = read(&format!("[[fault]]\nqp = {qp}\naction = 'drop'")).unwrap();
            assert_eq!(rules[0].qp, Some(18), "{qp}");
        }
    }

    #[test]
    fn a_script_is_parsed_into_the_rules() {
        let text = "
[[fault]]
port = 'b'
after = '100ms'
until = '200ms'
qp = 0x11
opcode = 'rdma-write-only'
psn = '100..199'
source = '10.0.0.1'
destination = '10.0.0.2'
udp_source = 49152
longer_than = 1514
probability = 0.5
count = 3
action = 'corrupt'
icrc = 'good'

[[fault]]
port = 'a'
until = '1s'
action = 'pause'
";
        let rules = read(text).unwrap();
        let rule = &rules[0];
        assert_eq!((rule.port, rule.qp, rule.udp_source), (Some(PortId(1)), Some(17), Some(49152)));
        assert_eq!((rule.psns.clone(), rule.count), (Some(100..=199), Some(3)));
        assert_eq!(rule.longer_than, Some(1514));
        let opcodes = rule.opcodes.unwrap();
        assert!(opcodes.contains(Opcode(0x0a)) && opcodes.contains(Opcode(0x2a)));
        assert!(!opcodes.contains(Opcode(0x0b)));
        assert_eq!(rule.action, FaultAction::Corrupt { good_icrc: true });
        assert_eq!(rules[1].action, FaultAction::Pause);
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn the_example_of_the_reference_is_a_script() {
        let page = include_str!("../../../docs/reference/faults.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let ports = ["s0", "s1"].map(|name| PortSpec::Interface(name.into()));
        assert_eq!(super::read(example, &|name| port(name, &ports)).unwrap().len(), 3);
        for (action, ..) in ACTIONS {
            assert!(page.contains(&format!("| `{action}` |")), "{action}");
        }
        for key in KEYS {
            assert!(page.contains(&format!("`{key}`")), "{key}");
        }
    }

    #[test]
    fn the_scenarios_are_scripts_of_faults_that_bear_their_names() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fabric/scenarios/faults");
        let mut scenarios = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let faults = super::read(&text, &|name| port(name, &[])).unwrap();
            assert_eq!(faults[0].rule.name, path.file_stem().unwrap().to_str().unwrap());
            assert!(text.contains("\n# traffic: "), "{}", path.display());
            scenarios += 1;
        }
        assert!(scenarios >= 10, "{scenarios}");
    }

    #[test]
    fn an_error_in_a_script_names_its_line_and_the_remedy() {
        for (text, says) in [
            ("colour = 1", "line 1: no key `colour`"),
            (
                "[[fault]]\naction = 'drop'\ncolour = 1",
                "line 3: colour: no such key; a fault has name, port, after",
            ),
            ("[[fault]]\naction = 'burn'", "line 2: action = \"burn\": not one of drop, duplicate"),
            ("[[fault]]\nqp = 1", "line 2: action: missing"),
            ("[[fault]]\naction = 'drop'\nname = '7 of 9'", "line 3: name = \"7 of 9\": not 1 to 64 letters"),
            (
                "[[fault]]\naction = 'drop'\nport = 'c'",
                "line 3: port = \"c\": not a port of this switch; write one of a, b",
            ),
            ("[[fault]]\naction = 'drop'\npsn = '9..3'", "line 3: psn = \"9..3\": not a PSN or a range"),
            ("[[fault]]\naction = 'drop'\npsn = '0..0x1000000'", "line 3: psn"),
            (
                "[[fault]]\naction = 'drop'\nqp = 16777216",
                "line 3: qp = \"16777216\": not a number from 0 to 0xffffff",
            ),
            ("[[fault]]\naction = 'drop'\nopcode = 'write'", "line 3: opcode = \"write\": not a number"),
            ("[[fault]]\naction = 'drop'\nopcode = 256", "line 3: opcode"),
            (
                "[[fault]]\naction = 'drop'\nprobability = 1.5",
                "line 3: probability = \"1.5\": not a number from 0 to 1",
            ),
            ("[[fault]]\naction = 'drop'\nsource = 'host'", "line 3: source = \"host\": not an IP address"),
            ("[[fault]]\naction = 'drop'\nafter = '2s'\nuntil = '1s'", "line 4: until = 1s: not later"),
            ("[[fault]]\naction = 'delay'", "line 2: action = \"delay\": needs time"),
            (
                "[[fault]]\naction = 'delay'\ntime = 'soon'",
                "line 3: time = \"soon\": not a time with its unit",
            ),
            ("[[fault]]\naction = 'drop'\ntime = '1ms'", "line 3: time: action = \"drop\" does not use it"),
            (
                "[[fault]]\naction = 'black-hole'\ncount = 1",
                "line 3: count: action = \"black-hole\" does not use it",
            ),
            ("[[fault]]\naction = 'pause'", "line 2: action = \"pause\": needs until"),
            ("[[fault]]\naction = 'corrupt'\nicrc = 'odd'", "line 3: icrc = \"odd\": not good or bad"),
            ("[[fault]]\naction = 'reorder'\nspan = 0", "line 3: span = \"0\": not a number from 1 to 64"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(says), "{text}: {error}");
        }
    }

    #[test]
    fn faults_that_fit_the_same_packets_are_refused() {
        let two = |first: &str, second: &str| {
            read(&format!("[[fault]]\naction = 'drop'\n{first}\n[[fault]]\naction = 'duplicate'\n{second}\n"))
        };
        let error = two("qp = 1", "psn = 5").unwrap_err();
        assert!(
            error.starts_with("line 5: this fault and the one at line 2 match the same packets"),
            "{error}"
        );
        for (first, second) in [
            ("qp = 1", "qp = 2"),
            ("psn = '0..4'", "psn = '5..9'"),
            ("port = 'a'", "port = 'b'"),
            ("until = '1s'", "after = '1s'"),
            ("opcode = 'acknowledge'", "opcode = 'send-only'"),
            ("source = '10.0.0.1'", "source = '10.0.0.2'"),
        ] {
            assert!(two(first, second).is_ok(), "{first} and {second}");
            assert!(two(first, first).is_err(), "{first} twice");
        }
    }
}
