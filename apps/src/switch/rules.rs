//! The fault rules of a running switch: the rules of its initial script, with the changes of `ferroce switch ctl`. A scenario of
//! `ferroce sim` has the rules of one script.

use super::faults::{self, Fault, Ports, TELL_APART};
use crate::failure::Failure;
use crate::input;
use datapath::port_spec::PortSpec;
use fabric::FaultRule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The limit on rules. Each frame may be compared with every rule.
const MOST: usize = 256;

/// A script and the name of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// The name of the file, for error messages.
    pub file: String,
    /// The content of the file.
    pub text: String,
}

impl Script {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be read.
    pub fn open(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let text = input::text(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
        Ok(Self { file: name, text })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The file of the script.
    pub file: String,
    /// The rule. Its times count from the start of the switch.
    pub fault: Fault,
}

/// The running rules. A change creates a new set, so that a refused change has no effect.
#[derive(Clone, Debug)]
pub struct Rules {
    ports: Vec<PortSpec>,
    running: Vec<Running>,
    /// The number of names generated so far.
    unnamed: u32,
}

impl Rules {
    /// Creates an empty set for a switch with these ports. A scenario has none of them.
    pub fn none(ports: &[PortSpec]) -> Self {
        Self { ports: ports.to_vec(), running: Vec::new(), unnamed: 0 }
    }

    /// Returns the rules in the order in which they were added.
    pub fn running(&self) -> &[Running] {
        &self.running
    }

    /// Returns the rules as the type that [`Switch`](fabric::Switch) uses.
    pub fn for_switch(&self) -> Vec<FaultRule> {
        self.running.iter().map(|running| running.fault.rule.clone()).collect()
    }

    /// Returns these rules and those of `script`, whose times count from `now`, the time since the start of the switch.
    ///
    /// # Errors
    /// Returns the file, the line and the mistake if the script is wrong or conflicts with a running rule.
    pub fn with(&self, script: &Script, now: Duration) -> Result<Self, String> {
        self.with_ports(script, now, &|name| faults::port(name, &self.ports))
    }

    /// Returns these rules and those of a script whose ports have other names; see [`with`](Self::with).
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn with_ports(&self, script: &Script, now: Duration, ports: &Ports<'_>) -> Result<Self, String> {
        let wrong = |line: usize, reason: String| format!("{}, line {line}: {reason}", script.file);
        let read = faults::read(&script.text, ports).map_err(|(line, reason)| wrong(line, reason))?;
        let given: BTreeSet<_> = read.iter().map(|fault| fault.rule.name.clone()).collect();
        let mut rules = self.clone();
        for mut fault in read {
            let line = fault.line;
            if rules.running.len() == MOST {
                return Err(wrong(line, format!("at most {MOST} faults run at the same time; remove some")));
            }
            fault.rule.after = fault.rule.after.saturating_add(now);
            fault.rule.until = fault.rule.until.map(|until| until.saturating_add(now));
            if fault.rule.name.is_empty() {
                fault.rule.name = rules.name(&given);
            } else if rules.find(&fault.rule.name).is_some() {
                let name = &fault.rule.name;
                let reason = format!("name = {name:?}: another fault has this name; write another name");
                return Err(wrong(line, reason));
            }
            if let Some(other) = self.running.iter().find(|other| other.fault.rule.overlaps(&fault.rule)) {
                let other = &other.fault.rule.name;
                let reason = format!(
                    "this fault and the running fault {other} match the same packets; {TELL_APART}, or remove {other}"
                );
                return Err(wrong(line, reason));
            }
            rules.running.push(Running { file: script.file.clone(), fault });
        }
        Ok(rules)
    }

    /// Returns the rules of `script` alone; see [`with`](Self::with).
    ///
    /// # Errors
    /// Returns the file, the line and the mistake if the script is wrong.
    pub fn replaced(&self, script: &Script, now: Duration) -> Result<Self, String> {
        Self { running: Vec::new(), ..self.clone() }.with(script, now)
    }

    /// Returns these rules without the rule `name`.
    ///
    /// # Errors
    /// Returns the existing names if no rule has this name.
    pub fn without(&self, name: &str) -> Result<Self, String> {
        let Some(place) = self.find(name) else {
            let names: Vec<_> = self.running.iter().map(|running| running.fault.rule.name.as_str()).collect();
            return Err(match names[..] {
                [] => format!("{name}: no faults are running, so none can be removed"),
                _ => format!("{name}: no running fault has this name; name one of {}", names.join(", ")),
            });
        };
        let mut rules = self.clone();
        rules.running.remove(place);
        Ok(rules)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.running.iter().position(|running| running.fault.rule.name == name)
    }

    /// Returns a name that no rule has, and that is not in `given`, the names in the script.
    fn name(&mut self, given: &BTreeSet<String>) -> String {
        loop {
            self.unnamed = self.unnamed.wrapping_add(1);
            let name = format!("fault-{}", self.unnamed);
            if self.find(&name).is_none() && !given.contains(&name) {
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    fn script(text: &str) -> Script {
        Script { file: "f.toml".into(), text: text.into() }
    }

    fn names(rules: &Rules) -> Vec<&str> {
        rules.running().iter().map(|running| running.fault.rule.name.as_str()).collect()
    }

    fn started(text: &str) -> Rules {
        let ports = ["a", "b"].map(|name| PortSpec::Interface(name.into()));
        Rules::none(&ports).with(&script(text), Duration::ZERO).unwrap()
    }

    #[test]
    fn rules_come_go_and_are_replaced_by_name() {
        let rules = started("[[fault]]\nname = 'one'\nqp = 1\naction = 'drop'");
        let rules = rules.with(&script("[[fault]]\nqp = 2\nuntil = '3s'\naction = 'pause'"), NOW).unwrap();
        assert_eq!(names(&rules), ["one", "fault-1"]);
        let paused = &rules.for_switch()[1];
        assert_eq!((paused.after, paused.until), (NOW, Some(Duration::from_secs(13))));
        assert_eq!(names(&rules.without("one").unwrap()), ["fault-1"]);
        let replaced = rules.replaced(&script("[[fault]]\nqp = 1\naction = 'drop'"), NOW).unwrap();
        assert_eq!(names(&replaced), ["fault-2"]);
        assert_eq!(names(&replaced.replaced(&script(""), NOW).unwrap()), [""; 0]);
    }

    #[test]
    fn a_generated_name_is_none_that_the_script_gives_later() {
        let rules = started(
            "[[fault]]\nqp = 1\naction = 'drop'\n[[fault]]\nname = 'fault-1'\nqp = 2\naction = 'drop'",
        );
        assert_eq!(names(&rules), ["fault-2", "fault-1"]);
    }

    #[test]
    fn a_fault_that_has_ended_does_not_conflict_with_a_new_one() {
        let rules = started("[[fault]]\nuntil = '9s'\naction = 'black-hole'");
        let again = script("[[fault]]\nuntil = '9s'\naction = 'drop'");
        assert!(rules.with(&again, NOW).is_ok());
        assert!(rules.with(&again, Duration::from_secs(8)).is_err());
    }

    #[test]
    fn a_refused_change_names_file_line_and_remedy() {
        let rules = started("[[fault]]\nname = 'one'\nqp = 1\naction = 'drop'");
        let many = (0..MOST).map(|qp| format!("[[fault]]\nqp = {}\naction = 'drop'\n", qp + 2));
        for (text, says) in [
            (
                "[[fault]]\npsn = 4\naction = 'drop'",
                "f.toml, line 2: this fault and the running fault one match the same",
            ),
            (
                "[[fault]]\nname = 'one'\nqp = 2\naction = 'drop'",
                "f.toml, line 2: name = \"one\": another fault",
            ),
            (
                "[[fault]]\nport = 'c'\naction = 'drop'",
                "f.toml, line 2: port = \"c\": not a port of this switch",
            ),
            (
                &many.collect::<String>(),
                "f.toml, line 767: at most 256 faults run at the same time; remove some",
            ),
        ] {
            let error = rules.with(&script(text), NOW).unwrap_err();
            assert!(error.starts_with(says), "{text}: {error}");
        }
        assert_eq!(rules.without("two").unwrap_err(), "two: no running fault has this name; name one of one");
        let none = rules.without("one").unwrap();
        assert_eq!(none.without("one").unwrap_err(), "one: no faults are running, so none can be removed");
    }
}
