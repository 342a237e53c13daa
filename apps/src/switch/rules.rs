//! The rules of faults that a switch runs: those of the script at its start, as `ferroce switch ctl` changes them.

use super::faults::{self, Fault, TELL_APART};
use crate::failure::Failure;
use crate::input;
use datapath::port_spec::PortSpec;
use fabric::FaultRule;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Every frame may meet every rule, so they are few.
const MOST: usize = 256;

/// A script, and the name of the file that it was read from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// The name in error messages.
    pub file: String,
    /// The file's content.
    pub text: String,
}

impl Script {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns a failure if the file can't be read.
    pub fn open(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let text = input::text(file)
            .map_err(|error| Failure::usage(format!("{name}: {error}; name a readable file of faults")))?;
        Ok(Self { file: name, text })
    }
}

/// A rule that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The file that it came from.
    pub file: String,
    /// The rule, its times counted since the switch began.
    pub fault: Fault,
}

/// The rules that run. A change creates new ones, so that a refused change leaves these as they are.
#[derive(Clone, Debug)]
pub struct Rules {
    ports: Vec<PortSpec>,
    running: Vec<Running>,
    /// Rules without a name so far.
    unnamed: u32,
}

impl Rules {
    /// None, for a switch with these ports.
    pub fn none(ports: &[PortSpec]) -> Self {
        Self { ports: ports.to_vec(), running: Vec::new(), unnamed: 0 }
    }

    /// The rules in their order.
    pub fn running(&self) -> &[Running] {
        &self.running
    }

    /// The same for the switch.
    pub fn for_switch(&self) -> Vec<FaultRule> {
        self.running.iter().map(|running| running.fault.rule.clone()).collect()
    }

    /// These and those of `script`, whose times count from `now`, which itself counts from the switch's begin.
    ///
    /// # Errors
    /// Returns file, line and what is wrong there if the script is wrong, or clashes with a rule that runs.
    pub fn with(&self, script: &Script, now: Duration) -> Result<Self, String> {
        let wrong = |line: usize, reason: String| format!("{}, line {line}: {reason}", script.file);
        let read = faults::read(&script.text, &self.ports).map_err(|(line, reason)| wrong(line, reason))?;
        let mut rules = self.clone();
        for mut fault in read {
            let line = fault.line;
            if rules.running.len() == MOST {
                return Err(wrong(line, format!("a switch runs at most {MOST} faults; remove some first")));
            }
            fault.rule.after = fault.rule.after.saturating_add(now);
            fault.rule.until = fault.rule.until.map(|until| until.saturating_add(now));
            if fault.rule.name.is_empty() {
                fault.rule.name = rules.name();
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

    /// Those of `script` alone; see [`with`](Self::with).
    ///
    /// # Errors
    /// Returns file, line and what is wrong there if the script is wrong.
    pub fn replaced(&self, script: &Script, now: Duration) -> Result<Self, String> {
        Self { running: Vec::new(), ..self.clone() }.with(script, now)
    }

    /// These without the one of that name.
    ///
    /// # Errors
    /// Returns the names that there are if this is none of them.
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

    /// The name of a rule that has none.
    fn name(&mut self) -> String {
        loop {
            self.unnamed = self.unnamed.wrapping_add(1);
            let name = format!("fault-{}", self.unnamed);
            if self.find(&name).is_none() {
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
    fn what_has_ended_is_in_the_way_of_none() {
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
            (&many.collect::<String>(), "f.toml, line 767: a switch runs at most 256 faults; remove some"),
        ] {
            let error = rules.with(&script(text), NOW).unwrap_err();
            assert!(error.starts_with(says), "{text}: {error}");
        }
        assert_eq!(rules.without("two").unwrap_err(), "two: no running fault has this name; name one of one");
        let none = rules.without("one").unwrap();
        assert_eq!(none.without("one").unwrap_err(), "one: no faults are running, so none can be removed");
    }
}
